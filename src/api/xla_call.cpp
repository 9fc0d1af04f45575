#include "api/xla_call.h"

#include <array>
#include <optional>

#include "graph/names.h"

namespace heddle::api::xla {
namespace {

using ElementType = heddle::DataType;

std::optional<ElementType> element_type(DataType type) {
  switch (type) {
    case DataType::pred:
      return ElementType::boolean;
    case DataType::s8:
      return ElementType::i8;
    case DataType::s32:
      return ElementType::i32;
    case DataType::s64:
      return ElementType::i64;
    case DataType::u8:
      return ElementType::u8;
    case DataType::u32:
      return ElementType::u32;
    case DataType::u64:
      return ElementType::u64;
    case DataType::f16:
      return ElementType::f16;
    case DataType::f32:
      return ElementType::f32;
    case DataType::f64:
      return ElementType::f64;
    case DataType::bf16:
      return ElementType::bf16;
    case DataType::f8e5m2:
      return ElementType::f8e5m2;
    case DataType::f8e4m3fn:
      return ElementType::f8e4m3;
  }
  return std::nullopt;
}

int64_t element_count(const Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

Result<std::string_view> graph_text(const Attributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const ByteSpan& name = *attributes.names[i];
    if (std::string_view(name.data, name.size) != "graph") continue;
    if (attributes.types[i] != kString) {
      return error(Code::invalid_value, "The custom call's attribute 'graph' is not a string.");
    }
    const auto* text = static_cast<const ByteSpan*>(attributes.items[i]);
    return std::string_view(text->data, text->size);
  }
  return error(Code::attribute_not_set,
               "The custom call has no attribute 'graph', the text form of what it computes.");
}

Status check_buffer(const graph::Tensor& tensor, bool output, int64_t index, const Buffer& buffer) {
  if (element_type(buffer.dtype) != tensor.dtype) {
    const std::optional<ElementType> given = element_type(buffer.dtype);
    return error(Code::invalid_value,
                 "{} {} of the custom call has data type {}, expected {} for the {}.",
                 output ? "Result" : "Operand", index,
                 given ? name(*given) : fmt::format("number {}", static_cast<int>(buffer.dtype)),
                 name(*tensor.dtype), describe(tensor));
  }
  // A ragged tensor's extent is data: the offsets say what it holds.
  if (tensor.ragged_offset != graph::kNone) return {};
  const int64_t expected = *span_of(tensor.dims, tensor.strides);
  const int64_t given = element_count(buffer);
  // An operand may be more: a tensor may be a strided part of the array it is passed in, as every
  // fourth head. A result may not, as what lies beside the tensor would be returned unwritten.
  if (given == expected || (!output && given > expected)) return {};
  return error(Code::invalid_value,
               "{} {} of the custom call has {} elements, expected {}{} for the {} of dims {} and "
               "strides {}.",
               output ? "Result" : "Operand", index, given, expected, output ? "" : " or more",
               describe(tensor), to_string(tensor.dims), to_string(tensor.strides));
}

/// Checks one side's buffers against the graph's ports and adds them to the bindings.
Status bind(const Executable& executable, const std::vector<Port>& ports, const Values& values,
            std::span<Binding> bindings) {
  for (size_t i = 0; i < ports.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (values.types[i] != kBuffer) {
      return error(Code::invalid_value, "{} {} of the custom call is not a buffer.",
                   ports[i].output ? "Result" : "Operand", index);
    }
    const auto& buffer = *static_cast<const Buffer*>(values.items[i]);
    HEDDLE_TRY(check_buffer(executable.graph()[ports[i].tensor], ports[i].output, index, buffer));
    bindings[i] = {ports[i].uid, buffer.data};
  }
  return {};
}

Status check_workspace(const Values& results, int64_t needed, void*& workspace) {
  const int64_t index = results.size - 1;
  const auto& buffer = *static_cast<const Buffer*>(results.items[index]);
  if (results.types[index] != kBuffer ||
      (buffer.dtype != DataType::u8 && buffer.dtype != DataType::s8)) {
    return error(Code::invalid_value,
                 "The last result of the custom call is not a buffer of u8, the workspace.");
  }
  if (element_count(buffer) < needed) {
    return error(Code::invalid_value,
                 "The custom call's workspace has {} bytes, but its graph needs {}.",
                 element_count(buffer), needed);
  }
  workspace = needed > 0 ? buffer.data : nullptr;
  return {};
}

}  // namespace

Status prepare(const CallFrame& frame, PlanCache& plans) {
  HEDDLE_ASSIGN(const std::string_view text, graph_text(frame.attributes));
  return plans.find_or_build(text).status();
}

Status call(const CallFrame& frame, PlanCache& plans, void* stream) {
  HEDDLE_ASSIGN(const std::string_view text, graph_text(frame.attributes));
  HEDDLE_ASSIGN(const std::shared_ptr<const Executable> executable, plans.find_or_build(text));
  const auto inputs = static_cast<int64_t>(executable->inputs().size());
  const auto outputs = static_cast<int64_t>(executable->outputs().size());
  if (frame.arguments.size != inputs) {
    return error(Code::invalid_value,
                 "The custom call has {} operands, expected {}, the graph's inputs.",
                 frame.arguments.size, inputs);
  }
  if (frame.results.size != outputs + 1) {
    return error(
        Code::invalid_value,
        "The custom call has {} results, expected {}: the graph's outputs and a workspace.",
        frame.results.size, outputs + 1);
  }
  std::array<Binding, Executable::kMaxPorts> storage;
  const std::span<Binding> bindings(storage.data(), static_cast<size_t>(inputs + outputs));
  HEDDLE_TRY(bind(*executable, executable->inputs(), frame.arguments, bindings));
  HEDDLE_TRY(bind(*executable, executable->outputs(), frame.results, bindings.subspan(inputs)));
  void* workspace = nullptr;
  HEDDLE_TRY(check_workspace(frame.results, executable->workspace_bytes(), workspace));
  return executable->execute(bindings, workspace, stream);
}

}  // namespace heddle::api::xla
