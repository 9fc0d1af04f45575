#include "engine/cuda/attention_sm80.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/attention_check.h"
#include "engine/cuda/device_names.h"

namespace heddle::engine::cuda {

using problem::kAbsent;

int shared_limit_of(const problem::AttentionStructure& structure, const Target& target) {
  const bool wide = std::max(structure.qk_head_dim, structure.v_head_dim) > kWidestHead;
  return wide ? target.shared_limit() : kSm80SharedLimit;
}

Status check_shared_bytes(const problem::AttentionStructure& structure, int bytes,
                          const Target& target) {
  const int limit = shared_limit_of(structure, target);
  if (bytes <= limit) return {};
  return error(Code::graph_not_supported,
               "cuda: sdpa head_dim {} (q, k) and {} (v) in {} need {} bytes of shared memory; a "
               "block has {} on {}",
               structure.qk_head_dim, structure.v_head_dim, name(structure.type(structure.q).dtype),
               bytes, limit, target.architecture);
}

sm80::GeneralConfig general_config(const problem::AttentionStructure& structure) {
  sm80::GeneralConfig config;
  config.element = element_of(structure.type(structure.q).dtype);
  config.qk_dim = structure.qk_head_dim;
  config.v_dim = structure.v_head_dim;
  config.rows_k = rows_of(structure.type(structure.k).storage);
  config.rows_v = rows_of(structure.type(structure.v).storage);
  config.block_mask = structure.block_mask != kAbsent;
  config.input_is_log2 = structure.softmax_input_is_log2;
  // Tiles of f32 are not copied asynchronously: a second stage would hide nothing.
  if (config.is_f32()) config.stages = 1;
  config.max_and_sum = has_max_and_sum(structure);
  config.has_score = !structure.score.is_identity();
  config.dropout = dropout_of(structure.dropout.kind);
  if (config.dropout == attention::Dropout::mask)
    config.mask_element = element_of(structure.type(structure.dropout.mask).dtype);
  return config;
}

std::string kernel_source(const problem::AttentionStructure& structure, int threads) {
  // One block a processor is all that f32 asks for: for a third one the assembler would stop at 168
  // registers and spill a few.
  const bool planes = is_f32(structure);
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({}{})\n", threads,
                     planes ? ", 1" : "");
}

std::string leave_source(const problem::AttentionStructure& structure, const char* forward) {
  if (!is_f32(structure)) return "";
  return fmt::format("  if ({0}.fallback != nullptr && *{0}.fallback == 0) return;\n", forward);
}

}  // namespace heddle::engine::cuda
