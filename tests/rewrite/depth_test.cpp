// Programs far deeper than any that people write: they are rewritten or left alone in little time,
// on a small stack.
#include <pthread.h>

#include <ctime>

#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

constexpr size_t kStack = size_t{1} << 20;
/// Of the processor: what else the machine does costs nothing. None takes one; sanitizers take ten
/// times as long.
constexpr double kMostSeconds = 20;

/// Rewrites on a thread of a small stack, which an overflow ends with the process.
Rewritten rewritten_on_a_small_stack(const std::string& text) {
  struct Work {
    const std::string& text;
    Rewritten result;
    timespec taken;
  } work{text, {}, {}};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_t thread{};
  const auto run = [](void* at) -> void* {
    auto& work = *static_cast<Work*>(at);
    work.result = rewritten(work.text);
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &work.taken);
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_LT(static_cast<double>(work.taken.tv_sec), kMostSeconds);
  EXPECT_EQ(work.result.report.failure, "");
  return std::move(work.result);
}

/// Attention whose scores are what `lines` make of %s0 [2,16,16]; the last value is called %s.
std::string attention(const std::string& lines, const std::string& callees = "") {
  return "HloModule deep\n" + callees + R"(
larger { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] maximum(a, b) }
both { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  q = f32[2,16,8] parameter(0)
  k = f32[2,16,8] parameter(1)
  v = f32[2,16,8] parameter(2)
  zero = f32[] constant(0)
  least = f32[] constant(-inf)
  s0 = f32[2,16,16] dot(q, k), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
)" + lines +
         R"(
  m = f32[2,16] reduce(s, least), dimensions={2}, to_apply=larger
  mb = f32[2,16,16] broadcast(m), dimensions={0,1}
  d = f32[2,16,16] subtract(s, mb)
  e = f32[2,16,16] exponential(d)
  l = f32[2,16] reduce(e, zero), dimensions={2}, to_apply=both
  lb = f32[2,16,16] broadcast(l), dimensions={0,1}
  p = f32[2,16,16] divide(e, lb)
  ROOT o = f32[2,16,8] dot(p, v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
}
)";
}

/// `count` operations in a row, each of its predecessor %x{i}: "shape operation(OPERANDS)", with $
/// for the predecessor; the first is of `first`, the last is called `last`.
std::string chain(int count, std::string first, const std::string& last, const std::string& each) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string name = i + 1 == count ? last : last + "_" + std::to_string(i);
    std::string operation = each;
    for (size_t at; (at = operation.find('$')) != std::string::npos;)
      operation.replace(at, 1, first);
    lines += "  " + name + " = " + operation + "\n";
    first = name;
  }
  return lines;
}

TEST(Depth, TheSkeletonIsFused) {
  const Rewritten programs =
      rewritten_on_a_small_stack(attention(chain(1, "s0", "s", "f32[2,16,16] tanh($)")));
  EXPECT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_TRUE(same_meaning(programs));
}

TEST(Depth, ElementwiseOperationsBetweenProductAndSoftmax) {
  for (const char* each : {"tanh($)", "add($, $)", "multiply($, s0)", "negate($)", "maximum($, s0)",
                           "add($, s0)", "exponential($)", "copy($)"}) {
    SCOPED_TRACE(each);
    rewritten_on_a_small_stack(
        attention(chain(8000, "s0", "s", std::string("f32[2,16,16] ") + each)));
  }
}

TEST(Depth, ViewsOfViews) {
  const std::string back = "  s = f32[2,16,16] copy(t)\n";
  rewritten_on_a_small_stack(
      attention(chain(8000, "s0", "t", "f32[2,16,16] transpose($), dimensions={0,2,1}") + back));
  rewritten_on_a_small_stack(
      attention(chain(8000, "s0", "t", "f32[2,16,16] reverse($), dimensions={2}") + back));
  // Each a slice of one row less; then added to the scores.
  std::string slices = "  rows0 = f32[5001,16] iota(), iota_dimension=0\n";
  for (int i = 1; i < 5000; ++i) {
    const std::string rows = std::to_string(5001 - i);
    slices += "  rows" + std::to_string(i) + " = f32[" + rows + ",16] slice(rows" +
              std::to_string(i - 1) + "), slice={[1:" + std::to_string(5002 - i) + "], [0:16]}\n";
  }
  slices +=
      "  row = f32[1,16] slice(rows4999), slice={[0:1], [0:16]}\n"
      "  keys = f32[16] reshape(row)\n"
      "  bias = f32[2,16,16] broadcast(keys), dimensions={2}\n"
      "  s = f32[2,16,16] add(s0, bias)\n";
  rewritten_on_a_small_stack(attention(slices));
}

TEST(Depth, Sinks) {
  rewritten_on_a_small_stack(
      attention("  column = f32[2,16,1] constant({...})\n"
                "  wide = f32[2,16,17] concatenate(s0, column), dimensions={2}\n" +
                chain(8000, "wide", "w", "f32[2,16,17] tanh($)") +
                "  ew = f32[2,16,17] exponential(w)\n"
                "  s = f32[2,16,16] slice(ew), slice={[0:2], [0:16], [0:16]}\n"));
  rewritten_on_a_small_stack(
      attention("  column = f32[2,16,1] constant({...})\n"
                "  wide = f32[2,16,17] concatenate(s0, column), dimensions={2}\n"
                "  one = f32[2,16,17] constant({...})\n" +
                chain(8000, "one", "bias", "f32[2,16,17] tanh($)") +
                "  w = f32[2,16,17] add(wide, bias)\n  ew = f32[2,16,17] exponential(w)\n"
                "  s = f32[2,16,16] slice(ew), slice={[0:2], [0:16], [0:16]}\n"));
}

