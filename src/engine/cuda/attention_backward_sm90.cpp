#include "engine/cuda/attention_backward_sm90.h"

#include <algorithm>
#include <bit>

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/launch_operands.h"
#include "engine/cuda/score_instructions.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/score_tile_sm90.h"
#include "engine/cuda/sequence_maps_sm90.h"
#include "engine/cuda/tensor_map.h"
#include "problem/score_derivative.h"
#include "sm90/backward_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::AttentionFacts;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;
using problem::ScoreNode;
using problem::ScoreOp;

constexpr int64_t kMostBlocks = INT32_MAX;
/// Columns of dK or dV that a warp group has registers for; more are shared out.
constexpr int kMostColumnsOfOne = 256;

int widest_of(const AttentionStructure& forward) {
  return std::max(forward.qk_head_dim, forward.v_head_dim);
}

/// Blocks of 16-bit operands that share a head's columns, and the most that one of them has.
int ranks_of(const AttentionStructure& forward) {
  return widest_of(forward) > kMostColumnsOfOne ? 2 : 1;
}
int widest_of_block(const AttentionStructure& forward) {
  return widest_of(forward) / ranks_of(forward);
}

bool has_lengths(const AttentionStructure& forward) {
  return forward.q_lengths != kAbsent || forward.kv_lengths != kAbsent;
}

/// dS is held in 16 bits without its factor: f16 would lose P o slope of a factor of 1e-4. Pairs
/// have units.
problem::FactoredDerivative slope_of(const AttentionBackwardStructure& structure) {
  if (is_f32(structure.forward)) return {1, structure.d_dot};
  return problem::factored(structure.d_dot);
}

bool has_unit_slope(const AttentionBackwardStructure& structure) {
  const problem::ScoreExpression slope = slope_of(structure).rest;
  return slope.nodes[static_cast<size_t>(slope.root)].op == problem::ScoreOp::gradient;
}

Status refuse(std::string_view what) {
  return error(Code::graph_not_supported, "cuda: the Hopper backward {}", what);
}

/// Scores of 16-bit operands, as compiled without spills in two seconds; f32's are computed in a
/// loop.
Status check_score(const AttentionBackwardStructure& structure) {
  constexpr int kMostInstructions = 60;
  const AttentionStructure& forward = structure.forward;
  const bool has_slope = !has_unit_slope(structure);
  const int of_derivative = has_slope ? instructions(slope_of(structure).rest, false) : 0;
  if (instructions(forward.score, false) + of_derivative > kMostInstructions)
    return refuse("takes scores, with their derivatives, of up to 60 instructions");
  const auto has = [&](std::initializer_list<ScoreOp> ops) {
    return std::ranges::any_of(forward.score.nodes, [&](const ScoreNode& node) {
      return std::ranges::find(ops, node.op) != ops.end();
    });
  };
  const bool spills =
      has({ScoreOp::square_root, ScoreOp::reciprocal_square_root, ScoreOp::error_function}) ||
      (has_slope && has({ScoreOp::exponential, ScoreOp::exponential_minus_one, ScoreOp::logarithm,
                         ScoreOp::logarithm_plus_one}));
  if (spills && widest_of(forward) > 64)
    return refuse(
        "takes roots and error functions, and exponentials and logarithms of the dot product, up "
        "to head_dim 64");
  return {};
}

