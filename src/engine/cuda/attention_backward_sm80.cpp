#include "engine/cuda/attention_backward_sm80.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/dropout_dump.h"
#include "engine/cuda/general_launches.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/score_source.h"

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

constexpr int kSinkThreads = 256;

std::string derivative_of(const AttentionBackwardStructure& structure, const BackwardSm80Step& step,
                          std::vector<OperandId>& loads) {
  if (step.part == Part::load) {
    return score_source("Derivative", structure.load_gradients[step.load_gradient].derivative,
                        structure.forward, loads);
  }
  return score_source("Derivative", structure.d_dot, structure.forward, loads);
}

attention::ArgumentLayout argument_layout_of_backward_sm80(
    const AttentionBackwardStructure& structure, const BackwardSm80Step& step, size_t loads) {
  if (step.part == Part::dump) return argument_layout_of_dump();
  attention::ArgumentLayout layout;
  if (step.part == Part::delta || step.part == Part::sink) {
    layout.output = layout.row_gradients = true;
    layout.stats_gradient = step.part == Part::delta && structure.d_stats != kAbsent;
    layout.row_sums =
        (step.part == Part::sink || layout.stats_gradient) && has_max_and_sum(structure.forward);
    return layout;
  }
  layout = argument_layout_of(structure.forward, loads);
  layout.output = false;
  layout.key_gradients = step.part == Part::keys;
  layout.largest_gradient =
      step.part == Part::keys && step.config.want_dk && structure.largest_d_dot != kAbsent;
  layout.load_gradient = step.part == Part::load;
  return layout;
}

using Step = GeneralLaunch<BackwardParameters>;

unsigned blocks(int64_t rows, int64_t per_block) {
  return static_cast<unsigned>(divide_up(rows, per_block));
}

