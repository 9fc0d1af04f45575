#include <algorithm>
#include <optional>

#include "core/rounding.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/score_tile_sm90.h"
#include "engine/cuda/sequence_maps_sm90.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/backward_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::AttentionSizes;
using problem::kAbsent;
using problem::OperandId;

/// dS has one unit a head, by the largest rows of dO and V: a row of V 2^13 times the others cost
/// dK three times the naive error.
constexpr int kSpreadOfV = 10;

struct Step {
  size_t kernel;
  Launch launch;
  attention::ArgumentLayout argument_layout;
};

/// What TMA reads: the operand, its map's shape and the map's place among the arguments.
struct MappedOperand {
  OperandId id = kAbsent;
  MapShape shape;
  TensorMap& (*map)(sm90::BackwardArguments&) = nullptr;
};

/// What an execution does not change.
struct Planned {
  std::optional<size_t> sequence_maps;  ///< its kernel
  std::vector<Step> steps;
  std::optional<F16PairsStep> pairs;  ///< of f32: q, k, v and dO
  sm90::BackwardArguments arguments{};
  std::vector<Entry> entries;
  std::vector<MappedOperand> mapped;
  std::vector<problem::NamedOperand> aligned;
  BackwardSm90Workspace workspace;
};

class BackwardSm90Launches final : public Launches {
 public:
  explicit BackwardSm90Launches(Planned planned) : planned_(std::move(planned)) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(planned_.aligned, at.buffers));
    sm90::BackwardArguments arguments = planned_.arguments;
    bind_entries(planned_.entries, at.buffers, &arguments);
    HEDDLE_TRY(planned_.pairs ? make_pairs(at, arguments) : map_operands(at, arguments));
    const BackwardSm90Workspace& workspace = planned_.workspace;
    arguments.negative_lse = reinterpret_cast<float*>(at.workspace + workspace.negative_lse);
    arguments.delta = reinterpret_cast<float*>(at.workspace + workspace.delta);
    arguments.d_q_sum = reinterpret_cast<float*>(at.workspace + workspace.d_q_sum);
    arguments.turns = reinterpret_cast<int*>(at.workspace + workspace.turns);
    if (planned_.sequence_maps) {
      const auto maps = reinterpret_cast<TensorMap*>(at.workspace + workspace.maps);
      const attention::ForwardParameters& p = arguments.problem.forward;
      HEDDLE_TRY(make_sequence_maps(at, *planned_.sequence_maps,
                                    {.base = {arguments.q, arguments.k, arguments.v, arguments.d_o},
                                     .maps = maps,
                                     .tensors = {p.q, p.k, p.v, arguments.problem.d_o},
                                     .q_lengths = p.q_lengths,
                                     .kv_lengths = p.kv_lengths,
                                     .batch = p.batch,
                                     .q_length = p.q_length,
                                     .mapped = 4,
                                     .whole_o = false}));
      arguments.sequence_maps = maps;
    }
    for (const Step& step : planned_.steps) {
      KernelArguments passed(arguments, step.argument_layout);
      HEDDLE_TRY(at.launch(step.kernel, step.launch, passed.address(), passed.first_batch()));
    }
    return {};
  }

 private:
  Status map_operands(const Execution& at, sm90::BackwardArguments& arguments) const {
    for (const MappedOperand& mapped : planned_.mapped) {
      HEDDLE_TRY(encode(at.driver, mapped.shape, at.buffers[static_cast<size_t>(mapped.id)],
                        mapped.map(arguments)));
    }
    return {};
  }

  Status make_pairs(const Execution& at, sm90::BackwardArguments& arguments) const {
    const attention::ForwardParameters& p = arguments.problem.forward;
    const F16PairsStep::Reader readers[] = {
        {p.q, p.q_lengths, arguments.q, arguments.q_pairs},
        {p.k, p.kv_lengths, arguments.k, arguments.k_pairs},
        {p.v, p.kv_lengths, arguments.v, arguments.v_pairs},
        {arguments.problem.d_o, p.q_lengths, arguments.d_o, arguments.d_o_pairs}};
    auto* fallback = reinterpret_cast<unsigned*>(at.workspace);
    arguments.problem.forward.fallback = fallback;
    arguments.head_units =
        reinterpret_cast<sm90::HeadUnits*>(at.workspace + planned_.workspace.head_units);
    return planned_.pairs->execute(at, at.workspace + planned_.workspace.bytes, fallback, readers);
  }

  const Planned planned_;
};

std::vector<MappedOperand> mapped_operands(const AttentionBackwardProblem& problem,
                                           const BackwardSm90Config& config) {
  const AttentionBackwardStructure& structure = problem.structure;
  using Arguments = sm90::BackwardArguments;
  std::vector<MappedOperand> mapped;
  const auto add = [&](OperandId id, int rows, TensorMap& (*map)(Arguments&)) {
    mapped.push_back({id, map_shape(structure.forward, problem.sizes, id, rows), map});
  };
  add(structure.forward.q, config.tile_m, [](Arguments& a) -> TensorMap& { return a.q; });
  add(structure.forward.k, config.tile_n(), [](Arguments& a) -> TensorMap& { return a.k; });
  add(structure.forward.v, config.tile_n(), [](Arguments& a) -> TensorMap& { return a.v; });
  add(structure.d_o, config.tile_m, [](Arguments& a) -> TensorMap& { return a.d_o; });
  if (config.tiled_operand != kAbsent)
    add(config.tiled_operand, config.tile_m,
        [](Arguments& a) -> TensorMap& { return a.tiled.map; });
  if (config.tiled_gradient)
    add(structure.load_gradients[0].gradient, config.tile_m / config.cluster,
        [](Arguments& a) -> TensorMap& { return a.d_tiled; });
  return mapped;
}

}  // namespace