Status check_features(const AttentionBackwardStructure& structure, const AttentionFacts& facts) {
  const AttentionStructure& forward = structure.forward;
  if (forward.qk_head_dim % 8 != 0 || forward.v_head_dim % 8 != 0) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa_backward head_dim {} (q, k) and {} (v); the Hopper kernel takes "
                 "multiples of 8",
                 forward.qk_head_dim, forward.v_head_dim);
  }
  if (structure.d_q == kAbsent && structure.d_k == kAbsent && structure.d_v == kAbsent)
    return refuse("writes dQ, dK and dV, of which none is wanted");
  if (!facts.as_many_value_heads) return refuse("takes as many key heads as value heads");
  if (structure.d_q_rope || structure.d_k_rope)
    return refuse("leaves rope_backward to a step of its own");
  if (forward.dropout.kind == problem::Dropout::Kind::mask || forward.dropout.dump != kAbsent)
    return refuse("draws dropout from a counter, without masks in memory");
  if (forward.dropout.kind != problem::Dropout::Kind::none && !has_unit_slope(structure))
    return refuse("takes no dropout of scores whose derivative by the dot product is not 1");
  // As compiled without spills: a group holds 128 registers of dK or dV there.
  if (forward.dropout.kind == problem::Dropout::Kind::threefry && widest_of(forward) > 192)
    return refuse("takes threefry dropout up to head_dim 192");
  if (forward.block_mask != kAbsent) return refuse("takes no block mask");
  // dS of a head has one unit there: rows with small gradients would lose their bits beside one
  // whose gradient is huge.
  if (is_f32(forward) && structure.largest_d_dot != kAbsent)
    return refuse("finds the largest gradient of 16-bit attentions only");
  if (is_f32(forward) && structure.d_stats != kAbsent)
    return refuse("takes gradients of log-sum-exps of 16-bit attentions only");
  return is_f32(forward) ? Status{} : check_score(structure);
}

Status check_operands(const AttentionBackwardStructure& structure, const AttentionFacts& facts) {
  const AttentionStructure& forward = structure.forward;
  const DataType element = forward.type(forward.q).dtype;
  for (auto [id, role] : {std::pair{forward.o, "o"}, {structure.d_o, "dO"}})
    HEDDLE_TRY(check_dtype(forward, id, role, {element}));
  for (const problem::NamedOperand& one : problem::tensors_of(structure))
    HEDDLE_TRY(check_copies(forward, facts, one.id));
  return {};
}

/// Whether the score reads an operand that differs from row to row or key to key.
bool reads_cells(const AttentionStructure& forward, const AttentionFacts& facts) {
  return std::ranges::any_of(forward.score.nodes, [&](const problem::ScoreNode& node) {
    if (node.op != problem::ScoreOp::load) return false;
    const problem::OperandFacts& operand = facts.operand(node.operand);
    return operand.per_row || operand.per_column;
  });
}

bool is_boolean(const AttentionStructure& structure, OperandId id) {
  return structure.type(id).dtype == DataType::boolean;
}

/// What comes by tiles, as compiled without spills.
OperandId tiled_operand(const AttentionBackwardStructure& structure, const AttentionFacts& facts) {
  const AttentionStructure& forward = structure.forward;
  const int widest = widest_of_block(forward);
  // Above head dim 64 a tile of f32 finds no shared memory.
  const problem::ScoreExpression slope = slope_of(structure).rest;
  const OperandId operand =
      score_tile_operand(forward, facts, {&forward.score, &slope}, widest <= 64);
  if (operand == kAbsent || (widest > 192 && is_boolean(forward, operand))) return kAbsent;
  // In a fixed order the warp that would fetch them takes turns.
  return widest_of(forward) > 128 && structure.deterministic ? kAbsent : operand;
}

/// Whether the gradients of what the score reads are one of the operand that comes by tiles, and
/// the score's own.
bool sums_load_gradient(const AttentionBackwardStructure& structure, const AttentionSizes& sizes,
                        OperandId tiled) {
  if (structure.load_gradients.size() != 1) return false;
  const problem::LoadGradient& wanted = structure.load_gradients[0];
  const auto type = [&](OperandId id) { return structure.forward.type(id).dtype; };
  const problem::ScoreExpression& derivative = wanted.derivative;
  if (tiled == kAbsent || wanted.load != tiled || type(tiled) == DataType::boolean ||
      type(wanted.gradient) != type(tiled) ||
      derivative.nodes[static_cast<size_t>(derivative.root)].op != problem::ScoreOp::gradient) {
    return false;
  }
  const Dims& dims = sizes.layout(tiled).dims;
  return widest_of(structure.forward) <= 128 && dims[0] * dims[1] <= kMostBlocksAcross &&
         sizes.q_length <= 64 * kMostBlocksAcross;
}

