// Views of memory, as XLA writes them past layout assignment: the order of the layout decides which
// axis a softmax is over.
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

const char* const kReducers = R"(
larger { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
)";

/// Weights f32[6,5,keys] of a softmax over their dimension `dim`, seen by `view`, times
/// values.
std::string attention(const std::string& keys, const std::string& dim, const std::string& view) {
  const std::string s = "[6,5," + keys + "]", row = dim == "2" ? "0,1" : "0,2",
                    rows = "[6," + (dim == "2" ? "5" : keys) + "]";
  const std::string values = dim == "2" ? keys : "5";
  return "HloModule m\n" + std::string(kReducers) +
         "\nENTRY main {\n"
         "  q = f32[2,3,5,8] parameter(0)\n"
         "  k = f32[2,3," +
         keys +
         ",8] parameter(1)\n"
         "  v = f32[6," +
         values +
         ",4] parameter(2)\n"
         "  qs = f32[6,5,8]{2,1,0} bitcast(q)\n"
         "  ks = f32[6,8," +
         keys +
         "]{1,2,0} bitcast(k)\n"
         "  s = f32" +
         s +
         " dot(qs, ks), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
         "rhs_batch_dims={0}, rhs_contracting_dims={1}\n"
         "  low = f32[] constant(-inf)\n  zero = f32[] constant(0)\n"
         "  m = f32" +
         rows + " reduce(s, low), dimensions={" + dim +
         "}, to_apply=larger\n"
         "  ms = f32" +
         s + " broadcast(m), dimensions={" + row +
         "}\n"
         "  d = f32" +
         s + " subtract(s, ms)\n  e = f32" + s +
         " exponential(d)\n"
         "  l = f32" +
         rows + " reduce(e, zero), dimensions={" + dim +
         "}, to_apply=sum\n"
         "  ls = f32" +
         s + " broadcast(l), dimensions={" + row +
         "}\n"
         "  p = f32" +
         s + "{2,1,0} divide(e, ls)\n" + view + "  o = f32[6," + (dim == "2" ? "5" : keys) +
         ",4]{2,1,0} dot(w, v), lhs_batch_dims={0}, "
         "lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}\n"
         "  ROOT r = f32[2,3," +
         (dim == "2" ? "5" : keys) + ",4] bitcast(o)\n}\n";
}

TEST(Bitcasts, AreViewsOfMemory) {
  const Rewritten programs = rewritten(attention("7", "2", "  w = f32[6,5,7]{2,1,0} bitcast(p)\n"));
  EXPECT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_TRUE(same_meaning(programs, 1e-7));
}

// Normalised over the first of two dimensions, and then seen with these exchanged.
TEST(Bitcasts, OfAnotherOrderAreTransposes) {
  const Rewritten programs = rewritten(attention("7", "1", "  w = f32[6,7,5]{1,2,0} bitcast(p)\n"));
  EXPECT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_TRUE(same_meaning(programs, 1e-7));
}

// Without the exchange the weights of a row of O are of one key and all queries: it is the gradient
// of some values, not their mean.
TEST(Bitcasts, ThatExchangeNothingAreNone) {
  const Rewritten programs = rewritten(attention("5", "1", "  w = f32[6,5,5]{2,1,0} bitcast(p)\n"));
  EXPECT_EQ(programs.backwards(), 1) << programs.reasons();
  EXPECT_TRUE(same_meaning(programs, 1e-7));
}

}  // namespace
}  // namespace heddle::testing
