// f32 attention on a GPU: how exact it is, shape by shape, and values that pairs of f16 do not
// hold.
#include <cmath>
#include <limits>

#include "gpu/gpu_test.h"
#include "reference/evaluate.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

using graph::TensorId;

struct Shape {
  int64_t length, head_dim;
  bool causal, backward;
  bool padded = false;    ///< entries of all, none and some of the rows
  double scale = 0;       ///< 0: of the head dim
  int64_t value_dim = 0;  ///< 0: as wide as queries
  bool statistics = true;
};

/// What fills q, k, v and dO, 0 to 3: row and column of an element, and a normal draw.
using Value = std::function<double(int tensor, int64_t row, int64_t column, double normal)>;

/// Rows past a length stay poison.
Program program_of(const Shape& shape, const Value& value) {
  Program program;
  program.graph.io_dtype = program.graph.intermediate_dtype = program.graph.compute_dtype =
      DataType::f32;
  Random random(static_cast<uint64_t>(shape.length));
  std::vector<int64_t> lengths{shape.length};
  if (shape.padded) lengths = {shape.length, 0, 1, shape.length * 2 / 5};
  const auto batch = static_cast<int64_t>(lengths.size());
  const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const Dims dims{batch, 2, shape.length, shape.head_dim}, row{batch, 2, shape.length, 1},
      values{batch, 2, shape.length, value_dim};
  const auto add = [&](const char* name, const Dims& of) {
    const TensorId id = program.add(name, DataType::f32, of);
    program.allocate(id);
    return id;
  };
  const auto input = [&](const char* name, int tensor, const Dims& of) {
    const TensorId id = add(name, of);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t head = 0; head < of[1]; ++head) {
        for (int64_t i = 0; i < lengths[static_cast<size_t>(b)]; ++i) {
          for (int64_t j = 0; j < of[3]; ++j)
            program.set(id, value(tensor, i, j, random.normal()), b, head, i, j);
        }
      }
    }
    return id;
  };
  graph::Sdpa op;
  op.attention.attn_scale =
      shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (shape.causal) op.attention.right_bound = 0;
  if (shape.padded) {
    op.attention.padding_mask = true;
    for (TensorId* of : {&op.attention.seq_len_q, &op.attention.seq_len_kv}) {
      *of = program.add("length", DataType::i32, {batch, 1, 1, 1});
      program.allocate(*of);
      for (int64_t b = 0; b < batch; ++b)
        program.set(*of, static_cast<double>(lengths[static_cast<size_t>(b)]), b);
    }
  }
  op.q = input("q", 0, dims);
  op.k = input("k", 1, dims);
  op.v = input("v", 2, values);
  op.o = add("o", values);
  if (shape.statistics) op.stats = add("stats", row);
  program.graph.nodes.push_back({"attention", op});
  if (!shape.backward) return program;

  const reference::Buffers buffers = program.buffers();
  reference::store_results(reference::evaluate(program.graph, buffers).value(), buffers);
  graph::SdpaBackward gradient;
  gradient.q = op.q;
  gradient.k = op.k;
  gradient.v = op.v;
  gradient.o = op.o;
  gradient.stats = op.stats;
  gradient.attention = op.attention;
  gradient.deterministic = shape.padded && std::max(shape.head_dim, value_dim) <= 256;
  gradient.d_o = input("dO", 3, values);
  gradient.d_q = add("dQ", dims);
  gradient.d_k = add("dK", dims);
  gradient.d_v = add("dV", values);
  program.graph.nodes = {{"gradient", gradient}};
  return program;
}

class F32OnGpu : public OnGpu {
 protected:
  void run_all(const std::vector<Shape>& shapes, const Value& value, Tolerance tolerance) {
    at_once(static_cast<int64_t>(shapes.size()), [&](int64_t n) {
      const Shape& shape = shapes[static_cast<size_t>(n)];
      SCOPED_TRACE(fmt::format("{} of {} rows, head_dim {}{}",
                               shape.backward ? "backward" : "forward", shape.length,
                               shape.head_dim, shape.causal ? ", causal" : ""));
      Built built = build(program_of(shape, value));
      ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
      execute(built);
      EXPECT_TRUE(matches_reference(built.program, DataType::f32, tolerance));
    });
  }
};

/// The naive error itself: no more than half a rounding step of f32 comes on top.
constexpr Tolerance kTwiceNaive{.factor = 2, .floor_steps = 0.5, .cancellation_steps = 0};

std::vector<Shape> shapes(std::initializer_list<int64_t> lengths,
                          std::initializer_list<int64_t> head_dims) {
  std::vector<Shape> all;
  for (int64_t length : lengths)
    for (int64_t head_dim : head_dims)
      for (bool causal : {false, true})
        for (bool backward : {false, true}) all.push_back({length, head_dim, causal, backward});
  return all;
}

constexpr std::initializer_list<int64_t> kLengths = {512, 200, 100, 64, 17},
                                         kHeadDims = {32, 40, 64, 96, 128, 256};