/// Whether that of a tile is its dS, as a block has it for dQ, or the sum of those of the few
/// blocks of a cluster.
bool has_tiled_gradient(const BackwardSm90Config& config, const AttentionBackwardProblem& problem,
                        const AttentionFacts& facts) {
  constexpr int64_t kLargestCluster = 8;  // that every Hopper can run
  const AttentionStructure& forward = problem.structure.forward;
  const OperandId gradient = problem.structure.load_gradients[0].gradient;
  const AttentionSizes& sizes = problem.sizes;
  const Dims& dims = sizes.layout(gradient).dims;
  const int64_t blocks = dims[0] == sizes.batch ? 1 : sizes.batch;
  // As compiled.
  const bool spills = config.drops() && std::max(config.qk_dim, config.v_dim) > 64;
  return config.unit_slope && !config.lengths && !config.all_keys && !spills &&
         config.tiled_element != Element::f32 && dims == sizes.layout(config.tiled_operand).dims &&
         dims[1] == sizes.q_heads && can_copy(forward, facts, gradient) &&
         blocks <= kLargestCluster && std::has_single_bit(static_cast<uint64_t>(blocks));
}

/// Whether dK and dV are summed transposed, of 96 keys a block instead of 64.
bool can_transpose(const AttentionBackwardStructure& structure, const AttentionFacts& facts,
                   const BackwardSm90Config& config) {
  const bool is_plain = config.unit_slope && !config.has_score && !config.drops() &&
                        !config.max_and_sum && !config.deterministic && config.planes == 1 &&
                        config.result == config.element && config.tiled_operand == kAbsent &&
                        structure.largest_d_dot == kAbsent;
  const bool fits = tile::boxes_of(config.qk_dim) == 3 && tile::boxes_of(config.v_dim) <= 2;
  return is_plain && fits && round_up(facts.few_keys, 96) <= round_up(facts.few_keys, 64);
}

/// How many heads run side by side, by measurement: kernels/notes/sm90_attention_backward.md.
int64_t head_group(const BackwardSm90Config& config, bool deterministic, int64_t key_tiles,
                   const AttentionSizes& sizes) {
  // In a fixed order each block of a head starts a little after the one before it. With as many
  // heads as a wave of blocks holds, it also takes the place of one that ended as much later. A
  // block by gradient follows later still: twice as many heads, up to 16, are half as many blocks
  // to wait for.
  if (deterministic && !config.upper_varies) {
    constexpr int64_t kProcessors = 132;
    const int64_t waves = config.by_gradient ? 2 : 1, most = config.by_gradient ? 16 : kProcessors;
    return std::clamp<int64_t>(waves * kProcessors / std::max<int64_t>(1, key_tiles), 1, most);
  }
  if (deterministic && config.downwards)
    return config.by_gradient
               ? std::max<int64_t>(2, 8 * sizes.k_heads / std::max<int64_t>(1, sizes.q_heads))
               : 8;
  if (deterministic) return 1;
  // Longest first, as far as the L2 holds what the heads share.
  if (config.upper_varies) return key_tiles <= 32 ? 8 : 2;
  return 1;
}

/// Pairs of wide heads: 64 queries a step as far as there is room for them, and registers, and a
/// second stage of Q and dO where there is room for that.
void fit_wide_pairs(BackwardSm90Config& config) {
  const bool is_plain = !config.has_score && !config.drops() && !config.max_and_sum;
  const bool has_registers =
      config.v_dim <= 128 ? !config.few_registers : config.v_dim <= 160 && is_plain;
  config.tile_m = config.qk_dim <= 192 && has_registers ? 64 : 32;
  if (std::max(config.qk_dim, config.v_dim) > kMostColumnsOfOne) {
    config.by_gradient = false;
    config.parts = config.ranks = 2;
  }
  config.q_stages = config.d_o_stages = 1;
  for (int* stages : {&config.q_stages, &config.d_o_stages}) {
    *stages = 2;
    if (config.shared_bytes() > sm90::kMostShared) *stages = 1;
  }
}

/// Two blocks share the columns of wide heads: what they tell each other takes the room of a
/// second buffer where there is none, or of a second stage of dO.
void fit_ranks(int ranks, BackwardSm90Config& config) {
  config.ranks = ranks;
  for (int* number : {&config.dot_buffers, &config.d_o_stages})
    if (config.shared_bytes() > sm90::kMostShared) *number = 1;
}