TEST(Depth, RngDropoutMasks) {
  const std::string kept =
      "  half = f32[2,16,16] broadcast(h), dimensions={}\n"
      "  keep = pred[2,16,16] compare(u, half), direction=LT\n"
      "  none = f32[2,16,16] broadcast(zero), dimensions={}\n"
      "  s = f32[2,16,16] select(keep, s0, none)\n";
  const std::string number = "  h = f32[] constant(0.5)\n";
  // A uniform number scaled by what doubles itself, from random bits that are deep too.
  rewritten_on_a_small_stack(attention(
      number + "  i = u32[2,16,16] iota(), iota_dimension=2\n" +
      chain(8000, "i", "b", "u32[2,16,16] xor($, i)") +
      "  n = u32[] constant(9)\n  nb = u32[2,16,16] broadcast(n), dimensions={}\n"
      "  bits = u32[2,16,16] shift-right-logical(b, nb)\n"
      "  ones = u32[] constant(1065353216)\n  onesb = u32[2,16,16] broadcast(ones), dimensions={}\n"
      "  f = u32[2,16,16] or(bits, onesb)\n  u1 = f32[2,16,16] bitcast-convert(f)\n"
      "  one = f32[] constant(1)\n  oneb = f32[2,16,16] broadcast(one), dimensions={}\n"
      "  u = f32[2,16,16] subtract(u1, oneb)\n" +
      kept));
  rewritten_on_a_small_stack(attention(
      number + "  c0 = f32[2,16,16] broadcast(h), dimensions={}\n" +
      chain(64, "c0", "c", "f32[2,16,16] add($, $)") +
      "  i = u32[2,16,16] iota(), iota_dimension=2\n  u1 = f32[2,16,16] bitcast-convert(i)\n"
      "  u = f32[2,16,16] maximum(u1, c)\n" +
      kept));
}

/// A loop over the rows of a stack, read at what `lines` make of the iteration's number %i.
std::string loop(const std::string& lines) {
  return "body { p = (s32[], f32[4,16,16], f32[2,16,16]) parameter(0)\n"
         "  i = s32[] get-tuple-element(p), index=0\n"
         "  stack = f32[4,16,16] get-tuple-element(p), index=1\n"
         "  sum = f32[2,16,16] get-tuple-element(p), index=2\n  nought = s32[] constant(0)\n" +
         lines +
         "  row = f32[1,16,16] dynamic-slice(stack, at, nought, nought), "
         "dynamic_slice_sizes={1,16,16}\n"
         "  flat = f32[16,16] reshape(row)\n"
         "  wide = f32[2,16,16] broadcast(flat), dimensions={1,2}\n"
         "  more = f32[2,16,16] add(sum, wide)\n  one = s32[] constant(1)\n"
         "  j = s32[] add(i, one)\n"
         "  ROOT t = (s32[], f32[4,16,16], f32[2,16,16]) tuple(j, stack, more) }\n"
         "condition { p = (s32[], f32[4,16,16], f32[2,16,16]) parameter(0)\n"
         "  i = s32[] get-tuple-element(p), index=0\n  n = s32[] constant(4)\n"
         "  ROOT c = pred[] compare(i, n), direction=LT }\n";
}

TEST(Depth, PlacesInStacks) {
  const std::string runs =
      "  start = s32[] constant(0)\n  stack = f32[4,16,16] constant({...})\n"
      "  init = (s32[], f32[4,16,16], f32[2,16,16]) tuple(start, stack, s0)\n"
      "  w = (s32[], f32[4,16,16], f32[2,16,16]) while(init), condition=condition, body=body\n"
      "  s = f32[2,16,16] get-tuple-element(w), index=2\n";
  for (const char* each : {"s32[] add($, $)", "s32[] copy($)", "s32[] add($, nought)"})
    rewritten_on_a_small_stack(attention(runs, loop(chain(8000, "i", "at", each))));
}

TEST(Depth, LoopsInLoops) {
  std::string loops = "body0 { ROOT p = (f32[2,16,16]) parameter(0) }\n";
  for (int i = 0; i < 300; ++i) {
    const std::string n = std::to_string(i), next = std::to_string(i + 1);
    loops += "on" + n + " { p = (f32[2,16,16]) parameter(0)  ROOT c = pred[] constant(false) }\n" +
             "body" + next +
             " { p = (f32[2,16,16]) parameter(0)  ROOT w = (f32[2,16,16]) while(p)" +
             ", condition=on" + n + ", body=body" + n + " }\n";
  }
  rewritten_on_a_small_stack(attention(
      "  init = (f32[2,16,16]) tuple(s0)\n  w = (f32[2,16,16]) call(init), to_apply=body300\n"
      "  s = f32[2,16,16] get-tuple-element(w), index=0\n",
      loops));
}

}  // namespace
}  // namespace heddle::testing
