#include <algorithm>
#include <optional>

#include "core/rounding.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/device.h"
#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/passed_arguments.h"
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

constexpr int kRowsOfPrepare = 64;
/// dS has one unit a head, by the largest rows of dO and V: a row of V 2^13 times the others cost
/// dK three times the naive error.
constexpr int kSpreadOfV = 10;

struct Step {
  std::shared_ptr<const Kernel> kernel;
  Launch launch;
  PassedBytes passed;
};

/// What TMA reads: the operand, its map's shape and the map's place among the arguments.
struct MappedOperand {
  OperandId id = kAbsent;
  MapShape shape;
  TensorMap& (*map)(sm90::BackwardArguments&) = nullptr;
};

class BackwardSm90Plan final : public QueuedPlan {
 public:
  /// `sequence_maps` is null where there are none.
  BackwardSm90Plan(const Driver& driver, std::shared_ptr<const Kernel> sequence_maps,
                   std::vector<Step> steps, std::optional<F16PairsStep> pairs,
                   const sm90::BackwardArguments& arguments, std::vector<Entry> entries,
                   std::vector<MappedOperand> mapped, std::vector<AlignedOperand> aligned,
                   const BackwardSm90Workspace& workspace, std::string description)
      : driver_(driver),
        sequence_maps_(std::move(sequence_maps)),
        steps_(std::move(steps)),
        pairs_(std::move(pairs)),
        arguments_(arguments),
        entries_(std::move(entries)),
        mapped_(std::move(mapped)),
        aligned_(std::move(aligned)),
        workspace_(workspace),
        description_(std::move(description)) {}

  int64_t workspace_bytes() const override {
    return workspace_.bytes + (pairs_ ? pairs_->workspace_bytes() : 0);
  }

  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const override {
    HEDDLE_TRY(check_addresses(aligned_, buffers));
    sm90::BackwardArguments arguments = arguments_;
    bind(entries_, buffers, &arguments.problem);
    char* const scratch = static_cast<char*>(workspace);
    if (pairs_) {
      const attention::ForwardParameters& p = arguments.problem.forward;
      const F16PairsStep::Reader readers[] = {
          {p.q, p.q_lengths, arguments.q, arguments.q_pairs},
          {p.k, p.kv_lengths, arguments.k, arguments.k_pairs},
          {p.v, p.kv_lengths, arguments.v, arguments.v_pairs},
          {arguments.problem.d_o, p.q_lengths, arguments.d_o, arguments.d_o_pairs}};
      auto* unfit = static_cast<unsigned*>(workspace);
      arguments.problem.forward.unfit = unfit;
      HEDDLE_TRY(pairs_->execute(scratch + workspace_.bytes, unfit, queue, readers));
      arguments.head_units = reinterpret_cast<sm90::HeadUnits*>(scratch + workspace_.head_units);
    } else {
      for (const MappedOperand& mapped : mapped_) {
        HEDDLE_TRY(encode(driver_, mapped.shape, buffers[static_cast<size_t>(mapped.id)],
                          mapped.map(arguments)));
      }
    }
    arguments.negative_lse = reinterpret_cast<float*>(scratch + workspace_.negative_lse);
    arguments.delta = reinterpret_cast<float*>(scratch + workspace_.delta);
    arguments.d_q_sum = reinterpret_cast<float*>(scratch + workspace_.d_q_sum);
    arguments.turns = reinterpret_cast<int*>(scratch + workspace_.turns);
    if (sequence_maps_) {
      const auto maps = reinterpret_cast<TensorMap*>(scratch + workspace_.maps);
      const attention::ForwardParameters& p = arguments.problem.forward;
      HEDDLE_TRY(make_sequence_maps(*sequence_maps_,
                                    {.base = {arguments.q, arguments.k, arguments.v, arguments.d_o},
                                     .maps = maps,
                                     .tensors = {p.q, p.k, p.v, arguments.problem.d_o},
                                     .q_lengths = p.q_lengths,
                                     .kv_lengths = p.kv_lengths,
                                     .batch = p.batch,
                                     .q_length = p.q_length,
                                     .whole_o = false},
                                    queue));
      arguments.sequence_maps = maps;
    }
    for (const Step& step : steps_) {
      Passed passed(arguments, step.passed);
      void* parameters[] = {passed.address()};
      HEDDLE_TRY(step.kernel->launch(step.launch, queue, parameters,
                                     passed.place_of(arguments.problem.forward.first_batch)));
    }
    return {};
  }

  std::string description() const override { return description_; }

 private:
  const Driver& driver_;
  std::shared_ptr<const Kernel> sequence_maps_;
  std::vector<Step> steps_;
  std::optional<F16PairsStep> pairs_;
  sm90::BackwardArguments arguments_;
  std::vector<Entry> entries_;
  std::vector<MappedOperand> mapped_;
  std::vector<AlignedOperand> aligned_;
  BackwardSm90Workspace workspace_;
  std::string description_;
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
  add(structure.forward.k, config.tile_n, [](Arguments& a) -> TensorMap& { return a.k; });
  add(structure.forward.v, config.tile_n, [](Arguments& a) -> TensorMap& { return a.v; });
  add(structure.d_o, config.tile_m, [](Arguments& a) -> TensorMap& { return a.d_o; });
  if (config.tiled != kAbsent)
    add(config.tiled, config.tile_m, [](Arguments& a) -> TensorMap& { return a.tiled.map; });
  return mapped;
}

}  // namespace