Launch launch_of(const AttentionBackwardProblem& problem, const BackwardSm80Step& step) {
  const AttentionSizes& sizes = problem.sizes;
  const int64_t own = step.config.rows();
  Launch launch{.grid_z = static_cast<unsigned>(sizes.batch),
                .threads = static_cast<unsigned>(step.config.threads()),
                .shared_bytes = static_cast<unsigned>(step.shared_bytes())};
  switch (step.part) {
    case Part::delta:
      launch.grid_x = blocks(sizes.q_length, step.config.warps);
      launch.grid_y = static_cast<unsigned>(sizes.q_heads);
      break;
    case Part::queries:
      launch.grid_x = blocks(sizes.q_length, own);
      launch.grid_y = static_cast<unsigned>(sizes.q_heads);
      break;
    case Part::keys:
      launch.grid_x = blocks(sizes.kv_length, own);
      launch.grid_y = static_cast<unsigned>(step.config.want_dk ? sizes.k_heads : sizes.v_heads);
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
      const unsigned column_tiles = dims[3] == 1 ? 1 : blocks(sizes.kv_length, step.config.tile_n);
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
    const AttentionBackwardProblem& problem, const Target& target) {
  const AttentionBackwardStructure& structure = problem.structure;
  const AttentionStructure& forward = structure.forward;
  const problem::AttentionFacts facts = problem::facts_of(problem);
  HEDDLE_TRY(check_backward(problem, facts));
  const DataType element = forward.type(forward.q).dtype;
  for (auto [id, role] : {std::pair{forward.o, "o"}, {structure.d_o, "dO"}})
    HEDDLE_TRY(check_dtype(forward, id, role, {element}));
  HEDDLE_ASSIGN(const DataType result, result_type_of_backward(structure));
  if (structure.d_q_rope || structure.d_k_rope) {
    return error(Code::graph_not_supported,
                 "cuda: rope_backward inside sdpa_backward is planned as a step after it");
  }

  sm80::GeneralConfig rows = general_config(forward);
  rows.result = element_of(result);
  sm80::GeneralConfig config = rows;
  rows.tile_m = rows.tile_n = 32;
  std::vector<BackwardSm80Step> steps{{.part = Part::delta, .config = rows}};

  config.aligned = rows_are_aligned(structure, forward.operands, facts);
  const int widest = std::max(forward.qk_head_dim, forward.v_head_dim);
  // Register budgets, as compiled: 64 query rows a step beside both sums at d 64 (239 registers),
  // 32 at d 128 (253); past that dK and dV take a launch each, and 32 rows spilled 16 to 32 bytes.
  // A block mask or drawn keep bits cost the few registers that d 128 has left.
  const bool busy = config.block_mask || config.dropout != attention::Dropout::none;
  // The planes of f32 need sums of their own beside those: half as many rows and keys.
  const bool planes = config.is_f32();
  const bool wide = widest > 128 || (widest > 64 && (busy || planes));
  config.tile_m = wide || widest <= 48 ? 16 : widest <= 64 && !planes ? 64 : 32;
  config.tile_n = widest <= 64 ? 64 : 32;
  if (planes) config.tile_n = widest <= 64 && !config.has_score ? 32 : 16;
  // Rows off 16 bytes take addresses besides, and keep bits: 32 rows spilled 192 bytes on sm_80.
  if (planes && (!config.aligned || busy)) config.tile_m = 16;
  // At d 8 eight warps spilled 56 bytes on sm_80, at d 36, read by elements, 16.
  if (planes || widest <= (config.aligned ? 8 : 48)) config.warps = 4;
  // Heads whose sums no warp can hold.
  const bool beyond = widest > kWidestHead;
  if (beyond) {
    config.warps = 4;
    config.tile_m = config.tile_n = 16;
    config.in_turns = planes;
  }
  const int limit = shared_limit_of(forward, target);
  /// Fewer warps where they do not fit; wide heads stage half as many rows too, and less often.
  const auto fitted = [limit](BackwardSm80Step step, int sm80::GeneralConfig::*staged) {
    sm80::GeneralConfig& c = step.config;
    // Of 384 threads each has 168 registers: 576 columns in three parts spilled 16 bytes.
    if (c.parts > 2) c.warps = std::min(c.warps, 2);
    while (c.warps > 1 && step.shared_bytes() > limit) c.warps /= 2;
    while (step.shared_bytes() > limit && c.*staged > 16) c.*staged /= 2;
    if (step.shared_bytes() > limit) c.stages = 1;
    return step;
  };
  const auto parts_of = [](int columns) { return (columns + kWidestHead - 1) / kWidestHead; };

  const auto add_keys = [&](bool dk, bool dv) {
    BackwardSm80Step keys{.part = Part::keys, .config = config};
    keys.config.want_dk = dk;
    keys.config.want_dv = dv;
    keys.config.parts = parts_of(dk ? forward.qk_head_dim : forward.v_head_dim);
    steps.push_back(fitted(keys, &sm80::GeneralConfig::tile_m));
  };
  const bool dk = structure.d_k != kAbsent, dv = structure.d_v != kAbsent;
  if (dk && dv && facts.as_many_value_heads && widest <= 128) {
    add_keys(true, true);
  } else {
    if (dk) add_keys(true, false);
    if (dv) add_keys(false, true);
  }
  BackwardSm80Step queries{.part = Part::queries, .config = config};
  queries.config.parts = parts_of(forward.qk_head_dim);
  queries = fitted(queries, &sm80::GeneralConfig::tile_n);
  if (structure.d_q != kAbsent) steps.push_back(queries);
  if (forward.dropout.dump != kAbsent) steps.push_back({.part = Part::dump});
  if (structure.d_sink != kAbsent) steps.push_back({.part = Part::sink, .config = rows});
  for (size_t n = 0; n < structure.load_gradients.size(); ++n) {
    const OperandId id = structure.load_gradients[n].gradient;
    HEDDLE_TRY(check_dtype(forward, id, "dBias", {DataType::f32, DataType::bf16, DataType::f16}));
    BackwardSm80Step load{.part = Part::load, .config = queries.config, .load_gradient = n};
    load.config.parts = 1;
    // The sums beside S and dP of 32 keys at d 256 spill 8 bytes on sm_90a.
    if (widest > 128) load.config.tile_n = 16;
    load.config.load_element = element_of(forward.type(id).dtype);
    steps.push_back(load);
  }
  for (const BackwardSm80Step& step : steps)
    HEDDLE_TRY(check_shared_bytes(forward, step.shared_bytes(), target));
  return steps;
}

int BackwardSm80Step::shared_bytes() const {
  switch (part) {
    case Part::keys:
      return sm80::key_sweep_layout_of(config).bytes;
    case Part::queries:
    case Part::load:
      return sm80::query_sweep_layout_of(config).bytes;
    case Part::delta:
    case Part::sink:
    case Part::dump:
      return 0;
  }
  return 0;
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
  const attention::ArgumentLayout layout =
      argument_layout_of_backward_sm80(structure, step, loads.size());
  std::string source = fmt::format(
      "{}#include \"sm80/attention_backward.cuh\"\n"
      "namespace heddle {{\n{}{}{}}}  // namespace heddle\n"
      "static_assert(sizeof(heddle::attention::BackwardParameters) == {}, \"as passed\");\n"
      "{}{}(const __grid_constant__ heddle::attention::BackwardParameters p) {{\n{}"
      "  heddle::sm80::{}{}(p);\n"
      "}}\n",
      argument_layout_source(layout), config_source<sm80::GeneralConfig>(step.config), score,
      derivative, passed_bytes<BackwardParameters>(layout),
      kernel_source(structure.forward,
                    step.part == Part::sink ? kSinkThreads : step.config.threads()),
      name, leave_source(structure.forward, "p.forward"), name, arguments);
  return {name, std::move(source), summary_of<sm80::GeneralConfig>(step.config)};
}

Result<Step> lower_step(const AttentionBackwardProblem& problem, const BackwardSm80Step& configured,
                        Lowering& lowering) {
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<OperandId> loads;
  KernelUnit unit = unit_of(structure, configured, loads);
  HEDDLE_TRY(check_loads(loads));
  BackwardParameters p{};
  ParameterBlock block(&p, structure.forward, problem.sizes);
  fill_backward(block, p, structure, problem.sizes, loads);
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
      argument_layout_of_backward_sm80(structure, configured, loads.size())};
}

