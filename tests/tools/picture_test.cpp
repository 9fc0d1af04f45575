// Pictures of what changed, as Graphviz text.
#include "tools/picture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/devices.h"
#include "tools/fused_module.h"

namespace heddle::tools {
namespace {

std::string drawing_of(const std::string& name) {
  std::ifstream file(HEDDLE_TEST_DATA "/hlo/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  const auto module = fuse_text(text.str(), name, engine::engines(engine::Device::cpu));
  EXPECT_TRUE(module.is_ok()) << module.status().message();
  const auto drawing = before_and_after(*module);
  EXPECT_TRUE(drawing.is_ok()) << drawing.status().message();
  return *drawing;
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(Picture, LabelsForwardsAndBackwards) {
  const std::string drawing = drawing_of("gpt_checkpoint_f32.hlo");
  EXPECT_EQ(count(drawing, "heddle\\nattention forward"), 2);
  EXPECT_EQ(count(drawing, "heddle\\nattention backward"), 1);
  EXPECT_EQ(count(drawing, "subgraph"), 4);
  // The softmax as it was, once in each of the two loops.
  EXPECT_EQ(count(drawing, "exponential"), 2);
}

TEST(Picture, ShowsOneOfEqualLayers) {
  const std::string drawing = drawing_of("forms/layers_unrolled.hlo");
  EXPECT_EQ(count(drawing, "main.16 (2 of 6 calls), "), 2);  // before and after
  EXPECT_EQ(count(drawing, "heddle\\nattention forward"), 1);
  EXPECT_EQ(count(drawing, "heddle\\nattention backward"), 1);
  // Of three layers: the forward's, and the last one's, where the backward begins.
  EXPECT_EQ(count(drawing, "exponential"), 2);
}

}  // namespace
}  // namespace heddle::tools
