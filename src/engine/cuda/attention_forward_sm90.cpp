#include "engine/cuda/attention_forward_sm90.h"

#include <algorithm>

#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/score_source.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::KeyBound;
using problem::OperandId;

constexpr const char* kKernelName = "attention_forward";
constexpr const char* kMapsName = "sequence_maps";
constexpr int kMapThreads = 128;
constexpr int64_t kSharedLimit = 227 * 1024;
// The workspace: the tile counter, then the sequence maps.
constexpr int64_t kMapsOffset = 256;
constexpr int64_t kBytesOfMaps = 4 * sizeof(TensorMap);

const problem::OperandType& type_of(const AttentionStructure& structure, OperandId id) {
  return structure.operands[static_cast<size_t>(id)];
}

Status check(const AttentionStructure& structure, const AttentionSizes& sizes) {
  HEDDLE_TRY(check_sm80(structure, sizes));
  if (structure.qk_head_dim % 8 != 0 || structure.v_head_dim % 8 != 0) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); the Hopper kernel takes multiples of 8",
                 structure.qk_head_dim, structure.v_head_dim);
  }
  const bool rows_are_ragged = type_of(structure, structure.q).ragged_offsets != kAbsent;
  for (OperandId id : {structure.q, structure.k, structure.v, structure.o}) {
    HEDDLE_TRY(check_copies(structure, sizes, id));
  }
  if (rows_are_ragged != (type_of(structure, structure.o).ragged_offsets != kAbsent)) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa q and o must be both ragged or both dense for the Hopper kernel");
  }
  for (OperandId id : {structure.k, structure.v}) {
    if (type_of(structure, id).page_table != kAbsent) {
      return error(Code::graph_not_supported,
                   "cuda: the Hopper kernel reads no paged keys or values");
    }
  }
  for (const KeyBound& bound : structure.bounds) {
    if (bound.operand == kAbsent) continue;
    if (sizes.layouts[static_cast<size_t>(bound.operand)].dims[2] != 1) {
      return error(Code::graph_not_supported,
                   "cuda: the Hopper kernel takes bounds per batch entry, not per row");
    }
  }
  if (structure.block_mask != kAbsent) {
    return error(Code::graph_not_supported, "cuda: the Hopper kernel takes no block mask");
  }
  if (structure.dropout.kind == problem::Dropout::Kind::mask || structure.dropout.dump != kAbsent) {
    return error(Code::graph_not_supported,
                 "cuda: the Hopper kernel neither reads nor writes keep masks");
  }
  return {};
}

/// Whether the score reads an operand that differs from cell to cell.
bool reads_cells(const AttentionProblem& problem) {
  for (const problem::ScoreNode& node : problem.structure.score.nodes) {
    if (node.op != problem::ScoreOp::load) continue;
    const Dims& dims = problem.sizes.layouts[static_cast<size_t>(node.operand)].dims;
    if (dims[2] != 1 || dims[3] != 1) return true;
  }
  return false;
}

// Tiles by measurement: kernels/notes/sm90_attention_forward.md.
void choose_tiles(const AttentionProblem& problem, bool plain, bool heavy,
                  ForwardSm90Config& config) {
  const int qk = problem.structure.qk_head_dim, v = problem.structure.v_head_dim;
  const int64_t keys = problem.sizes.kv_length;
  const bool windowed = config.lower_varies;
  if (std::max(qk, v) <= 64) {
    // Up to 512 keys a causal mask leaves much of 192 rows unseen: 128 rows are 10 % faster there.
    config.consumers = plain && !(config.upper_varies && keys <= 512) ? 3 : 2;
    config.tile_n = heavy ? 96 : 128;
    config.stages = 3;
    config.take_turns = true;
  } else if (std::max(qk, v) <= 128) {
    // 192 rows read keys and values less often, but leave longer tails and wider diagonals.
    const bool long_rows = plain && !windowed && keys >= (config.upper_varies ? 8192 : 2048);
    config.consumers = long_rows ? 3 : 2;
    config.tile_n = long_rows || heavy ? 80 : 128;
  } else {
    // What a score needs beside S and O: 128 keys of d 192/128 spilled 172 bytes with ALiBi, 684
    // with dropout.
    const int spared = heavy ? 2 : plain ? 0 : 1;
    constexpr int kTileN[3][3] = {{128, 96, 64}, {96, 80, 48}, {64, 48, 32}};
    config.tile_n = kTileN[v > 192 ? 2 : v > 128 ? 1 : 0][spared];
    config.q_stages = 1;
    config.output_aliases_q = (v + 63) / 64 <= (qk + 63) / 64;
  }
}

