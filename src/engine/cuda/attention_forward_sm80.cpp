#include "engine/cuda/attention_forward_sm80.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "engine/cuda/kernel.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/launch_operands.h"
#include "engine/cuda/score_source.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

constexpr const char* kKernelName = "attention_forward";
constexpr int kMaxHeadDim = 256;
// What an sm_86 block may have; every sm_80-class device has at least this.
constexpr int64_t kSharedLimit = 99 * 1024;
constexpr int64_t kMaxGridYZ = 65535;

int64_t tile_bytes(int64_t rows, int64_t columns) { return rows * ((columns + 63) / 64) * 128; }

Status check_operand(const AttentionProblem& problem, OperandId id, const char* role,
                     std::initializer_list<DataType> allowed) {
  if (id == kAbsent) return {};
  const DataType type = problem.structure.operands[static_cast<size_t>(id)].dtype;
  for (DataType one : allowed) {
    if (type == one) return {};
  }
  return error(Code::graph_not_supported,
               "cuda: sdpa {} is {}, which the kernel does not read or write", role, name(type));
}

class ForwardPlan final : public Plan {
 public:
  ForwardPlan(std::shared_ptr<const Kernel> kernel, const Launch& launch,
              const attention::ForwardParameters& parameters, std::vector<Address> addresses,
              std::vector<OperandId> aligned, std::string description)
      : kernel_(std::move(kernel)),
        launch_(launch),
        parameters_(parameters),
        addresses_(std::move(addresses)),
        aligned_(std::move(aligned)),
        description_(std::move(description)) {}

  int64_t workspace_bytes() const override { return 0; }

  Status execute(std::span<void* const> buffers, void*, void* stream) const override {
    for (OperandId id : aligned_) {
      if (reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(id)]) % 16 != 0) {
        return error(Code::invalid_variant_pack,
                     "operand {} must start on 16 bytes for the kernel planned for it", id);
      }
    }
    attention::ForwardParameters parameters = parameters_;
    bind(addresses_, buffers, &parameters);
    void* arguments[] = {&parameters};
    return kernel_->launch(launch_, static_cast<CuStream>(stream), arguments);
  }

  std::string description() const override { return description_; }

 private:
  std::shared_ptr<const Kernel> kernel_;
  Launch launch_;
  attention::ForwardParameters parameters_;
  std::vector<Address> addresses_;
  std::vector<OperandId> aligned_;
  std::string description_;
};

// Fills a parameter block and notes which of its pointers an execution sets.
class ParameterBlock {
 public:
  explicit ParameterBlock(const AttentionProblem& problem) : problem_(problem) {}

  void tensor(attention::Tensor& target, OperandId id) {
    if (id == kAbsent) return;
    target = tensor_of(problem_.structure, problem_.sizes, id);
    pointer(target.data, id);
    if (const OperandId offsets = type(id).ragged_offsets; offsets != kAbsent)
      pointer(target.offsets, offsets);
  }
  void lengths(attention::Lengths& target, OperandId id, bool cumulative, int64_t full) {
    target = {.data = nullptr, .full = static_cast<int>(full)};
    if (id == kAbsent) return;
    target.is_64_bit = type(id).dtype == DataType::i64;
    target.cumulative = cumulative;
    pointer(target.data, id);
  }
  void scalar(attention::Scalar& target, OperandId id) {
    if (id == kAbsent) return;
    target.is_64_bit = type(id).dtype == DataType::i64 || type(id).dtype == DataType::u64;
    pointer(target.data, id);
  }
  template <class T>
  void pointer(T*& target, OperandId id) {
    if (id == kAbsent) return;
    addresses.push_back({static_cast<size_t>(reinterpret_cast<char*>(&target) -
                                             reinterpret_cast<char*>(&parameters)),
                         id});
  }

  attention::ForwardParameters parameters{};
  std::vector<Address> addresses;

 private:
  const problem::OperandType& type(OperandId id) const {
    return problem_.structure.operands[static_cast<size_t>(id)];
  }
  const AttentionProblem& problem_;
};

int log2_of(int64_t power_of_two) { return std::countr_zero(static_cast<uint64_t>(power_of_two)); }

