#include "engine/cuda/attention_forward_sm90.h"

#include <algorithm>
#include <initializer_list>

#include "attention/rope_parameters.h"
#include "core/rounding.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/score_tile_sm90.h"
#include "engine/cuda/tensor_map.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionFacts;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::KeyBound;
using problem::OperandId;

constexpr const char *kForwardName = "attention_forward", *kRotationsName = "rope_rotations";
constexpr int kSharedLimit = 227 * 1024;
constexpr int64_t kMostRotations = int64_t{1} << 24;  // a warp each

/// K may be rotated with what is made for Q.
Status check_key_rotation(const AttentionProblem& problem) {
  const AttentionStructure& structure = problem.structure;
  if (!structure.k_rope) return {};
  if (!structure.q_rope || structure.k_rope->rotated == kAbsent) {
    return error(Code::graph_not_supported,
                 "cuda: the Hopper kernel's plan rotates keys beside queries, into an operand");
  }
  return configure_rope(*key_rotation(problem)).status();
}

/// Of f32 the kernel takes at most so many columns, and leaves statistics of no more than the
/// backward of this kind takes: the general one adds scores up in another order, and wants those of
/// its own forward (kernels/notes/f32.md).
constexpr int kMostColumnsOfPairs = 512, kFewColumns = 128;

Status check_pairs(const AttentionStructure& structure, const AttentionFacts& facts,
                   const AttentionSizes& sizes) {
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  const bool has_statistics =
      structure.stats != kAbsent || structure.max != kAbsent || structure.sum_exp != kAbsent;
  const int trained = most_columns_of_pairs_backward(structure, facts);
  if (has_statistics && widest > trained) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); in f32 the Hopper kernel writes "
                 "statistics of at most {} with such scores",
                 structure.qk_head_dim, structure.v_head_dim, trained);
  }
  // Making pairs takes longer than the general kernel does: at d 160 and 192/128 1.5 times, at d
  // 256 as long, of 32 keys 2.3 times. (96 keys: 1.1 to 1.2, 0.7; d 512: 0.75.)
  constexpr int kFewKeys = 64;
  if (widest > kFewColumns && widest <= 256 && facts.is_short && facts.few_keys <= kFewKeys) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa of at most {} keys with head_dim {} (q, k) and {} (v); in f32 the "
                 "Hopper kernel takes longer for these than the general one",
                 kFewKeys, structure.qk_head_dim, structure.v_head_dim);
  }
  return check_f16_pairs("sdpa", structure, sizes, kMostColumnsOfPairs);
}

Status check(const AttentionStructure& structure, const AttentionFacts& facts,
             const AttentionSizes& sizes) {
  AttentionStructure rotated = structure;
  rotated.q_rope.reset();
  HEDDLE_TRY(check_attention(rotated, sizes));
  // Of wide values two warp groups have some columns each. Where Q and K alone are wide, 128 rows
  // of them are too many, and where it is rotated, others are as fast. f32 has limits of its own.
  if (!is_f32(structure) && (structure.v_head_dim <= 256 || structure.q_rope))
    HEDDLE_TRY(check_head_dims(rotated, "Hopper kernel"));
  HEDDLE_TRY(check_lengths(sizes, kMostRowsSm90));
  HEDDLE_TRY(rotates_queries(structure, sizes));
  if (structure.scores != problem::kAbsent)
    return error(Code::graph_not_supported, "cuda: the Hopper kernel writes no scores");
  if (structure.qk_head_dim % 8 != 0 || structure.v_head_dim % 8 != 0) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); the Hopper kernel takes multiples of 8",
                 structure.qk_head_dim, structure.v_head_dim);
  }
  const bool rows_are_ragged = structure.type(structure.q).storage.is_ragged();
  for (const problem::NamedOperand& one : problem::tensors_of(structure))
    HEDDLE_TRY(check_copies(structure, facts, one.id));
  if (rows_are_ragged != structure.type(structure.o).storage.is_ragged()) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa q and o must be both ragged or both dense for the Hopper kernel");
  }
  for (OperandId id : {structure.k, structure.v}) {
    const attention::KeyRows rows = rows_of(structure.type(id).storage);
    if (rows != attention::KeyRows::dense) {
      return error(Code::graph_not_supported, "cuda: the Hopper kernel reads no {} keys or values",
                   name(rows));
    }
  }
  if (structure.block_mask != kAbsent) {
    return error(Code::graph_not_supported, "cuda: the Hopper kernel takes no block mask");
  }
  if (structure.dropout.kind == problem::Dropout::Kind::mask || structure.dropout.dump != kAbsent) {
    return error(Code::graph_not_supported,
                 "cuda: the Hopper kernel neither reads nor writes keep masks");
  }
  return is_f32(structure) ? check_pairs(structure, facts, sizes) : Status{};
}

