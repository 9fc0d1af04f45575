#include "support/program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace heddle::testing {

using graph::kNone;
using graph::TensorId;

namespace {
constexpr int64_t kGuardBytes = 256;
constexpr int64_t kAlignment = 64;
}  // namespace

void Block::Free::operator()(unsigned char* data) const { std::free(data); }

Block::Block(int64_t bytes)
    : size_((bytes + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment) {
  data_.reset(static_cast<unsigned char*>(
      std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(size_))));
  poison();
}

Block::Block(const Block& other) : Block(other.size_ - kGuardBytes) {
  std::memcpy(data(), other.data(), static_cast<size_t>(size_));
}

Block& Block::operator=(const Block& other) {
  if (this != &other) *this = Block(other);
  return *this;
}

void Block::poison() { std::memset(data(), kPoison, static_cast<size_t>(size_)); }

reference::Buffers Program::buffers() {
  reference::Buffers buffers;
  for (auto& [uid, block] : memory) buffers[uid] = block.data();
  for (const auto& [uid, other] : in_place) buffers[uid] = memory.at(other).data();
  return buffers;
}

const Block* Program::block(TensorId id) const {
  const auto other = in_place.find(graph[id].uid);
  const auto found = memory.find(other == in_place.end() ? graph[id].uid : other->second);
  return found == memory.end() ? nullptr : &found->second;
}

TensorId Program::add(std::string name, DataType dtype, Dims dims, Dims strides) {
  graph::Tensor tensor;
  tensor.uid = static_cast<int64_t>(graph.tensors.size()) + 1;
  for (const graph::Tensor& other : graph.tensors) {
    if (other.name == name) name += "_" + std::to_string(tensor.uid);
  }
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.dims = dims;
  tensor.strides = strides.empty() ? dense_strides(dims).value() : strides;
  return graph.add(std::move(tensor));
}

void Program::allocate(TensorId id, int64_t elements) {
  const graph::Tensor& tensor = graph[id];
  if (tensor.ragged_offset == kNone) elements = span_of(tensor.dims, tensor.strides).value();
  memory[tensor.uid] = Block(elements * size_of(*tensor.dtype));
}

void Program::set(TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const graph::Tensor& tensor = graph[id];
  const int64_t index[4] = {i0, i1, i2, i3};
  int64_t linear = 0;
  for (int axis = 0; axis < tensor.dims.rank(); ++axis) {
    linear = linear * tensor.dims[axis] + index[axis];
  }
  const reference::Buffers bound = buffers();
  const int64_t at = reference::Values(graph, bound, {}).offset_of(id, linear);
  store(*tensor.dtype, bound.at(tensor.uid), at, value);
}

void Program::set_integer(TensorId id, int64_t value, int64_t i0) {
  unsigned char* data = memory.at(graph[id].uid).data();
  const DataType dtype = *graph[id].dtype;
  std::memcpy(data + i0 * size_of(dtype), &value, static_cast<size_t>(size_of(dtype)));
}

void Program::fill(TensorId id, const std::function<double()>& value,
                   const std::function<int64_t(int64_t)>& length) {
  const graph::Tensor& tensor = graph[id];
  const reference::Buffers bound = buffers();
  const reference::Values addresses(graph, bound, {});
  const int64_t count = element_count(tensor.dims).value();
  for (int64_t index = 0; index < count; ++index) {
    if (length) {
      const int64_t row = index / tensor.dims[3] % tensor.dims[2];
      if (row >= length(index / (tensor.dims[3] * tensor.dims[2] * tensor.dims[1]))) continue;
    }
    store(*tensor.dtype, bound.at(tensor.uid), addresses.offset_of(id, index), value());
  }
}

Dims random_strides(Random& random, const Dims& dims, bool unaligned) {
  int order[3] = {0, 1, 2};
  for (int n = 2; n > 0; --n) std::swap(order[n], order[random.integer(0, n)]);
  Dims strides{0, 0, 0, 1};
  int64_t span = dims[3];
  for (int axis : order) {
    if (unaligned)
      span += random.integer(1, 7);
    else if (random.chance(0.3))
      span += 8 * random.integer(1, 2);
    strides[axis] = span;
    span *= dims[axis];
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (dims[axis] == 1) strides[axis] = random.integer(1, 1 << 20);
  }
  return strides;
}

}  // namespace heddle::testing