ParameterBlock parameters_of(const AttentionProblem& problem, const std::vector<OperandId>& loads) {
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  ParameterBlock block(problem);
  attention::ForwardParameters& p = block.parameters;
  block.tensor(p.q, structure.q);
  block.tensor(p.k, structure.k);
  block.tensor(p.v, structure.v);
  block.tensor(p.o, structure.o);
  block.tensor(p.stats, structure.stats);
  block.tensor(p.max, structure.max);
  block.tensor(p.sum_exp, structure.sum_exp);
  for (size_t n = 0; n < loads.size(); ++n) block.tensor(p.loads[n], loads[n]);
  block.tensor(p.dropout_mask, structure.dropout.mask);
  block.tensor(p.block_mask, structure.block_mask);
  const auto paged = [&](OperandId id, attention::Tensor& table, int& page_size) {
    const OperandId pages = structure.operands[static_cast<size_t>(id)].page_table;
    block.tensor(table, pages);
    if (pages != kAbsent) page_size = log2_of(sizes.layouts[static_cast<size_t>(id)].dims[2]);
  };
  paged(structure.k, p.page_table_k, p.page_size_k);
  paged(structure.v, p.page_table_v, p.page_size_v);
  block.lengths(p.q_lengths, structure.q_lengths, structure.q_lengths_cumulative, sizes.q_length);
  block.lengths(p.kv_lengths, structure.kv_lengths, structure.kv_lengths_cumulative,
                sizes.kv_length);
  for (size_t n = 0; n < structure.bounds.size(); ++n) {
    const problem::KeyBound& bound = structure.bounds[n];
    p.bounds[n].anchor = static_cast<attention::Anchor>(bound.anchor);
    p.bounds[n].upper = bound.upper;
    p.bounds[n].constant = sizes.bound_constants[n];
    block.tensor(p.bounds[n].operand, bound.operand);
    if (bound.operand != kAbsent) {
      p.bounds[n].operand.offsets_are_64_bit =
          structure.operands[static_cast<size_t>(bound.operand)].dtype == DataType::i64;
    }
  }
  p.bound_count = static_cast<int>(structure.bounds.size());
  p.batch = static_cast<int>(sizes.batch);
  p.q_heads = static_cast<int>(sizes.q_heads);
  p.k_heads = static_cast<int>(sizes.k_heads);
  p.v_heads = static_cast<int>(sizes.v_heads);
  p.q_length = static_cast<int>(sizes.q_length);
  p.kv_length = static_cast<int>(sizes.kv_length);
  p.scale = static_cast<float>(sizes.scale);
  block.pointer(p.scale_operand, structure.scale);
  block.pointer(p.sink, structure.sink);
  p.stats_log2 = structure.stats_log2;
  block.scalar(p.seed, structure.dropout.seed);
  block.scalar(p.offset, structure.dropout.offset);
  const double drop = sizes.dropout_probability;
  p.keep_scale = static_cast<float>(1 / (1 - drop));
  block.pointer(p.keep_scale_operand, structure.dropout.mask_scale);
  if (structure.dropout.kind == problem::Dropout::Kind::philox) {
    p.dropout_threshold = static_cast<unsigned long long>(std::floor(drop * 4294967296.0));
  } else if (structure.dropout.kind == problem::Dropout::Kind::threefry) {
    p.dropout_threshold = static_cast<unsigned long long>(std::ceil((1 - drop) * 8388608.0));
    for (int i = 0; i < 4 && i < sizes.threefry_strides.rank(); ++i)
      p.threefry_stride[i] = sizes.threefry_strides[i];
  }
  return block;
}

}  // namespace

std::string architecture_of(const Device& device) {
  // wgmma, setmaxnreg and their kind exist for the exact architecture only.
  return device.compute_capability == 90 ? "sm_90a"
                                         : fmt::format("sm_{}", device.compute_capability);
}

Result<ForwardSm80Config> configure_forward_sm80(const AttentionProblem& problem) {
  const AttentionStructure& structure = problem.structure;
  const AttentionSizes& sizes = problem.sizes;
  const auto io = {DataType::bf16, DataType::f16};
  HEDDLE_TRY(check_operand(problem, structure.q, "q", io));
  const DataType element = structure.operands[static_cast<size_t>(structure.q)].dtype;
  for (auto [id, role] : {std::pair{structure.k, "k"}, {structure.v, "v"}, {structure.o, "o"}}) {
    HEDDLE_TRY(check_operand(problem, id, role, {element}));
  }
  if (structure.qk_head_dim > kMaxHeadDim || structure.v_head_dim > kMaxHeadDim) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); the kernel takes at most {}",
                 structure.qk_head_dim, structure.v_head_dim, kMaxHeadDim);
  }
  if (structure.q_rope || structure.k_rope) {
    return error(Code::graph_not_supported,
                 "cuda: rope inside sdpa is planned as a step before it");
  }
  if (structure.dropout.dump != kAbsent) {
    return error(Code::graph_not_supported, "cuda: sdpa rng_dump is not written by the kernel");
  }
  if (structure.bounds.size() > attention::kMaxBounds) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has {} bounds on visible keys; the kernel takes at most {}",
                 structure.bounds.size(), attention::kMaxBounds);
  }
  for (size_t id = 0; id < structure.operands.size(); ++id) {
    if (structure.operands[id].on_host) {
      return error(Code::graph_not_supported,
                   "cuda: sdpa operand {} is passed by value; the kernel reads device memory", id);
    }
  }
  if (sizes.q_heads > kMaxGridYZ || sizes.batch > kMaxGridYZ) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has batch {} and {} query heads; the kernel takes at most {} each",
                 sizes.batch, sizes.q_heads, kMaxGridYZ);
  }
  if (sizes.q_length > INT32_MAX - 256 || sizes.kv_length > INT32_MAX - 256) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa lengths {} and {}; the kernel counts rows in 32 bits", sizes.q_length,
                 sizes.kv_length);
  }
  ForwardSm80Config config;
  const int widest = std::max(structure.qk_head_dim, structure.v_head_dim);
  // 128 keys of d 64 leave no registers for drawing keep bits (56 bytes spilled).
  const bool roomy = widest <= 64 && structure.dropout.kind == problem::Dropout::Kind::none;
  config.tile_n = roomy ? 128 : widest <= 128 ? 64 : 32;
  for (OperandId id : {structure.q, structure.k, structure.v, structure.o}) {
    config.aligned = config.aligned && rows_are_aligned(structure, sizes, id);
  }
  const auto shared = [&] {
    const int64_t rows = 16 * config.warps;
    return std::max(tile_bytes(rows, structure.qk_head_dim),
                    tile_bytes(rows, structure.v_head_dim)) +
           tile_bytes(config.tile_n, structure.qk_head_dim) +
           tile_bytes(config.tile_n, structure.v_head_dim) + 2 * rows * 4;
  };
  // Short query blocks (decoding) and wide heads take fewer rows.
  if (sizes.q_length <= 64 || shared() > kSharedLimit) config.warps = 4;
  config.shared_bytes = shared();
  return config;
}

