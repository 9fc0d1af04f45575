#include "problem/late_sizes.h"

namespace heddle::problem {
namespace {

Status check_attention(const AttentionStructure& planned, const AttentionSizes& planned_sizes,
                       const AttentionStructure& given, const AttentionSizes& given_sizes) {
  const auto heads = [](const AttentionStructure& s, const AttentionSizes& z) {
    return Dims{z.q_heads, z.k_heads, z.v_heads, s.qk_head_dim, s.v_head_dim};
  };
  const Dims expected = heads(planned, planned_sizes), is = heads(given, given_sizes);
  if (is == expected) return {};
  return error(Code::invalid_value,
               "The shapes give an attention of {}, {} and {} heads of Q, K and V and head dims {} and "
               "{}, expected those that it was planned with, {}, {} and {} heads and head dims {} "
               "and {}.",
               is[0], is[1], is[2], is[3], is[4], expected[0], expected[1], expected[2],
               expected[3], expected[4]);
}

Status check(const AttentionProblem& planned, const AttentionProblem& given) {
  return check_attention(planned.structure, planned.sizes, given.structure, given.sizes);
}

Status check(const AttentionBackwardProblem& planned, const AttentionBackwardProblem& given) {
  return check_attention(planned.structure.forward, planned.sizes, given.structure.forward,
                         given.sizes);
}

/// Of a problem over rows: `columns` trailing dims of its operand `x` are a row.
Status check_rows(const OperandLayout& planned, const OperandLayout& given, int columns) {
  const int rank = planned.dims.rank();
  const auto row = [&](const OperandLayout& x) {
    return Dims(x.dims.begin() + rank - columns, x.dims.end());
  };
  if (row(planned) == row(given)) return {};
  return error(Code::invalid_value,
               "The shapes give rows of {} elements, expected those that they were planned with, "
               "{}.",
               to_string(row(given)), to_string(row(planned)));
}

Status check(const NormProblem& planned, const NormProblem& given) {
  return check_rows(planned.layouts[static_cast<size_t>(planned.x)],
                    given.layouts[static_cast<size_t>(given.x)], planned.normalised_dims);
}

Status check(const NormBackwardProblem& planned, const NormBackwardProblem& given) {
  return check_rows(planned.layouts[static_cast<size_t>(planned.x)],
                    given.layouts[static_cast<size_t>(given.x)], planned.normalised_dims);
}

/// A row here is that of all heads.
Status check(const RopeProblem& planned, const RopeProblem& given) {
  return check_rows(planned.layouts[static_cast<size_t>(planned.x)],
                    given.layouts[static_cast<size_t>(given.x)], 1);
}

}  // namespace

Status check_late(const Problem& planned, const Problem& given) {
  return std::visit(
      [&](const auto& one) { return check(one, std::get<std::decay_t<decltype(one)>>(given)); },
      planned);
}

}  // namespace heddle::problem
