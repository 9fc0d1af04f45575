#include "engine/cuda/attention_forward_fp8_sm90.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/fp8_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionFacts;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::Fp8AttentionProblem;
using problem::Fp8AttentionStructure;
using problem::kAbsent;
using problem::OperandId;
using sm90::kFp8Keys;
using sm90::kFp8ValueRows;

constexpr const char *kForwardName = "attention_forward_fp8", *kValuesName = "fp8_values";
constexpr int kValuesThreads = 256;
constexpr int64_t kAlignment = 256, kMostTiles = int64_t{1} << 30;

Status check(const AttentionStructure& s, const AttentionSizes& z, const AttentionFacts& facts) {
  for (const problem::NamedOperand& one : problem::tensors_of(s)) {
    HEDDLE_TRY(check_dtype(s, one.id, one.name, {DataType::f8e4m3}));
    if (s.type(one.id).storage.kind != problem::Storage::Kind::dense)
      return error(Code::graph_not_supported,
                   "cuda: sdpa_fp8 {} is not dense, which the Hopper kernel expects", one.name);
    HEDDLE_TRY(check_copies(s, facts, one.id));
  }
  for (const auto& [label, dim] : {std::pair{"q and k", s.qk_head_dim}, {"v", s.v_head_dim}}) {
    if (dim != 64 && dim != 128)
      return error(Code::graph_not_supported,
                   "cuda: sdpa_fp8 head dim of {} is {}; the Hopper kernel takes 64 and 128", label,
                   dim);
  }
  if (s.stats != kAbsent && s.type(s.stats).storage.is_ragged())
    return error(
        Code::graph_not_supported,
        "cuda: sdpa_fp8 stats are ragged, and q, k and v dense, as the kernel expects all");
  if (s.bounds.size() > attention::kMaxBounds)
    return error(Code::graph_not_supported,
                 "cuda: sdpa_fp8 has {} bounds on visible keys; the kernel takes at most {}",
                 s.bounds.size(), attention::kMaxBounds);
  HEDDLE_TRY(check_lists_of_lengths(s, z));
  return check_lengths(z, kMostRowsSm90);
}

/// In pairs of fp8, as tiles of 16-bit elements hold them. 128 keys are what O, a key tile's part
/// of it and its scores leave registers for, beside full width of the instruction; three consumers
/// with O of 64 columns (d 64, S 8192: 591 TFLOP/s where two gave 485); four stages, a power of
/// two, count without a division (d 128: 809 where three gave 796).
ForwardSm90Config configure(const AttentionStructure& s, const AttentionSizes& z) {
  ForwardSm90Config config;
  config.element = Element::f8e4m3;
  config.result = Element::f32;  // O is not staged
  config.qk_dim = s.qk_head_dim / 2;
  config.v_dim = kFp8Keys / 2;
  config.tile_n = kFp8Keys;
  config.consumers = s.v_head_dim == 64 ? 3 : 2;
  config.stages = 4;
  config.q_stages = 1;
  config.take_turns = true;
  config.slack = 0;
  for (const problem::KeyBound& bound : s.bounds) {
    if (bound.is_diagonal()) (bound.upper ? config.upper_varies : config.lower_varies) = true;
  }
  config.lengths = s.q_lengths != kAbsent || s.kv_lengths != kAbsent;
  config.dynamic = config.upper_varies || config.lower_varies || config.lengths;
  if (config.dynamic) {  // as the 16-bit forward's, whose rows are twice as long
    const int64_t group = std::max<int64_t>(1, z.q_heads / z.k_heads);
    const int64_t head_bytes = z.kv_length * (s.qk_head_dim + s.v_head_dim) / group;
    const int64_t heads =
        z.q_length <= 1024 ? (int64_t{16} << 20) / std::max<int64_t>(1, head_bytes) : 64 * group;
    config.head_group =
        static_cast<int>(std::clamp<int64_t>(heads, 1, std::max<int64_t>(1, z.batch * z.q_heads)));
  }
  return config;
}