/// Whether the score reads an operand, other than `tiled`, that `differs`.
template <class Differs>
bool reads(const AttentionStructure& structure, const AttentionFacts& facts, OperandId tiled,
           Differs differs) {
  for (const problem::ScoreNode& node : structure.score.nodes) {
    if (node.op != problem::ScoreOp::load || node.operand == tiled) continue;
    if (differs(facts.operand(node.operand))) return true;
  }
  return false;
}
bool differs_by_row(const problem::OperandFacts& operand) { return operand.per_row; }
bool differs_by_cell(const problem::OperandFacts& operand) {
  return operand.per_row || operand.per_column;
}

/// How many operations the score takes for each cell: of those that are the same for all cells of a
/// head the compiler makes one.
int steps_of_cell(const problem::ScoreExpression& score) {
  std::vector<bool> varies;
  int steps = 0;
  for (const problem::ScoreNode& node : score.nodes) {
    using problem::ScoreOp;
    const bool is_leaf = node.a < 0;
    bool one = node.op == ScoreOp::dot || node.op == ScoreOp::row || node.op == ScoreOp::column ||
               node.op == ScoreOp::load;
    for (int32_t of : {node.a, node.b, node.c}) one |= of >= 0 && varies[static_cast<size_t>(of)];
    steps += one && !is_leaf;
    varies.push_back(one);
  }
  return steps;
}

/// Keys of a step in which three consumers have registers for the score, and are faster than two; 0
/// where there are none. By measurement, as choose_tiles.
int keys_of_three(const AttentionStructure& structure, const AttentionFacts& facts, bool heavy,
                  const ForwardSm90Config& config) {
  using Keys = AttentionFacts::Keys;
  constexpr int kFewSteps = 4;  // ALiBi has four, a soft cap three
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  if (!config.has_score || heavy || steps_of_cell(structure.score) > kFewSteps) return 0;
  if (config.planes > 1 || config.lower_varies || config.lengths || config.rope_dim > 0) return 0;
  if (config.tiled == sm90::Tiled::values) {  // a bias
    if (config.upper_varies || config.tiled_element == Element::f32) return 0;
    if (widest <= 64) return facts.keys >= Keys::to_8191 ? 64 : 0;
    return widest <= 128 && facts.keys >= Keys::to_2047 ? 80 : 0;
  }
  if (config.only_hides) {
    if (widest > 64) return 0;
    if (config.upper_varies) return facts.keys >= Keys::to_8191 ? 112 : 0;
    return facts.keys >= Keys::to_2047 ? 128 : 0;
  }
  if (widest <= 64) return facts.keys >= Keys::to_8191 ? 96 : 0;
  // ALiBi with slopes in memory spilled.
  const bool loads =
      std::any_of(structure.score.nodes.begin(), structure.score.nodes.end(),
                  [](const problem::ScoreNode& node) { return node.op == problem::ScoreOp::load; });
  return widest <= 128 && !loads && facts.keys == Keys::more ? 80 : 0;
}

