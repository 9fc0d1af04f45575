#include "engine/cuda/attention_decode.h"

#include <algorithm>
#include <bit>

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/launch_operands.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/tensor_map.h"
#include "problem/facts.h"
#include "sm80/decode_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionFacts;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

constexpr const char* kKernelName = "attention_decode";
/// Of all sequences together, which the kernel counts; the memory of none has so many.
constexpr int64_t kMostTiles = int64_t{1} << 29;

int64_t group_of(const AttentionSizes& sizes) { return sizes.q_heads / sizes.k_heads; }

bool is_wide(const AttentionStructure& structure) {
  return std::max(structure.qk_head_dim, structure.v_head_dim) > kWidestHead;
}

Status check(const AttentionStructure& structure, const AttentionFacts& facts,
             const AttentionSizes& sizes) {
  HEDDLE_TRY(check_attention(structure, sizes, /*takes_codes=*/true));
  const auto refuse = [](std::string_view what) {
    return error(Code::graph_not_supported, "cuda: the decode kernel {}", what);
  };
  if (is_f32(structure)) return refuse("takes bf16 and f16");
  if (!facts.as_many_value_heads) return refuse("takes as many heads of keys as of values");
  if (structure.dropout.kind != problem::Dropout::Kind::none) return refuse("drops no weights");
  if (structure.block_mask != kAbsent) return refuse("takes no block mask");
  if (structure.scores != kAbsent) return refuse("writes no scores");
  if (structure.qk_head_dim % 8 != 0 || structure.v_head_dim % 8 != 0)
    return refuse("takes head dims that are multiples of 8");
  if (!rows_are_aligned(structure, structure.operands, facts))
    return refuse("takes rows that start on 16 bytes");
  if (is_wide(structure) &&
      (structure.type(structure.k).holds_codes() || structure.type(structure.v).holds_codes()))
    return refuse("takes codes of head dims up to 256");
  // A quad's lanes share a key in parts of pairs of slices, eight lanes a value in words.
  if (structure.type(structure.k).holds_codes() && structure.qk_head_dim % 32 != 0)
    return refuse("takes codes of keys in multiples of 32");
  const problem::OperandType& values = structure.type(structure.v);
  if (values.holds_codes() && structure.v_head_dim % (32 * values.columns_of_element()) != 0)
    return refuse("takes codes of values in multiples of 32, those of 4 bits of 64");
  return {};
}

}  // namespace

namespace {

/// On Hopper, of more rows than tensor cores take at once by warps, or where values lie in keys.
bool fit_warp_groups(const AttentionStructure& structure, const AttentionFacts& facts,
                     const Target& target, sm80::DecodeConfig& config) {
  if (!target.is_hopper()) return false;
  const bool may_lie_in_keys = config.v_dim < config.qk_dim && config.rows_k == config.rows_v;
  if (!may_lie_in_keys && facts.group_rows <= AttentionFacts::GroupRows::to_16) return false;
  sm80::DecodeConfig groups = config;
  groups.together = groups.warp_groups = true;
  groups.warps = 12;
  groups.keys = 64;
  groups.row_tiles = 4;
  groups.stages = groups.stages_once = sm80::DecodeLayout::kSlots;
  constexpr int kWidestPart = 256;  // of one product
  if (groups.part_columns() > kWidestPart ||
      sm80::decode_layout_of(groups).bytes > target.shared_limit())
    return false;
  if (!may_lie_in_keys) groups.stages_once = 0;
  const auto can_be_mapped = [&](OperandId id) {
    const problem::Storage& storage = structure.type(id).storage;
    return !storage.is_ragged() && !storage.is_ring() && can_copy(structure, facts, id);
  };
  // Keys and values apart have one slot each, whose next copies then wait for all of a tile: 282 us
  // where lanes' take 260 (64/8 heads, d 512, 4 tokens, 8 x 8192).
  groups.maps = may_lie_in_keys && can_be_mapped(structure.k) && can_be_mapped(structure.v);
  groups.twins = groups.maps && facts.group_rows == AttentionFacts::GroupRows::more ? 2 : 1;
  config = groups;
  return true;
}

/// As many rows as there are, up to 64, and as many steps on their way, as shared memory holds.
Status fit_together(const AttentionFacts& facts, const Target& target, sm80::DecodeConfig& config) {
  using GroupRows = AttentionFacts::GroupRows;
  config.together = true;
  config.warps = 8;
  config.keys = 32;
  config.row_tiles = facts.group_rows <= GroupRows::to_16   ? 1
                     : facts.group_rows == GroupRows::to_32 ? 2
                                                            : 4;
  const int limit = target.shared_limit();
  const auto bytes = [&config] { return sm80::decode_layout_of(config).bytes; };
  // By addresses alone: of which memory values are is known when they are there.
  const bool may_lie_in_keys = config.v_dim <= config.qk_dim && config.rows_k == config.rows_v;
  config.stages = 1;
  while (config.row_tiles > 1 && bytes() > limit) config.row_tiles /= 2;
  if (bytes() > limit) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v) need {} bytes of shared memory in the "
                 "decode kernel; a block has {} on {}",
                 config.qk_dim, config.v_dim, bytes(), limit, target.architecture);
  }
  constexpr int kMostStages = 8;
  const auto fill = [&](int& stages) {
    while (stages < kMostStages) {
      ++stages;
      if (bytes() <= limit) continue;
      --stages;
      return;
    }
  };
  fill(config.stages);
  if (may_lie_in_keys) fill(config.stages_once);
  return {};
}

}  // namespace

