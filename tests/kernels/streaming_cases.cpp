#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {

using problem::NormBackwardProblem;
using problem::NormProblem;
using problem::OperandId;
using problem::OperandLayout;
using problem::OperandType;
using problem::RopeProblem;

namespace {

DataType statistic(const NormCase& c) {
  return c.x == DataType::f64 ? DataType::f64 : DataType::f32;
}

/// Adds operands over the dims of a case: all of them, those of the rows, those of the columns.
template <class Problem>
struct NormBuilder {
  const NormCase& c;
  Problem& problem;

  OperandId add(DataType dtype, bool rows, bool columns) {
    const Dims whole =
        c.scattered ? Dims{4, 2, c.rows / 8, 2, c.columns / 2} : Dims{c.rows, c.columns};
    const int split = c.scattered ? 3 : 1;
    OperandLayout layout{.dims = whole, .strides = whole};
    int64_t span = 1;
    for (int d = whole.rank() - 1; d >= 0; --d) {
      const bool present = d < split ? rows : columns;
      if (!present) layout.dims[d] = 1;
      layout.strides[d] = present ? span : 0;
      if (present) span = span * whole[d] + (c.scattered && d > 0 ? 3 : 0);
    }
    problem.structure.operands.push_back({.dtype = dtype});
    problem.sizes.layouts.push_back(layout);
    return static_cast<OperandId>(problem.structure.operands.size()) - 1;
  }
};

}  // namespace

NormProblem norm_of(const NormCase& c) {
  NormProblem problem;
  NormBuilder<NormProblem> builder{c, problem};
  problem.structure.centred = c.centred;
  problem.structure.normalised_dims = c.scattered ? 2 : 1;
  problem.structure.x = builder.add(c.x, true, true);
  problem.structure.y = builder.add(c.x, true, true);
  problem.structure.weight = builder.add(c.weight, false, true);
  if (c.bias) problem.structure.bias = builder.add(c.weight, false, true);
  if (c.residual) {
    problem.structure.residual = builder.add(c.x, true, true);
    problem.structure.residual_bias = builder.add(c.weight, false, true);
    problem.structure.sum = builder.add(c.x, true, true);
  }
  if (c.centred) problem.structure.mean = builder.add(statistic(c), true, false);
  problem.structure.inv_rms = builder.add(statistic(c), true, false);
  return problem;
}

NormBackwardProblem norm_backward_of(const NormCase& c) {
  NormBackwardProblem problem;
  NormBuilder<NormBackwardProblem> builder{c, problem};
  problem.structure.centred = c.centred;
  problem.structure.normalised_dims = c.scattered ? 2 : 1;
  problem.structure.x = builder.add(c.x, true, true);
  problem.structure.dy = builder.add(c.x, true, true);
  problem.structure.dx = builder.add(c.x, true, true);
  problem.structure.weight = builder.add(c.weight, false, true);
  problem.structure.d_weight = builder.add(c.weight, false, true);
  if (c.bias) problem.structure.d_bias = builder.add(c.weight, false, true);
  if (c.centred) problem.structure.mean = builder.add(statistic(c), true, false);
  problem.structure.inv_rms = builder.add(statistic(c), true, false);
  return problem;
}

