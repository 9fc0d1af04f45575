#include "engine/cuda/attention_forward_sm80.h"

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/dropout_dump.h"
#include "engine/cuda/launch_plan.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/passed_arguments.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/shared_tile.h"

namespace heddle::engine::cuda {
namespace {

using attention::ForwardParameters;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::OperandId;

constexpr const char* kKernelName = "attention_forward";

}  // namespace

Result<ForwardSm80Config> configure_forward_sm80(const AttentionProblem& problem) {
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  HEDDLE_TRY(check_attention(structure, sizes));
  ForwardSm80Config config;
  const DataType element = structure.type(structure.q).dtype;
  const bool planes = element == DataType::f32;
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  // 128 keys of d 64 leave no registers for drawing keep bits (56 bytes spilled).
  const bool roomy =
      widest <= 64 && structure.dropout.kind == problem::Dropout::Kind::none && !planes;
  config.tile_n = roomy ? 128 : widest <= 128 ? 64 : 32;
  for (OperandId id : {structure.q, structure.k, structure.v, structure.o}) {
    config.aligned = config.aligned && rows_are_aligned(structure, sizes, id);
  }
  const auto shared = [&] {
    const int64_t rows = 16 * config.warps;
    const int64_t q = tile_bytes(rows, structure.qk_head_dim, element);
    const int64_t o = tile_bytes(rows, structure.v_head_dim, element);
    return std::max(q, o) + tile_bytes(config.tile_n, structure.qk_head_dim, element) +
           tile_bytes(config.tile_n, structure.v_head_dim, element) + 2 * rows * 4;
  };
  // Short query blocks (decoding) and wide heads take fewer rows; three planes fewer keys too.
  if (sizes.q_length <= 64 || planes || shared() > kSm80SharedLimit) config.warps = 4;
  if (planes && widest > 64) config.tile_n /= 2;
  if (shared() > kSm80SharedLimit) config.warps = 2;
  config.shared_bytes = shared();
  return config;
}

std::string source_of_forward_sm80(const AttentionStructure& structure,
                                   const ForwardSm80Config& config, std::vector<OperandId>& loads) {
  const std::string score = score_source("Score", structure.score, structure, loads);
  const Sm80Tiles tiles{.warps = config.warps, .tile_n = config.tile_n, .aligned = config.aligned};
  const attention::Room room = room_of(structure, loads.size());
  return fmt::format(
      "{}#include \"sm80/attention_forward.cuh\"\n"
      "namespace heddle {{\n{}{}}}  // namespace heddle\n"
      "static_assert(sizeof(heddle::attention::ForwardParameters) == {}, \"as passed\");\n"
      "{}{}(const __grid_constant__ heddle::attention::ForwardParameters p) {{\n{}"
      "  heddle::sm80::attention_forward<heddle::Config, heddle::Score>(p);\n"
      "}}\n",
      room_source(room), config_source(structure, tiles), score,
      PassedBytes::of_forward(room).size(), kernel_source(structure, 32 * config.warps),
      kKernelName, leave_source(structure, "p"));
}

KernelUnit dump_unit(const AttentionStructure& structure) {
  constexpr const char* kName = "attention_dropout_dump";
  return {kName, dump_source(structure, "ForwardParameters", "p", kName)};
}

Result<std::shared_ptr<const QueuedPlan>> plan_forward_sm80(const Driver& driver,
                                                            const Device& device,
                                                            const AttentionProblem& problem,
                                                            bool after_pairs) {
  HEDDLE_ASSIGN(const ForwardSm80Config config, configure_forward_sm80(problem));
  std::vector<OperandId> loads;
  const std::string source = source_of_forward_sm80(problem.structure, config, loads);
  HEDDLE_TRY(check_loads(loads));
  ParameterBlock<ForwardParameters> block(problem.structure, problem.sizes);
  fill_forward(block, block.parameters, problem.structure, problem.sizes, loads);
  std::vector<LaunchStep<ForwardParameters>> steps;
  const auto add = [&](const KernelUnit& unit, const Launch& launch,
                       const attention::Room& room) -> Status {
    HEDDLE_ASSIGN(std::shared_ptr<const Kernel> kernel,
                  load_kernel(driver, device, unit, launch.shared_bytes));
    steps.push_back({std::move(kernel), launch, block.parameters, block.entries,
                     PassedBytes::of_forward(room)});
    return {};
  };
  const int64_t rows = 16 * config.warps;
  HEDDLE_TRY(add({kKernelName, source},
                 {.grid_x = static_cast<unsigned>(divide_up(problem.sizes.q_length, rows)),
                  .grid_y = static_cast<unsigned>(problem.sizes.q_heads),
                  .grid_z = static_cast<unsigned>(problem.sizes.batch),
                  .threads = static_cast<unsigned>(32 * config.warps),
                  .shared_bytes = static_cast<unsigned>(config.shared_bytes)},
                 room_of(problem.structure, loads.size())));
  if (problem.structure.dropout.dump != problem::kAbsent) {
    HEDDLE_TRY(add(dump_unit(problem.structure), dump_launch(problem.sizes), room_of_dump()));
  }
  std::vector<AlignedOperand> aligned;
  if (config.aligned) {
    aligned = {{problem.structure.q, "q"},
               {problem.structure.k, "k"},
               {problem.structure.v, "v"},
               {problem.structure.o, "o"}};
  }
  std::string description = fmt::format("attention forward, general kernel, {} x {} tiles, {}",
                                        rows, config.tile_n, architecture_of(device));
  return std::make_shared<const LaunchPlan<ForwardParameters>>(
      std::move(steps), std::move(aligned), 0, std::move(description), after_pairs);
}

}  // namespace heddle::engine::cuda
