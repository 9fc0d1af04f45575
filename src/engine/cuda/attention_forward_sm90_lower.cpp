#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "attention/exponents.cuh"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/score_tile_sm90.h"
#include "engine/cuda/sequence_maps_sm90.h"
#include "engine/cuda/stages_builder.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

constexpr int64_t kAlignment = 256;
/// More than ForwardSm90Config's limit of rows takes.
constexpr int64_t kMostRotationBlocks = int64_t{1} << 22;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Where the workspace holds what, in bytes: what f32 keeps at its start, the tile counter, the
/// sequence maps, the rotations and the pairs, each if there are any.
struct Workspace {
  int64_t counter = 0, maps = 0, rotations = 0, units = 0, pairs = 0, bytes = 0;
};

/// What an execution does not change.
struct Planned {
  size_t kernel = 0;
  std::optional<size_t> sequence_maps, rotations_kernel;
  std::optional<F16PairsStep> pairs;  ///< of f32: q, k and v
  Launch launch;
  ForwardSm90Config config;
  bool draws_tiles;  ///< config.dynamic, of no more tiles than there are tickets
  sm90::ForwardArguments arguments{};
  attention::ArgumentLayout argument_layout;
  std::vector<Entry> entries;
  MapShape shapes[4];    ///< of q, k, v, o
  OperandId mapped[4];   ///< q, k, v, o
  MapShape tiled_shape;  ///< of config.tiled_operand
  std::vector<problem::NamedOperand> aligned;
  attention::RotationsBefore rotations{};  ///< with q_rope
  std::vector<Entry> rotation_entries;
  std::optional<RopeLaunch> keys;  ///< that are rotated in the same launch
  Workspace workspace;

  /// O of f32 leaves from registers.
  int mapped_tensors() const { return config.result == config.element ? 4 : 3; }
};

class ForwardSm90Launches final : public Launches {
 public:
  explicit ForwardSm90Launches(Planned planned) : planned_(std::move(planned)) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(planned_.aligned, at.buffers));
    sm90::ForwardArguments arguments = planned_.arguments;
    bind_entries(planned_.entries, at.buffers, &arguments);
    HEDDLE_TRY(planned_.pairs ? make_pairs(at, arguments) : map_operands(at, arguments));
    arguments.order.claim = at.claim;
    if (planned_.draws_tiles) {
      arguments.order.counter =
          reinterpret_cast<unsigned long long*>(at.workspace + planned_.workspace.counter);
    }
    if (planned_.sequence_maps) {
      const auto made = reinterpret_cast<TensorMap*>(at.workspace + planned_.workspace.maps);
      const attention::ForwardParameters& p = arguments.problem;
      HEDDLE_TRY(make_sequence_maps(at, *planned_.sequence_maps,
                                    {.base = {arguments.q, arguments.k, arguments.v, arguments.o},
                                     .maps = made,
                                     .tensors = {p.q, p.k, p.v, p.o},
                                     .q_lengths = p.q_lengths,
                                     .kv_lengths = p.kv_lengths,
                                     .batch = p.batch,
                                     .q_length = p.q_length,
                                     .mapped = planned_.mapped_tensors(),
                                     .whole_o = true}));
      arguments.sequence_maps = made;
    }
    if (planned_.rotations_kernel) HEDDLE_TRY(make_rotations(at, arguments));
    KernelArguments passed(arguments, planned_.argument_layout);
    return at.launch(planned_.kernel, planned_.launch, passed.address());
  }

 private:
  /// A thread for each of `count` things.
  static Launch launch_over(unsigned count, unsigned threads) {
    return {.grid_x = (count + threads - 1) / threads, .threads = threads};
  }

  Status map_operands(const Execution& at, sm90::ForwardArguments& arguments) const {
    TensorMap* maps[] = {&arguments.q, &arguments.k, &arguments.v, &arguments.o};
    for (size_t n = 0; n < static_cast<size_t>(planned_.mapped_tensors()); ++n) {
      void* address = at.buffers[static_cast<size_t>(planned_.mapped[n])];
      HEDDLE_TRY(encode(at.driver, planned_.shapes[n], address, *maps[n]));
    }
    if (const OperandId tiled = planned_.config.tiled_operand; tiled != kAbsent) {
      HEDDLE_TRY(encode(at.driver, planned_.tiled_shape, at.buffers[static_cast<size_t>(tiled)],
                        arguments.tiled.map));
    }
    return {};
  }

  Status make_pairs(const Execution& at, sm90::ForwardArguments& arguments) const {
    const attention::ForwardParameters& p = arguments.problem;
    const F16PairsStep::Reader readers[] = {{p.q, p.q_lengths, arguments.q, arguments.q_pairs},
                                            {p.k, p.kv_lengths, arguments.k, arguments.k_pairs},
                                            {p.v, p.kv_lengths, arguments.v, arguments.v_pairs}};
    auto* fallback = reinterpret_cast<unsigned*>(at.workspace);
    arguments.problem.fallback = fallback;
    return planned_.pairs->execute(at, at.workspace + planned_.workspace.pairs, fallback, readers);
  }

  Status make_rotations(const Execution& at, sm90::ForwardArguments& arguments) const {
    attention::RotationsBefore making = planned_.rotations;
    attention::RotationArguments& queries = making.queries;
    bind_entries(planned_.rotation_entries, at.buffers, &queries);
    queries.rotations = reinterpret_cast<unsigned*>(at.workspace + planned_.workspace.rotations);
    queries.units = reinterpret_cast<float*>(at.workspace + planned_.workspace.units);
    arguments.q_rope.rotations = queries.rotations;
    arguments.q_rope.units = queries.units;
    if (making.key_blocks > 0) {
      HEDDLE_ASSIGN(making.keys, planned_.keys->bind(at.buffers));
    }
    const auto threads = static_cast<unsigned>(queries.batches * queries.rows) * 32;
    Launch launch = launch_over(threads, attention::kRotationThreads);
    launch.grid_x += static_cast<unsigned>(making.key_blocks);
    launch.overlaps_predecessor = true;
    return at.launch(*planned_.rotations_kernel, launch, &making);
  }

  const Planned planned_;
};

