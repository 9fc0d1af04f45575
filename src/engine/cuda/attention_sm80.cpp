#include "engine/cuda/attention_sm80.h"

#include <algorithm>

#include "attention/parameters.h"
#include "core/rounding.h"
#include "engine/cuda/passed_arguments.h"
#include "engine/cuda/score_source.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;

namespace {
constexpr int kMaxHeadDim = 256;
constexpr int64_t kMaxGridY = 65535;
constexpr int kDumpThreads = 128;
}  // namespace

const char* dropout_name(problem::Dropout::Kind kind) {
  constexpr const char* kNames[] = {"none", "philox", "threefry", "mask"};
  return kNames[static_cast<int>(kind)];
}

int64_t tile_bytes(int64_t rows, int64_t columns, DataType type) {
  const int64_t planes = type == DataType::f32 ? 3 : 1;
  return planes * rows * divide_up(columns, 64) * 128;
}

bool is_diagonal(const problem::KeyBound& bound) {
  return bound.anchor == problem::Anchor::top_left || bound.anchor == problem::Anchor::bottom_right;
}

bool is_f32(const problem::AttentionStructure& structure) {
  return structure.type(structure.q).dtype == DataType::f32;
}

Status check_dtype(const problem::AttentionStructure& structure, OperandId id, const char* role,
                   std::initializer_list<DataType> allowed) {
  if (id == kAbsent) return {};
  const DataType type = structure.type(id).dtype;
  for (DataType one : allowed) {
    if (type == one) return {};
  }
  std::string list;
  for (DataType one : allowed) list += (list.empty() ? "" : ", ") + std::string(name(one));
  return error(Code::graph_not_supported, "cuda: sdpa {} is {}, expected {}", role, name(type),
               list);
}

Status check_sm80(const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes) {
  const auto io = {DataType::bf16, DataType::f16, DataType::f32};
  HEDDLE_TRY(check_dtype(structure, structure.q, "q", io));
  const DataType element = structure.type(structure.q).dtype;
  for (auto [id, role] : {std::pair{structure.k, "k"}, {structure.v, "v"}, {structure.o, "o"}}) {
    HEDDLE_TRY(check_dtype(structure, id, role, {element}));
  }
  if (structure.qk_head_dim > kMaxHeadDim || structure.v_head_dim > kMaxHeadDim) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); the kernel takes at most {}",
                 structure.qk_head_dim, structure.v_head_dim, kMaxHeadDim);
  }
  if (structure.q_rope || structure.k_rope) {
    return error(Code::graph_not_supported,
                 "cuda: rope inside sdpa is planned as a step before it");
  }
  if (structure.bounds.size() > attention::kMaxBounds) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has {} bounds on visible keys; the kernel takes at most {}",
                 structure.bounds.size(), attention::kMaxBounds);
  }
  for (OperandId id : {structure.scale, structure.dropout.mask_scale}) {
    if (id != kAbsent && !structure.type(id).on_host) {
      HEDDLE_TRY(check_dtype(structure, id, "scale", {DataType::f32}));
    }
  }
  if (sizes.q_heads > kMaxGridY || sizes.batch * sizes.q_heads > INT32_MAX) {
    return error(
        Code::graph_not_supported,
        "cuda: sdpa has batch {} and {} query heads; the kernel takes at most {} heads and "
        "{} of all batch entries",
        sizes.batch, sizes.q_heads, kMaxGridY, INT32_MAX);
  }
  if (sizes.q_length > INT32_MAX - 256 || sizes.kv_length > INT32_MAX - 256) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa lengths {} and {}; the kernel counts rows in 32 bits", sizes.q_length,
                 sizes.kv_length);
  }
  return {};
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
      "  static constexpr bool kWantDk = {}, kWantDv = {};\n"
      "  static constexpr attention::Dropout kDropout = attention::Dropout::{};\n"
      "{}}};\n",
      device_type(structure.type(structure.q).dtype), structure.qk_head_dim, structure.v_head_dim,
      tiles.warps, tiles.tile_m, tiles.tile_n, tiles.aligned, paged(structure.k),
      paged(structure.v), structure.block_mask != kAbsent, structure.softmax_input_is_log2,
      tiles.want_dk, tiles.want_dv, dropout_name(structure.dropout.kind), extras);
}

attention::Room room_of_dump() {
  attention::Room room;
  room.dropout = true;
  return room;
}

std::string dump_source(const problem::AttentionStructure& structure, const char* parameters,
                        const char* forward, const std::string& name) {
  return fmt::format(
      "{}#include \"attention/dropout.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "{}(const __grid_constant__ heddle::attention::{} p) {{\n"
      "  heddle::attention::dump_keep_bits<heddle::attention::Dropout::{}>({});\n"
      "}}\n",
      room_source(room_of_dump()), kDumpThreads, name, parameters,
      dropout_name(structure.dropout.kind), forward);
}

Launch dump_launch(const problem::AttentionSizes& sizes) {
  return {.grid_x = static_cast<unsigned>(divide_up(sizes.kv_length, kDumpThreads)),
          .grid_y = static_cast<unsigned>(std::min(sizes.q_length, kMaxGridY)),
          .grid_z = static_cast<unsigned>(sizes.batch),
          .threads = kDumpThreads};
}

}  // namespace heddle::engine::cuda