int64_t shared_bytes(const AttentionStructure& structure, const ForwardSm90Config& config) {
  const int64_t q = config.consumers * tile_bytes(64, structure.qk_head_dim),
                o = config.consumers * tile_bytes(64, structure.v_head_dim),
                k = tile_bytes(config.tile_n, structure.qk_head_dim),
                v = tile_bytes(config.tile_n, structure.v_head_dim);
  const int64_t barriers = 2 * config.stages + 2 + config.consumers * config.q_stages;
  return config.q_stages * q + config.stages * (k + v) + (config.output_aliases_q ? 0 : o) + 96 +
         16 * barriers + 1024;
}

class ForwardSm90Plan final : public Plan {
 public:
  ForwardSm90Plan(const Driver& driver, std::shared_ptr<const Kernel> kernel,
                  std::shared_ptr<const Kernel> maps_kernel, const Launch& launch,
                  const ForwardSm90Config& config, const sm90::ForwardArguments& arguments,
                  std::vector<Entry> entries, std::vector<MapShape> shapes,
                  std::vector<OperandId> mapped, std::string description)
      : driver_(driver),
        kernel_(std::move(kernel)),
        maps_kernel_(std::move(maps_kernel)),
        launch_(launch),
        config_(config),
        arguments_(arguments),
        entries_(std::move(entries)),
        shapes_(std::move(shapes)),
        mapped_(std::move(mapped)),
        description_(std::move(description)) {}

  int64_t workspace_bytes() const override {
    const int64_t maps = config_.sequence_maps ? kBytesOfMaps * arguments_.problem.batch : 0;
    return config_.dynamic || maps > 0 ? kMapsOffset + maps : 0;
  }

  Status execute(std::span<void* const> buffers, void* workspace, void* stream) const override {
    const auto queue = static_cast<CuStream>(stream);
    sm90::ForwardArguments arguments = arguments_;
    HEDDLE_TRY(check_addresses(mapped_, buffers));
    bind(entries_, buffers, &arguments.problem);
    TensorMap* maps[] = {&arguments.q, &arguments.k, &arguments.v, &arguments.o};
    for (size_t n = 0; n < 4; ++n) {
      HEDDLE_TRY(encode(driver_, shapes_[n], buffers[static_cast<size_t>(mapped_[n])], *maps[n]));
    }
    if (config_.dynamic) {
      arguments.order.counter = static_cast<int*>(workspace);
      HEDDLE_TRY(driver_.check(
          driver_.memset_async(reinterpret_cast<CuDevicePointer>(workspace), 0, 4, queue),
          "cuMemsetD8Async"));
    }
    if (config_.sequence_maps) {
      sm90::SequenceMapArguments making{
          .base = {arguments.q, arguments.k, arguments.v, arguments.o},
          .maps = reinterpret_cast<TensorMap*>(static_cast<char*>(workspace) + kMapsOffset),
          .element_bytes = 2,
          .problem = arguments.problem};
      arguments.sequence_maps = making.maps;
      const unsigned count = 4 * static_cast<unsigned>(arguments.problem.batch);
      void* parameters[] = {&making};
      HEDDLE_TRY(maps_kernel_->launch(
          {.grid_x = (count + kMapThreads - 1) / kMapThreads, .threads = kMapThreads}, queue,
          parameters));
    }
    void* parameters[] = {&arguments};
    return kernel_->launch(launch_, queue, parameters);
  }

  std::string description() const override { return description_; }

 private:
  const Driver& driver_;
  std::shared_ptr<const Kernel> kernel_, maps_kernel_;
  Launch launch_;
  ForwardSm90Config config_;
  sm90::ForwardArguments arguments_;
  std::vector<Entry> entries_;
  std::vector<MapShape> shapes_;   ///< of q, k, v, o
  std::vector<OperandId> mapped_;  ///< q, k, v, o
  std::string description_;
};

}  // namespace