// Tiles by measurement: kernels/notes/sm90_attention_forward.md.
void choose_tiles(const AttentionStructure& structure, const AttentionFacts& facts, bool plain,
                  bool heavy, ForwardSm90Config& config) {
  using Keys = AttentionFacts::Keys;
  const int qk = structure.qk_head_dim, v = structure.v_head_dim;
  const bool windowed = config.lower_varies;
  // Philox alone finds registers for wider tiles than other heavy scores: d 64 2 to 5 % faster, d
  // 192 6, d 256 10; at 128 as fast, and longer to compile.
  const bool philox = structure.dropout.kind == problem::Dropout::Kind::philox &&
                      structure.score.is_identity() && config.positive_scale;
  // 128 keys by 128 rows of f32 find no room twice.
  const bool singles = config.tiled_operand != kAbsent &&
                       structure.type(config.tiled_operand).dtype == DataType::f32;
  if (config.planes > 1) {
    // P as pairs and a sum of its own for each key tile leave registers for two consumers.
    const bool narrow = std::max(qk, v) <= 64;
    config.tile_n = narrow || plain ? 64 : heavy ? 32 : 48;
    config.q_stages = narrow ? 2 : 1;
    // Consumers have registers for 128 columns of O each, and rows of their own as long as 128 of
    // them fit beside keys and values.
    if (std::max(qk, v) > 128) {
      config.tile_n = !plain || windowed ? 32 : config.upper_varies || qk > 192 ? 48 : 64;
      config.stages = 1;
    }
    // Columns are shared out: 64 keys beside 128 columns of O spilled, and 48 did in one block.
    if (v > 128 || config.shared_bytes() > kSharedLimit) {
      config.parts = 2;
      config.ranks = std::max(qk, v) > 256 ? 2 : 1;
      config.tile_n = !plain ? 32 : config.part_columns() <= 96 ? 64 : config.ranks > 1 ? 48 : 32;
      config.stages = config.tile_n == 32 ? 2 : 1;
    }
  } else if (std::max(qk, v) <= 64) {
    // Up to 512 keys a causal mask leaves much of 192 rows unseen: 128 rows are 10 % faster there.
    config.consumers = plain && !(config.upper_varies && facts.keys <= Keys::to_512) ? 3 : 2;
    config.tile_n = (heavy && !philox) || singles ? 96 : 128;
    config.stages = 3;
    config.take_turns = true;
  } else if (std::max(qk, v) <= 128) {
    // 192 rows read keys and values less often, but leave longer tails and wider diagonals.
    const bool long_rows =
        plain && !windowed && facts.keys >= (config.upper_varies ? Keys::more : Keys::to_8191);
    config.consumers = long_rows ? 3 : 2;
    config.tile_n = long_rows || heavy ? 80 : singles ? 96 : 128;
    if (config.tiled_operand != kAbsent) {  // in the place of a second Q, and of O
      config.q_stages = 1;
      config.output_aliases_q = (v + 63) / 64 <= (qk + 63) / 64;
    }
  } else {
    // What a score needs beside S and O: 128 keys of d 192/128 spilled 172 bytes with ALiBi.
    const int spared = heavy && !philox ? 2 : plain ? 0 : 1;
    constexpr int kTileN[3][3] = {{128, 96, 64}, {96, 80, 48}, {64, 48, 32}};
    config.tile_n = kTileN[v > 192 ? 2 : v > 128 ? 1 : 0][spared];
    config.q_stages = 1;
    // d 192/128: +7 % at 8192; full +-2 %. Rotations leave no registers for three.
    if (plain && !windowed && config.upper_varies && facts.keys == Keys::more && qk <= 192 &&
        v <= 128 && config.rope_dim == 0) {
      config.consumers = 3;
      config.tile_n = 80;
    }
    // O is staged where Q was, or, half by half, beside it: then the next Q comes in meanwhile.
    // d 256: +9 % at S 512, +1 to +2 % above; d 192 and 192/128 causal: +1 to +3 %, full 0 to -4 %.
    const bool beside =
        plain &&
        (v > 192 || (config.upper_varies && std::max(qk, v) <= 192 && config.consumers == 2));
    config.output_aliases_q = !beside && (v + 63) / 64 <= (qk + 63) / 64;
    config.output_rounds = config.output_aliases_q ? 1 : 2;
    // Query tiles of a head that run side by side then begin with the same keys, at the same time.
    // d 256: +2 to +3 % from S 4096 on; with 4 query heads a key head -2 %.
    config.upwards = !config.output_aliases_q && v > 192 && plain && config.upper_varies &&
                     !windowed && !facts.groups_queries;
    if (v > 256) {
      config.parts = 2;
      config.output_rounds = 1;
      config.output_aliases_q = config.upwards = false;
      if (config.shared_bytes() > kSharedLimit) config.stages = 1;
    }
  }
}

/// Of `widths`, that of which tiles have the fewest columns for so many keys; of equals the first.
int fitting(int keys, std::initializer_list<int> widths) {
  return std::min(widths, [keys](int a, int b) { return round_up(keys, a) < round_up(keys, b); });
}