std::vector<BackwardSm90Launch> launches_of_backward_sm90(const AttentionBackwardProblem& problem,
                                                          const BackwardSm90Config& config) {
  const AttentionSizes& sizes = problem.sizes;
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  const auto heads = static_cast<unsigned>(sizes.q_heads),
             batch = static_cast<unsigned>(sizes.batch);
  const int64_t key_tiles = divide_up(sizes.kv_length, config.tile_n);
  std::vector<BackwardSm90Launch> launches{
      {prepare,
       {.grid_x = static_cast<unsigned>(config.q_rounded / kRowsOfPrepare),
        .grid_y = heads,
        .grid_z = batch,
        .threads = kBackwardSm90RowThreads}},
      {main,
       {.grid_x = static_cast<unsigned>(key_tiles * sizes.k_heads * sizes.batch),
        .threads = static_cast<unsigned>(config.threads),
        .shared_bytes = static_cast<unsigned>(config.shared_bytes),
        .overlaps_predecessor = true}}};
  if (problem.structure.d_q != kAbsent) {
    launches.push_back({finish,
                        {.grid_x = static_cast<unsigned>(config.q_rounded / config.tile_m),
                         .grid_y = heads,
                         .grid_z = batch,
                         .threads = kBackwardSm90RowThreads,
                         .overlaps_predecessor = true}});
  }
  if (problem.structure.d_sink != kAbsent)
    launches.push_back({sink, {.grid_x = heads, .threads = kBackwardSm90RowThreads}});
  if (config.load_gradient) {
    const Dims& dims = sizes.layout(config.tiled).dims;
    launches.push_back({load,
                        {.grid_x = static_cast<unsigned>(key_tiles),
                         .grid_y = static_cast<unsigned>(config.q_rounded / config.tile_m),
                         .grid_z = static_cast<unsigned>(dims[0] * dims[1]),
                         .threads = kBackwardSm90LoadThreads,
                         .shared_bytes = static_cast<unsigned>(config.load_shared_bytes)}});
  }
  return launches;
}

Result<std::shared_ptr<const QueuedPlan>> plan_backward_sm90(
    const Driver& driver, const Device& device, const AttentionBackwardProblem& problem) {
  HEDDLE_ASSIGN(const BackwardSm90Config config, configure_backward_sm90(problem));
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<OperandId> loads;
  const std::vector<KernelUnit> units = units_of_backward_sm90(problem, config, loads);
  HEDDLE_TRY(check_loads(loads));
  std::shared_ptr<const Kernel> sequence_maps;
  if (config.sequence_maps()) {
    HEDDLE_ASSIGN(sequence_maps, load_kernel(driver, device, sequence_maps_unit(), 0));
  }
  std::vector<Step> steps;
  for (const auto& [name, launch] : launches_of_backward_sm90(problem, config)) {
    const auto unit = std::find_if(units.begin(), units.end(),
                                   [kernel = name](const auto& one) { return one.name == kernel; });
    HEDDLE_ASSIGN(std::shared_ptr<const Kernel> kernel,
                  load_kernel(driver, device, *unit, launch.shared_bytes));
    steps.push_back({std::move(kernel), launch,
                     PassedBytes::of_backward_sm90(
                         room_of_backward_sm90(problem, config, loads.size(), name))});
  }
  std::optional<F16PairsStep> pairs;
  if (config.planes > 1) {
    HEDDLE_ASSIGN(pairs, F16PairsStep::make(driver, device, problem.sizes,
                                            {{structure.forward.q, config.tile_m},
                                             {structure.forward.k, config.tile_n},
                                             {structure.forward.v, config.tile_n, kSpreadOfV},
                                             {structure.d_o, config.tile_m}}));
  }
  ParameterBlock<attention::BackwardParameters> block(structure.forward, problem.sizes);
  fill_backward(block, structure, problem.sizes, loads);
  if (config.load_gradient)
    block.tensor(block.parameters.d_load, structure.load_gradients[0].gradient);
  sm90::BackwardArguments arguments{};
  arguments.q_rounded = static_cast<int>(config.q_rounded);
  arguments.section = config.section;
  arguments.problem = block.parameters;
  std::vector<AlignedOperand> aligned{{structure.forward.q, "q"}, {structure.forward.k, "k"},
                                      {structure.forward.v, "v"}, {structure.forward.o, "o"},
                                      {structure.d_o, "dO"},      {structure.d_q, "dQ"},
                                      {structure.d_k, "dK"},      {structure.d_v, "dV"}};
  if (config.tiled != kAbsent) {
    arguments.tiled = score_tile_arguments(problem.sizes, config.tiled);
    aligned.push_back({config.tiled, "what the score reads"});
  }
  std::string description =
      fmt::format("attention backward, Hopper kernels{}, {} x {} tiles{}{}, {}",
                  config.load_gradient      ? " with score tiles and their gradient"
                  : config.tiled != kAbsent ? " with score tiles"
                                            : "",
                  config.tile_m, config.tile_n, config.planes > 1 ? " of f16 pairs" : "",
                  structure.deterministic ? " in a fixed order" : "", architecture_of(device));
  return std::make_shared<const BackwardSm90Plan>(
      driver, std::move(sequence_maps), std::move(steps), std::move(pairs), arguments,
      std::move(block.entries), mapped_operands(problem, config), std::move(aligned),
      workspace_of(problem, config), std::move(description));
}

}  // namespace heddle::engine::cuda
