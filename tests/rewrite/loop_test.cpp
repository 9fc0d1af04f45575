// Indices of loops, as far as their types hold them.
#include "rewrite/loop.h"

#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

/// A loop of so many iterations that copies row `index` of a stack, made of the induction variable
/// i by `made`.
std::string loop_text(int trips, const std::string& made) {
  return fmt::format(R"(HloModule loop

condition {{
  state = (s32[], f32[{0},4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant({0})
  ROOT goes_on = pred[] compare(i, limit), direction=LT
}}

body {{
  state = (s32[], f32[{0},4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  stack = f32[{0},4] get-tuple-element(state), index=1
  zero = s32[] constant(0)
{1}  row = f32[1,4] dynamic-slice(stack, index, zero), dynamic_slice_sizes={{1,4}}
  changed = f32[{0},4] dynamic-update-slice(stack, row, index, zero)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT after = (s32[], f32[{0},4]) tuple(next, changed)
}}

ENTRY main {{
  stack = f32[{0},4] parameter(0)
  zero = s32[] constant(0)
  before = (s32[], f32[{0},4]) tuple(zero, stack)
  ROOT done = (s32[], f32[{0},4]) while(before), condition=condition, body=body
}}
)",
                     trips, made);
}

int direction_of(int trips, const std::string& made) {
  const auto module = parsed(loop_text(trips, made));
  if (!module) return -2;
  const hlo::Instruction* loop = module->entry()->root();
  const auto count = rewrite::counted(loop);
  EXPECT_TRUE(count);
  return rewrite::direction(loop, *count, loop->body()->find("row")->operand(1));
}

TEST(Loops, IndicesThatWrapAreNone) {
  const std::string bytes = "  byte = s8[] convert(i)\n  index = s32[] convert(byte)\n";
  EXPECT_EQ(direction_of(100, bytes), 1);
  EXPECT_EQ(direction_of(128, bytes), 1);
  EXPECT_EQ(direction_of(129, bytes), 0);
  const std::string nibbles = "  nibble = {} convert(i)\n  index = s32[] convert(nibble)\n";
  EXPECT_EQ(direction_of(8, fmt::format(fmt::runtime(nibbles), "s4[]")), 1);
  EXPECT_EQ(direction_of(9, fmt::format(fmt::runtime(nibbles), "s4[]")), 0);
  EXPECT_EQ(direction_of(16, fmt::format(fmt::runtime(nibbles), "u4[]")), 1);
  EXPECT_EQ(direction_of(17, fmt::format(fmt::runtime(nibbles), "u4[]")), 0);
  const std::string backwards =
      "  last = s32[] constant({})\n  back = s32[] subtract(last, i)\n"
      "  byte = u8[] convert(back)\n  index = s32[] convert(byte)\n";
  EXPECT_EQ(direction_of(256, fmt::format(fmt::runtime(backwards), 255)), -1);
  EXPECT_EQ(direction_of(257, fmt::format(fmt::runtime(backwards), 256)), 0);
  EXPECT_EQ(direction_of(9, "  float = f32[] convert(i)\n  index = s32[] convert(float)\n"), 0);
}

// 300 as a byte is 44.
TEST(Loops, NumbersThatWrapAreNotRead) {
  const std::string made =
      "  many = s32[] constant(256)\n  none = u8[] convert(many)\n"
      "  nothing = s32[] convert(none)\n  index = s32[] add(i, nothing)\n";
  EXPECT_EQ(direction_of(9, made), 0);
}

// Each operand of an index is looked at a few times, not as often as there are ways to it.
TEST(Loops, IndicesOfManyOperationsAreLeftAlone) {
  std::string made = "  d0 = s32[] add(i, zero)\n";
  for (int k = 1; k < 64; ++k)
    made += fmt::format("  d{} = s32[] add(d{}, d{})\n", k, k - 1, k - 1);
  EXPECT_EQ(direction_of(9, made + "  index = s32[] add(d63, zero)\n"), 0);
}

}  // namespace
}  // namespace heddle::testing