Result<Lowering> lower_by(const AttentionBackwardProblem& problem, const Target& target,
                          bool after_pairs) {
  HEDDLE_ASSIGN(const std::vector<BackwardSm80Step> configured,
                configure_backward_sm80(problem, target));
  Lowering lowering;
  std::vector<Step> steps;
  for (const BackwardSm80Step& one : configured) {
    HEDDLE_ASSIGN(Step step, lower_step(problem, one, lowering));
    steps.push_back(std::move(step));
  }
  const AttentionBackwardStructure& structure = problem.structure;
  std::vector<problem::NamedOperand> aligned;
  if (rows_are_aligned(structure, structure.forward.operands, problem::facts_of(problem))) {
    aligned = problem::tensors_of(structure);
    // O is read by elements.
    std::erase_if(aligned,
                  [&](const problem::NamedOperand& one) { return one.id == structure.forward.o; });
  }
  const int64_t rows = problem.sizes.batch * problem.sizes.q_heads * problem.sizes.q_length;
  lowering.workspace_bytes =
      rows * int64_t{sizeof(attention::RowDelta)} + (after_pairs ? kFallbackBytes : 0);
  const bool in_parts = std::ranges::any_of(
      configured, [](const BackwardSm80Step& step) { return step.config.parts > 1; });
  lowering.description =
      fmt::format("attention backward, general kernels, {} launches, {}{}", steps.size(),
                  in_parts ? "sums in parts, " : "", target.architecture);
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