/// Few keys are a block's own, which then sums nothing in memory; up to 64 of them are one group's,
/// and two blocks share a processor. `narrow`: so much fits.
void fit_tiles(const AttentionFacts& facts, bool narrow, BackwardSm90Config& config) {
  if (config.by_gradient || config.parts > 1 || facts.few_keys == 0) return;
  // Above 64 a score beside the ends of sequences leaves no registers for where dQ lies.
  const bool full =
      std::max(config.qk_dim, config.v_dim) > 64 && config.has_score && config.lengths;
  if (full) return;
  config.all_keys = facts.few_keys <= 64 * config.consumers && config.result == config.element;
  // 257 keys, a class beside 256 patches, would fill 384 rows of three blocks.
  const bool many_tiles = facts.few_keys > 256;
  if (!narrow || !(many_tiles || (facts.few_keys <= 64 && config.all_keys))) return;
  config.consumers = 1;
  config.blocks = 2;
  config.tile_m = 64;
}

}  // namespace

int most_columns_of_pairs_backward(const AttentionStructure& forward, const AttentionFacts& facts) {
  constexpr int kMostShared = 512, kMostBesideAddresses = 192;
  const problem::Dropout::Kind dropout = forward.dropout.kind;
  if (reads_cells(forward, facts) || dropout == problem::Dropout::Kind::threefry)
    return kMostBesideAddresses;
  const bool is_plain = forward.score.is_identity() && dropout == problem::Dropout::Kind::none;
  return is_plain ? kMostShared : kMostColumnsOfOne;
}

Result<BackwardSm90Config> configure_backward_sm90(const AttentionBackwardProblem& problem) {
  const AttentionBackwardStructure& structure = problem.structure;
  const AttentionStructure& forward = structure.forward;
  const AttentionSizes& sizes = problem.sizes;
  const AttentionFacts facts = problem::facts_of(problem);
  HEDDLE_TRY(check_backward(problem, facts));
  if (!is_f32(forward))
    HEDDLE_TRY(check_head_dims(forward, "Hopper backward", 2 * kMostColumnsOfOne));
  HEDDLE_TRY(check_lengths(sizes, kMostRowsSm90));
  HEDDLE_TRY(check_features(structure, facts));
  HEDDLE_TRY(check_operands(structure, facts));

  BackwardSm90Config config;
  config.element = element_of(forward.type(forward.q).dtype);
  HEDDLE_ASSIGN(const DataType result, result_type_of_backward(structure));
  config.result = element_of(result);
  config.qk_dim = forward.qk_head_dim;
  config.v_dim = forward.v_head_dim;
  for (const problem::KeyBound& bound : forward.bounds) {
    if (bound.is_diagonal()) (bound.upper ? config.upper_varies : config.lower_varies) = true;
  }
  config.lengths = has_lengths(forward);
  config.unit_slope = has_unit_slope(structure);
  config.slope_factor = static_cast<float>(slope_of(structure).factor);
  config.max_and_sum = has_max_and_sum(forward);
  config.input_is_log2 = forward.softmax_input_is_log2;
  config.has_score = !forward.score.is_identity();
  config.dropout = dropout_of(forward.dropout.kind);
  const bool drops = config.drops();
  if (is_f32(forward)) {
    const int most = most_columns_of_pairs_backward(forward, facts);
    HEDDLE_TRY(check_f16_pairs("sdpa_backward", forward, sizes,
                               structure.deterministic ? std::min(most, kMostColumnsOfOne) : most));
    config.element = Element::f16;
    config.planes = 2;
    // As compiled without spills, and without a change to what has registers.
    const bool many_sums = forward.v_head_dim > 96 || forward.qk_head_dim > 128;
    config.few_registers =
        forward.v_head_dim > 192 || ((many_sums || drops) && reads_cells(forward, facts));
  }
  // Tiles by measurement: kernels/notes/sm90_attention_backward.md.
  const int widest = widest_of(forward);
  // Beside pairs there is no room for tiles of what scores read: it is loaded by the cell.
  config.tiled_operand = config.planes > 1 ? kAbsent : tiled_operand(structure, facts);
  const bool is_tiled = config.tiled_operand != kAbsent;
  if (is_tiled) {
    const DataType dtype = forward.type(config.tiled_operand).dtype;
    config.tiled = tiled_of(dtype);
    config.tiled_element = element_of(dtype);
  }
  const bool narrow = config.unit_slope && !drops && config.planes == 1 && !is_tiled;
  config.tile_m = widest <= 64 && narrow ? 128 : 64;
  config.dk_under_dp = widest > 64 && !config.has_score && !drops;
  config.by_gradient =
      widest > 128 || (config.planes > 1 && (widest > 64 || config.has_score || drops));
  if (config.by_gradient) config.q_stages = 2;
  if (config.planes > 1 && widest > 128) fit_wide_pairs(config);
  if (config.planes == 1) fit_ranks(ranks_of(forward), config);
  if (is_tiled && (widest <= 64 || (widest <= 128 && config.tiled == sm90::Tiled::booleans)))
    config.tiled_stages = 2;
  if (!structure.load_gradients.empty()) {
    if (!sums_load_gradient(structure, sizes, config.tiled_operand))
      return refuse("gives no gradients of what the score reads but of a bias that comes by tiles");
    config.load_gradient = true;
  }
  fit_tiles(facts, narrow && widest <= 64, config);
  if (config.load_gradient && has_tiled_gradient(config, problem, facts)) {
    config.tiled_gradient = true;
    if (sizes.layout(config.tiled_operand).dims[0] != sizes.batch)
      config.cluster = static_cast<int>(sizes.batch);
    if (widest > 64) config.q_stages = 2;  // makes room
  }
  config.deterministic = structure.deterministic && !config.all_keys;
  config.transposed = can_transpose(structure, facts, config);
  config.downwards = config.deterministic && config.upper_varies && facts.groups_queries;
  config.q_rounded = round_up(sizes.q_length, std::max(config.tile_m, kRowsOfPrepare));
  const int64_t heads = sizes.batch * sizes.k_heads;
  const int64_t key_tiles = divide_up(sizes.kv_length, config.tile_n());
  const int64_t group = head_group(config, config.deterministic, key_tiles, sizes);
  config.head_group =
      static_cast<int>(std::max<int64_t>(1, std::min(group, heads) / config.cluster));
  const int64_t blocks = key_tiles * heads * config.ranks;
  const int64_t rows = sizes.batch * sizes.q_heads * config.q_rounded;
  if (blocks > kMostBlocks || rows > kMostBlocks) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa_backward has {} key tiles and {} query rows; the Hopper kernel counts "
                 "{} of each",
                 blocks, rows, kMostBlocks);
  }
  return config;
}

