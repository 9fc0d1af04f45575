#include "api/tensor_bytes.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"
#include "graph/names.h"

namespace heddle::api {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Tensor;
using graph::TensorId;

bool is_one_of(TensorId id, std::initializer_list<TensorId> list) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

/// The lengths of whatever reads or writes the rows of `id`; kNone for all rows there are.
class LengthsOf {
 public:
  LengthsOf(const Graph& graph, TensorId id) : graph_(graph) { add(id); }
  const std::vector<TensorId>& found() const { return found_; }

 private:
  void add(TensorId id) {
    if (is_one_of(id, {kNone}) || std::count(seen_.begin(), seen_.end(), id) > 0) return;
    seen_.push_back(id);
    for (const graph::Node& node : graph_.nodes) {
      std::visit([&](const auto& op) { add(id, op); }, node.op);
    }
  }
  void add(TensorId id, const graph::Sdpa& op) {
    if (is_one_of(id, {op.q, op.o, op.stats, op.max, op.sum_exp}))
      found_.push_back(op.attention.seq_len_q);
    if (is_one_of(id, {op.k, op.v})) found_.push_back(op.attention.seq_len_kv);
  }
  void add(TensorId id, const graph::SdpaBackward& op) {
    if (is_one_of(id, {op.q, op.o, op.d_o, op.stats, op.max, op.sum_exp, op.d_stats, op.d_q}))
      found_.push_back(op.attention.seq_len_q);
    if (is_one_of(id, {op.k, op.v, op.d_k, op.d_v})) found_.push_back(op.attention.seq_len_kv);
  }
  void add(TensorId id, const graph::SdpaFp8& op) {
    if (is_one_of(id, {op.q, op.o, op.stats})) found_.push_back(op.attention.seq_len_q);
    if (is_one_of(id, {op.k, op.v})) found_.push_back(op.attention.seq_len_kv);
  }
  void add(TensorId id, const graph::SdpaFp8Backward& op) {
    if (is_one_of(id, {op.q, op.o, op.d_o, op.stats, op.d_q}))
      found_.push_back(op.attention.seq_len_q);
    if (is_one_of(id, {op.k, op.v, op.d_k, op.d_v})) found_.push_back(op.attention.seq_len_kv);
  }
  // A rotation is of the rows that attention has.
  void add(TensorId id, const graph::Rope& op) {
    if (id == op.x) add(op.y);
    if (id == op.y) add(op.x);
  }
  template <class Op>
  void add(TensorId, const Op&) {}

  const Graph& graph_;
  std::vector<TensorId> seen_, found_;
};

/// A tensor's element at (b, 0, ...), of lengths or offsets.
int64_t whole(const void* memory, const Tensor& tensor, int64_t b) {
  const int64_t index = tensor.dims[0] > 1 ? b * tensor.strides[0] : 0;
  if (tensor.dtype == DataType::i32) {
    int32_t value;
    std::memcpy(&value, static_cast<const char*>(memory) + index * int64_t{sizeof value},
                sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, static_cast<const char*>(memory) + index * int64_t{sizeof value},
              sizeof value);
  return value;
}

Result<const void*> memory_of(const Graph& graph, TensorId id, const HostMemory& host) {
  if (const void* memory = host(id)) return memory;
  return error(Code::invalid_value,
               "{} says how much memory a packed tensor takes, and has no host memory, expected "
               "its elements there.",
               graph::describe(graph[id]));
}

Result<int64_t> packed_bytes(const Graph& graph, const Tensor& tensor,
                             const std::vector<TensorId>& lengths, const HostMemory& host) {
  if (lengths.empty()) {
    return error(Code::graph_not_supported,
                 "The {} is packed and no attention has its rows: how many there are is unknown.",
                 graph::describe(tensor));
  }
  HEDDLE_ASSIGN(const void* const offsets, memory_of(graph, tensor.ragged_offset, host));
  const int64_t batch = tensor.dims[0], longest = tensor.dims[2];
  std::vector<int64_t> rows(static_cast<size_t>(batch), 0);
  for (const TensorId id : lengths) {
    if (id == kNone) {
      std::fill(rows.begin(), rows.end(), longest);
      break;
    }
    HEDDLE_ASSIGN(const void* const values, memory_of(graph, id, host));
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = whole(values, graph[id], b);
      rows[static_cast<size_t>(b)] =
          std::max(rows[static_cast<size_t>(b)], std::clamp<int64_t>(length, 0, longest));
    }
  }
  __int128 end = 0;
  for (int64_t b = 0; b < batch; ++b) {
    if (rows[static_cast<size_t>(b)] == 0) continue;
    const int64_t offset = whole(offsets, graph[tensor.ragged_offset], b);
    if (offset < 0) {
      return error(Code::invalid_value, "The {} has entry {} at offset {}, expected 0 or more.",
                   graph::describe(tensor), b, offset);
    }
    __int128 last = static_cast<__int128>(offset) * tensor.ragged_offset_multiplier;
    for (int32_t d = 1; d < tensor.dims.rank(); ++d) {
      const int64_t extent = d == 2 ? rows[static_cast<size_t>(b)] : tensor.dims[d];
      last += static_cast<__int128>(extent - 1) * tensor.strides[d];
    }
    end = std::max(end, last + 1);
  }
  const __int128 bytes = end * size_of(*tensor.dtype);
  if (bytes > std::numeric_limits<int64_t>::max()) {
    return error(Code::invalid_value, "The {} takes more than 63 bits can count, expected less.",
                 graph::describe(tensor));
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

Result<int64_t> tensor_bytes(const Graph& graph, TensorId id, const HostMemory& host) {
  const Tensor& tensor = graph[id];
  if (tensor.ragged_offset != kNone)
    return packed_bytes(graph, tensor, LengthsOf(graph, id).found(), host);
  const std::optional<int64_t> span = span_of(tensor.dims, tensor.strides);
  int64_t bytes = 0;
  if (!span || __builtin_mul_overflow(*span, size_of(*tensor.dtype), &bytes)) {
    return error(Code::invalid_value, "The {} takes more than 63 bits can count, expected less.",
                 graph::describe(tensor));
  }
  return bytes;
}

}  // namespace heddle::api
