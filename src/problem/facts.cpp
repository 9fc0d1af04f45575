#include "problem/facts.h"

#include <algorithm>
#include <bit>

#include "core/rounding.h"
#include "problem/norm_rows.h"
#include "problem/operands.h"

namespace heddle::problem {
namespace {

constexpr int64_t kMostStrideBytes = (int64_t{1} << 40) - 16;
constexpr int kMostAlignment = 16;

bool steps_forward(const OperandType& type, const OperandLayout& layout) {
  const int64_t most = kMostStrideBytes / size_of(type.dtype);
  for (int d = 0; d + 1 < layout.dims.rank(); ++d)
    if (layout.dims[d] != 1 && (layout.strides[d] <= 0 || layout.strides[d] > most)) return false;
  return layout.strides.back() == 1;
}

bool is_empty(const OperandLayout& layout) {
  return std::any_of(layout.dims.begin(), layout.dims.end(), [](int64_t dim) { return dim == 0; });
}

/// One that a plan has for each cell may have a single row or column where there is a single query
/// or key.
bool has_cells(const OperandLayout& layout, const AttentionSizes& sizes) {
  return layout.varies(2) && layout.varies(3) &&
         layout.dims[2] >= std::min<int64_t>(2, sizes.q_length) &&
         layout.dims[3] >= std::min<int64_t>(2, sizes.kv_length);
}

AttentionFacts::Keys keys_of(int64_t length) {
  using Keys = AttentionFacts::Keys;
  return length <= 255    ? Keys::to_255
         : length <= 512  ? Keys::to_512
         : length <= 2047 ? Keys::to_2047
         : length <= 8191 ? Keys::to_8191
                          : Keys::more;
}

int few_keys_of(int64_t length) {
  return length <= AttentionFacts::kFewKeys ? static_cast<int>(round_up(length, int64_t{16})) : 0;
}

AttentionFacts::GroupRows group_rows_of(const AttentionSizes& sizes) {
  using GroupRows = AttentionFacts::GroupRows;
  const int64_t rows = sizes.q_heads / sizes.k_heads * sizes.q_length_to_plan_for();
  return rows <= 8    ? GroupRows::to_8
         : rows <= 16 ? GroupRows::to_16
         : rows <= 32 ? GroupRows::to_32
         : rows <= 64 ? GroupRows::to_64
                      : GroupRows::more;
}

NormFacts facts_of_rows(const NormRows& rows) {
  return {.row_dims = static_cast<int>(rows.row_dims.size()),
          .column_dims = static_cast<int>(rows.column_dims.size()),
          .vector = rows.vector,
          .vectors = static_cast<int64_t>(
              std::bit_ceil(static_cast<uint64_t>(divide_up(rows.columns, int64_t{rows.vector}))))};
}

template <class Problem>
NormFacts facts_of_channels(const Problem& problem) {
  const NormRows rows(problem);
  NormFacts facts = facts_of_rows(rows);
  if (!rows.row_dims.empty() && !rows.column_dims.empty()) {
    const Dims& strides = problem.sizes.layout(problem.structure.x).strides;
    facts.channels_last =
        strides[rows.row_dims.back().dim] == 1 && strides[rows.column_dims.back().dim] != 1;
  }
  return facts;
}

}  // namespace

int alignment_of(const OperandType& type, const OperandLayout& layout) {
  // Bits of all that has to be a multiple: the lowest one set of them is the least.
  auto together = static_cast<uint64_t>(layout.dims_to_plan_for().back()) | kMostAlignment;
  for (int d = 0; d + 1 < layout.strides.rank(); ++d)
    if (layout.dims[d] > 1) together |= static_cast<uint64_t>(layout.strides[d]);
  // Ragged sequences may start anywhere their offsets say.
  if (type.storage.is_ragged()) together |= static_cast<uint64_t>(layout.ragged_multiplier);
  return 1 << std::countr_zero(together);
}

namespace {

/// Notes the operands that kernels step through, whose layouts they may be specialised on.
class Noted {
 public:
  Noted(const AttentionStructure& structure, const AttentionSizes& sizes, AttentionFacts& facts)
      : structure_(structure), sizes_(sizes), facts_(facts) {
    facts.operands.resize(structure.operands.size());
    operands(*this, structure.score);
    rotated(structure.q_rope);
    rotated(structure.k_rope);
  }

  void operator()(const char*, OperandId id, Use) { note(id); }
  void rotated(const std::optional<Rope>& rope) {
    if (rope) note(rope->rotated);
  }

 private:
  void note(OperandId id) {
    if (id == kAbsent) return;
    const OperandType& type = structure_.type(id);
    const OperandLayout& layout = sizes_.layout(id);
    facts_.operands[static_cast<size_t>(id)] = {.per_row = layout.varies(2),
                                                .per_column = layout.varies(3),
                                                .has_cells = has_cells(layout, sizes_),
                                                .is_empty = is_empty(layout),
                                                .steps_forward = steps_forward(type, layout),
                                                .alignment = alignment_of(type, layout)};
  }

