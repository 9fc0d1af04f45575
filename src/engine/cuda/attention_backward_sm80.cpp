#include "engine/cuda/attention_backward_sm80.h"

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/dropout_dump.h"
#include "engine/cuda/general_launches.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/passed_arguments.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/shared_tile.h"

namespace heddle::engine::cuda {
namespace {

using attention::BackwardParameters;
using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;
using Part = BackwardSm80Step::Part;

constexpr int kDeltaWarps = 8;
constexpr int kSinkThreads = 256;

bool is_aligned(const AttentionBackwardStructure& structure, const AttentionSizes& sizes) {
  for (OperandId id :
       {structure.forward.q, structure.forward.k, structure.forward.v, structure.forward.o,
        structure.d_o, structure.d_q, structure.d_k, structure.d_v}) {
    if (!rows_are_aligned(structure.forward, sizes, id)) return false;
  }
  return true;
}

// Shared memory of a kernel that owns `own` rows of one pair of tensors and stages `staged` rows of
// the other: twice, where copies are asynchronous.
int64_t sweep_bytes(const AttentionStructure& structure, int64_t own, int64_t staged,
                    int64_t record_bytes) {
  const DataType element = structure.type(structure.q).dtype;
  const int64_t stages = element == DataType::f32 ? 1 : 2;
  const auto pair = [&](int64_t rows) {
    return tile_bytes(rows, structure.qk_head_dim, element) +
           tile_bytes(rows, structure.v_head_dim, element);
  };
  return pair(own) + stages * (pair(staged) + staged * record_bytes);
}

std::string derivative_of(const AttentionBackwardStructure& structure, const BackwardSm80Step& step,
                          std::vector<OperandId>& loads) {
  if (step.part == Part::load) {
    return score_source("Derivative", structure.load_gradients[step.load_gradient].derivative,
                        structure.forward, loads);
  }
  return score_source("Derivative", structure.d_dot, structure.forward, loads);
}

attention::Room room_of_backward_sm80(const AttentionBackwardStructure& structure,
                                      const BackwardSm80Step& step, size_t loads) {
  if (step.part == Part::dump) return room_of_dump();
  attention::Room room;
  if (step.part == Part::delta || step.part == Part::sink) {
    room.output = room.row_gradients = true;
    room.row_sums = step.part == Part::sink && has_max_and_sum(structure.forward);
    return room;
  }
  room = room_of(structure.forward, loads);
  room.output = false;
  room.key_gradients = step.part == Part::keys;
  room.load_gradient = step.part == Part::load;
  return room;
}

using Step = GeneralLaunch<BackwardParameters>;

unsigned blocks(int64_t rows, int64_t per_block) {
  return static_cast<unsigned>(divide_up(rows, per_block));
}

Launch launch_of(const AttentionBackwardProblem& problem, const BackwardSm80Step& step) {
  const AttentionSizes& sizes = problem.sizes;
  const int64_t own = 16 * step.tiles.warps;
  Launch launch{.grid_z = static_cast<unsigned>(sizes.batch),
                .threads = static_cast<unsigned>(32 * step.tiles.warps),
                .shared_bytes = static_cast<unsigned>(step.shared_bytes)};
  switch (step.part) {
    case Part::delta:
      launch.grid_x = blocks(sizes.q_length, kDeltaWarps);
      launch.grid_y = static_cast<unsigned>(sizes.q_heads);
      break;
    case Part::queries:
      launch.grid_x = blocks(sizes.q_length, own);
      launch.grid_y = static_cast<unsigned>(sizes.q_heads);
      break;
    case Part::keys:
      launch.grid_x = blocks(sizes.kv_length, own);
      launch.grid_y = static_cast<unsigned>(step.tiles.want_dk ? sizes.k_heads : sizes.v_heads);
      break;
    case Part::sink:
      launch = {.grid_x = static_cast<unsigned>(sizes.q_heads), .threads = kSinkThreads};
      break;
    case Part::dump:
      launch = dump_launch(sizes);
      break;
    case Part::load: {
      const OperandId id = problem.structure.load_gradients[step.load_gradient].gradient;
      const Dims& dims = sizes.layout(id).dims;
      const unsigned row_tiles = dims[2] == 1 ? 1 : blocks(sizes.q_length, own);
      const unsigned column_tiles = dims[3] == 1 ? 1 : blocks(sizes.kv_length, step.tiles.tile_n);
      launch.grid_x = row_tiles * column_tiles;
      launch.grid_y = static_cast<unsigned>(dims[1]);
      launch.grid_z = static_cast<unsigned>(dims[0]);
      break;
    }
  }
  return launch;
}

}  // namespace

Result<std::vector<BackwardSm80Step>> configure_backward_sm80(
    const AttentionBackwardProblem& problem) {
  const AttentionBackwardStructure& structure = problem.structure;
  const AttentionStructure& forward = structure.forward;
  const AttentionSizes& sizes = problem.sizes;
  HEDDLE_TRY(check_backward(structure, sizes));
  const DataType element = forward.type(forward.q).dtype;
  for (auto [id, role] : {std::pair{structure.d_o, "dO"},
                          {structure.d_q, "dQ"},
                          {structure.d_k, "dK"},
                          {structure.d_v, "dV"}}) {
    HEDDLE_TRY(check_dtype(forward, id, role, {element}));
  }
  for (OperandId id : {forward.k, forward.v}) {
    if (forward.type(id).page_table != kAbsent) {
      return error(Code::graph_not_supported, "cuda: sdpa_backward has no paged K or V");
    }
  }
  if (structure.d_q_rope || structure.d_k_rope) {
    return error(Code::graph_not_supported,
                 "cuda: rope_backward inside sdpa_backward is planned as a step after it");
  }

  Sm80Tiles tiles{.aligned = is_aligned(structure, sizes)};
  const int widest = std::max(forward.qk_head_dim, forward.v_head_dim);
  // Register budgets, as compiled: 64 query rows a step beside both sums at d 64 (239 registers),
  // 32 at d 128 (253); past that dK and dV take a launch each, and 32 rows spilled 16 to 32 bytes.
  // A block mask or drawn keep bits cost the few registers that d 128 has left.
  const bool busy =
      forward.block_mask != kAbsent || forward.dropout.kind != problem::Dropout::Kind::none;
  // The planes of f32 need sums of their own beside those: half as many rows and keys.
  const bool planes = is_f32(forward);
  const bool wide = widest > 128 || (widest > 64 && (busy || planes));
  tiles.tile_m = wide || widest <= 48 ? 16 : widest <= 64 && !planes ? 64 : 32;
  tiles.tile_n = widest <= 64 ? 64 : 32;
  if (planes) tiles.tile_n = widest <= 64 && forward.score.is_identity() ? 32 : 16;
  // Rows off 16 bytes take addresses besides, and keep bits: 32 rows spilled 192 bytes on sm_80.
  if (planes && (!tiles.aligned || busy)) tiles.tile_m = 16;
  // At d 8 eight warps spilled 56 bytes on sm_80.
  if (planes || widest <= 8) tiles.warps = 4;
  const int64_t record_bytes = 16 + 4 * (int{planes} + int{has_max_and_sum(forward)});
  const auto shared = [&](const Sm80Tiles& t, bool keys) {
    return sweep_bytes(forward, 16 * t.warps, keys ? t.tile_m : t.tile_n, keys ? record_bytes : 0);
  };
  const auto fitted = [&](Sm80Tiles t, bool keys) {
    while (t.warps > 1 && shared(t, keys) > kSm80SharedLimit) t.warps /= 2;
    // Wide heads stage half as many rows.
    while (shared(t, keys) > kSm80SharedLimit && (keys ? t.tile_m : t.tile_n) > 16)
      (keys ? t.tile_m : t.tile_n) /= 2;
    return t;
  };

  std::vector<BackwardSm80Step> steps{
      {.part = Part::delta, .tiles = {.warps = kDeltaWarps, .tile_m = 32, .tile_n = 32}}};
  const auto add_keys = [&](bool dk, bool dv) {
    Sm80Tiles t = fitted(tiles, true);
    t.want_dk = dk;
    t.want_dv = dv;
    steps.push_back({.part = Part::keys, .tiles = t, .shared_bytes = shared(t, true)});
  };
  const bool dk = structure.d_k != kAbsent, dv = structure.d_v != kAbsent;
  if (dk && dv && sizes.k_heads == sizes.v_heads && widest <= 128) {
    add_keys(true, true);
  } else {
    if (dk) add_keys(true, false);
    if (dv) add_keys(false, true);
  }
  const Sm80Tiles query_tiles = fitted(tiles, false);
  if (structure.d_q != kAbsent) {
    steps.push_back(
        {.part = Part::queries, .tiles = query_tiles, .shared_bytes = shared(query_tiles, false)});
  }
  if (forward.dropout.dump != kAbsent)
    steps.push_back({.part = Part::dump, .tiles = {.tile_m = 32, .tile_n = 32}});
  if (structure.d_sink != kAbsent)
    steps.push_back({.part = Part::sink, .tiles = {.tile_m = 32, .tile_n = 32}});
  for (size_t n = 0; n < structure.load_gradients.size(); ++n) {
    const OperandId id = structure.load_gradients[n].gradient;
    HEDDLE_TRY(check_dtype(forward, id, "dBias", {DataType::f32, DataType::bf16, DataType::f16}));
    Sm80Tiles t = query_tiles;
    // The sums beside S and dP of 32 keys at d 256 spill 8 bytes on sm_90a.
    if (widest > 128) t.tile_n = 16;
    t.load_element = device_type(forward.type(id).dtype);
    steps.push_back(
        {.part = Part::load, .tiles = t, .shared_bytes = shared(t, false), .load_gradient = n});
  }
  return steps;
}

namespace {

KernelUnit unit_of(const AttentionBackwardStructure& structure, const BackwardSm80Step& step,
                   std::vector<OperandId>& loads) {
  constexpr const char* kNames[] = {"delta", "keys", "queries", "sink", "load", "dump"};
  const std::string name =
      fmt::format("attention_backward_{}", kNames[static_cast<int>(step.part)]);
  if (step.part == Part::dump)
    return {name, dump_source(structure.forward, "BackwardParameters", "p.forward", name)};
  const std::string score =
      score_source("Score", structure.forward.score, structure.forward, loads);
  const std::string derivative = derivative_of(structure, step, loads);
  const std::string arguments =
      step.part == Part::sink    ? fmt::format("<heddle::Config, {}>", kSinkThreads)
      : step.part == Part::delta ? "<heddle::Config>"
                                 : "<heddle::Config, heddle::Score, heddle::Derivative>";
  const attention::Room room = room_of_backward_sm80(structure, step, loads.size());
  std::string source = fmt::format(
      "{}#include \"sm80/attention_backward.cuh\"\n"
      "namespace heddle {{\n{}{}{}}}  // namespace heddle\n"
      "static_assert(sizeof(heddle::attention::BackwardParameters) == {}, \"as passed\");\n"
      "{}{}(const __grid_constant__ heddle::attention::BackwardParameters p) {{\n{}"
      "  heddle::sm80::{}{}(p);\n"
      "}}\n",
      room_source(room), config_source(structure.forward, step.tiles), score, derivative,
      PassedBytes::of_backward(room).size(),
      kernel_source(structure.forward,
                    step.part == Part::sink ? kSinkThreads : 32 * step.tiles.warps),
      name, leave_source(structure.forward, "p.forward"), name, arguments);
  return {name, std::move(source)};
}

Result<Step> lower_step(const AttentionBackwardProblem& problem, const BackwardSm80Step& configured,
                        Lowering& lowering) {
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<OperandId> loads;
  KernelUnit unit = unit_of(structure, configured, loads);
  HEDDLE_TRY(check_loads(loads));
  ParameterBlock<BackwardParameters> block(structure.forward, problem.sizes);
  BackwardParameters& p = block.parameters;
  fill_backward(block, structure, problem.sizes, loads);
  if (configured.part == Part::load) {
    const OperandId id = structure.load_gradients[configured.load_gradient].gradient;
    block.tensor(p.d_load, id);
    const Dims& dims = problem.sizes.layout(id).dims;
    for (int i = 0; i < 4; ++i) p.d_load_dims[i] = static_cast<int>(dims[i]);
  }
  const Launch launch = launch_of(problem, configured);
  return Step{
      lowering.add_kernel(std::move(unit), static_cast<int>(launch.threads), launch.shared_bytes),
      launch, p, std::move(block.entries),
      PassedBytes::of_backward(room_of_backward_sm80(structure, configured, loads.size()))};
}

Result<Lowering> lower_by(const AttentionBackwardProblem& problem, const Target& target,
                          bool after_pairs) {
  HEDDLE_ASSIGN(const std::vector<BackwardSm80Step> configured, configure_backward_sm80(problem));
  Lowering lowering;
  std::vector<Step> steps;
  for (const BackwardSm80Step& one : configured) {
    HEDDLE_ASSIGN(Step step, lower_step(problem, one, lowering));
    steps.push_back(std::move(step));
  }
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<AlignedOperand> aligned;
  if (is_aligned(structure, problem.sizes)) {
    aligned = {{structure.forward.q, "q"}, {structure.forward.k, "k"}, {structure.forward.v, "v"},
               {structure.d_o, "dO"},      {structure.d_q, "dQ"},      {structure.d_k, "dK"},
               {structure.d_v, "dV"}};
  }
  const int64_t rows = problem.sizes.batch * problem.sizes.q_heads * problem.sizes.q_length;
  lowering.workspace_bytes =
      rows * int64_t{sizeof(attention::RowDelta)} + (after_pairs ? kUnfitBytes : 0);
  lowering.description = fmt::format("attention backward, general kernels, {} launches, {}",
                                     steps.size(), target.architecture);
  lowering.launches = std::make_shared<const GeneralLaunches<BackwardParameters>>(
      std::move(steps), std::move(aligned), after_pairs);
  return lowering;
}

}  // namespace

Result<Lowering> lower_backward_sm80(const AttentionBackwardProblem& problem,
                                     const Target& target) {
  return lower_by(problem, target, false);
}
Result<Lowering> lower_backward_sm80_after_pairs(const AttentionBackwardProblem& problem,
                                                 const Target& target) {
  return lower_by(problem, target, true);
}

}  // namespace heddle::engine::cuda