std::string source_of_forward_sm80(const AttentionStructure& structure,
                                   const ForwardSm80Config& config, std::vector<OperandId>& loads) {
  const auto paged = [&](OperandId id) {
    return structure.operands[static_cast<size_t>(id)].page_table != kAbsent;
  };
  constexpr const char* kDropoutNames[] = {"none", "philox", "threefry", "mask"};
  std::string mask_reader;
  if (structure.dropout.kind == problem::Dropout::Kind::mask) {
    mask_reader = fmt::format(
        "  static HEDDLE_DEVICE float load_mask(const attention::Tensor& mask, int batch, int "
        "head, int row, int column) {{\n"
        "    return attention::load<{}>(mask, batch, head, row, column);\n  }}\n",
        device_type(structure.operands[static_cast<size_t>(structure.dropout.mask)].dtype));
  }
  const std::string score = score_source("Score", structure.score, structure.operands, loads);
  return fmt::format(
      "#include \"sm80/attention_forward.cuh\"\n"
      "namespace heddle {{\n"
      "struct Config {{\n"
      "  using Element = {};\n"
      "  static constexpr int kQkDim = {}, kVDim = {}, kWarps = {}, kTileN = {};\n"
      "  static constexpr bool kAligned = {}, kPagedK = {}, kPagedV = {}, kBlockMask = {}, "
      "kInputIsLog2 = {};\n"
      "  static constexpr attention::Dropout kDropout = attention::Dropout::{};\n"
      "{}}};\n"
      "{}"
      "}}  // namespace heddle\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "attention_forward(const __grid_constant__ heddle::attention::ForwardParameters p) {{\n"
      "  heddle::sm80::attention_forward<heddle::Config, heddle::Score>(p);\n"
      "}}\n",
      device_type(structure.operands[static_cast<size_t>(structure.q)].dtype),
      structure.qk_head_dim, structure.v_head_dim, config.warps, config.tile_n, config.aligned,
      paged(structure.k), paged(structure.v), structure.block_mask != kAbsent,
      structure.softmax_input_is_log2, kDropoutNames[static_cast<int>(structure.dropout.kind)],
      mask_reader, score, 32 * config.warps);
}

Result<std::shared_ptr<const Plan>> plan_forward_sm80(const Driver& driver, const Device& device,
                                                      const AttentionProblem& problem) {
  HEDDLE_ASSIGN(const ForwardSm80Config config, configure_forward_sm80(problem));
  std::vector<OperandId> loads;
  const std::string source = source_of_forward_sm80(problem.structure, config, loads);
  if (loads.size() > attention::kMaxLoads) {
    return error(Code::graph_not_supported,
                 "cuda: the score reads {} operands; the kernel takes at most {}", loads.size(),
                 attention::kMaxLoads);
  }
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel(source, kKernelName, architecture_of(device)));
  HEDDLE_ASSIGN(std::shared_ptr<const Kernel> kernel,
                Kernel::load(driver, device, *cubin, kKernelName, config.shared_bytes));
  ParameterBlock block = parameters_of(problem, loads);
  const int64_t rows = 16 * config.warps;
  const Launch launch{.grid_x = static_cast<unsigned>((problem.sizes.q_length + rows - 1) / rows),
                      .grid_y = static_cast<unsigned>(problem.sizes.q_heads),
                      .grid_z = static_cast<unsigned>(problem.sizes.batch),
                      .threads = static_cast<unsigned>(32 * config.warps),
                      .shared_bytes = static_cast<unsigned>(config.shared_bytes)};
  std::vector<OperandId> aligned;
  if (config.aligned)
    aligned = {problem.structure.q, problem.structure.k, problem.structure.v, problem.structure.o};
  std::string description = fmt::format("attention forward, general kernel, {} x {} tiles, {}",
                                        rows, config.tile_n, architecture_of(device));
  return std::make_shared<const ForwardPlan>(std::move(kernel), launch, block.parameters,
                                             std::move(block.addresses), std::move(aligned),
                                             std::move(description));
}

}  // namespace heddle::engine::cuda