TEST_F(F32OnGpu, ErrsAtMostTwiceAsMuchAsTheNaiveComputation) {
  run_all(
      shapes(kLengths, kHeadDims), [](int, int64_t, int64_t, double normal) { return normal; },
      kTwiceNaive);
}

// Taken to log2 units, some scales are rounded down and others, 0.045 times a power of two among
// them, so far up that what they lack is negative: a hidden score must be -inf by either.
TEST_F(F32OnGpu, TakesScalesThatAreRoundedEitherWay) {
  std::vector<Shape> all;
  for (double scale : {0.045, 0.05, 0.183, 0.36, 1.0, 1.3})
    for (int64_t head_dim : {64, 160})
      for (bool backward : {false, true})
        all.push_back({200, head_dim, true, backward, false, scale});
  run_all(
      all, [](int, int64_t, int64_t, double normal) { return normal; }, kTwiceNaive);
}

// Sums of one sign show what an accumulator cuts off, and dP - delta is the small difference of
// large sums: where rows are long, what the sum of their weights was rounded by shows in dQ.
TEST_F(F32OnGpu, ErrsAtMostTwiceAsMuchWhereAllIsPositive) {
  const auto positive = [](int, int64_t, int64_t, double normal) { return std::fabs(normal); };
  // The longest takes longest: it comes first.
  std::vector<Shape> all = shapes(kLengths, kHeadDims);
  all.insert(all.begin(), {2000, 128, false, true});
  run_all(all, positive, kTwiceNaive);
}

// Rows whose weight is nearly all at one key: what scores and log-sum-exps are rounded by is a
// share of that weight.
TEST_F(F32OnGpu, ErrsAtMostTwiceAsMuchWhereScoresAreLarge) {
  run_all(
      shapes(kLengths, kHeadDims),
      [](int tensor, int64_t, int64_t, double normal) { return tensor == 0 ? 6 * normal : normal; },
      kTwiceNaive);
}

/// Heads of so many columns: of a forward warp groups share them, above 256 those of two blocks,
/// and of the backward these alone.
std::vector<Shape> wide_heads(std::initializer_list<std::pair<int64_t, int64_t>> head_dims,
                              std::initializer_list<int64_t> lengths) {
  std::vector<Shape> all;
  for (auto [head_dim, value_dim] : head_dims) {
    for (int64_t length : lengths) {
      for (bool causal : {false, true}) {
        Shape shape{.length = length,
                    .head_dim = head_dim,
                    .causal = causal,
                    .backward = false,
                    .padded = length == 200 && causal,
                    .value_dim = value_dim,
                    .statistics = false};
        all.push_back(shape);
        shape.statistics = true;
        all.push_back(shape);
        shape.backward = true;
        all.push_back(shape);
      }
    }
  }
  return all;
}

// Shares and boxes end within the columns or with them, and queries are wider or narrower than
// values.
TEST_F(F32OnGpu, SharesColumnsOfWideHeads) {
  run_all(
      wide_heads({{512, 512},
                  {320, 320},
                  {256, 256},
                  {136, 136},
                  {192, 128},
                  {96, 160},
                  {40, 512},
                  {264, 8},
                  {456, 248}},
                 {200, 17}),
      [](int, int64_t, int64_t, double normal) { return normal; }, kTwiceNaive);
}

TEST_F(F32OnGpu, SharesColumnsOfOneSignOrLargeScores) {
  const auto all = wide_heads({{512, 512}, {256, 256}}, {100});
  run_all(
      all, [](int, int64_t, int64_t, double normal) { return std::fabs(normal); }, kTwiceNaive);
  run_all(
      all,
      [](int tensor, int64_t, int64_t, double normal) { return tensor == 0 ? 6 * normal : normal; },
      kTwiceNaive);
}

// Not even to find out which kernels compute: pairs and planes round differently, so what the
// general kernels made would not be the same bits, as a row shows that is too small for pairs.
TEST_F(F32OnGpu, WhatLiesPastALengthChangesNoBit) {
  const auto normal = [](int, int64_t, int64_t, double x) { return x; };
  const auto small_value = [](int tensor, int64_t row, int64_t, double x) {
    return tensor == 2 && row == 199 ? 1e-9 * x : x;
  };
  for (int64_t head_dim : {64, 128}) {
    for (bool backward : {false, true}) {
      SCOPED_TRACE(fmt::format("head_dim {}{}", head_dim, backward ? ", backward" : ""));
      const Shape shape{200, head_dim, true, backward, true};
      run_all({shape}, normal, kTwiceNaive);
      Built poisoned = build(program_of(shape, normal)), clean = build(program_of(shape, normal)),
            general = build(program_of(shape, small_value));
      graph::Graph& graph = clean.program.graph;
      std::vector<TensorId> inputs, results;
      if (backward) {
        const auto& op = std::get<graph::SdpaBackward>(graph.nodes[0].op);
        inputs = {op.q, op.k, op.v, op.d_o};
        results = {op.d_q, op.d_k, op.d_v};
      } else {
        const auto& op = std::get<graph::Sdpa>(graph.nodes[0].op);
        inputs = {op.q, op.k, op.v};
        results = {op.o, op.stats};
      }
      for (TensorId id : inputs) {
        for (int64_t head : {0, 1})
          for (int64_t row = 80; row < 200; ++row)  // of the last entry
            for (int64_t n = 0; n < head_dim; ++n) clean.program.set(id, 1, 3, head, row, n);
      }
      for (Built* built : {&poisoned, &clean, &general}) {
        ASSERT_TRUE(built->executable.is_ok()) << built->executable.status().message();
        execute(*built);
      }
      // The last entry, which does not hold the row of small values.
      const auto last_entry = [&](Built& built, TensorId id) {
        const auto* all = reinterpret_cast<const float*>(
            built.program.memory.at(built.program.graph[id].uid).data());
        const int64_t entry = 2 * 200 * graph[id].dims[3];
        return std::vector<float>(all + 3 * entry, all + 4 * entry);
      };
      bool differs = false;
      for (TensorId id : results) {
        EXPECT_EQ(last_entry(poisoned, id), last_entry(clean, id)) << graph[id].name;
        differs |= last_entry(general, id) != last_entry(clean, id);
      }
      EXPECT_TRUE(differs);
    }
  }
}