/// How many rows are rotated alike: those of one batch entry, or, if each has its own positions, of
/// all.
attention::RotationArguments rotation_shape(const AttentionProblem& problem) {
  attention::RotationArguments shape{};
  const std::optional<problem::Rope>& rope = problem.structure.q_rope;
  if (!rope) return shape;
  shape.length = static_cast<int>(problem.sizes.q_length);
  shape.rows = (shape.length + attention::kRotationRows - 1) / attention::kRotationRows *
               attention::kRotationRows;
  shape.batches =
      rope->positions == kAbsent
          ? 1
          : static_cast<int>(problem.sizes.layouts[static_cast<size_t>(rope->positions)].dims[0]);
  return shape;
}

Workspace workspace_of(const AttentionProblem& problem, const ForwardSm90Config& config) {
  const int64_t maps = config.sequence_maps() ? sequence_map_bytes(problem.sizes.batch) : 0;
  const attention::RotationArguments rotations = rotation_shape(problem);
  const int64_t rows = int64_t{rotations.batches} * rotations.rows;
  Workspace at;
  at.counter = config.planes > 1 ? kFallbackBytes : 0;
  at.maps = at.counter + (config.dynamic ? kAlignment : 0);
  at.rotations = at.maps + aligned(maps);
  at.units = at.rotations;
  if (rows > 0)
    at.units += aligned(rows * 4 * attention::rotations_of(problem.structure.q_rope->rope_dim));
  at.bytes = at.pairs = at.units + aligned(rows * 4);
  return at;
}

