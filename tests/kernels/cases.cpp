#include "kernels/cases.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "problem/operands.h"
#include "problem/score_builder.h"
#include "problem/score_derivative.h"

namespace heddle::engine::cuda {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::KeyBound;
using problem::OperandId;
using problem::ScoreNode;
using problem::ScoreOp;

namespace {

constexpr int64_t kBatch = 2, kHeads = 8;

constexpr const char* kFeatureNames[] = {
    "causal",         "window",       "soft_cap",         "factor",         "bias",
    "wide_bias",      "row_bias",     "boolean_mask",     "alibi",          "philox",
    "threefry",       "dropout_mask", "block_mask",       "paged",          "ring",
    "i8_codes",       "i4_codes",     "f8_codes",         "unaligned",      "log2",
    "negative_scale", "sink",         "statistics",       "stats_gradient", "output_alone",
    "lengths",        "ragged",       "deterministic",    "wide_results",   "scores",
    "weights",        "rope_halves",  "rope_interleaved", "rope_leading"};

/// Adds operands to a problem, and features that are made of some.
class Builder {
 public:
  Builder(const Case& c, AttentionProblem& problem)
      : case_(c), problem_(problem), structure_(problem.structure), sizes_(problem.sizes) {}

  OperandId operand(DataType dtype, const Dims& dims) {
    structure_.operands.push_back({.dtype = dtype});
    sizes_.layouts.push_back({.dims = dims, .strides = *dense_strides(dims)});
    return static_cast<OperandId>(structure_.operands.size()) - 1;
  }
  OperandId io(int64_t columns) {
    return operand(case_.dtype, {kBatch, kHeads, case_.length, columns});
  }
  OperandId statistic() { return operand(DataType::f32, {kBatch, kHeads, case_.length, 1}); }

  void add(Feature feature);

 private:
  static ScoreNode constant(double value) { return {.op = ScoreOp::constant, .value = value}; }
  void bound(bool upper, int64_t at) {
    structure_.bounds.push_back(KeyBound{.upper = upper, .anchor = problem::Anchor::bottom_right});
    sizes_.bound_constants.push_back(at);
  }
  void page_keys();
  void hold_codes(DataType dtype);

