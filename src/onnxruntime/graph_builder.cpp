#include "onnxruntime/graph_builder.h"

#include <algorithm>

#include "onnxruntime/element_types.h"

namespace heddle::onnxruntime {

GraphBuilder::GraphBuilder(const char* name) {
  heddle_graph* graph = nullptr;
  keep(heddle_graph_create(name, HEDDLE_F32, HEDDLE_F32, HEDDLE_F32, &graph));
  graph_.reset(graph);
}

void GraphBuilder::keep(heddle_status status) {
  if (status_.is_ok()) status_ = status_of(status);
}

int64_t GraphBuilder::add(const heddle_tensor& tensor) {
  keep(heddle_graph_add_tensor(graph_.get(), &tensor));
  return tensor.uid;
}

int64_t GraphBuilder::bound(int64_t uid, const char* name, DataType dtype, const Dims& dims,
                            const Dims& strides) {
  heddle_tensor tensor{};
  tensor.uid = uid, tensor.name = name, tensor.dtype = c_type(dtype);
  tensor.rank = dims.rank(), tensor.stride_rank = strides.rank();
  std::copy(dims.begin(), dims.end(), tensor.dims);
  std::copy(strides.begin(), strides.end(), tensor.strides);
  return add(tensor);
}

int64_t GraphBuilder::made(const char* name, const Dims& dims, DataType dtype) {
  heddle_tensor tensor{};
  tensor.uid = next_uid_++, tensor.name = name, tensor.dtype = c_type(dtype);
  tensor.rank = dims.rank(), tensor.is_virtual = true;
  std::copy(dims.begin(), dims.end(), tensor.dims);
  return add(tensor);
}

int64_t GraphBuilder::constant(const char* name, double value, DataType dtype) {
  heddle_tensor tensor{};
  tensor.uid = next_uid_++, tensor.name = name, tensor.dtype = c_type(dtype);
  tensor.has_constant = true, tensor.constant = value;
  return add(tensor);
}

int64_t GraphBuilder::whole(int64_t value) {
  if (status_.is_ok() && value > kMostWhole) {
    status_ = error(Code::graph_not_supported,
                    "a length of {} is computed with, expected at most {}", value, kMostWhole);
  }
  return constant(nullptr, static_cast<double>(value), DataType::i32);
}

int64_t GraphBuilder::by_value(int64_t uid, const char* name, DataType dtype) {
  heddle_tensor tensor{};
  tensor.uid = uid, tensor.name = name, tensor.dtype = c_type(dtype);
  tensor.rank = 1, tensor.dims[0] = 1, tensor.pass_by_value = true;
  return add(tensor);
}

void GraphBuilder::node(const char* op) {
  keep(heddle_graph_add_node(graph_.get(), op, nullptr, &node_));
}
void GraphBuilder::tensor(const char* port, int64_t uid) {
  keep(heddle_node_set_tensor(graph_.get(), node_, port, uid));
}
void GraphBuilder::number(const char* attribute, double value) {
  keep(heddle_node_set_number(graph_.get(), node_, attribute, value));
}
void GraphBuilder::integer(const char* attribute, int64_t value) {
  keep(heddle_node_set_integer(graph_.get(), node_, attribute, value));
}
void GraphBuilder::flag(const char* attribute, bool value) {
  keep(heddle_node_set_flag(graph_.get(), node_, attribute, value));
}
void GraphBuilder::choice(const char* attribute, const char* value) {
  keep(heddle_node_set_choice(graph_.get(), node_, attribute, value));
}

int64_t GraphBuilder::pointwise(const char* op, std::initializer_list<int64_t> inputs,
                                int32_t axis) {
  const int64_t made_here = made(nullptr);
  keep(heddle_node_add_pointwise(graph_.get(), node_, "score_mod", op, inputs.begin(),
                                 static_cast<int32_t>(inputs.size()), made_here, axis));
  return made_here;
}

int64_t GraphBuilder::elementwise(const char* mode, std::initializer_list<int64_t> inputs,
                                  int64_t y) {
  constexpr const char* kPorts[] = {"a", "b", "c"};
  node("pointwise");
  choice("mode", mode);
  const char* const* port = kPorts;
  for (const int64_t input : inputs) tensor(*port++, input);
  tensor("y", y);
  return y;
}

int64_t GraphBuilder::index(int axis, int64_t steps) {
  Dims dims{1, 1, 1, 1};
  dims[axis] = steps;
  const int64_t y = elementwise("gen_index", {}, made(nullptr, dims, DataType::i32));
  integer("axis", axis);
  return y;
}

int64_t GraphBuilder::lengths(const char* name, int64_t batch, int64_t each) {
  // What is made has the dims of what it is made of: of numbers alone it would be one number.
  const int64_t zeros = elementwise("mul", {index(0, batch), constant(nullptr, 0, DataType::i32)},
                                    made(nullptr, {batch, 1, 1, 1}, DataType::i32));
  return elementwise("add", {zeros, each}, made(name, {batch, 1, 1, 1}, DataType::i32));
}

Result<GraphHandle> GraphBuilder::finish() {
  if (status_.is_ok()) status_ = status_of(heddle_graph_validate(graph_.get()));
  if (!status_.is_ok()) return status_;
  return std::move(graph_);
}

}  // namespace heddle::onnxruntime
