#include "engine/cuda/f16_pairs.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/rounding.h"

namespace heddle::engine::cuda {
namespace {

constexpr int64_t kMostOperands = std::size(sm90::PairsArguments{}.tensors);
/// A layer of the grid is of one operand and one batch entry.
constexpr int64_t kMaxBatch = kMostBlocksAcross / kMostOperands;
constexpr int kUnitExponent = 15;  ///< a head's largest value is below 2 to that, in its unit

constexpr const char* kNames[] = {"f16_pairs_largest", "f16_pairs_split"};

/// Both kernels: alone, the second would take more registers.
KernelUnit f16_pairs_unit() {
  std::string source = "#include \"sm90/f16_pairs.cuh\"\n";
  for (auto [name, body] : {std::pair{kNames[0], "find_largest"}, {kNames[1], "split"}}) {
    source += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({})\n"
        "{}(const __grid_constant__ heddle::sm90::PairsArguments arguments) {{\n"
        "  heddle::sm90::F16PairsKernels::{}(arguments);\n"
        "}}\n",
        sm90::kPairThreads, name, body);
  }
  return {"f16_pairs", std::move(source)};
}

}  // namespace

Status check_f16_pairs(const char* op, const problem::AttentionStructure& structure,
                       const problem::AttentionSizes& sizes, int most_columns) {
  if (std::max(structure.qk_head_dim, structure.v_head_dim) > most_columns) {
    return error(Code::graph_not_supported,
                 "cuda: {} head_dim {} (q, k) and {} (v); in f32 the Hopper kernel takes at most "
                 "{}",
                 op, structure.qk_head_dim, structure.v_head_dim, most_columns);
  }
  if (sizes.batch > kMaxBatch) {
    return error(Code::graph_not_supported,
                 "cuda: {} has batch {}; in f32 the Hopper kernel takes at most {}", op,
                 sizes.batch, kMaxBatch);
  }
  return {};
}

F16PairsStep::F16PairsStep(Lowering& lowering, const problem::AttentionSizes& sizes,
                           const std::vector<Operand>& operands) {
  const auto reserve = [this](int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += round_up(bytes, 256);
    return at;
  };
  int64_t most_heads = 0, most_rows = 0;
  for (const Operand& operand : operands) {
    const Dims& dims = sizes.layout(operand.id).dims;
    const int64_t heads = dims[1], rows = dims[2], columns = 2 * round_up(dims[3], 64);
    sm90::PairedTensor& tensor = arguments_.tensors[places_.size()];
    tensor.heads = static_cast<int>(heads);
    tensor.columns = static_cast<int>(dims[3]);
    tensor.least = std::exp2(2.0F * static_cast<float>(kUnitExponent - operand.spread));
    Place place;
    const auto extents = {columns, rows, heads, sizes.batch};
    std::copy(extents.begin(), extents.end(), place.shape.dims);
    place.shape.type = TensorMapType::float16;
    place.shape.box_rows = static_cast<unsigned>(operand.box_rows);
    place.shape.stride_bytes[0] = static_cast<uint64_t>(2 * columns);
    place.shape.stride_bytes[1] = place.shape.stride_bytes[0] * static_cast<uint64_t>(rows);
    place.shape.stride_bytes[2] = place.shape.stride_bytes[1] * static_cast<uint64_t>(heads);
    const int64_t all_heads = sizes.batch * heads;
    place.pairs = reserve(2 * all_heads * rows * columns);
    place.largest = reserve(4 * all_heads * sm90::kPairParts);
    place.units = reserve(4 * all_heads);
    place.norms = reserve(4 * all_heads);
    places_.push_back(place);
    most_heads = std::max(most_heads, heads);
    most_rows = std::max(most_rows, rows);
  }
  arguments_.batch = static_cast<int>(sizes.batch);
  const auto layers = static_cast<unsigned>(sizes.batch * static_cast<int64_t>(operands.size()));
  const unsigned blocks[] = {static_cast<unsigned>(sm90::kPairParts),
                             static_cast<unsigned>(divide_up(most_rows, sm90::kPairRows))};
  for (size_t n = 0; n < 2; ++n) {
    kernels_[n] = lowering.add_kernel(f16_pairs_unit(), sm90::kPairThreads, 0, kNames[n]);
    launches_[n] = {.grid_x = blocks[n],
                    .grid_y = static_cast<unsigned>(most_heads),
                    .grid_z = layers,
                    .threads = sm90::kPairThreads};
  }
}

Status F16PairsStep::execute(const Execution& at, char* workspace, unsigned* fallback,
                             std::span<const Reader> readers) const {
  sm90::PairsArguments arguments = arguments_;
  arguments.fallback = fallback;
  for (size_t n = 0; n < places_.size(); ++n) {
    const Place& place = places_[n];
    sm90::PairedTensor& tensor = arguments.tensors[n];
    tensor.source = readers[n].source;
    tensor.rows = readers[n].rows;
    tensor.pairs = workspace + place.pairs;
    tensor.largest = reinterpret_cast<float*>(workspace + place.largest);
    tensor.units = reinterpret_cast<float*>(workspace + place.units);
    tensor.norms = reinterpret_cast<float*>(workspace + place.norms);
    readers[n].pairs = {.units = tensor.units, .norms = tensor.norms, .heads = tensor.heads};
    HEDDLE_TRY(encode(at.driver, place.shape, tensor.pairs, readers[n].map));
  }
  for (size_t n = 0; n < 2; ++n) HEDDLE_TRY(at.launch(kernels_[n], launches_[n], &arguments));
  return {};
}

}  // namespace heddle::engine::cuda
