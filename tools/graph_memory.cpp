#include "tools/graph_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "graph/ports.h"

namespace heddle::tools {

using graph::Graph;
using graph::kNone;
using graph::Tensor;
using graph::TensorId;

namespace {

constexpr size_t kAlignment = 64;
constexpr int kUnwritten = 0xFF;

/// Elements a tensor's memory holds. A packed (ragged) one holds at most every row of its dims;
/// where tensors share offsets, these are made for the one whose rows lie farthest apart.
std::optional<int64_t> elements_of(const Graph& graph, const Tensor& tensor) {
  if (tensor.ragged_offset == kNone) return span_of(tensor.dims, tensor.strides);
  int64_t row = tensor.strides[2];
  for (const Tensor& other : graph.tensors) {
    int64_t apart = 0;
    if (other.ragged_offset != tensor.ragged_offset) continue;
    if (__builtin_mul_overflow(other.strides[2], tensor.ragged_offset_multiplier, &apart))
      return std::nullopt;
    row = std::max(row, apart / other.ragged_offset_multiplier);
  }
  Dims packed = tensor.strides;
  if (__builtin_mul_overflow(tensor.dims[2], row, &packed[0])) return std::nullopt;
  return span_of(tensor.dims, packed);
}

/// Row-major index to offset in memory, one step at a time.
class Walk {
 public:
  explicit Walk(const Tensor& tensor) : tensor_(tensor) {
    for (int i = 0; i < tensor.dims.rank(); ++i) index_.push_back(0);
  }
  int64_t offset() const { return offset_; }
  void next() {
    for (int i = tensor_.dims.rank() - 1; i >= 0; --i) {
      offset_ += tensor_.strides[i];
      if (++index_[i] < tensor_.dims[i]) return;
      offset_ -= tensor_.strides[i] * tensor_.dims[i];
      index_[i] = 0;
    }
  }

 private:
  const Tensor& tensor_;
  Dims index_;
  int64_t offset_ = 0;
};

}  // namespace

void GraphMemory::Free::operator()(std::byte* data) const { std::free(data); }

Result<GraphMemory> GraphMemory::allocate(const Graph& graph, int64_t limit_bytes) {
  std::vector<TensorId> bound = graph::bound_inputs(graph);
  for (const TensorId id : graph::bound_outputs(graph)) bound.push_back(id);
  int64_t total = 0;
  for (const TensorId id : bound) {
    const std::optional<int64_t> elements = elements_of(graph, graph[id]);
    const int64_t element_bytes = size_of(*graph[id].dtype);
    if (!elements || *elements > (limit_bytes - total) / element_bytes)
      return error(
          Code::out_of_memory,
          "tensor {} of dims {} and strides {} takes the graph's tensors beyond {} bytes, the "
          "most that is allocated here",
          graph[id].uid, to_string(graph[id].dims), to_string(graph[id].strides), limit_bytes);
    total += *elements * element_bytes;
  }
  GraphMemory memory;
  for (const TensorId id : bound) {
    const int64_t bytes = *elements_of(graph, graph[id]) * size_of(*graph[id].dtype);
    const size_t padded = (static_cast<size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
    if (data == nullptr)
      return error(Code::out_of_memory, "{} bytes for tensor {} cannot be had", bytes,
                   graph[id].uid);
    std::memset(data, kUnwritten, padded);
    memory.blocks_[graph[id].uid] = {std::unique_ptr<std::byte, Free>(data), bytes};
  }
  return memory;
}

std::unordered_map<int64_t, void*> GraphMemory::addresses() {
  std::unordered_map<int64_t, void*> result;
  for (auto& [uid, block] : blocks_) result[uid] = block.data.get();
  return result;
}

Status put(const Graph& graph, TensorId id, const Array& array, GraphMemory& memory) {
  const Tensor& tensor = graph[id];
  if (array.dtype != *tensor.dtype || !(array.dims == tensor.dims))
    return error(Code::invalid_value, "tensor {} ('{}') takes {} {}, not {} {}", tensor.uid,
                 tensor.name, name(*tensor.dtype), to_string(tensor.dims), name(array.dtype),
                 to_string(array.dims));
  if (tensor.ragged_offset != kNone)
    return error(
        Code::graph_not_supported,
        "tensor {} ('{}') is packed by ragged offsets, and .npy files are read for tensors that "
        "are not",
        tensor.uid, tensor.name);
  const int64_t bytes = size_of(array.dtype);
  auto* to = static_cast<std::byte*>(memory.data(tensor.uid));
  Walk walk(tensor);
  for (int64_t i = 0; i < static_cast<int64_t>(array.data.size()) / bytes; ++i, walk.next())
    std::memcpy(to + walk.offset() * bytes, array.data.data() + i * bytes,
                static_cast<size_t>(bytes));
  return Status();
}

Array take(const Graph& graph, TensorId id, GraphMemory& memory) {
  const Tensor& tensor = graph[id];
  const int64_t bytes = size_of(*tensor.dtype), count = element_count(tensor.dims).value_or(0);
  Array array{*tensor.dtype, tensor.dims,
              std::vector<std::byte>(static_cast<size_t>(count * bytes))};
  const auto* from = static_cast<const std::byte*>(memory.data(tensor.uid));
  Walk walk(tensor);
  for (int64_t i = 0; i < count; ++i, walk.next())
    std::memcpy(array.data.data() + i * bytes, from + walk.offset() * bytes,
                static_cast<size_t>(bytes));
  return array;
}

}  // namespace heddle::tools
