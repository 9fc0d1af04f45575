#include "engine/cuda/attention_sm80.h"

#include <fmt/format.h>

#include "engine/cuda/attention_check.h"
#include "engine/cuda/device_names.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;

std::string kernel_source(const problem::AttentionStructure& structure, int threads) {
  // One block a processor is all that f32 asks for: for a third one the assembler would stop at 168
  // registers and spill a few.
  const bool planes = is_f32(structure);
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({}{})\n", threads,
                     planes ? ", 1" : "");
}

std::string leave_source(const problem::AttentionStructure& structure, const char* forward) {
  if (!is_f32(structure)) return "";
  return fmt::format("  if ({0}.unfit != nullptr && *{0}.unfit == 0) return;\n", forward);
}

std::string config_source(const problem::AttentionStructure& structure, const Sm80Tiles& tiles) {
  const auto paged = [&](OperandId id) { return structure.type(id).page_table != kAbsent; };
  std::string extras;
  if (structure.dropout.kind == problem::Dropout::Kind::mask) {
    extras += fmt::format(
        "  static HEDDLE_DEVICE float load_mask(const attention::Tensor& mask, int batch, int "
        "head, int row, int column) {{\n"
        "    return attention::load<{}>(mask, batch, head, row, column);\n  }}\n",
        device_type(structure.type(structure.dropout.mask).dtype));
  }
  if (!tiles.load_element.empty())
    extras += fmt::format("  using LoadElement = {};\n", tiles.load_element);
  return fmt::format(
      "struct Config {{\n"
      "  using Element = {};\n"
      "  static constexpr int kQkDim = {}, kVDim = {}, kWarps = {}, kTileM = {}, kTileN = {};\n"
      "  static constexpr bool kAligned = {}, kPagedK = {}, kPagedV = {}, kBlockMask = {}, "
      "kInputIsLog2 = {};\n"
      "  static constexpr bool kWantDk = {}, kWantDv = {}, kMaxAndSum = {};\n"
      "  static constexpr attention::Dropout kDropout = attention::Dropout::{};\n"
      "{}}};\n",
      device_type(structure.type(structure.q).dtype), structure.qk_head_dim, structure.v_head_dim,
      tiles.warps, tiles.tile_m, tiles.tile_n, tiles.aligned, paged(structure.k),
      paged(structure.v), structure.block_mask != kAbsent, structure.softmax_input_is_log2,
      tiles.want_dk, tiles.want_dv, has_max_and_sum(structure),
      dropout_name(structure.dropout.kind), extras);
}

}  // namespace heddle::engine::cuda
