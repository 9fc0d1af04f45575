// docs/gqa.md shows which path serves a node; it must be what the engines answer.
#include "tools/attention_paths.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace heddle::tools {
namespace {

TEST(AttentionPaths, TheirTablesAreThoseOfTheDocument) {
  std::ifstream file(HEDDLE_SOURCE_DIR "/docs/gqa.md");
  std::stringstream page;
  page << file.rdbuf();
  const Result<std::string> tables = attention_path_tables();
  ASSERT_TRUE(tables.is_ok()) << tables.status().message();
  EXPECT_NE(page.str().find("\n" + *tables), std::string::npos)
      << "docs/gqa.md is to have what `heddle doctor --paths` prints:\n\n"
      << *tables;
}

}  // namespace
}  // namespace heddle::tools
