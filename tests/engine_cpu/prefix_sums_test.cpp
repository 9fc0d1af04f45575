// Prefix sums of 64 bits at the ends of their range: a length is their difference, whatever takes
// 65 bits, and is never more than there are rows.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "engine/cpu/engine.h"
#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kRows = 20;
/// Entries of all rows, of none, of five, of none and of all.
const std::vector<int64_t> kPrefixSums = {kLeast, kMost, kLeast, kLeast + 5, kLeast + 5, kMost - 7};
const std::vector<int64_t> kLengths = {kRows, 0, 5, 0, kRows};

/// O of queries and keys of kLengths, or, `cumulative`, of kPrefixSums.
struct Forward {
  Program program;
  graph::TensorId o = graph::kNone;

  explicit Forward(bool cumulative) {
    Random random(3);
    program.graph.io_dtype = DataType::f32;
    graph::Sdpa node;
    const auto rows = [&](const char* name) {
      const graph::TensorId id =
          program.add(name, DataType::f32, {static_cast<int64_t>(kLengths.size()), 2, kRows, 8});
      program.allocate(id);
      program.fill(id, [&] { return random.normal(); });
      return id;
    };
    node.q = rows("q"), node.k = rows("k"), node.v = rows("v"), node.o = o = rows("o");
    const auto lengths = [&](const char* name) {
      const std::vector<int64_t>& values = cumulative ? kPrefixSums : kLengths;
      const graph::TensorId id =
          program.add(name, DataType::i64, {static_cast<int64_t>(values.size()), 1, 1, 1});
      program.allocate(id);
      for (size_t i = 0; i < values.size(); ++i)
        program.set_integer(id, values[i], static_cast<int64_t>(i));
      return id;
    };
    graph::AttentionAttributes& a = node.attention;
    a.padding_mask = true;
    (cumulative ? a.cu_seq_len_q : a.seq_len_q) = lengths("lengths of queries");
    (cumulative ? a.cu_seq_len_kv : a.seq_len_kv) = lengths("lengths of keys");
    program.graph.nodes = {{"attention", node}};
  }
};

TEST(PrefixSums, MayLieAnywhere) {
  Forward plain(false), cumulative(true);
  ASSERT_TRUE(graph::validate(plain.program.graph).is_ok());
  ASSERT_TRUE(graph::validate(cumulative.program.graph).is_ok());
  const auto expected = reference::evaluate(plain.program.graph, plain.program.buffers()).value();
  const auto defined =
      reference::evaluate(cumulative.program.graph, cumulative.program.buffers()).value();
  ASSERT_TRUE(run(cumulative.program, engine::cpu_engine()).is_ok());
  const reference::Buffers buffers = cumulative.program.buffers();
  const reference::Values got(cumulative.program.graph, buffers, {});
  for (size_t b = 0; b < kLengths.size(); ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < kLengths[b]; ++i)
        for (int64_t d = 0; d < 8; ++d) {
          const auto at = [&, entry = static_cast<int64_t>(b)](const reference::Values& values,
                                                               graph::TensorId id) {
            return values.read(id, entry, h, i, d);
          };
          ASSERT_EQ(at(defined, cumulative.o), at(expected, plain.o));
          ASSERT_NEAR(at(got, cumulative.o), at(expected, plain.o), 1e-5) << b << " " << i;
        }
}

}  // namespace
}  // namespace heddle::testing
