#include "engine/cuda/attention_forward_sm80.h"

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/dropout_dump.h"
#include "engine/cuda/general_launches.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/score_source.h"

namespace heddle::engine::cuda {
namespace {

using attention::ForwardParameters;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::OperandId;

}  // namespace

Result<sm80::GeneralConfig> configure_forward_sm80(const AttentionProblem& problem,
                                                   const Target& target) {
  const AttentionStructure& structure = problem.structure;
  HEDDLE_TRY(check_attention(structure, problem.sizes));
  const problem::AttentionFacts facts = problem::facts_of(problem);
  sm80::GeneralConfig config = general_config(structure);
  HEDDLE_ASSIGN(const DataType result, result_type(structure, {{structure.o, "o"}}));
  config.result = element_of(result);
  const bool planes = config.is_f32();
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  config.aligned = rows_are_aligned(structure, structure.operands, facts);
  // 128 keys of d 64 leave no registers for drawing keep bits (56 bytes spilled), and of a column,
  // read by the element, 8 spilled.
  const bool roomy = widest <= 64 && structure.dropout.kind == problem::Dropout::Kind::none &&
                     !planes && (config.aligned || widest > 8);
  config.tile_n = roomy ? 128 : widest <= 128 ? 64 : 32;
  const auto shared = [&config] { return sm80::forward_layout_of(config).bytes; };
  if (widest > kWidestHead) {
    config.parts = (structure.v_head_dim + kWidestHead - 1) / kWidestHead;
    config.tile_n = planes ? 16 : 32;
    // As much as a stage of f32 hides.
    config.in_turns = planes;
    config.warps = 4;
    const int limit = shared_limit_of(structure, target);
    while (config.warps > 1 && shared() > limit) config.warps /= 2;
    HEDDLE_TRY(check_shared_bytes(structure, shared(), target));
    return config;
  }
  // Short query blocks (decoding) and wide heads take fewer rows; three planes fewer keys too.
  if (facts.has_few_rows || planes || shared() > kSm80SharedLimit) config.warps = 4;
  if (planes && widest > 64) config.tile_n /= 2;
  if (shared() > kSm80SharedLimit) config.warps = 2;
  return config;
}

namespace {

/// A kernel `name`, which makes `call` of `header`. `definitions` has the problem's score.
KernelUnit unit_of(const AttentionStructure& structure, const sm80::GeneralConfig& config,
                   const attention::ArgumentLayout& layout, const std::string& definitions,
                   const char* name, const char* header, const std::string& call) {
  std::string source = fmt::format(
      "{}#include \"sm80/{}\"\n"
      "namespace heddle {{\n{}{}}}  // namespace heddle\n"
      "static_assert(sizeof(heddle::attention::ForwardParameters) == {}, \"as passed\");\n"
      "{}{}(const __grid_constant__ heddle::attention::ForwardParameters p) {{\n{}"
      "  heddle::sm80::{}(p);\n"
      "}}\n",
      argument_layout_source(layout), header, config_source<sm80::GeneralConfig>(config),
      definitions, passed_bytes<ForwardParameters>(layout),
      kernel_source(structure, config.threads()), name, leave_source(structure, "p"), call);
  return {name, std::move(source), summary_of<sm80::GeneralConfig>(config)};
}

KernelUnit forward_unit(const AttentionStructure& structure, const sm80::GeneralConfig& config,
                        const attention::ArgumentLayout& layout, const std::string& score) {
  return unit_of(structure, config, layout, score, "attention_forward", "attention_forward.cuh",
                 "attention_forward<heddle::Config, heddle::Score>");
}

attention::ArgumentLayout argument_layout_of_scores(const AttentionStructure& structure,
                                                    size_t loads) {
  attention::ArgumentLayout layout = argument_layout_of(structure, loads);
  layout.output = layout.row_sums = layout.dropout = false;
  layout.scores = true;
  return layout;
}

/// The kernel that writes the scores, where the structure wants them.
KernelUnit scores_unit(const AttentionStructure& structure, const sm80::GeneralConfig& config,
                       const attention::ArgumentLayout& layout, const std::string& score) {
  const std::string written =
      fmt::format("using Written = {};\n", device_type(structure.type(structure.scores).dtype));
  return unit_of(structure, config, layout, score + written, "attention_scores", "score_output.cuh",
                 fmt::format("score_output<heddle::Config, heddle::Score, heddle::Written, {}>",
                             structure.scores_after_softmax));
}

/// The kernel that writes the exact keep mask, where the structure wants it.
KernelUnit dump_unit(const AttentionStructure& structure) {
  constexpr const char* kName = "attention_dropout_dump";
  return {kName, dump_source(structure, "ForwardParameters", "p", kName)};
}

Result<Lowering> lower_by(const AttentionProblem& problem, const Target& target, bool after_pairs) {
  HEDDLE_ASSIGN(const sm80::GeneralConfig config, configure_forward_sm80(problem, target));
  const AttentionStructure& structure = problem.structure;
  std::vector<OperandId> loads;
  const std::string score = score_source("Score", structure.score, structure, loads);
  HEDDLE_TRY(check_loads(loads));
  ForwardParameters parameters{};
  ParameterBlock block(&parameters, structure, problem.sizes);
  fill_forward(block, parameters, structure, problem.sizes, loads);
  Lowering lowering;
  std::vector<GeneralLaunch<ForwardParameters>> steps;
  const auto add = [&](KernelUnit kernel, const Launch& launch,
                       const attention::ArgumentLayout& layout) {
    steps.push_back({lowering.add_kernel(std::move(kernel), static_cast<int>(launch.threads),
                                         launch.shared_bytes),
                     launch, parameters, block.entries, layout});
  };
  const int64_t rows = config.rows();
  const auto launch_of = [&](const sm80::GeneralConfig& one) {
    return Launch{.grid_x = static_cast<unsigned>(divide_up(problem.sizes.q_length, rows)),
                  .grid_y = static_cast<unsigned>(problem.sizes.q_heads),
                  .grid_z = static_cast<unsigned>(problem.sizes.batch),
                  .threads = static_cast<unsigned>(one.threads()),
                  .shared_bytes = static_cast<unsigned>(sm80::forward_layout_of(one).bytes)};
  };
  const attention::ArgumentLayout layout = argument_layout_of(structure, loads.size());
  add(forward_unit(structure, config, layout, score), launch_of(config), layout);
  if (structure.scores != problem::kAbsent) {
    sm80::GeneralConfig writing = config;
    writing.dropout = attention::Dropout::none;
    writing.parts = 1;
    writing.tile_n = std::min(config.tile_n, 32);  // of 64 keys and 128 up to 32 bytes were spilled
    const attention::ArgumentLayout of_scores = argument_layout_of_scores(structure, loads.size());
    add(scores_unit(structure, writing, of_scores, score), launch_of(writing), of_scores);
  }
  if (structure.dropout.dump != problem::kAbsent)
    add(dump_unit(structure), dump_launch(problem.sizes), argument_layout_of_dump());
  std::vector<problem::NamedOperand> aligned;
  if (config.aligned) aligned = problem::tensors_of(structure);
  lowering.workspace_bytes = after_pairs ? kFallbackBytes : 0;
  lowering.description =
      fmt::format("attention forward, general kernel, {} x {} tiles, {}{}", rows, config.tile_n,
                  config.parts > 1 ? "O in parts, " : "", target.architecture);
  lowering.launches = std::make_shared<const GeneralLaunches<ForwardParameters>>(
      std::move(steps), std::move(aligned), after_pairs);
  return lowering;
}

}  // namespace

Result<Lowering> lower_forward_sm80(const AttentionProblem& problem, const Target& target) {
  return lower_by(problem, target, false);
}
Result<Lowering> lower_forward_sm80_after_pairs(const AttentionProblem& problem,
                                                const Target& target) {
  return lower_by(problem, target, true);
}

}  // namespace heddle::engine::cuda