RopeProblem rope_of(const RopeCase& c) {
  constexpr int64_t kBatch = 2, kHeads = 4, kLength = 64;
  RopeProblem problem;
  const auto add = [&](DataType dtype, const Dims& dims, const Dims& strides) {
    problem.structure.operands.push_back({.dtype = dtype});
    problem.sizes.layouts.push_back({.dims = dims, .strides = strides});
    return static_cast<OperandId>(problem.structure.operands.size()) - 1;
  };
  const int64_t row = c.head_dim + c.gap;
  const Dims whole{kBatch, kHeads, kLength, c.head_dim};
  const Dims strides{kHeads * kLength * row, kLength * row, row, 1};
  problem.structure.x = add(c.x, whole, strides);
  problem.structure.y = add(c.y, whole, strides);
  problem.structure.rope.rope_dim = c.rope_dim;
  problem.structure.rope.first_column =
      c.leading ? 0 : static_cast<int32_t>(c.head_dim) - c.rope_dim;
  problem.structure.rope.pairing =
      c.interleaved ? problem::Rope::Pairing::interleaved : problem::Rope::Pairing::halves;
  const int64_t columns = c.tables ? c.rope_dim / 2 : c.rope_dim;
  const auto table = [&] {
    return add(DataType::f32, {kLength, 1, 1, columns}, {columns, 0, 0, 1});
  };
  if (c.tables) {
    problem.structure.rope.cosines = table();
    problem.structure.rope.sines = table();
  } else {
    problem.structure.rope.angles = table();
  }
  problem.structure.rope.positions_per_row = c.per_row;
  if (c.positions) {
    const int64_t rows = c.per_row ? kLength : 1;
    problem.structure.rope.positions =
        add(DataType::i32, {kBatch, 1, rows, 1}, {rows, 0, rows > 1 ? 1 : 0, 0});
  }
  if (c.ragged) {
    const OperandId offsets = add(DataType::i32, {kBatch + 1, 1, 1, 1}, {1, 0, 0, 0});
    problem.structure.operands[static_cast<size_t>(problem.structure.x)].storage =
        problem::Storage::ragged_by(offsets);
  }
  problem.structure.inverse = c.inverse;
  return problem;
}

CopyStep copy_of(const CopyCase& c) {
  constexpr int64_t kBatch = 2, kHeads = 4, kLength = 64;
  CopyStep step;
  step.name = "q";
  const auto add = [&](DataType dtype, const Dims& dims) {
    step.types.operands.push_back({.dtype = dtype});
    step.layouts.layouts.push_back({.dims = dims, .strides = *dense_strides(dims)});
    return static_cast<OperandId>(step.types.operands.size()) - 1;
  };
  problem::OperandType x{.dtype = c.x};
  if (c.codes)
    x.scales = {problem::Scales::Per::channel, add(DataType::f32, {1, kHeads, 1, c.x_columns})};
  step.x = add(c.x, {kBatch, kHeads, kLength, x.elements_of(c.x_columns)});
  step.types.type(step.x) = x;
  step.y = add(c.y, {kBatch, kHeads, kLength, c.y_columns});
  if (c.ragged) {
    const OperandId offsets = add(DataType::i32, {kBatch + 1, 1, 1, 1});
    step.types.type(step.y).storage = problem::Storage::ragged_by(offsets);
  }
  return step;
}