  const AttentionStructure& structure_;
  const AttentionSizes& sizes_;
  AttentionFacts& facts_;
};

/// Kernels may take a score to its exponent by one product, of a hidden key, -inf, too: the factor
/// may be no subnormal number then, which they take for 0. The least is a scale times the units of
/// pairs of f16, 2^-46 each (kernels/sm90/f16_pairs.cuh).
constexpr double kLeastPositiveScale = 0x1p-34;

AttentionFacts facts_of_sizes(const AttentionStructure& structure, const AttentionSizes& sizes) {
  return {.operands = {},
          .positive_scale = structure.scale == kAbsent && sizes.scale >= kLeastPositiveScale,
          .groups_queries = sizes.q_heads > sizes.k_heads,
          .as_many_value_heads = sizes.k_heads == sizes.v_heads,
          .has_few_rows = sizes.q_length_to_plan_for() <= 64,
          .group_rows = group_rows_of(sizes),
          .keys = keys_of(sizes.kv_length_to_plan_for()),
          .few_keys = few_keys_of(sizes.kv_length_to_plan_for()),
          .is_short = std::max(sizes.q_length_to_plan_for(), sizes.kv_length_to_plan_for()) <=
                      AttentionFacts::kFewKeys};
}

}  // namespace

AttentionFacts facts_of(const AttentionProblem& problem) {
  AttentionFacts facts = facts_of_sizes(problem.structure, problem.sizes);
  Noted noted(problem.structure, problem.sizes, facts);
  tensors(noted, problem.structure);
  return facts;
}

AttentionFacts facts_of(const AttentionBackwardProblem& problem) {
  const AttentionBackwardStructure& s = problem.structure;
  AttentionFacts facts = facts_of_sizes(s.forward, problem.sizes);
  Noted noted(s.forward, problem.sizes, facts);
  tensors(noted, s);
  operands(noted, s.d_dot);
  for (const LoadGradient& wanted : s.load_gradients) {
    operands(noted, wanted.derivative);
    noted("gradient of what is loaded", wanted.gradient, Use::written);
  }
  noted.rotated(s.d_q_rope);
  noted.rotated(s.d_k_rope);
  return facts;
}

AttentionFacts facts_of(const Fp8AttentionProblem& problem) {
  return facts_of(AttentionProblem{problem.structure.attention, problem.sizes});
}
AttentionFacts facts_of(const Fp8AttentionBackwardProblem& problem) {
  return facts_of(AttentionBackwardProblem{problem.structure.attention, problem.sizes});
}

NormFacts facts_of(const NormProblem& problem) { return facts_of_rows(NormRows(problem)); }
NormFacts facts_of(const NormBackwardProblem& problem) { return facts_of_rows(NormRows(problem)); }
NormFacts facts_of(const ChannelNormProblem& problem) { return facts_of_channels(problem); }
NormFacts facts_of(const ChannelNormBackwardProblem& problem) { return facts_of_channels(problem); }

RopeFacts facts_of(const RopeProblem& problem) {
  const RopeStructure& s = problem.structure;
  const auto alignment = [&](OperandId id) {
    return alignment_of(s.type(id), problem.sizes.layout(id));
  };
  return {.is_empty = is_empty(problem.sizes.layout(s.x)),
          .alignment = std::min(alignment(s.x), alignment(s.y))};
}

CacheAppendFacts facts_of(const CacheAppendProblem& problem) {
  const CacheAppendStructure& s = problem.structure;
  CacheAppendFacts facts{.is_empty = is_empty(problem.sizes.layout(s.q)),
                         .alignment = kMostAlignment,
                         .table_alignment = kMostAlignment};
  const auto align = [&](OperandId id, int& least) {
    if (id != kAbsent) least = std::min(least, alignment_of(s.type(id), problem.sizes.layout(id)));
  };
  tensors([&](const char*, OperandId id, Use) { align(id, facts.alignment); }, s);
  for (const OperandId table : {s.cosines, s.sines}) {
    align(table, facts.table_alignment);
    if (table != kAbsent && problem.sizes.layout(table).strides[3] != 1) facts.table_alignment = 1;
  }
  for (const OperandLayout& layout : problem.sizes.layouts) {
    for (int d = 0; d < layout.dims.rank(); ++d)
      facts.has_wide_strides |= layout.dims[d] > 1 && layout.strides[d] > UINT32_MAX;
  }
  return facts;
}

PointwiseFacts facts_of(const PointwiseProblem& problem) {
  const PointwiseProblem ordered = in_memory_order(problem);
  PointwiseFacts facts{.is_empty = *element_count(problem.dims()) == 0};
  int64_t widest = 1;
  auto together = static_cast<uint64_t>(ordered.dims()[3]);
  for (size_t n = 0; n < ordered.sizes.layouts.size(); ++n) {
    const OperandLayout& layout = ordered.sizes.layouts[n];
    using Columns = PointwiseFacts::Columns;
    const int64_t step = layout.dims[3] == 1 ? 0 : layout.strides[3];
    facts.columns.push_back(step == 0   ? Columns::one
                            : step == 1 ? Columns::dense
                                        : Columns::strided);
    if (facts.columns.back() != Columns::dense) continue;
    widest = std::max(widest, size_of(ordered.structure.operands[n].dtype));
    for (int d = 0; d < 3; ++d)
      if (layout.dims[d] > 1) together |= static_cast<uint64_t>(layout.strides[d]);
  }
  // The lowest bit set of all that has to be a multiple is the least.
  const auto widest_vector = static_cast<uint64_t>(16 / std::max<int64_t>(widest, 2));
  facts.vector = 1 << std::countr_zero(together | widest_vector);
  for (const ScoreNode& node : ordered.structure.nodes)
    if (node.op >= ScoreOp::row && node.op <= ScoreOp::head) facts.indices.push_back(node.op);
  return facts;
}

}  // namespace heddle::problem
