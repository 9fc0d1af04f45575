#include "engine/cuda/parameter_block.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/dropout_bits.h"

namespace heddle::engine::cuda {

using problem::OperandId;

namespace {
int log2_of(int64_t power_of_two) { return std::countr_zero(static_cast<uint64_t>(power_of_two)); }
}  // namespace

void fill_forward(ParameterBlock& block, attention::ForwardParameters& p,
                  const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes,
                  const std::vector<problem::OperandId>& loads) {
  block.tensor(p.q, structure.q);
  block.tensor(p.k, structure.k);
  block.tensor(p.v, structure.v);
  block.tensor(p.o, structure.o);
  block.tensor(p.stats, structure.stats);
  block.tensor(p.max, structure.max);
  block.tensor(p.sum_exp, structure.sum_exp);
  block.tensor(p.scores, structure.scores);
  for (size_t n = 0; n < loads.size(); ++n) block.tensor(p.loads[n], loads[n]);
  block.tensor(p.dropout_streams, structure.dropout.streams);
  block.tensor(p.dropout_mask, structure.dropout.mask);
  block.tensor(p.dropout_dump, structure.dropout.dump);
  block.tensor(p.block_mask, structure.block_mask);
  const auto stored = [&](OperandId id, attention::Pages& pages, attention::Scales& scales) {
    const problem::OperandType& type = structure.type(id);
    const int64_t rows = sizes.layout(id).dims[2];
    if (type.storage.is_ring()) pages.ring_rows = static_cast<int>(rows);
    if (type.storage.is_paged()) {
      block.tensor(pages.table, type.storage.index);
      pages.log_rows = log2_of(rows);
      // Tables are of i32.
      pages.blocks = static_cast<int>(std::min<int64_t>(sizes.layout(id).dims[0], INT32_MAX));
    }
    if (!type.holds_codes()) return;
    block.pointer(scales.data, type.scales.operand);
    const problem::OperandLayout& layout = sizes.layout(type.scales.operand);
    scales.stride[0] = layout.strides[1];
    scales.stride[1] = layout.strides[3];
  };
  stored(structure.k, p.pages_k, p.k_scales);
  stored(structure.v, p.pages_v, p.v_scales);
  block.lengths(p.q_lengths, structure.q_lengths, structure.q_lengths_cumulative, sizes.q_length);
  block.lengths(p.kv_lengths, structure.kv_lengths, structure.kv_lengths_cumulative,
                sizes.kv_length);
  for (size_t n = 0; n < structure.bounds.size(); ++n) {
    const problem::KeyBound& bound = structure.bounds[n];
    p.bounds[n].anchor = static_cast<attention::Anchor>(bound.anchor);
    p.bounds[n].upper = bound.upper;
    p.bounds[n].constant = sizes.bound_constants[n];
  }
  p.bound_count = static_cast<int>(structure.bounds.size());
  p.batch = static_cast<int>(sizes.batch);
  p.q_heads = static_cast<int>(sizes.q_heads);
  p.k_heads = static_cast<int>(sizes.k_heads);
  p.v_heads = static_cast<int>(sizes.v_heads);
  p.q_length = static_cast<int>(sizes.q_length);
  p.kv_length = static_cast<int>(sizes.kv_length);
  p.scale = static_cast<float>(sizes.scale);
  block.real(p.scale_operand, p.scale, structure.scale);
  block.pointer(p.sink, structure.sink);
  p.stats_log2 = structure.stats_log2;
  block.scalar(p.seed, structure.dropout.seed);
  block.scalar(p.offset, structure.dropout.offset);
  const double drop = sizes.dropout_probability;
  p.keep_scale = static_cast<float>(sizes.kept_factor());
  block.real(p.keep_scale_operand, p.keep_scale, structure.dropout.mask_scale);
  if (structure.dropout.kind == problem::Dropout::Kind::philox) {
    const PhiloxRule rule = philox_rule(drop);
    p.dropout_threshold = rule.low;
    p.dropout_inverts = rule.keeps_low ? 0 : ~0u;
  } else if (structure.dropout.kind == problem::Dropout::Kind::threefry) {
    p.dropout_threshold = threefry_threshold(drop);
    p.dropout_inverts = 0;
    for (int i = 0; i < 4 && i < sizes.threefry_strides.rank(); ++i)
      p.threefry_stride[i] = sizes.threefry_strides[i];
  }
}

void fill_backward(ParameterBlock& block, attention::BackwardParameters& p,
                   const problem::AttentionBackwardStructure& structure,
                   const problem::AttentionSizes& sizes,
                   const std::vector<problem::OperandId>& loads) {
  fill_forward(block, p.forward, structure.forward, sizes, loads);
  block.tensor(p.d_o, structure.d_o);
  block.tensor(p.d_stats, structure.d_stats);
  block.tensor(p.d_q, structure.d_q);
  block.tensor(p.d_k, structure.d_k);
  block.tensor(p.d_v, structure.d_v);
  block.pointer(p.largest_d_dot, structure.largest_d_dot);
  block.pointer(p.d_sink, structure.d_sink);
}

}  // namespace heddle::engine::cuda