BackwardSm90Workspace workspace_of(const AttentionBackwardProblem& problem,
                                   const BackwardSm90Config& config) {
  const int64_t rows = problem.sizes.batch * problem.sizes.q_heads * config.q_rounded;
  const int64_t turns = rows / config.tile_m * config.dq_turns();
  BackwardSm90Workspace at;
  at.negative_lse = config.planes > 1 ? kFallbackBytes : 0;
  at.delta = at.negative_lse + round_up(rows * 4 * (config.max_and_sum ? 2 : 1), 256);
  at.d_q_sum = at.delta + round_up(rows * 4 * config.planes, 256);
  at.turns = at.d_q_sum + (config.all_keys ? 0 : round_up(rows * config.dq_width() * 4, 256));
  at.maps = at.turns + (config.deterministic ? round_up(turns * 4, 256) : 0);
  at.head_units = at.maps + (config.sequence_maps() ? sequence_map_bytes(problem.sizes.batch) : 0);
  const int64_t heads = problem.sizes.batch * problem.sizes.q_heads;
  at.bytes = at.head_units +
             (config.planes > 1 ? round_up(heads * int64_t{sizeof(sm90::HeadUnits)}, 256) : 0);
  return at;
}

attention::ArgumentLayout argument_layout_of_backward_sm90(
    const AttentionBackwardStructure& structure, const BackwardSm90Config& config, size_t loads,
    std::string_view name) {
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  attention::ArgumentLayout layout;
  layout.output = layout.row_gradients = true;
  if (name == main || name == load) {
    layout = argument_layout_of(structure.forward, loads);
    layout.operands = layout.output = layout.row_sums = false;
    layout.row_gradients = config.all_keys;  // dQ is written
    layout.maps = !config.sequence_maps();
    layout.tiled = config.tiled != sm90::Tiled::none;
    layout.tiled_gradient = name == main && config.tiled_gradient;
    layout.load_gradient = name == load || layout.tiled_gradient;
    layout.largest_gradient = name == main && structure.largest_d_dot != kAbsent;
  }
  if (name == prepare) {
    layout.row_sums = config.max_and_sum;
    layout.stats_gradient = structure.d_stats != kAbsent;
  }
  layout.pairs = config.planes > 1;
  return layout;
}