TEST_F(F32OnGpu, TensorsMayBeOfAnyMagnitude) {
  for (double magnitude : {1e15, 1e-15}) {
    SCOPED_TRACE(magnitude);
    run_all(
        shapes({130}, {64}),
        [=](int tensor, int64_t, int64_t, double normal) {
          const double by_tensor[] = {magnitude, 1 / magnitude, magnitude, 1 / magnitude};
          return normal * by_tensor[tensor];
        },
        kTwiceNaive);
  }
}

// A row that dwarfs the others must not take their bits: rows before it do not see it.
TEST_F(F32OnGpu, RowsMayBeOfAnyMagnitude) {
  for (double magnitude : {1e6, 1e12}) {
    SCOPED_TRACE(magnitude);
    const auto value = [=](int tensor, int64_t row, int64_t, double normal) {
      return tensor == 2 && row == 129 ? normal * magnitude : normal;
    };
    Program program = program_of({130, 64, true, false}, value);
    Built built = build(std::move(program));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    // The last row, which alone sees it, is left out: it would outweigh all others.
    const auto exact = reference::evaluate(built.program.graph, built.program.buffers());
    ASSERT_TRUE(exact.is_ok());
    const auto& op = std::get<graph::Sdpa>(built.program.graph.nodes[0].op);
    const auto& want = exact->result(op.o).values;
    const auto* got = reinterpret_cast<const float*>(
        built.program.memory.at(built.program.graph[op.o].uid).data());
    for (size_t n = 0; n < want.size(); ++n) {
      if (n / 64 % 130 == 129) continue;
      ASSERT_NEAR(got[n], want[n], 1e-6) << "element " << n;
    }
  }
}

// What rows see of infinities, they give; what they do not see is not there.
TEST_F(F32OnGpu, InfiniteValuesReachWhoSeesThem) {
  for (int64_t row : {0, 100, 129}) {
    SCOPED_TRACE(row);
    run_all(
        {{130, 64, false, false},
         {130, 128, false, false},
         {130, 256, false, false},
         wide_heads({{512, 512}}, {130}).front()},
        [=](int tensor, int64_t i, int64_t j, double normal) {
          if (tensor != 2 || i != row || j % 8 != 3) return normal;
          return (j % 16 == 3 ? 1 : -1) * std::numeric_limits<double>::infinity();
        },
        kTwiceNaive);
  }
}

// Of an infinite key a row sees a score of one sign or the other: it weighs nothing, or leaves
// nothing defined, in O and in the log-sum-exp. Rows that do not see it are as they were.
TEST_F(F32OnGpu, InfiniteKeysReachWhoSeesThem) {
  for (const Shape& shape : {Shape{130, 64, false, false},
                             {130, 64, true, false},
                             {130, 128, true, false},
                             {130, 256, true, false}}) {
    SCOPED_TRACE(shape.head_dim);
    Built built =
        build(program_of(shape, [](int tensor, int64_t row, int64_t column, double normal) {
          const bool infinite = tensor == 1 && row == 100 && column == 3;
          return infinite ? std::numeric_limits<double>::infinity() : normal;
        }));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    const reference::Buffers buffers = built.program.buffers();
    const auto exact = reference::evaluate(built.program.graph, buffers);
    ASSERT_TRUE(exact.is_ok());
    const auto& op = std::get<graph::Sdpa>(built.program.graph.nodes[0].op);
    size_t undefined = 0;
    for (TensorId id : {op.o, op.stats}) {
      const auto& want = exact->result(id).values;
      const auto* got = reinterpret_cast<const float*>(
          built.program.memory.at(built.program.graph[id].uid).data());
      for (size_t n = 0; n < want.size(); ++n) {
        undefined += std::isnan(want[n]);
        ASSERT_EQ(std::isnan(got[n]), std::isnan(want[n])) << "element " << n;
        if (std::isnan(want[n])) continue;
        ASSERT_NEAR(got[n], want[n], 1e-5) << "element " << n;
      }
    }
    EXPECT_GT(undefined, 0U);
  }
}

}  // namespace
}  // namespace heddle::testing