bool has_few_rows_and_many_keys(const AttentionProblem& problem) {
  const AttentionFacts facts = problem::facts_of(problem);
  if (facts.keys == AttentionFacts::Keys::to_255) return false;
  if (facts.group_rows != AttentionFacts::GroupRows::more) return true;
  // Of wide heads keys are read again for each head, and no tile of one is full.
  return is_wide(problem.structure) && facts.has_few_rows && facts.groups_queries;
}

Result<sm80::DecodeConfig> configure_decode(const AttentionProblem& problem, const Target& target) {
  const AttentionStructure& structure = problem.structure;
  const AttentionFacts facts = problem::facts_of(problem);
  HEDDLE_TRY(check(structure, facts, problem.sizes));
  sm80::DecodeConfig config;
  config.element = element_of(structure.type(structure.q).dtype);
  HEDDLE_ASSIGN(const DataType result, result_type(structure, {{structure.o, "o"}}));
  config.result = element_of(result);
  config.k = element_of(structure.type(structure.k).dtype);
  config.v = element_of(structure.type(structure.v).dtype);
  config.qk_dim = structure.qk_head_dim;
  config.v_dim = structure.v_head_dim;
  config.rows_k = rows_of(structure.type(structure.k).storage);
  config.rows_v = rows_of(structure.type(structure.v).storage);
  config.lengths = structure.q_lengths != kAbsent || structure.kv_lengths != kAbsent;
  config.input_is_log2 = structure.softmax_input_is_log2;
  config.has_score = !structure.score.is_identity();
  if (is_wide(structure)) {
    if (!fit_warp_groups(structure, facts, target, config))
      HEDDLE_TRY(fit_together(facts, target, config));
    return config;
  }
  const int widest = std::max(config.qk_dim, config.v_dim);
  config.row_tiles = facts.group_rows > AttentionFacts::GroupRows::to_16 && widest <= 128 ? 2 : 1;
  config.turned = facts.group_rows == AttentionFacts::GroupRows::to_8;
  const bool wants_statistics =
      structure.stats != kAbsent || structure.max != kAbsent || structure.sum_exp != kAbsent;
  config.query_parts = config.k_codes() && wants_statistics ? 2 : 1;
  const bool looks_blocks_up = config.rows_k == attention::KeyRows::paged ||
                               config.rows_v == attention::KeyRows::paged,
             turns_codes =
                 config.turned && !looks_blocks_up && (config.k_codes() || config.v_codes());
  config.keys = widest <= 64 || turns_codes ? 32 : 16;
  config.stages = 8;
  config.warps = target.is_hopper() ? 8 : 4;
  const int limit = target.is_hopper() ? target.shared_limit() : kSm80SharedLimit;
  const auto bytes = [&config] { return sm80::decode_layout_of(config).bytes; };
  while (config.stages > 2 && bytes() > limit) --config.stages;
  if (bytes() > limit) config.warps /= 2;
  // What stages leave. Of two tiles of rows registers are full, and making queries of codes takes
  // many; turned, it gained nothing (kernels/notes/sm80_decode.md).
  if (config.row_tiles == 1 && !config.k_codes()) {
    config.rows_apart = config.rows();
    while (config.rows_apart > 0 && bytes() > limit) config.rows_apart /= 2;
    if (config.rows_apart < 4) config.rows_apart = 0;
  }
  return config;
}

