#include "reference/values.h"

namespace heddle::reference {

using graph::kNone;
using graph::TensorId;

namespace {

int64_t load_integer(DataType type, const void* data, int64_t index) {
  switch (type) {
    case DataType::i64:
      return static_cast<const int64_t*>(data)[index];
    case DataType::u64:
      return static_cast<int64_t>(static_cast<const uint64_t*>(data)[index]);
    default:
      return static_cast<int64_t>(load(type, data, index));
  }
}

/// The index itself where the tensor has that dim, 0 where it is broadcast.
int64_t along(const Dims& dims, int axis, int64_t index) {
  return axis < dims.rank() && dims[axis] > 1 ? index : 0;
}

}  // namespace

Values::Values(const graph::Graph& graph, const Buffers& buffers, Precision precision)
    : graph_(graph),
      buffers_(buffers),
      precision_(precision),
      results_(graph.tensors.size()),
      unrounded_(graph.tensors.size(), false) {}

int64_t Values::offset(TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const {
  const graph::Tensor& tensor = graph_[id];
  const int64_t index[4] = {i0, i1, i2, i3};
  int64_t at = 0;
  for (int axis = 0; axis < tensor.dims.rank(); ++axis) {
    if (axis == 0 && tensor.ragged_offset != kNone) {
      at += read_integer(tensor.ragged_offset, i0) * tensor.ragged_offset_multiplier;
    } else if (tensor.dims[axis] > 1) {
      at += index[axis] * tensor.strides[axis];
    }
  }
  return at;
}

int64_t Values::offset_of(TensorId id, int64_t index) const {
  const graph::Tensor& tensor = graph_[id];
  int64_t at = 0;
  for (int axis = tensor.dims.rank() - 1; axis >= 0; --axis) {
    const int64_t i = index % tensor.dims[axis];
    index /= tensor.dims[axis];
    if (axis == 0 && tensor.ragged_offset != kNone) {
      at += read_integer(tensor.ragged_offset, i) * tensor.ragged_offset_multiplier;
    } else if (tensor.dims[axis] > 1) {
      at += i * tensor.strides[axis];
    }
  }
  return at;
}

void Values::declare(TensorId id) {
  Array& array = results_[static_cast<size_t>(id)];
  array.dims = graph_[id].dims;
  const auto count = static_cast<size_t>(element_count(array.dims).value_or(0));
  array.values.assign(count, 0);
  array.written.assign(count, 0);
  array.kept.assign(count, 0);
}

size_t Values::place(TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const {
  const Array& array = results_[static_cast<size_t>(id)];
  const int64_t index[4] = {i0, i1, i2, i3};
  int64_t at = 0;
  for (int axis = 0; axis < array.dims.rank(); ++axis) {
    at = at * array.dims[axis] + along(array.dims, axis, index[axis]);
  }
  return static_cast<size_t>(at);
}

double Values::rounded(TensorId id, double value) const {
  return unrounded_[static_cast<size_t>(id)] ? value
                                             : Precision::round_to(*graph_[id].dtype, value);
}

double Values::read(TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const {
  const graph::Tensor& tensor = graph_[id];
  if (tensor.constant) return *tensor.constant;
  const Array& array = results_[static_cast<size_t>(id)];
  if (array.empty()) {
    return load(*tensor.dtype, buffers_.at(tensor.uid), offset(id, i0, i1, i2, i3));
  }
  return rounded(id, array.values[place(id, i0, i1, i2, i3)]);
}

double Values::read_linear(TensorId id, int64_t index) const {
  const graph::Tensor& tensor = graph_[id];
  if (tensor.constant) return *tensor.constant;
  const Array& array = results_[static_cast<size_t>(id)];
  if (array.empty()) return load(*tensor.dtype, buffers_.at(tensor.uid), offset_of(id, index));
  return rounded(id, array.values[static_cast<size_t>(index)]);
}

int64_t Values::read_integer(TensorId id, int64_t i0) const {
  const graph::Tensor& tensor = graph_[id];
  if (tensor.constant) return static_cast<int64_t>(*tensor.constant);
  if (!result(id).empty()) return static_cast<int64_t>(read(id, i0));
  return load_integer(*tensor.dtype, buffers_.at(tensor.uid), offset(id, i0, 0, 0, 0));
}

bool Values::are_one(TensorId a, TensorId b) const {
  const auto at = [&](TensorId id) { return buffers_.find(graph_[id].uid); };
  return a != kNone && b != kNone && at(a) != buffers_.end() && at(b) != buffers_.end() &&
         at(a)->second == at(b)->second;
}

Matrix Values::rows(TensorId id, int64_t b, int64_t h, int64_t count) const {
  const int64_t columns = graph_[id].dims[3];
  Matrix matrix(count, columns);
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t d = 0; d < columns; ++d) matrix(s, d) = read(id, b, h, s, d);
  }
  return matrix;
}

void Values::write(TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  if (id == kNone) return;
  const size_t at = place(id, i0, i1, i2, i3);
  results_[static_cast<size_t>(id)].values[at] = value;
  results_[static_cast<size_t>(id)].written[at] = 1;
}

void Values::keep(TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const size_t at = place(id, i0, i1, i2, i3);
  results_[static_cast<size_t>(id)].values[at] = value;
  results_[static_cast<size_t>(id)].kept[at] = 1;
}

void Values::add(TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  if (id == kNone) return;
  const size_t at = place(id, i0, i1, i2, i3);
  Array& array = results_[static_cast<size_t>(id)];
  array.values[at] = precision_.accumulated(array.values[at] + value);
  array.written[at] = 1;
}

void Values::write_linear(TensorId id, double value, int64_t index) {
  if (id == kNone) return;
  Array& array = results_[static_cast<size_t>(id)];
  array.values[static_cast<size_t>(index)] = value;
  array.written[static_cast<size_t>(index)] = 1;
}

}  // namespace heddle::reference
