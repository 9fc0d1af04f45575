// cache_append's definition against plain computations on small numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/program.h"

namespace heddle::testing {
namespace {

using graph::kNone;
using graph::TensorId;

/// One batch entry, one head, D 2: rows are (10 r, 10 r + 1) of K, and those below 0 of V.
struct Append {
  Program program;
  graph::CacheAppend op;

  Append(DataType cache, int64_t new_rows, int64_t past_rows, int64_t rows, int64_t total) {
    program.graph.io_dtype = DataType::f32;
    program.graph.intermediate_dtype = DataType::f32;
    op.q = input("q", DataType::f32, new_rows, 2, 1);
    op.k = input("k", DataType::f32, new_rows, 2, 1);
    op.v = input("v", DataType::f32, new_rows, 2, -1);
    const int64_t columns = cache == DataType::u8 ? 1 : 2;
    op.past_k = input("past_k", cache, past_rows, columns, 100);
    op.past_v = input("past_v", cache, past_rows, columns, -100);
    op.present_k = program.add("present_k", cache, {1, 1, rows, columns});
    op.present_v = program.add("present_v", cache, {1, 1, rows, columns});
    op.seq_len_kv = program.add("totals", DataType::i32, {1, 1, 1, 1});
    program.allocate(op.seq_len_kv);
    program.set_integer(op.seq_len_kv, total);
  }

  TensorId input(const char* name, DataType type, int64_t rows, int64_t columns, double sign) {
    const TensorId id = program.add(name, type, {1, 1, rows, columns});
    program.allocate(id);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t d = 0; d < columns; ++d)
        program.set(id, sign * static_cast<double>(10 * r + d), 0, 0, r, d);
    return id;
  }
  TensorId numbers(const char* name, DataType type, const Dims& dims, std::vector<double> values) {
    const TensorId id = program.add(name, type, dims);
    program.allocate(id);
    size_t next = 0;
    program.fill(id, [&] { return values[next++]; });
    return id;
  }

  /// The results of a tensor, row by row.
  std::vector<double> result(TensorId id) {
    program.graph.nodes = {{"append", op}};
    const Status valid = graph::validate(program.graph);
    EXPECT_TRUE(valid.is_ok()) << valid.message();
    const reference::Buffers buffers = program.buffers();
    const auto values = reference::evaluate(program.graph, buffers);
    EXPECT_TRUE(values.is_ok()) << values.status().message();
    return values->result(id).values;
  }
};

using Row = std::vector<double>;

TEST(CacheAppend, PutsNewRowsBehindThePastAndZerosBehindThem) {
  Append a(DataType::f32, 2, 3, 5, 4);  // two rows of the past, two new
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 100, 1000, 1100, 0, 1, 10, 11, 0, 0}));
  EXPECT_EQ(a.result(a.op.present_v), (Row{0, -100, -1000, -1100, 0, -1, -10, -11, 0, 0}));
}

TEST(CacheAppend, NewRowsBeyondTheCacheAreNowhere) {
  Append a(DataType::f32, 2, 3, 3, 4);
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 100, 1000, 1100, 0, 1}));
}

TEST(CacheAppend, ATotalBelowTheNewRowsIsAPromptWithPadding) {
  Append a(DataType::f32, 2, 3, 3, 1);
  a.op.lengths_q = a.program.add("lengths_q", DataType::i32, {1, 1, 1, 1});
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 1, 10, 11, 0, 0}));
  EXPECT_EQ(a.result(a.op.lengths_q), Row{1});
}

TEST(CacheAppend, OnlyAnEntrysOwnNewRowsCount) {
  Append a(DataType::f32, 3, 4, 4, 3);
  a.op.seq_len_q = a.numbers("new", DataType::i32, {1, 1, 1, 1}, {1});
  a.op.q_out = a.program.add("q_out", DataType::f32, {1, 1, 3, 2});
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 100, 1000, 1100, 0, 1, 0, 0}));
  EXPECT_EQ(a.result(a.op.q_out), (Row{0, 1, 0, 0, 0, 0}));
}

TEST(CacheAppend, ARingHoldsTheLastRows) {
  Append a(DataType::f32, 2, 3, 3, 6);  // rows 4 and 5 join 1 to 3; of these 3 stays
  a.op.ring = true;
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 100, 0, 1, 10, 11}));
}

TEST(CacheAppend, RotatesByThePositionBehindThePast) {
  Append a(DataType::f32, 1, 2, 2, 2);  // position 1
  a.op.cosines = a.numbers("cosines", DataType::f32, {3, 1, 1, 1}, {5, 0.6, 9});
  a.op.sines = a.numbers("sines", DataType::f32, {3, 1, 1, 1}, {5, 0.8, 9});
  const auto row = a.result(a.op.present_k);  // (0, 1) turned
  EXPECT_NEAR(row[2], -0.8, 1e-6);
  EXPECT_NEAR(row[3], 0.6, 1e-6);
  // The nearest is 2, of one as well that f64 rounds to more than 64 bits hold.
  for (const double position : {7.0, 0x1p63}) {
    a.op.positions = a.numbers("positions", DataType::i64, {1, 1, 1, 1}, {position});
    EXPECT_NEAR(a.result(a.op.present_k)[2], -9, 1e-6);
  }
}

TEST(CacheAppend, NormalisesHeads) {
  Append a(DataType::f32, 2, 2, 3, 2);
  a.op.k_norm = a.numbers("weight", DataType::f32, {1, 1, 1, 2}, {2, 3});
  a.op.k_epsilon = 0.5;
  const double inverse = 1 / std::sqrt((10 * 10 + 11 * 11) / 2.0 + 0.5);
  EXPECT_NEAR(a.result(a.op.present_k)[2], 10 * inverse * 2, 1e-12);
  EXPECT_NEAR(a.result(a.op.present_k)[3], 11 * inverse * 3, 1e-12);
  EXPECT_EQ(a.result(a.op.present_v)[2], -10) << "values stay what they are";
}

TEST(CacheAppend, QuantisesToTheNearestCodeInRange) {
  Append a(DataType::i8, 2, 2, 2, 2);
  a.op.k_scale = a.numbers("k_scale", DataType::f32, {1, 1, 1, 2}, {0.05, 4});
  a.op.v_scale = a.numbers("v_scale", DataType::f32, {1, 1, 1, 1}, {0});
  EXPECT_EQ(a.result(a.op.present_k), (Row{0, 0, 127, 3}));  // 1/4, 10/0.05, 11/4
  EXPECT_EQ(a.result(a.op.present_v), (Row{0, 0, 0, 0})) << "a scale of 0";
}

TEST(CacheAppend, PutsTwoCodesOfFourBitsIntoAByte) {
  Append a(DataType::u8, 2, 2, 2, 2);
  a.op.k_scale = a.numbers("k_scale", DataType::f32, {1, 1, 1, 1}, {3});
  a.op.v_scale = a.numbers("v_scale", DataType::f32, {1, 1, 1, 1}, {1});
  EXPECT_EQ(a.result(a.op.present_k), (Row{8 + 16 * 8, 11 + 16 * 12}));  // 0 0, 3 4
  EXPECT_EQ(a.result(a.op.present_v), (Row{8 + 16 * 7, 0 + 16 * 0}));    // 0 -1, -8 -8
}

}  // namespace
}  // namespace heddle::testing