Result<ForwardSm90Config> configure_forward_sm90(const AttentionProblem& problem) {
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  HEDDLE_TRY(check(structure, sizes));
  ForwardSm90Config config;
  for (const KeyBound& bound : structure.bounds) {
    if (is_diagonal(bound)) (bound.upper ? config.upper_varies : config.lower_varies) = true;
  }
  config.positive_scale = structure.scale == kAbsent && sizes.scale > 0;
  config.sequence_maps = structure.q_lengths != kAbsent || structure.kv_lengths != kAbsent;
  for (OperandId id : {structure.q, structure.k, structure.v, structure.o}) {
    config.sequence_maps |= type_of(structure, id).ragged_offsets != kAbsent;
  }
  const bool reads = reads_cells(problem),
             draws = structure.dropout.kind != problem::Dropout::Kind::none;
  // Addresses per score beside the counters of dropout, or beside the ends of sequences at 256,
  // spill at any number of keys.
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  if (reads && ((draws && widest > 128) || (config.sequence_maps && widest > 192))) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); beside an operand read for each score "
                 "the Hopper kernel takes dropout up to 128, and lengths up to 192",
                 structure.qk_head_dim, structure.v_head_dim);
  }
  const bool heavy = reads || draws;
  const bool plain = structure.score.is_identity() && config.positive_scale && !heavy;
  choose_tiles(problem, plain, heavy, config);
  config.shared_bytes = shared_bytes(structure, config);
  if (config.shared_bytes > kSharedLimit) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v) need {} bytes of shared memory in the "
                 "Hopper kernel; a block has {}",
                 structure.qk_head_dim, structure.v_head_dim, config.shared_bytes, kSharedLimit);
  }
  // Full masks make tiles of one length, which a fixed order deals out as well and needs no
  // counter.
  config.dynamic = config.upper_varies || config.lower_varies || config.sequence_maps;
  if (config.dynamic) {
    // Blocks at work on neighbouring rows of a head walk its keys together: the fewer rows a head
    // has in flight, the tighter, so long rows want many heads (64 against 8: +7 to 13 %, d 128 and
    // 256). Short rows end up in L2 anyway, and 16 MiB of keys and values there is best.
    const int64_t group = std::max<int64_t>(1, sizes.q_heads / std::max<int64_t>(1, sizes.k_heads));
    const int64_t head_bytes =
        2 * sizes.kv_length * (structure.qk_head_dim + structure.v_head_dim) / group;
    const int64_t section = sizes.q_length <= 1024
                                ? (int64_t{16} << 20) / std::max<int64_t>(1, head_bytes)
                                : 64 * group;
    config.section = static_cast<int>(std::clamp<int64_t>(section, 1, sizes.batch * sizes.q_heads));
  }
  return config;
}

std::string source_of_forward_sm90(const AttentionProblem& problem, const ForwardSm90Config& config,
                                   std::vector<OperandId>& loads) {
  const AttentionStructure& structure = problem.structure;
  const std::string score =
      score_source("Score", structure.score, structure.operands, loads, &problem.sizes.layouts);
  constexpr const char* kDropoutNames[] = {"none", "philox", "threefry", "mask"};
  const bool row_max = structure.max != kAbsent || structure.sum_exp != kAbsent;
  std::string source = fmt::format(
      "#include \"sm90/attention_forward.cuh\"\n"
      "#include \"sm90/sequence_maps.cuh\"\n"
      "namespace heddle {{\n"
      "struct Config : sm90::ForwardConfig {{\n"
      "  using Element = {};\n"
      "  static constexpr int kQkDim = {}, kVDim = {}, kTileN = {}, kConsumers = {};\n"
      "  static constexpr int kStages = {}, kQStages = {}, kSlack = {};\n"
      "  static constexpr bool kTakeTurns = {}, kOutputAliasesQ = {};\n"
      "  static constexpr bool kLowerVaries = {}, kUpperVaries = {}, kPositiveScale = {};\n"
      "  static constexpr bool kSequenceMaps = {}, kSink = {}, kRowMax = {}, kInputIsLog2 = {};\n"
      "  static constexpr attention::Dropout kDropout = attention::Dropout::{};\n"
      "}};\n"
      "{}"
      "using Forward = sm90::AttentionForward<Config, Score>;\n"
      "static_assert(Forward::kSharedBytes == {}, \"the host asks for as much\");\n"
      "}}  // namespace heddle\n"
      "extern \"C\" __global__ void __launch_bounds__(heddle::Forward::kThreads, 1)\n"
      "{}(const __grid_constant__ heddle::sm90::ForwardArguments arguments) {{\n"
      "  heddle::Forward::run(arguments);\n"
      "}}\n",
      device_type(type_of(structure, structure.q).dtype), structure.qk_head_dim,
      structure.v_head_dim, config.tile_n, config.consumers, config.stages, config.q_stages,
      row_max ? 0 : 8, config.take_turns, config.output_aliases_q, config.lower_varies,
      config.upper_varies, config.positive_scale, config.sequence_maps, structure.sink != kAbsent,
      row_max, structure.softmax_input_is_log2,
      kDropoutNames[static_cast<int>(structure.dropout.kind)], score, config.shared_bytes,
      kKernelName);
  if (config.sequence_maps) {
    source += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({})\n"
        "{}(const __grid_constant__ heddle::sm90::SequenceMapArguments arguments) {{\n"
        "  heddle::sm90::make_sequence_maps(arguments);\n"
        "}}\n",
        kMapThreads, kMapsName);
  }
  return source;
}

