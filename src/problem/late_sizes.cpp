#include "problem/late_sizes.h"

namespace heddle::problem {
namespace {

/// An attention's heads and head dims.
Dims heads_of(const AttentionStructure& s, const AttentionSizes& z) {
  return {z.q_heads, z.k_heads, z.v_heads, s.qk_head_dim, s.v_head_dim};
}

Status take_over(const AttentionStructure& planned_structure, const AttentionSizes& planned,
                 const AttentionStructure& structure, AttentionSizes& given) {
  const Dims expected = heads_of(planned_structure, planned), is = heads_of(structure, given);
  if (is != expected) {
    return error(Code::invalid_value,
                 "The shapes give an attention of {}, {} and {} heads of Q, K and V and head dims "
                 "{} and {}, expected those that it was planned with, {}, {} and {} heads and head "
                 "dims {} and {}.",
                 is[0], is[1], is[2], is[3], is[4], expected[0], expected[1], expected[2],
                 expected[3], expected[4]);
  }
  given.planned_q_length = planned.q_length;
  given.planned_kv_length = planned.kv_length;
  for (size_t i = 0; i < given.layouts.size(); ++i)
    given.layouts[i].planned_dims = planned.layouts[i].dims;
  return {};
}

Status take_over(const AttentionProblem& planned, AttentionProblem& given) {
  return take_over(planned.structure, planned.sizes, given.structure, given.sizes);
}
Status take_over(const AttentionBackwardProblem& planned, AttentionBackwardProblem& given) {
  return take_over(planned.structure.forward, planned.sizes, given.structure.forward, given.sizes);
}

Status take_over(const Fp8AttentionProblem& planned, Fp8AttentionProblem& given) {
  return take_over(planned.structure.attention, planned.sizes, given.structure.attention,
                   given.sizes);
}
Status take_over(const Fp8AttentionBackwardProblem& planned, Fp8AttentionBackwardProblem& given) {
  return take_over(planned.structure.attention.forward, planned.sizes,
                   given.structure.attention.forward, given.sizes);
}

/// Of a problem over rows: `columns` trailing dims of x are a row.
Status check_rows(const OperandLayout& planned, const OperandLayout& given, int columns) {
  const auto row = [&](const OperandLayout& x) {
    return Dims(x.dims.end() - columns, x.dims.end());
  };
  if (row(planned) == row(given)) return {};
  return error(Code::invalid_value,
               "The shapes give rows of {} elements, expected those that were planned, {}.",
               to_string(row(given)), to_string(row(planned)));
}

template <class OverRows>
const OperandLayout& x_of(const OverRows& problem) {
  return problem.sizes.layout(problem.structure.x);
}

Status take_over(const NormProblem& planned, const NormProblem& given) {
  return check_rows(x_of(planned), x_of(given), planned.structure.normalised_dims);
}
Status take_over(const NormBackwardProblem& planned, const NormBackwardProblem& given) {
  return check_rows(x_of(planned), x_of(given), planned.structure.normalised_dims);
}
Status take_over(const ChannelNormProblem& planned, const ChannelNormProblem& given) {
  return check_rows(x_of(planned), x_of(given), planned.structure.normalised_dims);
}
Status take_over(const ChannelNormBackwardProblem& planned,
                 const ChannelNormBackwardProblem& given) {
  return check_rows(x_of(planned), x_of(given), planned.structure.normalised_dims);
}
Status take_over(const RopeProblem& planned, const RopeProblem& given) {
  return check_rows(x_of(planned), x_of(given), 1);
}

/// Every size may be another: kernels are told all of them. Results made together keep equal dims.
Status take_over(const PointwiseProblem& planned, const PointwiseProblem& given) {
  if (given.structure != planned.structure)
    return error(Code::invalid_value,
                 "The shapes broadcast an index that was planned for each place, expected the dims "
                 "of gen_index and of what reads it to stay equal.");
  for (const PointwiseStructure::Result& result : given.structure.results) {
    const Dims& dims = given.sizes.layout(result.y).dims;
    if (dims != given.dims())
      return error(
          Code::invalid_value,
          "The shapes give pointwise results dims {} and {}, expected the same as planned.",
          to_string(given.dims()), to_string(dims));
  }
  return {};
}

/// An append's heads and head dims.
Dims heads_of(const CacheAppendProblem& p) {
  return {p.sizes.q_heads, p.sizes.kv_heads, p.structure.qk_head_dim, p.structure.v_head_dim,
          p.structure.rope_dim};
}

Status take_over(const CacheAppendProblem& planned, CacheAppendProblem& given) {
  const Dims expected = heads_of(planned), is = heads_of(given);
  if (is != expected) {
    return error(
        Code::invalid_value,
        "The shapes give an append of {} heads of Q and {} of K and V, head dims {} and {} "
        "and {} columns rotated, expected those that it was planned with, {}, {}, {}, {} "
        "and {}.",
        is[0], is[1], is[2], is[3], is[4], expected[0], expected[1], expected[2], expected[3],
        expected[4]);
  }
  for (size_t i = 0; i < given.sizes.layouts.size(); ++i)
    given.sizes.layouts[i].planned_dims = planned.sizes.layouts[i].dims;
  return {};
}

}  // namespace

Result<Problem> at_late_sizes(const Problem& planned, Problem given) {
  HEDDLE_TRY(std::visit(
      [&]<class Kind>(const Kind& one) { return take_over(one, std::get<Kind>(given)); }, planned));
  return given;
}

}  // namespace heddle::problem