/// Few keys leave much of a wide tile empty, and few rows of a tile of 128 or 192; blocks that
/// share a processor hide each other's beginnings and ends. By measurement, as choose_tiles.
void fit_tiles(const AttentionStructure& structure, const AttentionFacts& facts,
               ForwardSm90Config& config) {
  if (config.planes > 1 || config.rope_dim > 0) return;
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  const auto one_consumer = [&](int tile_n, int blocks) {
    config.tile_n = tile_n;
    config.consumers = 1;
    config.blocks = blocks;
    config.stages = config.q_stages = 2;
    config.take_turns = false;
  };
  if (widest <= 64 && facts.is_short)
    one_consumer(widest > 32 && facts.few_keys <= 128 ? 64 : fitting(facts.few_keys, {64, 80, 96}),
                 config.lengths ? 2 : 3);  // the producer has 24 registers of three
  else if (widest > 64 && widest <= 128 && facts.is_short && facts.few_keys <= 64)
    one_consumer(64, 2);
  else if (widest > 64 && widest <= 128)
    config.tile_n = fitting(facts.few_keys, {128, 112, 96});
}

/// What the kernel is compiled for.
Result<ForwardSm90Config> kernel_config(const AttentionStructure& structure,
                                        const AttentionFacts& facts) {
  ForwardSm90Config config;
  config.element = element_of(structure.type(structure.q).dtype);
  HEDDLE_ASSIGN(const DataType result, result_type(structure, {{structure.o, "o"}}));
  config.result = element_of(result);
  config.qk_dim = structure.qk_head_dim;
  config.v_dim = structure.v_head_dim;
  for (const KeyBound& bound : structure.bounds) {
    if (bound.is_diagonal()) (bound.upper ? config.upper_varies : config.lower_varies) = true;
  }
  config.positive_scale = facts.positive_scale;
  config.lengths = structure.q_lengths != kAbsent || structure.kv_lengths != kAbsent;
  for (const problem::NamedOperand& one : problem::tensors_of(structure))
    config.lengths |= structure.type(one.id).storage.is_ragged();
  config.sink = structure.sink != kAbsent;
  config.row_max = structure.max != kAbsent || structure.sum_exp != kAbsent;
  if (config.row_max) config.slack = 0;
  config.input_is_log2 = structure.softmax_input_is_log2;
  config.has_score = !structure.score.is_identity();
  config.only_hides = only_hides(structure.score);
  config.dropout = dropout_of(structure.dropout.kind);
  if (structure.q_rope) {
    config.rope_dim = structure.q_rope->rope_dim;
    config.rope_first = structure.q_rope->first_column;
    config.rope_pairing = pairing_of(structure.q_rope->pairing);
  }
  if (is_f32(structure)) {
    config.element = Element::f16;
    config.planes = 2;
    config.slack = 0;
  }
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  if (config.planes == 1 && widest <= 128)
    config.tiled_operand = score_tile_operand(structure, facts, {&structure.score}, true);
  if (config.tiled_operand != kAbsent) {
    const DataType dtype = structure.type(config.tiled_operand).dtype;
    config.tiled = tiled_of(dtype);
    config.tiled_element = element_of(dtype);
  }
  config.loads_rows = reads(structure, facts, config.tiled_operand, differs_by_row);
  const bool reads_cells = reads(structure, facts, config.tiled_operand, differs_by_cell),
             draws = structure.dropout.kind != problem::Dropout::Kind::none;
  // Addresses per score beside the counters of dropout, or beside the ends of sequences at 256,
  // spill at any number of keys.
  const int widest_drawn = config.planes > 1 ? 64 : 128;
  if (reads_cells && ((draws && widest > widest_drawn) || (config.lengths && widest > 192))) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); beside an operand read for each score "
                 "the Hopper kernel takes dropout up to {}, and lengths up to 192",
                 structure.qk_head_dim, structure.v_head_dim, widest_drawn);
  }
  const bool heavy = reads_cells || draws;
  const bool plain = config.is_plain() && !heavy;
  choose_tiles(structure, facts, plain, heavy, config);
  if (const int keys = keys_of_three(structure, facts, heavy, config)) {
    ForwardSm90Config three = config;
    three.consumers = 3;
    three.tile_n = keys;
    three.take_turns = true;
    if (widest > 64) three.q_stages = 1;
    // O of values wider than queries finds no place where Q was.
    if (three.shared_bytes() <= kSharedLimit) config = three;
  }
  if (plain && facts.few_keys > 0) fit_tiles(structure, facts, config);
  if (config.result == Element::f32) {  // which is not staged
    config.output_aliases_q = false;
    config.output_rounds = 1;
  }
  if (config.shared_bytes() > kSharedLimit) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v) need {} bytes of shared memory in the "
                 "Hopper kernel; a block has {}",
                 structure.qk_head_dim, structure.v_head_dim, config.shared_bytes(), kSharedLimit);
  }
  return config;
}

