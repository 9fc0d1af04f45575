#include "onnxruntime/shapes.h"

#include "onnxruntime/host.h"

namespace heddle::onnxruntime {

/// Whether it is success. What is not there is no failure of a model.
bool ShapeContext::is(abi::Status* status) const { return status_from(api_, status).is_ok(); }

const abi::ShapeInfo* ShapeContext::info(size_t index) const {
  size_t inputs = 0;
  abi::ShapeInfo* found = nullptr;
  if (!is(api_.shape_input_count(context_, &inputs)) || index >= inputs ||
      !is(api_.shape_input(context_, index, &found)))
    return nullptr;
  return found;
}

abi::ElementType ShapeContext::type(size_t index) const {
  const abi::ShapeInfo* const found = info(index);
  abi::ElementType type = abi::ElementType::undefined;
  return found && is(api_.get_tensor_element_type(found, &type)) ? type
                                                                 : abi::ElementType::undefined;
}

std::optional<SymbolicDims> ShapeContext::input(size_t index) const {
  const abi::ShapeInfo* const found = info(index);
  size_t rank = 0;
  if (!found || !is(api_.get_dimensions_count(found, &rank)) || rank == 0) return {};
  std::vector<int64_t> numbers(rank);
  std::vector<const char*> names(rank);
  if (!is(api_.get_dimensions(found, numbers.data(), rank)) ||
      !is(api_.get_symbolic_dimensions(found, names.data(), rank)))
    return {};
  SymbolicDims dims(rank);
  for (size_t n = 0; n < rank; ++n) {
    dims[n] = {numbers[n], names[n] ? names[n] : ""};
    if (dims[n].number < 0 && dims[n].name.empty()) return {};
  }
  return dims;
}

int64_t ShapeContext::integer(const char* name, int64_t default_value) const {
  const abi::OpAttribute* attribute = nullptr;
  int64_t value = 0;
  size_t read = 0;
  if (!is(api_.shape_attribute(context_, name, &attribute)) || !attribute ||
      !is(api_.read_attribute(attribute, abi::AttributeType::integer, &value, sizeof value, &read)))
    return default_value;
  return value;
}

Status ShapeContext::set_output(size_t index, abi::ElementType type,
                                const SymbolicDims& dims) const {
  abi::ShapeInfo* made;
  HEDDLE_TRY(status_from(api_, api_.create_shape_info(&made)));
  const std::unique_ptr<abi::ShapeInfo, void (*)(abi::ShapeInfo*)> info(made,
                                                                        api_.release_shape_info);
  std::vector<int64_t> numbers;
  std::vector<const char*> names;
  for (const SymbolicDim& dim : dims) {
    numbers.push_back(dim.number);
    names.push_back(dim.number < 0 ? dim.name.c_str() : "");
  }
  HEDDLE_TRY(status_from(api_, api_.set_tensor_element_type(made, type)));
  HEDDLE_TRY(status_from(api_, api_.set_dimensions(made, numbers.data(), numbers.size())));
  HEDDLE_TRY(status_from(api_, api_.set_symbolic_dimensions(made, names.data(), names.size())));
  return status_from(api_, api_.set_shape_output(context_, index, made));
}

}  // namespace heddle::onnxruntime