problem::CacheAppendProblem append_of(const CacheAppendCase& c) {
  constexpr int64_t kBatch = 2, kQHeads = 4, kHeads = 2, kLength = 3, kRows = 64, kBlock = 16;
  problem::CacheAppendProblem problem;
  problem::CacheAppendStructure& s = problem.structure;
  const auto add = [&](DataType dtype, const Dims& dims, const Dims& strides) {
    s.operands.push_back({.dtype = dtype});
    problem.sizes.layouts.push_back({.dims = dims, .strides = strides});
    return static_cast<OperandId>(s.operands.size()) - 1;
  };
  const auto dense = [&](DataType dtype, const Dims& dims) {
    Dims strides = *dense_strides(dims);
    for (int d = 0; d < dims.rank(); ++d) strides[d] = dims[d] == 1 ? 0 : strides[d];
    return add(dtype, dims, strides);
  };
  const auto rows = [&](int64_t heads) {
    const int64_t row = c.head_dim + c.gap;
    return add(c.x, {kBatch, heads, kLength, c.head_dim},
               {heads * kLength * row, kLength * row, row, 1});
  };
  s.qk_head_dim = s.v_head_dim = static_cast<int32_t>(c.head_dim);
  s.q = rows(c.packed ? kQHeads + 2 * kHeads : kQHeads);
  if (!c.packed) s.k = rows(kHeads), s.v = rows(kHeads);
  s.q_out = dense(c.x, {kBatch, kQHeads, kLength, c.head_dim});

  OperandType type{.dtype = c.cache, .storage = {.kind = c.storage}};
  const bool paged = type.storage.is_paged();
  if (paged) type.storage.index = dense(DataType::i32, {kBatch, 1, kRows / kBlock, 1});
  if (c.cache == DataType::i8 || c.cache == DataType::u8 || c.cache == DataType::f8e4m3)
    type.scales = {problem::Scales::Per::channel, dense(DataType::f32, {1, kHeads, 1, c.head_dim})};
  const auto cache = [&] {
    const OperandId id = dense(c.cache, {paged ? kBatch * kRows / kBlock : kBatch, kHeads,
                                         paged ? kBlock : kRows, type.elements_of(c.head_dim)});
    s.type(id) = type;
    if (c.far_apart) problem.sizes.layouts.back().strides[0] = int64_t{1} << 33;
    return id;
  };
  s.past_k = cache(), s.past_v = cache(), s.k_cache = cache(), s.v_cache = cache();
  s.total_lengths = dense(DataType::i32, {kBatch, 1, 1, 1});
  s.lengths_kv = dense(DataType::i32, {kBatch, 1, 1, 1});
  if (c.norms) s.q_norm = s.k_norm = dense(c.x, {1, 1, 1, c.head_dim});
  s.rope_dim = c.rope_dim;
  if (c.rope_dim > 0) {
    const int64_t half = c.rope_dim / 2, column = 1 + c.table_gap;
    const auto table = [&] {
      return add(DataType::f32, {kRows, 1, 1, half}, {half * column, 0, 0, column});
    };
    s.cosines = table(), s.sines = table();
  }
  if (c.interleaved) s.pairing = problem::Rope::Pairing::interleaved;
  if (c.positions) s.positions = dense(DataType::i64, {kBatch, 1, kLength, 1});
  problem.sizes.batch = kBatch, problem.sizes.q_heads = kQHeads, problem.sizes.kv_heads = kHeads;
  problem.sizes.length = kLength, problem.sizes.capacity = kRows;
  return problem;
}

problem::PointwiseProblem pointwise_of(const PointwiseCase& c) {
  using problem::ScoreOp;
  const Dims whole{2, 4, 64, c.columns};
  const int64_t step = c.strided ? 3 : 1, row = c.columns * step + (c.strided ? 5 : 0);
  problem::PointwiseProblem problem;
  problem::PointwiseStructure& s = problem.structure;
  const auto operand = [&](DataType type, bool rows, bool columns) {
    OperandLayout layout{.dims = whole, .strides = {4 * 64 * row, 64 * row, row, step}};
    if (!rows) layout.dims[2] = 1, layout.strides[2] = 0;
    if (!columns) layout.dims[3] = 1, layout.strides[3] = 0;
    s.operands.push_back({.dtype = type});
    problem.sizes.layouts.push_back(layout);
    return static_cast<OperandId>(s.operands.size()) - 1;
  };
  const auto node = [&](problem::ScoreNode made) {
    s.nodes.push_back(made);
    return static_cast<int32_t>(s.nodes.size()) - 1;
  };
  const auto load = [&](size_t n) {
    const bool one = c.broadcast && n > 0;
    return node({.op = ScoreOp::load,
                 .operand = operand(c.inputs[n], !one || n % 2 == 0, !one || n % 2 == 1)});
  };
  int32_t value = load(0);
  for (size_t n = 1; n < c.inputs.size(); ++n) {
    const int32_t other = load(n);
    const bool chooses = n == 1 && c.inputs[0] == DataType::boolean;
    const int32_t column = chooses ? node({.op = ScoreOp::column}) : -1;
    value = chooses ? node({.op = ScoreOp::select, .a = value, .b = other, .c = column})
                    : node({.op = ScoreOp::add, .a = value, .b = other});
  }
  for (const ScoreOp function : c.functions) {
    const int32_t arity = problem::arity(function);
    value = node(
        {.op = function, .a = value, .b = arity > 1 ? value : -1, .c = arity > 2 ? value : -1});
  }
  for (const DataType type : c.results) s.results.push_back({value, operand(type, true, true)});
  return problem;
}

}  // namespace heddle::engine::cuda