namespace {

attention::ArgumentLayout passed_layout_of(const AttentionStructure& structure,
                                           const sm80::DecodeConfig& config, size_t loads) {
  attention::ArgumentLayout layout = argument_layout_of(structure, loads);
  layout.maps = config.maps;
  return layout;
}

KernelUnit decode_unit(const AttentionStructure& structure, const sm80::DecodeConfig& config,
                       std::vector<OperandId>& loads) {
  const std::string score = score_source("Score", structure.score, structure, loads);
  const attention::ArgumentLayout layout = passed_layout_of(structure, config, loads.size());
  std::string source = fmt::format(
      "{}#include \"sm80/attention_decode.cuh\"\n{}"
      "namespace heddle {{\n{}{}}}  // namespace heddle\n"
      "static_assert(sizeof(heddle::sm80::DecodeArguments) == {}, \"as passed\");\n"
      "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
      "{}(const __grid_constant__ heddle::sm80::DecodeArguments arguments) {{\n"
      "  heddle::sm80::attention_decode<heddle::Config, heddle::Score, heddle::{}<heddle::Config, "
      "heddle::Score>>(arguments);\n"
      "}}\n",
      argument_layout_source(layout),
      config.warp_groups ? "#include \"sm90/decode_groups.cuh\"\n" : "",
      config_source<sm80::DecodeConfig>(config), score, passed_bytes<sm80::DecodeArguments>(layout),
      config.threads(), kKernelName,
      config.warp_groups ? "sm90::DecodeGroups" : "sm80::DecodeTogether");
  return {kKernelName, std::move(source), summary_of<sm80::DecodeConfig>(config)};
}

struct Planned {
  size_t kernel = 0;
  Launch launch;
  sm80::DecodeArguments arguments{};
  MapShape k, v;
  OperandId k_id = kAbsent, v_id = kAbsent;
  std::vector<Entry> entries;
  attention::ArgumentLayout argument_layout;
  std::vector<problem::NamedOperand> aligned;
  int64_t statistics = 0, flags = 0;  ///< offsets into the workspace
};

/// Boxes as high as pages allow.
void fill_maps(Planned& planned, const AttentionStructure& structure, const AttentionSizes& sizes,
               const sm80::DecodeConfig& config) {
  int64_t rows = config.keys / config.twins;
  for (const OperandId id : {structure.k, structure.v})
    if (structure.type(id).storage.is_paged()) rows = std::min(rows, sizes.layout(id).dims[2]);
  planned.arguments.log_box_rows = std::countr_zero(static_cast<uint64_t>(rows));
  planned.k_id = structure.k, planned.v_id = structure.v;
  planned.k = map_shape(structure, sizes, structure.k, static_cast<int>(rows));
  planned.v = map_shape(structure, sizes, structure.v, static_cast<int>(rows));
}

class DecodeLaunches final : public Launches {
 public:
  explicit DecodeLaunches(Planned planned) : planned_(std::move(planned)) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(planned_.aligned, at.buffers));
    sm80::DecodeArguments arguments = planned_.arguments;
    bind_entries(planned_.entries, at.buffers, &arguments);
    arguments.parts = {
        .sums = reinterpret_cast<float*>(at.workspace),
        .statistics = reinterpret_cast<float*>(at.workspace + planned_.statistics),
        .flags = reinterpret_cast<unsigned long long*>(at.workspace + planned_.flags),
        .claim = at.claim};
    if (planned_.k_id != kAbsent) {
      const auto address = [&](OperandId id) { return at.buffers[static_cast<size_t>(id)]; };
      HEDDLE_TRY(encode(at.driver, planned_.k, address(planned_.k_id), arguments.k));
      HEDDLE_TRY(encode(at.driver, planned_.v, address(planned_.v_id), arguments.v));
    }
    KernelArguments passed(arguments, planned_.argument_layout);
    return at.launch(planned_.kernel, planned_.launch, passed.address());
  }

 private:
  const Planned planned_;
};

}  // namespace