/// Which heads run side by side, and whether blocks draw their tiles.
void order_tiles(const AttentionSizes& sizes, ForwardSm90Config& config) {
  // Full masks make tiles of one length, which a fixed order deals out as well and needs no
  // counter.
  const bool vary = config.upper_varies || config.lower_varies || config.lengths;
  config.dynamic = vary && config.ranks == 1;
  if (vary) {
    // Blocks at work on neighbouring rows of a head walk its keys together: the fewer rows a head
    // has in flight, the tighter, so long rows want many heads (64 against 8: +7 to 13 %, d 128 and
    // 256). Short rows end up in L2 anyway, and 16 MiB of keys and values there is best.
    const int64_t group = std::max<int64_t>(1, sizes.q_heads / std::max<int64_t>(1, sizes.k_heads));
    const int64_t head_bytes = 2 * sizes.kv_length * (config.qk_dim + config.v_dim) / group;
    int64_t head_group = sizes.q_length <= 1024
                             ? (int64_t{16} << 20) / std::max<int64_t>(1, head_bytes)
                             : 64 * group;
    // Without groups and windows, by measurement; 11, 22 and 44 are whole rows of heads on 132
    // processors. d 256, S 512: +4.5 %, 1024: +7 %, 2048: +5 %; d 128, 1024: +3 %, 2048: +3.7 %,
    // 4096: +5 %; d 192 and 192/128, 2048 and 4096: +4 to +9 %.
    const bool plain = config.is_plain() && config.dropout == attention::Dropout::none;
    if (plain && group == 1 && !config.lower_varies && !config.lengths) {
      const int64_t rows = sizes.q_length;
      const int widest = std::max(config.qk_dim, config.v_dim);
      if (config.upwards)
        head_group = rows <= 512 ? 11 : rows <= 1024 ? 32 : rows <= 2048 ? 22 : 64;
      else if (widest > 64 && widest <= 128 && config.consumers == 2 && rows > 512)
        head_group = rows <= 2048 ? 44 : 32;
      else if (widest > 128 && widest <= 192 && config.consumers == 2 && rows > 1024)
        head_group = 32;
    }
    config.head_group =
        static_cast<int>(std::clamp<int64_t>(head_group, 1, sizes.batch * sizes.q_heads));
  }
}

}  // namespace

Status rotates_queries(const AttentionStructure& structure, const AttentionSizes& sizes) {
  if (!structure.q_rope) return {};
  const problem::Rope& rope = *structure.q_rope;
  const auto refuse = [](std::string_view what) {
    return error(Code::graph_not_supported, "cuda: the Hopper kernel {}", what);
  };
  // Random problems of f16 with head_dim 8 erred three times as much as naive ones.
  if (structure.type(structure.q).dtype != DataType::bf16)
    return refuse("rotates by cosines and sines of f16, too coarse for all queries but of bf16");
  const int step = rope.pairing == problem::Rope::Pairing::halves ? 16 : 8;
  if (rope.rope_dim % step != 0 || rope.first_column % 8 != 0 || rope.rope_dim == 0) {
    return error(Code::graph_not_supported,
                 "cuda: {} columns of rope behind {}; the Hopper kernel rotates multiples of {} "
                 "behind multiples of 8",
                 rope.rope_dim, rope.first_column, step);
  }
  if (rope.rotated != kAbsent) return refuse("does not write the rotated query");
  int64_t batches = 1;
  if (rope.positions != kAbsent) {
    if (structure.type(rope.positions).on_host) return refuse("takes positions in device memory");
    batches = sizes.layouts[static_cast<size_t>(rope.positions)].dims[0];
  }
  const int64_t rows = (sizes.q_length + attention::kRotationRows - 1) / attention::kRotationRows *
                       attention::kRotationRows;
  if (batches * rows > kMostRotations) {
    return error(
        Code::graph_not_supported,
        "cuda: rotations of {} x {} rows, in groups of {} rows; the Hopper kernel takes {} "
        "rows",
        batches, sizes.q_length, attention::kRotationRows, kMostRotations);
  }
  return {};
}

AttentionProblem with_rotated_keys(const AttentionProblem& problem) {
  AttentionProblem attention = problem;
  AttentionStructure& structure = attention.structure;
  if (structure.k_rope) structure.k = structure.k_rope->rotated;
  structure.k_rope.reset();
  return attention;
}