void fill_rotations(ParameterBlock& block, attention::RotationArguments& p,
                    const AttentionProblem& problem) {
  const problem::Rope& rope = *problem.structure.q_rope;
  const auto layout = [&](OperandId id) -> const problem::OperandLayout& {
    return problem.sizes.layouts[static_cast<size_t>(id)];
  };
  const auto stride = [&](OperandId id, int d) -> long long {
    return layout(id).dims[d] == 1 ? 0 : layout(id).strides[d];
  };
  p = rotation_shape(problem);
  p.scale = static_cast<float>(problem.sizes.q_rope_scale);
  const OperandId first = rope.angles != kAbsent ? rope.angles : rope.cosines;
  block.pointer(rope.angles != kAbsent ? p.angles : p.cosines, first);
  p.first_stride[0] = stride(first, 0);
  p.first_stride[1] = stride(first, 3);
  p.table_rows = static_cast<int>(layout(first).dims[0]);
  if (rope.sines != kAbsent) {
    block.pointer(p.sines, rope.sines);
    p.second_stride[0] = stride(rope.sines, 0);
    p.second_stride[1] = stride(rope.sines, 3);
  }
  if (rope.positions == kAbsent) return;
  block.pointer(p.positions, rope.positions);
  p.positions_are_64_bit =
      problem.structure.operands[static_cast<size_t>(rope.positions)].dtype == DataType::i64;
  p.positions_per_row = rope.positions_per_row;
  p.position_batch_stride = stride(rope.positions, 0);
  p.position_row_stride = rope.positions_per_row ? stride(rope.positions, 2) : 0;
}

/// Of scores that are dots.
attention::DotUnits dot_units(double scale, const ForwardSm90Config& config) {
  attention::DotUnits units;
  units.scale = static_cast<float>(scale) * (config.input_is_log2 ? 1.0f : attention::kLog2E);
  int exponent = 0;
  const float mantissa = std::frexp(units.scale, &exponent);
  units.power = std::ldexp(1.0f, mantissa < 0.75f ? exponent - 1 : exponent);
  units.slack =
      std::min(static_cast<float>(config.slack) / units.scale, std::numeric_limits<float>::max());
  return units;
}

/// Gives the keys the first blocks of the launch.
Status share_grid(const Launch& keys, attention::RotationsBefore& shared) {
  const int64_t blocks = int64_t{keys.grid_x} * keys.grid_y, most = INT32_MAX - kMostRotationBlocks;
  if (blocks > most) {
    return error(Code::graph_not_supported,
                 "cuda: rotating the keys takes {} x {} blocks; beside queries there are {}",
                 keys.grid_x, keys.grid_y, most);
  }
  shared.key_columns = static_cast<int>(keys.grid_x);
  shared.key_blocks = static_cast<int>(blocks);
  return {};
}