Result<Lowering> lower_decode(const AttentionProblem& problem, const Target& target) {
  HEDDLE_ASSIGN(const sm80::DecodeConfig config, configure_decode(problem, target));
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  std::vector<OperandId> loads;
  KernelUnit unit = decode_unit(structure, config, loads);
  HEDDLE_TRY(check_loads(loads));
  const int64_t row_blocks =
      divide_up(group_of(sizes) * sizes.q_length, int64_t{config.rows()} * config.twins);
  const int64_t sequences = sizes.batch * sizes.k_heads * row_blocks;
  const int64_t tiles = sequences * (divide_up(sizes.kv_length, config.tile_keys()) + 1);
  if (tiles > kMostTiles) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has {} tiles of {} keys; the decode kernel counts {}", tiles,
                 config.tile_keys(), kMostTiles);
  }
  // Twins are one.
  const auto blocks = [&](int64_t processors) {
    return std::min(processors / config.twins, tiles);
  };
  const int64_t parts = blocks(sm80::kMostProcessors) * config.twins * 2,
                part_rows = parts * config.rows();

  Planned planned;
  Lowering lowering;
  const int shared_bytes = sm80::decode_layout_of(config).bytes;
  planned.kernel = lowering.add_kernel(std::move(unit), config.threads(), shared_bytes);
  planned.launch = {.grid_x = static_cast<unsigned>(
                        blocks(std::min(target.processors, sm80::kMostProcessors)) * config.twins),
                    .threads = static_cast<unsigned>(config.threads()),
                    .shared_bytes = static_cast<unsigned>(shared_bytes),
                    .cooperative = true,
                    .cluster = static_cast<unsigned>(config.twins)};
  planned.arguments.rows = {.group = static_cast<int>(group_of(sizes)),
                            .blocks = static_cast<int>(row_blocks)};
  if (config.maps) fill_maps(planned, structure, sizes, config);
  ParameterBlock block(&planned.arguments, structure, sizes);
  fill_forward(block, planned.arguments.problem, structure, sizes, loads);
  planned.entries = std::move(block.entries);
  const attention::ForwardParameters& p = planned.arguments.problem;
  planned.arguments.split = sm80::DecodeSplit::of(
      static_cast<int>(sequences), static_cast<int>(planned.launch.grid_x) / config.twins);
  // Of nobody there is no share.
  if (!config.lengths && planned.launch.grid_x > 0) {
    planned.arguments.counts = sm80::DecodeCounts::of(
        sm80::DecodeKeys::of(p.bounds, p.bound_count, p.q_length, p.kv_length, config.tile_keys()),
        p.k_heads, planned.arguments.rows.blocks, planned.arguments.split);
  }
  planned.argument_layout = passed_layout_of(structure, config, loads.size());
  planned.aligned = problem::tensors_of(structure);
  planned.statistics = part_rows * config.v_dim * 4;
  planned.flags = round_up(planned.statistics + part_rows * 8, int64_t{256});
  lowering.workspace_bytes = planned.flags + parts * config.readers() * sm80::kFlagStride * 8;
  const bool codes = config.k_codes() || config.v_codes(),
             ring = config.rows_k == attention::KeyRows::ring;
  lowering.description =
      fmt::format("attention forward, decode kernel{}{}, {} rows, {} keys a {}, {}",
                  codes ? " of codes" : "", ring ? " in a ring" : "", config.rows(), config.keys,
                  config.twins > 1     ? "step by warp groups of twins"
                  : config.warp_groups ? "step by warp groups"
                  : config.together    ? "step of all warps"
                                       : "warp",
                  target.architecture);
  lowering.launches = std::make_shared<const DecodeLaunches>(std::move(planned));
  return lowering;
}

}  // namespace heddle::engine::cuda
