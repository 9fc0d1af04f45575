#include <protozero/pbf_writer.hpp>

#include "hlo/proto_fields.h"
#include "hlo/proto_instruction.h"
#include "hlo/proto_shape.h"

namespace heddle::hlo::proto {
namespace {

namespace field = instruction_field;
using Writer = protozero::pbf_writer;

/// The field `number` written by `write(writer)`.
template <class Write>
EncodedField encoded(uint32_t number, Write&& write) {
  EncodedField result{number, {}};
  Writer out(result.bytes);
  write(out);
  return result;
}

EncodedField integer(uint32_t number, int64_t value) {
  return encoded(number, [&](Writer& out) { out.add_int64(number, value); });
}
EncodedField flag(uint32_t number, bool value) {
  return encoded(number, [&](Writer& out) { out.add_bool(number, value); });
}
EncodedField text(uint32_t number, std::string_view value) {
  return encoded(number, [&](Writer& out) { out.add_bytes(number, value.data(), value.size()); });
}
EncodedField list(uint32_t number, std::span<const int64_t> values) {
  return encoded(number, [&](Writer& out) {
    if (!values.empty()) out.add_packed_int64(number, values.begin(), values.end());
  });
}

EncodedField slice(std::span<const SliceDimension> dims) {
  return encoded(field::slice, [&](Writer& out) {
    for (const SliceDimension& d : dims) {
      Writer in(out, field::slice);
      in.add_int64(1, d.start);
      in.add_int64(2, d.limit);
      in.add_int64(3, d.stride);
    }
  });
}

EncodedField padding(std::span<const PaddingDimension> dims) {
  return encoded(field::padding, [&](Writer& out) {
    Writer config(out, field::padding);
    for (const PaddingDimension& d : dims) {
      Writer in(config, 1);
      in.add_int64(1, d.low);
      in.add_int64(2, d.high);
      in.add_int64(3, d.interior);
    }
  });
}

EncodedField dot(const Instruction& x) {
  return encoded(field::dot_dimensions, [&](Writer& out) {
    Writer in(out, field::dot_dimensions);
    const auto put = [&](uint32_t number, std::span<const int64_t> dims) {
      if (!dims.empty()) in.add_packed_int64(number, dims.begin(), dims.end());
    };
    put(1, x.lhs_contracting_dims());
    put(2, x.rhs_contracting_dims());
    put(3, x.lhs_batch_dims());
    put(4, x.rhs_batch_dims());
  });
}

EncodedField operand_layouts(const std::vector<Shape>& shapes) {
  return encoded(field::operand_layouts, [&](Writer& out) {
    for (const Shape& shape : shapes) out.add_message(field::operand_layouts, write_shape(shape));
  });
}

Status unwritten(const Instruction& instruction, std::string_view name) {
  return error(Code::graph_not_supported, "{}: attribute {} of {} cannot be written in protobuf",
               instruction.name(), name, instruction.opcode_name());
}

Result<EncodedField> api_version(const Instruction& instruction) {
  if (instruction.text("api_version") != "API_VERSION_TYPED_FFI")
    return unwritten(instruction, "api_version");
  return integer(field::api_version, 4);
}

}  // namespace

Result<std::vector<EncodedField>> encode_attribute(const Instruction& x, std::string_view name) {
  std::vector<EncodedField> fields;
  if (name == "dimensions") {
    fields.push_back(list(field::dimensions, x.dimensions()));
  } else if (name == "iota_dimension") {
    const int64_t axis[] = {x.iota_dimension()};
    fields.push_back(list(field::dimensions, axis));
  } else if (name == "index") {
    fields.push_back(integer(field::tuple_index, x.tuple_index()));
  } else if (name == "slice") {
    fields.push_back(slice(x.slice()));
  } else if (name == "padding") {
    fields.push_back(padding(x.padding()));
  } else if (name == "dynamic_slice_sizes") {
    fields.push_back(list(field::dynamic_slice_sizes, x.integers(name)));
  } else if (name == "lhs_contracting_dims" || name == "rhs_contracting_dims" ||
             name == "lhs_batch_dims" || name == "rhs_batch_dims") {
    fields.push_back(dot(x));
  } else if (name == "direction") {
    fields.push_back(text(field::comparison_direction, x.direction()));
  } else if (name == "custom_call_target") {
    fields.push_back(text(field::custom_call_target, x.custom_call_target()));
  } else if (name == "operand_layout_constraints") {
    fields.push_back(flag(field::constrain_layout, true));
    fields.push_back(operand_layouts(*x.get<std::vector<Shape>>(name)));
  } else if (name == "custom_call_has_side_effect") {
    fields.push_back(flag(field::custom_call_has_side_effect, x.boolean(name)));
  } else if (name == "api_version") {
    HEDDLE_ASSIGN(EncodedField version, api_version(x));
    fields.push_back(std::move(version));
  } else if (name == "backend_config") {
    fields.push_back(text(field::backend_config, x.backend_config()));
  } else {
    return unwritten(x, name);
  }
  return fields;
}

}  // namespace heddle::hlo::proto
