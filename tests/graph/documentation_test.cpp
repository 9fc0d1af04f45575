// The text form's documentation shows a graph; it must be one.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "graph/names.h"
#include "graph/text.h"
#include "graph/validate.h"

namespace heddle::graph {
namespace {

std::string documentation() {
  std::ifstream file(HEDDLE_SOURCE_DIR "/docs/graph-text-form.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Documentation, ItsExampleIsAValidGraph) {
  const std::string page = documentation();
  const size_t begin = page.find("```json\n") + 8;
  const std::string example = page.substr(begin, page.find("```", begin) - begin);
  Result<Graph> graph = read_text(example);
  ASSERT_TRUE(graph.is_ok()) << graph.status().message();
  const Status status = validate(*graph);
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(Documentation, NamesEveryPointwiseOpAndDataType) {
  const std::string page = documentation();
  for (int mode = 0; mode <= static_cast<int>(PointwiseMode::gen_index); ++mode) {
    const std::string_view op = name(static_cast<PointwiseMode>(mode));
    EXPECT_NE(page.find(op), std::string::npos) << op;
  }
  for (int type = 0; type <= static_cast<int>(DataType::boolean); ++type) {
    const std::string_view spelling = heddle::name(static_cast<DataType>(type));
    EXPECT_NE(page.find(spelling), std::string::npos) << spelling;
  }
}

}  // namespace
}  // namespace heddle::graph