std::vector<KernelUnit> backward_sm90_units(const AttentionBackwardStructure& structure,
                                            const AttentionFacts& facts,
                                            const BackwardSm90Config& config,
                                            std::vector<OperandId>& loads) {
  const AttentionStructure& forward = structure.forward;
  const std::string score =
      score_source("Score", forward.score, forward, loads, &facts, config.tiled_operand);
  const std::string derivative = score_source("Derivative", slope_of(structure).rest, forward,
                                              loads, &facts, config.tiled_operand);
  const bool pairs = config.planes > 1;
  using Kind = std::pair<const char*, const char*>;
  const auto [file, kind] = config.parts > 1     ? Kind("_by_columns", "ByColumns")
                            : config.transposed  ? Kind("_transposed", "Transposed")
                            : config.by_gradient ? Kind("_by_gradient", "ByGradient")
                                                 : Kind("", "");
  const std::string common = fmt::format(
      "#include \"sm90/attention_backward{}{}.cuh\"\n"
      "namespace heddle {{\n"
      "{}{}{}"
      "using Main = sm90::AttentionBackward{}{}<{}>;\n"
      "}}  // namespace heddle\n",
      pairs ? "_f32" : "", file, config_source<sm90::BackwardConfig>(config), score, derivative,
      pairs ? "F32" : "", kind,
      pairs && !config.by_gradient ? "Config" : "Config, Score, Derivative");
  const std::string rows =
      "#include \"sm90/attention_backward_rows.cuh\"\n"
      "using Rows = heddle::sm90::AttentionBackwardRows<heddle::Main>;\n";
  std::vector<KernelUnit> units;
  const auto add = [&](const char* name, int threads, const std::string& with, const char* body) {
    const attention::ArgumentLayout layout =
        argument_layout_of_backward_sm90(structure, config, loads.size(), name);
    units.push_back(
        {name,
         fmt::format(
             "{}{}{}"
             "static_assert(sizeof(heddle::sm90::BackwardArguments) == {}, \"as passed\");\n"
             "extern \"C\" __global__ void __launch_bounds__({}, {})\n"
             "{}(const __grid_constant__ heddle::sm90::BackwardArguments arguments) {{\n"
             "{}  {}(arguments);\n"
             "}}\n",
             argument_layout_source(layout), common, with,
             passed_bytes<sm90::BackwardArguments>(layout), threads,
             std::string_view(name) == kBackwardSm90Names[1] ? config.blocks : 1, name,
             pairs ? "  if (*arguments.problem.forward.fallback != 0) return;\n" : "", body),
         summary_of<sm90::BackwardConfig>(config)});
  };
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  add(main, config.threads(), "", "heddle::Main::run");
  if (config.load_gradient && !config.tiled_gradient) {
    add(load, kBackwardSm90LoadThreads,
        fmt::format("#include \"sm90/attention_backward_load.cuh\"\n"
                    "using Load = heddle::sm90::AttentionBackwardLoad<heddle::Config, "
                    "heddle::Score>;\n"
                    "static_assert(Load::kThreads == {}, \"as launched\");\n",
                    kBackwardSm90LoadThreads),
        "Load::run");
  }
  add(prepare, kBackwardSm90RowThreads, rows, "Rows::prepare");
  if (structure.d_q != kAbsent && !config.all_keys)
    add(finish, kBackwardSm90RowThreads, rows, "Rows::finish");
  if (structure.d_sink != kAbsent) add(sink, kBackwardSm90RowThreads, rows, "Rows::sink");
  return units;
}

}  // namespace heddle::engine::cuda