Result<std::shared_ptr<const Plan>> plan_forward_sm90(const Driver& driver, const Device& device,
                                                      const AttentionProblem& problem) {
  HEDDLE_ASSIGN(const ForwardSm90Config config, configure_forward_sm90(problem));
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  std::vector<OperandId> loads;
  const std::string source = source_of_forward_sm90(problem, config, loads);
  if (loads.size() > attention::kMaxLoads) {
    return error(Code::graph_not_supported,
                 "cuda: the score reads {} operands; the kernel takes at most {}", loads.size(),
                 attention::kMaxLoads);
  }
  const int64_t q_tiles = (sizes.q_length + config.tile_m() - 1) / config.tile_m();
  const int64_t tiles = sizes.batch * sizes.q_heads * q_tiles;
  if (tiles > (int64_t{1} << 30)) {
    return error(Code::graph_not_supported, "cuda: sdpa has {} query tiles; the kernel counts {}",
                 tiles, int64_t{1} << 30);
  }
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel(source, kKernelName, architecture_of(device)));
  HEDDLE_ASSIGN(std::shared_ptr<const Kernel> kernel,
                Kernel::load(driver, device, *cubin, kKernelName, config.shared_bytes));
  std::shared_ptr<const Kernel> maps_kernel;
  if (config.sequence_maps) {
    HEDDLE_ASSIGN(maps_kernel, Kernel::load(driver, device, *cubin, kMapsName, 0));
  }
  ParameterBlock<attention::ForwardParameters> block(structure, sizes);
  fill_forward(block, block.parameters, structure, sizes, loads);
  sm90::ForwardArguments arguments{};
  arguments.problem = block.parameters;
  arguments.order = {.q_tiles = static_cast<int>(q_tiles),
                     .section = config.section,
                     .total = static_cast<int>(tiles),
                     .counter = nullptr};
  const std::vector<OperandId> mapped{structure.q, structure.k, structure.v, structure.o};
  std::vector<MapShape> shapes;
  for (OperandId id : mapped) {
    const bool of_keys = id == structure.k || id == structure.v;
    shapes.push_back(map_shape(structure, sizes, id, of_keys ? config.tile_n : 64));
  }
  const Launch launch{
      .grid_x = static_cast<unsigned>(std::min<int64_t>(device.multiprocessors, tiles)),
      .threads = static_cast<unsigned>(128 * (1 + config.consumers)),
      .shared_bytes = static_cast<unsigned>(config.shared_bytes)};
  std::string description = fmt::format("attention forward, Hopper kernel, {} x {} tiles, {}",
                                        config.tile_m(), config.tile_n, architecture_of(device));
  return std::make_shared<const ForwardSm90Plan>(
      driver, std::move(kernel), std::move(maps_kernel), launch, config, arguments,
      std::move(block.entries), std::move(shapes), mapped, std::move(description));
}

}  // namespace heddle::engine::cuda