KernelUnit forward_unit(const AttentionStructure& s, const ForwardSm90Config& config) {
  UnitSummary summary = summary_of<sm90::ForwardConfig>(config);
  summary.head_dim = s.qk_head_dim == s.v_head_dim
                         ? fmt::format("{}", s.qk_head_dim)
                         : fmt::format("{}/{}", s.qk_head_dim, s.v_head_dim);
  return {
      kForwardName,
      fmt::format("#include \"sm90/attention_forward_fp8.cuh\"\n"
                  "namespace heddle {{\n"
                  "{}"
                  "using Forward = sm90::AttentionForwardFp8<Config, {}>;\n"
                  "static_assert(sizeof(sm90::Fp8ForwardArguments) == {}, \"as the host passes "
                  "them\");\n"
                  "}}  // namespace heddle\n"
                  "extern \"C\" __global__ void __launch_bounds__(heddle::Forward::kThreads, 1)\n"
                  "{}(const __grid_constant__ heddle::sm90::Fp8ForwardArguments arguments) {{\n"
                  "  heddle::Forward::run(arguments);\n"
                  "}}\n",
                  config_source<sm90::ForwardConfig>(config), s.v_head_dim,
                  sizeof(sm90::Fp8ForwardArguments), kForwardName),
      std::move(summary)};
}

KernelUnit values_unit(const AttentionStructure& s) {
  return {kValuesName,
          fmt::format("#include \"sm90/fp8_values.cuh\"\n"
                      "extern \"C\" __global__ void __launch_bounds__({})\n"
                      "{}(const __grid_constant__ heddle::sm90::Fp8ValuesArguments arguments) {{\n"
                      "  heddle::sm90::Fp8Values<{}>::run(arguments);\n"
                      "}}\n",
                      kValuesThreads, kValuesName, s.v_head_dim),
          {}};
}

struct Planned {
  size_t values_kernel = 0, kernel = 0;
  Launch values_launch, launch;
  bool draws_tiles = false;
  sm90::Fp8ForwardArguments arguments{};
  std::vector<Entry> entries;
  MapShape q, k, v;
  OperandId q_id = kAbsent, k_id = kAbsent, v_id = kAbsent;
  std::vector<problem::NamedOperand> aligned;
};

class Fp8ForwardLaunches final : public Launches {
 public:
  explicit Fp8ForwardLaunches(Planned planned) : planned_(std::move(planned)) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(planned_.aligned, at.buffers));
    sm90::Fp8ForwardArguments arguments = planned_.arguments;
    bind_entries(planned_.entries, at.buffers, &arguments);
    auto* const values = reinterpret_cast<unsigned char*>(at.workspace + kAlignment);
    const attention::ForwardParameters& p = arguments.problem;
    sm90::Fp8ValuesArguments turning{.v = p.v,
                                     .kv_lengths = p.kv_lengths,
                                     .heads = p.v_heads,
                                     .tiles = static_cast<int>(divide_up(p.kv_length, kFp8Keys)),
                                     .values = values,
                                     .amax_s = arguments.amax_s,
                                     .amax_o = arguments.amax_o};
    HEDDLE_TRY(at.launch(planned_.values_kernel, planned_.values_launch, &turning));
    const auto map = [&](OperandId id) { return at.buffers[static_cast<size_t>(id)]; };
    HEDDLE_TRY(encode(at.driver, planned_.q, map(planned_.q_id), arguments.q));
    HEDDLE_TRY(encode(at.driver, planned_.k, map(planned_.k_id), arguments.k));
    HEDDLE_TRY(encode(at.driver, planned_.v, values, arguments.v));
    arguments.order.claim = at.claim;
    if (planned_.draws_tiles)
      arguments.order.counter = reinterpret_cast<unsigned long long*>(at.workspace);
    return at.launch(planned_.kernel, planned_.launch, &arguments);
  }

 private:
  const Planned planned_;
};