/// Of an attention whose keys, if they are rotated, have an operand to be rotated into.
Result<Lowering> lower_with_rotated_keys(const AttentionProblem& given, const Target& target) {
  HEDDLE_ASSIGN(const ForwardSm90Config config, configure_forward_sm90(given));
  const AttentionProblem problem = with_rotated_keys(given);
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  std::vector<OperandId> loads;
  KernelUnit unit = forward_sm90_unit(structure, problem::facts_of(problem), config, loads);
  HEDDLE_TRY(check_loads(loads));
  const int64_t q_tiles = (sizes.q_length + config.tile_m() - 1) / config.tile_m();
  const int64_t tiles = sizes.batch * sizes.q_heads * q_tiles;
  if (tiles > (int64_t{1} << 30)) {
    return error(Code::graph_not_supported, "cuda: sdpa has {} query tiles; the kernel counts {}",
                 tiles, int64_t{1} << 30);
  }
  Planned planned{.config = config,
                  .draws_tiles = config.dynamic && tiles < int64_t{1} << sm90::kTicketBits,
                  .workspace = workspace_of(problem, config)};
  Lowering lowering;
  planned.kernel = lowering.add_kernel(std::move(unit), config.threads(), config.shared_bytes());
  if (config.sequence_maps()) planned.sequence_maps = add_sequence_maps(lowering);
  if (config.planes > 1) {
    planned.pairs.emplace(
        lowering, sizes,
        std::vector<F16PairsStep::Operand>{
            {structure.q, 64}, {structure.k, config.tile_n}, {structure.v, config.tile_n}});
    planned.workspace.bytes += planned.pairs->workspace_bytes();
  }
  if (structure.q_rope) {
    planned.rotations_kernel =
        lowering.add_kernel(rotations_unit(given), attention::kRotationThreads);
    ParameterBlock rotations(&planned.rotations.queries, structure, sizes);
    fill_rotations(rotations, planned.rotations.queries, problem);
    planned.rotation_entries = std::move(rotations.entries);
    if (const std::optional<RopeStep> keys = key_rotation(given)) {
      HEDDLE_ASSIGN(planned.keys, RopeLaunch::make(*keys));
      HEDDLE_TRY(share_grid(planned.keys->grid(), planned.rotations));
    }
  }

  sm90::ForwardArguments& arguments = planned.arguments;
  ParameterBlock block(&arguments, structure, sizes);
  fill_forward(block, arguments.problem, structure, sizes, loads);
  if (structure.q_rope) {
    const attention::RotationArguments& made = planned.rotations.queries;
    arguments.q_rope = {
        .rows = made.rows, .batch_rows = made.batches > 1 ? made.rows : 0, .scale = made.scale};
  }
  arguments.order = {.q_tiles = static_cast<int>(q_tiles),
                     .head_group = config.head_group,
                     .total = static_cast<int>(tiles),
                     .counter = nullptr,
                     .claim = 0};
  if (config.has_dots()) arguments.dots = dot_units(sizes.scale, config);
  if (config.tiled_operand != kAbsent) {
    arguments.tiled = score_tile_arguments(sizes, config.tiled_operand);
    planned.tiled_shape = map_shape(structure, sizes, config.tiled_operand, config.tile_m());
  }
  planned.argument_layout = argument_layout_of_forward_sm90(structure, config, loads.size());
  planned.entries = std::move(block.entries);

  const OperandId mapped[] = {structure.q, structure.k, structure.v, structure.o};
  for (size_t n = 0; n < 4; ++n) {
    const bool of_keys = mapped[n] == structure.k || mapped[n] == structure.v;
    planned.mapped[n] = mapped[n];
    planned.shapes[n] = map_shape(structure, sizes, mapped[n], of_keys ? config.tile_n : 64);
  }
  planned.aligned = problem::tensors_of(structure);
  if (config.tiled_operand != kAbsent)
    planned.aligned.push_back({config.tiled_operand, "what the score reads"});
  const int64_t clusters = int64_t{config.blocks} * target.processors / config.ranks;
  planned.launch = {.grid_x = static_cast<unsigned>(std::min(clusters, tiles) * config.ranks),
                    .threads = static_cast<unsigned>(config.threads()),
                    .shared_bytes = static_cast<unsigned>(config.shared_bytes()),
                    .overlaps_predecessor = structure.q_rope.has_value(),
                    .cluster = static_cast<unsigned>(config.ranks)};
  lowering.description =
      fmt::format("attention forward{}{}, Hopper kernel{}, {} x {} tiles{}{}, {}",
                  structure.q_rope ? " of rotated queries" : "", planned.keys ? " and keys" : "",
                  config.tiled_operand != kAbsent ? " with score tiles" : "", config.tile_m(),
                  config.tile_n, config.planes > 1 ? " of f16 pairs" : "",
                  config.shares_dots() ? fmt::format(", columns in {} parts", config.shares())
                  : config.parts > 1   ? ", O in parts"
                                       : "",
                  target.architecture);
  lowering.workspace_bytes = planned.workspace.bytes;
  lowering.launches = std::make_shared<const ForwardSm90Launches>(std::move(planned));
  return lowering;
}

}  // namespace

Result<Lowering> lower_forward_sm90(const AttentionProblem& problem, const Target& target) {
  if (!target.is_hopper())
    return error(Code::graph_not_supported, "cuda: {} is no Hopper", target.architecture);
  AttentionProblem attention = problem;
  AttentionStructure& structure = attention.structure;
  std::vector<int64_t> temporary_bytes;
  if (structure.k_rope && structure.k_rope->rotated == kAbsent) {
    StagesBuilder build(structure, attention.sizes);
    structure.k_rope->rotated =
        build.temporary_like(structure.k, structure.type(structure.k).dtype);
    const Stages stages = std::move(build).finish(attention);
    HEDDLE_TRY(check_operand_count(stages));
    temporary_bytes = stages.temporary_bytes;
  }
  HEDDLE_ASSIGN(Lowering lowering, lower_with_rotated_keys(attention, target));
  if (temporary_bytes.empty()) return lowering;
  return in_sequence({std::move(lowering)}, temporary_bytes);
}

}  // namespace heddle::engine::cuda