  const Case& case_;
  AttentionProblem& problem_;
  problem::AttentionStructure& structure_;
  problem::AttentionSizes& sizes_;
};

void Builder::page_keys() {
  constexpr int64_t kPage = 64;
  const int64_t pages = divide_up(case_.length, kPage);
  const OperandId table = operand(DataType::i32, {kBatch, 1, pages, 1});
  for (OperandId id : {structure_.k, structure_.v}) {
    structure_.operands[static_cast<size_t>(id)].storage = problem::Storage::paged_by(table);
    const Dims dims{kBatch * pages, kHeads, kPage, id == structure_.k ? case_.qk_dim : case_.v_dim};
    sizes_.layout(id) = {.dims = dims, .strides = *dense_strides(dims)};
  }
}

void Builder::hold_codes(DataType dtype) {
  for (OperandId id : {structure_.k, structure_.v}) {
    Dims dims = sizes_.layout(id).dims;
    const OperandId scale = operand(DataType::f32, {1, dims[1], 1, dims[3]});
    structure_.type(id).dtype = dtype;
    structure_.type(id).scales = {problem::Scales::Per::channel, scale};
    dims[3] = structure_.type(id).elements_of(dims[3]);
    sizes_.layout(id) = {.dims = dims, .strides = *dense_strides(dims)};
  }
}

void Builder::add(Feature feature) {
  switch (feature) {
    case Feature::causal:
      bound(true, 1);
      break;
    case Feature::window:
      bound(true, 1);
      bound(false, -255);
      break;
    case Feature::soft_cap:
      structure_.score = {{{ScoreOp::dot},
                           constant(50),
                           {ScoreOp::divide, 0, 1},
                           {ScoreOp::tangent_hyperbolic, 2},
                           {ScoreOp::multiply, 3, 1}},
                          4};
      break;
    case Feature::factor:
      structure_.score = {{{ScoreOp::dot}, constant(1e-4), {ScoreOp::multiply, 0, 1}}, 2};
      break;
    case Feature::bias:
    case Feature::wide_bias:
    case Feature::row_bias: {
      const DataType dtype = feature == Feature::wide_bias ? DataType::f32 : case_.dtype;
      const int64_t columns = feature == Feature::row_bias ? 1 : case_.length;
      const OperandId bias = operand(dtype, {1, kHeads, case_.length, columns});
      structure_.score = {
          {{ScoreOp::dot}, {.op = ScoreOp::load, .operand = bias}, {ScoreOp::add, 0, 1}}, 2};
      break;
    }
    case Feature::boolean_mask: {
      const OperandId mask = operand(DataType::boolean, {kBatch, 1, case_.length, case_.length});
      structure_.score = {{{.op = ScoreOp::load, .operand = mask},
                           {ScoreOp::dot},
                           constant(-std::numeric_limits<double>::infinity()),
                           {ScoreOp::select, 0, 1, 2}},
                          3};
      break;
    }
    case Feature::alibi: {
      const OperandId slopes = operand(DataType::f32, {1, kHeads, 1, 1});
      structure_.score = {{{ScoreOp::dot},
                           {.op = ScoreOp::load, .operand = slopes},
                           {ScoreOp::column},
                           {ScoreOp::row},
                           {ScoreOp::subtract, 2, 3},
                           {ScoreOp::multiply, 1, 4},
                           {ScoreOp::add, 0, 5}},
                          6};
      break;
    }
    case Feature::philox:
      structure_.dropout = {.kind = problem::Dropout::Kind::philox,
                            .seed = operand(DataType::i64, {1, 1, 1, 1}),
                            .offset = operand(DataType::i64, {1, 1, 1, 1})};
      sizes_.dropout_probability = 0.1;
      break;
    case Feature::threefry:
      structure_.dropout = {.kind = problem::Dropout::Kind::threefry,
                            .seed = operand(DataType::u32, {2, 1, 1, 1})};
      sizes_.dropout_probability = 0.1;
      sizes_.threefry_strides = *dense_strides({kBatch, kHeads, case_.length, case_.length});
      break;
    case Feature::dropout_mask:
      structure_.dropout = {.kind = problem::Dropout::Kind::mask,
                            .mask = operand(case_.dtype, {kBatch, 1, case_.length, case_.length})};
      break;
    case Feature::block_mask:
      structure_.block_mask = operand(DataType::u8, {kBatch, kHeads, divide_up(case_.length, 128),
                                                     divide_up(case_.length, 8 * 128)});
      break;
    case Feature::paged:
      page_keys();
      structure_.q_lengths = structure_.kv_lengths = operand(DataType::i32, {kBatch, 1, 1, 1});
      break;
    case Feature::ring:
      for (OperandId id : {structure_.k, structure_.v})
        structure_.type(id).storage = problem::Storage::in_ring();
      break;
    case Feature::i8_codes:
      hold_codes(DataType::i8);
      break;
    case Feature::i4_codes:
      hold_codes(DataType::u8);
      break;
    case Feature::f8_codes:
      hold_codes(DataType::f8e4m3);
      break;
    case Feature::unaligned:
      sizes_.layout(structure_.q).strides = {kHeads * case_.length * (case_.qk_dim + 1),
                                             case_.length * (case_.qk_dim + 1), case_.qk_dim + 1,
                                             1};
      break;
    case Feature::wide_results:
      structure_.type(structure_.o).dtype = DataType::f32;
      break;
    case Feature::scores:
    case Feature::weights:
      structure_.scores_after_softmax = feature == Feature::weights;
      structure_.scores = operand(structure_.scores_after_softmax ? case_.dtype : DataType::f32,
                                  {kBatch, kHeads, case_.length, case_.length});
      break;
    case Feature::log2:
      structure_.softmax_input_is_log2 = true;
      break;
    case Feature::negative_scale:
      sizes_.scale = -sizes_.scale;
      break;
    case Feature::sink:
      structure_.sink = operand(DataType::f32, {1, kHeads, 1, 1});
      break;
    case Feature::statistics:
      structure_.max = statistic();
      structure_.sum_exp = statistic();
      break;
    case Feature::ragged:
      for (OperandId id : {structure_.q, structure_.k, structure_.v, structure_.o}) {
        const OperandId offsets = operand(DataType::i32, {kBatch + 1, 1, 1, 1});
        problem::OperandLayout& layout = sizes_.layouts[static_cast<size_t>(id)];
        const int64_t row = kHeads * layout.dims[3];
        layout.strides = {case_.length * row, layout.dims[3], row, 1};
        layout.ragged_multiplier = layout.strides[2];
        structure_.operands[static_cast<size_t>(id)].storage = problem::Storage::ragged_by(offsets);
      }
      [[fallthrough]];
    case Feature::lengths:
      structure_.q_lengths = operand(DataType::i32, {kBatch, 1, 1, 1});
      structure_.kv_lengths = operand(DataType::i32, {kBatch, 1, 1, 1});
      break;
    case Feature::output_alone:
      structure_.stats = problem::kAbsent;
      break;
    case Feature::stats_gradient:
    case Feature::deterministic:
      break;
    case Feature::rope_halves:
      structure_.q_rope =
          problem::Rope{.rope_dim = case_.qk_dim,
                        .angles = operand(DataType::f32, {case_.length, 1, 1, case_.qk_dim})};
      structure_.k_rope = structure_.q_rope;
      structure_.k_rope->rotated =
          operand(case_.dtype, {kBatch, kHeads, case_.length, case_.qk_dim});
      break;
    case Feature::rope_interleaved: {
      const int rope_dim = case_.qk_dim / 16 * 8;
      const Dims table{case_.length, 1, 1, rope_dim / 2};
      structure_.q_rope = problem::Rope{.pairing = problem::Rope::Pairing::interleaved,
                                        .rope_dim = rope_dim,
                                        .first_column = case_.qk_dim - rope_dim,
                                        .cosines = operand(DataType::f32, table),
                                        .sines = operand(DataType::f32, table),
                                        .positions = operand(DataType::i32, {kBatch, 1, 1, 1})};
      break;
    }
    case Feature::rope_leading: {
      const int rope_dim = case_.qk_dim / 64 * 16;
      structure_.q_rope = problem::Rope{
          .rope_dim = rope_dim, .angles = operand(DataType::f32, {case_.length, 1, 1, rope_dim})};
      structure_.k_rope = structure_.q_rope;
      structure_.k_rope->rotated =
          operand(case_.dtype, {kBatch, kHeads, case_.length, case_.qk_dim});
      break;
    }
  }
}

problem::ScoreExpression score_with_function(const Case& c) {
  problem::ScoreBuilder score;
  const auto dot = score.leaf(ScoreOp::dot);
  const auto distance =
      score.apply(ScoreOp::subtract, score.leaf(ScoreOp::row), score.leaf(ScoreOp::column));
  const auto of = c.of_distance ? distance : dot;
  const auto value = problem::arity(c.function) == 1
                         ? score.apply(c.function, of)
                         : score.apply(c.function, of, score.constant(c.of_distance ? 3 : 2.5));
  return score.expression(c.of_distance ? score.apply(ScoreOp::add, dot, value) : value);
}

}  // namespace

bool Case::has(Feature feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

bool Case::has_backward() const {
  return !has(Feature::paged) && !has(Feature::ring) && !has(Feature::i8_codes) &&
         !has(Feature::i4_codes) && !has(Feature::f8_codes) && !has(Feature::scores) &&
         !has(Feature::weights) && !has(Feature::output_alone);
}

std::vector<ScoreOp> long_functions() {
  return {ScoreOp::divide,
          ScoreOp::power,
          ScoreOp::modulo,
          ScoreOp::exponential,
          ScoreOp::exponential_minus_one,
          ScoreOp::logarithm,
          ScoreOp::logarithm_plus_one,
          ScoreOp::square_root,
          ScoreOp::reciprocal_square_root,
          ScoreOp::reciprocal,
          ScoreOp::tangent_hyperbolic,
          ScoreOp::sigmoid,
          ScoreOp::error_function,
          ScoreOp::sine,
          ScoreOp::cosine,
          ScoreOp::tangent};
}

std::string title(const Case& c) {
  std::string features;
  for (Feature feature : c.features)
    features += fmt::format("_{}", kFeatureNames[static_cast<int>(feature)]);
  if (c.function != ScoreOp::dot)
    features +=
        fmt::format("_{}{}", problem::name(c.function), c.of_distance ? "_of_distance" : "");
  return fmt::format("{}_{}_{}_{}{}_{}", heddle::name(c.dtype), c.qk_dim, c.v_dim, c.length,
                     features, c.architecture);
}

AttentionProblem forward_of(const Case& c, int64_t rows, int64_t keys) {
  AttentionProblem problem = forward_of(c);
  const auto& s = problem.structure;
  problem.sizes.q_length = rows;
  problem.sizes.kv_length = keys;
  for (OperandId id : {s.q, s.o, s.stats}) problem.sizes.layout(id).dims[2] = rows;
  for (OperandId id : {s.k, s.v}) problem.sizes.layout(id).dims[2] = keys;
  return problem;
}

AttentionProblem forward_of(const Case& c) {
  AttentionProblem problem;
  auto& structure = problem.structure;
  auto& sizes = problem.sizes;
  Builder build(c, problem);
  structure.q = build.io(c.qk_dim);
  structure.k = build.io(c.qk_dim);
  structure.v = build.io(c.v_dim);
  structure.o = build.io(c.v_dim);
  structure.stats = build.statistic();
  structure.qk_head_dim = c.qk_dim;
  structure.v_head_dim = c.v_dim;
  sizes.batch = kBatch;
  sizes.q_heads = sizes.k_heads = sizes.v_heads = kHeads;
  sizes.q_length = sizes.kv_length = c.length;
  sizes.scale = 0.125;
  for (Feature feature : c.features) build.add(feature);
  if (c.function != ScoreOp::dot) structure.score = score_with_function(c);
  return problem;
}

AttentionBackwardProblem backward_of(const Case& c) {
  AttentionProblem forward = forward_of(c);
  Builder build(c, forward);
  const auto like = [&](OperandId id) {
    const auto from = static_cast<size_t>(id);
    forward.structure.operands.push_back(forward.structure.operands[from]);
    forward.sizes.layouts.push_back(forward.sizes.layouts[from]);
    return static_cast<OperandId>(forward.structure.operands.size()) - 1;
  };
  AttentionBackwardProblem problem;
  auto& structure = problem.structure;
  structure.d_o = like(forward.structure.o);
  structure.d_q = like(forward.structure.q);
  structure.d_k = like(forward.structure.k);
  structure.d_v = like(forward.structure.v);
  if (c.has(Feature::wide_results)) {
    for (OperandId id : {forward.structure.o, structure.d_o})
      forward.structure.type(id).dtype = c.dtype;
    for (OperandId id : {structure.d_q, structure.d_k, structure.d_v})
      forward.structure.type(id).dtype = DataType::f32;
  }
  structure.deterministic = c.has(Feature::deterministic);
  if (c.has(Feature::bias) || c.has(Feature::wide_bias)) {
    const OperandId bias = forward.structure.score.nodes[1].operand;
    structure.load_gradients.push_back(
        {.load = bias, .gradient = like(bias), .derivative = {{{ScoreOp::gradient}}, 0}});
  }
  if (c.has(Feature::stats_gradient)) structure.d_stats = build.statistic();
  if (c.has(Feature::sink)) structure.d_sink = build.operand(DataType::f32, {1, kHeads, 1, 1});
  if (c.has(Feature::boolean_mask)) {
    const OperandId mask = forward.structure.score.nodes[0].operand;
    structure.d_dot = {{{.op = ScoreOp::load, .operand = mask},
                        {ScoreOp::gradient},
                        {.op = ScoreOp::constant, .value = 0},
                        {ScoreOp::select, 0, 1, 2}},
                       3};
  }
  if (c.has(Feature::soft_cap) || c.has(Feature::factor) || c.function != ScoreOp::dot)
    structure.d_dot = problem::derivative_by_dot(forward.structure.score);
  if (c.has(Feature::statistics)) forward.structure.stats = problem::kAbsent;
  structure.forward = forward.structure;
  problem.sizes = forward.sizes;
  return problem;
}

namespace {

/// Has every scale and largest magnitude that the structure names.
template <class Problem>
void add_scales(Problem& fp8) {
  std::vector<problem::OperandType>& types = problem::types_of(fp8);
  problem::scales(
      [&](const char*, OperandId& id, problem::Use) {
        id = static_cast<OperandId>(types.size());
        types.push_back({.dtype = DataType::f32});
        fp8.sizes.layouts.push_back({.dims = {1, 1, 1, 1}, .strides = {0, 0, 0, 0}});
      },
      fp8.structure);
}

}  // namespace

problem::Fp8AttentionProblem fp8_of(const Case& c) {
  AttentionProblem attention = forward_of(c);
  problem::Fp8AttentionProblem fp8{{std::move(attention.structure)}, std::move(attention.sizes)};
  problem::AttentionStructure& s = fp8.structure.attention;
  for (OperandId id : {s.q, s.k, s.v, s.o}) s.type(id).dtype = DataType::f8e4m3;
  add_scales(fp8);
  return fp8;
}

problem::Fp8AttentionBackwardProblem fp8_backward_of(const Case& c) {
  AttentionBackwardProblem attention = backward_of(c);
  problem::Fp8AttentionBackwardProblem fp8{{std::move(attention.structure)},
                                           std::move(attention.sizes)};
  problem::AttentionBackwardStructure& b = fp8.structure.attention;
  problem::AttentionStructure& s = b.forward;
  for (OperandId id : {s.q, s.k, s.v, s.o, b.d_o, b.d_q, b.d_k, b.d_v})
    s.type(id).dtype = DataType::f8e4m3;
  add_scales(fp8);
  return fp8;
}

}  // namespace heddle::engine::cuda