std::vector<BackwardSm90Launch> launches_of_backward_sm90(const AttentionBackwardProblem& problem,
                                                          const BackwardSm90Config& config) {
  const AttentionSizes& sizes = problem.sizes;
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  const auto heads = static_cast<unsigned>(sizes.q_heads),
             batch = static_cast<unsigned>(sizes.batch);
  const int64_t key_tiles = divide_up(sizes.kv_length, config.tile_n());
  std::vector<BackwardSm90Launch> launches{
      {prepare,
       {.grid_x = static_cast<unsigned>(config.q_rounded / kRowsOfPrepare),
        .grid_y = heads,
        .grid_z = batch,
        .threads = kBackwardSm90RowThreads}},
      {main,
       {.grid_x = static_cast<unsigned>(key_tiles * sizes.k_heads * sizes.batch * config.ranks),
        .threads = static_cast<unsigned>(config.threads()),
        .shared_bytes = static_cast<unsigned>(config.shared_bytes()),
        .overlaps_predecessor = true,
        .cluster = static_cast<unsigned>(config.cluster * config.ranks)}}};
  if (problem.structure.d_q != kAbsent && !config.all_keys) {
    launches.push_back({finish,
                        {.grid_x = static_cast<unsigned>(config.q_rounded / config.tile_m),
                         .grid_y = heads,
                         .grid_z = batch,
                         .threads = kBackwardSm90RowThreads,
                         .overlaps_predecessor = true}});
  }
  if (problem.structure.d_sink != kAbsent)
    launches.push_back({sink, {.grid_x = heads, .threads = kBackwardSm90RowThreads}});
  if (config.load_gradient && !config.tiled_gradient) {
    const Dims& dims = sizes.layout(config.tiled_operand).dims;
    launches.push_back({load,
                        {.grid_x = static_cast<unsigned>(key_tiles),
                         .grid_y = static_cast<unsigned>(config.q_rounded / config.tile_m),
                         .grid_z = static_cast<unsigned>(dims[0] * dims[1]),
                         .threads = kBackwardSm90LoadThreads,
                         .shared_bytes = static_cast<unsigned>(config.load_shared_bytes())}});
  }
  return launches;
}

Result<Lowering> lower_backward_sm90(const AttentionBackwardProblem& problem,
                                     const Target& target) {
  if (!target.is_hopper())
    return error(Code::graph_not_supported, "cuda: {} is no Hopper", target.architecture);
  HEDDLE_ASSIGN(const BackwardSm90Config config, configure_backward_sm90(problem));
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<OperandId> loads;
  Lowering lowering;
  lowering.units = backward_sm90_units(structure, problem::facts_of(problem), config, loads);
  HEDDLE_TRY(check_loads(loads));
  Planned planned{.workspace = workspace_of(problem, config)};
  for (const auto& [name, launch] : launches_of_backward_sm90(problem, config)) {
    const auto unit =
        std::find_if(lowering.units.begin(), lowering.units.end(),
                     [kernel = name](const KernelUnit& one) { return one.name == kernel; });
    planned.steps.push_back(
        {lowering.add_kernel(*unit, static_cast<int>(launch.threads), launch.shared_bytes), launch,
         argument_layout_of_backward_sm90(structure, config, loads.size(), name)});
  }
  if (config.sequence_maps()) planned.sequence_maps = add_sequence_maps(lowering);
  lowering.workspace_bytes = planned.workspace.bytes;
  if (config.planes > 1) {
    planned.pairs.emplace(
        lowering, problem.sizes,
        std::vector<F16PairsStep::Operand>{{structure.forward.q, config.tile_m},
                                           {structure.forward.k, config.tile_n()},
                                           {structure.forward.v, config.tile_n(), kSpreadOfV},
                                           {structure.d_o, config.tile_m}});
    lowering.workspace_bytes += planned.pairs->workspace_bytes();
  }
  attention::BackwardParameters& parameters = planned.arguments.problem;
  ParameterBlock block(&planned.arguments, structure.forward, problem.sizes);
  fill_backward(block, parameters, structure, problem.sizes, loads);
  if (config.load_gradient) block.tensor(parameters.d_load, structure.load_gradients[0].gradient);
  planned.arguments.q_rounded = static_cast<int>(config.q_rounded);
  planned.arguments.head_group = config.head_group;
  planned.entries = std::move(block.entries);
  planned.mapped = mapped_operands(problem, config);
  planned.aligned = problem::tensors_of(structure);
  if (config.tiled_operand != kAbsent) {
    planned.arguments.tiled = score_tile_arguments(problem.sizes, config.tiled_operand);
    planned.aligned.push_back({config.tiled_operand, "what the score reads"});
  }
  if (config.tiled_gradient)
    planned.aligned.push_back(
        {structure.load_gradients[0].gradient, "the gradient of what the score reads"});
  lowering.description =
      fmt::format("attention backward, Hopper kernels{}, {} x {} tiles{}{}{}, {}",
                  config.cluster > 1      ? " with score tiles and their gradient by clusters"
                  : config.tiled_gradient ? " with score tiles and their gradient by tiles"
                  : config.load_gradient  ? " with score tiles and their gradient"
                  : config.tiled_operand != kAbsent ? " with score tiles"
                                                    : "",
                  config.tile_m, config.tile_n(), config.planes > 1 ? " of f16 pairs" : "",
                  structure.deterministic ? " in a fixed order" : "",
                  config.shares() > 1 ? fmt::format(", columns in {} parts", config.shares()) : "",
                  target.architecture);
  lowering.launches = std::make_shared<const BackwardSm90Launches>(std::move(planned));
  return lowering;
}

}  // namespace heddle::engine::cuda