void fill(Planned& planned, const Fp8AttentionStructure& s, const AttentionSizes& z) {
  sm90::Fp8ForwardArguments& arguments = planned.arguments;
  ParameterBlock block(&arguments, s.attention, z);
  fill_forward(block, arguments.problem, s.attention, z, {});
  block.pointer(arguments.descale_q, s.descale_q);
  block.pointer(arguments.descale_k, s.descale_k);
  block.pointer(arguments.descale_v, s.descale_v);
  block.pointer(arguments.descale_s, s.descale_s);
  block.pointer(arguments.scale_s, s.scale_s);
  block.pointer(arguments.scale_o, s.scale_o);
  block.pointer(arguments.amax_s, s.amax_s);
  block.pointer(arguments.amax_o, s.amax_o);
  planned.entries = std::move(block.entries);
}

}  // namespace

Result<Lowering> lower_forward_fp8_sm90(const Fp8AttentionProblem& problem, const Target& target) {
  if (!target.is_hopper())
    return error(Code::graph_not_supported,
                 "cuda: sdpa_fp8 runs on Hopper, sm_90a, so far; the target is {}",
                 target.architecture);
  const AttentionStructure& s = problem.structure.attention;
  const AttentionSizes& z = problem.sizes;
  HEDDLE_TRY(check(s, z, problem::facts_of(problem)));
  const ForwardSm90Config config = configure(s, z);
  const int64_t q_tiles = divide_up(z.q_length, int64_t{config.tile_m()});
  const int64_t tiles = z.batch * z.q_heads * q_tiles;
  const int64_t key_tiles = divide_up(z.kv_length, int64_t{kFp8Keys});
  const int64_t value_tiles = z.batch * z.v_heads * key_tiles;
  if (tiles > kMostTiles || value_tiles > kMostTiles)
    return error(
        Code::graph_not_supported,
        "cuda: sdpa_fp8 has {} query tiles and {} value tiles; the kernel counts {} of each", tiles,
        value_tiles, kMostTiles);
  Planned planned;
  Lowering lowering;
  planned.kernel =
      lowering.add_kernel(forward_unit(s, config), config.threads(), config.shared_bytes());
  planned.values_kernel = lowering.add_kernel(values_unit(s), kValuesThreads);
  fill(planned, problem.structure, z);
  planned.draws_tiles = config.dynamic && tiles < int64_t{1} << sm90::kTicketBits;
  planned.arguments.order = {.q_tiles = static_cast<int>(q_tiles),
                             .head_group = config.head_group,
                             .total = static_cast<int>(tiles),
                             .counter = nullptr,
                             .claim = 0};
  planned.q_id = s.q, planned.k_id = s.k, planned.v_id = s.v;
  planned.q = map_shape_of_bytes(z.layout(s.q), 64);
  planned.k = map_shape_of_bytes(z.layout(s.k), kFp8Keys);
  problem::OperandLayout values;
  values.dims = {z.batch, z.v_heads, key_tiles * kFp8ValueRows, kFp8Keys};
  values.strides = *dense_strides(values.dims);
  planned.v = map_shape_of_bytes(values, kFp8ValueRows);
  planned.aligned = problem::tensors_of(s);
  planned.values_launch = {.grid_x = static_cast<unsigned>(value_tiles), .threads = kValuesThreads};
  planned.launch = {.grid_x = static_cast<unsigned>(std::min<int64_t>(target.processors, tiles)),
                    .threads = static_cast<unsigned>(config.threads()),
                    .shared_bytes = static_cast<unsigned>(config.shared_bytes())};
  lowering.description =
      fmt::format("fp8 attention forward, Hopper kernel, {} x {} tiles, values turned before, {}",
                  config.tile_m(), config.tile_n, target.architecture);
  lowering.workspace_bytes = kAlignment + value_tiles * int64_t{kFp8ValueRows} * int64_t{kFp8Keys};
  lowering.launches = std::make_shared<const Fp8ForwardLaunches>(std::move(planned));
  return lowering;
}

}  // namespace heddle::engine::cuda