std::optional<RopeStep> key_rotation(const AttentionProblem& problem) {
  const AttentionStructure& structure = problem.structure;
  if (!structure.k_rope) return {};
  problem::RopeProblem keys;
  keys.structure.operands = structure.operands;
  keys.sizes.layouts = problem.sizes.layouts;
  keys.structure.x = structure.k;
  keys.structure.y = structure.k_rope->rotated;
  keys.structure.rope = *structure.k_rope;
  keys.structure.rope.rotated = kAbsent;
  keys.sizes.scale = problem.sizes.k_rope_scale;
  return RopeStep{keys};
}

Result<ForwardSm90Config> configure_forward_sm90(const AttentionProblem& given) {
  HEDDLE_TRY(check_key_rotation(given));
  const AttentionProblem problem = with_rotated_keys(given);
  const AttentionFacts facts = problem::facts_of(problem);
  HEDDLE_TRY(check(problem.structure, facts, problem.sizes));
  HEDDLE_ASSIGN(ForwardSm90Config config, kernel_config(problem.structure, facts));
  order_tiles(problem.sizes, config);
  return config;
}

attention::ArgumentLayout argument_layout_of_forward_sm90(const AttentionStructure& structure,
                                                          const ForwardSm90Config& config,
                                                          size_t loads) {
  attention::ArgumentLayout layout = argument_layout_of(structure, loads);
  layout.row_gradients = layout.key_gradients = false;
  // Elsewhere they come and go by their maps alone.
  layout.operands = config.lengths;
  layout.output = config.result == Element::f32 || config.parts > 1;
  layout.maps = !config.sequence_maps();
  layout.tiled = config.tiled != sm90::Tiled::none;
  layout.pairs = config.planes > 1;
  layout.rope = structure.q_rope.has_value();
  return layout;
}

KernelUnit forward_sm90_unit(const AttentionStructure& structure, const AttentionFacts& facts,
                             const ForwardSm90Config& config, std::vector<OperandId>& loads) {
  const std::string score =
      score_source("Score", structure.score, structure, loads, &facts, config.tiled_operand);
  const bool pairs = config.planes > 1;
  const attention::ArgumentLayout layout =
      argument_layout_of_forward_sm90(structure, config, loads.size());
  std::string source = fmt::format(
      "{}#include \"sm90/attention_forward{}.cuh\"\n"
      "namespace heddle {{\n"
      "{}{}"
      "using Forward = sm90::AttentionForward{}<Config, Score>;\n"
      "static_assert(sizeof(sm90::ForwardArguments) == {}, \"as the host passes them\");\n"
      "}}  // namespace heddle\n"
      "extern \"C\" __global__ void __launch_bounds__(heddle::Forward::kThreads, {})\n"
      "{}(const __grid_constant__ heddle::sm90::ForwardArguments arguments) {{\n"
      "{}  heddle::Forward::run(arguments);\n"
      "}}\n",
      argument_layout_source(layout), pairs ? "_f32" : "",
      config_source<sm90::ForwardConfig>(config), score, pairs ? "F32" : "",
      passed_bytes<sm90::ForwardArguments>(layout), config.blocks, kForwardName,
      pairs ? "  if (*arguments.problem.fallback != 0) return;\n" : "");
  return {kForwardName, std::move(source), summary_of<sm90::ForwardConfig>(config)};
}

KernelUnit rotations_unit(const AttentionProblem& problem) {
  const problem::Rope& queries = *problem.structure.q_rope;
  const std::optional<RopeStep> keys = key_rotation(problem);
  // Three blocks a processor: as rope_unit, but what rotates 16-bit keys fits into 85 registers,
  // and is 1.5 us faster at 33 MB of keys than with two.
  return {kRotationsName,
          fmt::format(
              "#include \"attention/rotations.cuh\"\n"
              "{}"
              "extern \"C\" __global__ void __launch_bounds__({}, 3)\n"
              "{}(const __grid_constant__ heddle::attention::RotationsBefore arguments) {{\n"
              "  using heddle::attention::RopePairing;\n"
              "  heddle::attention::rotations_before<{}, RopePairing::{}{}>(arguments);\n"
              "}}\n",
              keys ? rope_config_source(*configure_rope(*keys)) : "", attention::kRotationThreads,
              kRotationsName, queries.rope_dim, name(pairing_of(queries.pairing)),
              keys ? ", heddle::streaming::Rope<heddle::streaming::Config>" : "")};
}

}  // namespace heddle::engine::cuda
