#include "engine/cpu/forward_path.h"

#include <numeric>

#include "engine/cpu/attention_binding.h"

namespace heddle::engine::cpu {

using problem::AttentionPath;

int64_t group_rows(const problem::AttentionSizes& z) {
  return std::gcd(z.q_heads / z.k_heads, z.q_heads / z.v_heads) * z.q_length;
}

AttentionPath forward_path(const problem::AttentionStructure& s, const problem::AttentionSizes& z,
                           const KernelShape& shape, const problem::AllowedPaths& allowed) {
  // O beside a maximum is summed as packed keys have it, in short runs.
  const bool packs = s.max != problem::kAbsent;
  if (!packs && group_rows(z) <= shape.few_rows && allowed.has(AttentionPath::decode))
    return AttentionPath::decode;
  return packs || allowed.has(AttentionPath::flash) ? AttentionPath::flash
                                                    : AttentionPath::memory_efficient;
}

/// Rows where keys stay as they lie are too few for tiles, and the chips that have these are slow
/// with pairs (Sapphire Rapids, 32 heads on 8, 4096 keys of d 128, a core: 12.4 GB/s by pairs, 14.0
/// in f32).
Products products_of(const problem::AttentionStructure& s, const KernelShape& shape,
                     AttentionPath path) {
  const Products products = packed_products(s, shape);
  const bool may = !are_by_tiles(products) || path == AttentionPath::flash;
  return may ? products : Products::singles;
}

}  // namespace heddle::engine::cpu
