// Field numbers of the protobuf form of HLO, as far as Heddle reads it, and how fields are taken.
// They are stable: XLA adds fields and never reuses a number. Everything else is kept as bytes.
#pragma once

#include <cstdint>
#include <protozero/pbf_reader.hpp>
#include <string_view>
#include <vector>

namespace heddle::hlo::proto {

namespace module_field {
enum : uint32_t {
  name = 1,
  entry_name = 2,
  computations = 3,
  program_shape = 4,
  entry_id = 6,
  schedule = 7,
  stack_frame_index = 17,
};
}

namespace computation_field {
enum : uint32_t {
  name = 1,
  instructions = 2,
  program_shape = 4,
  id = 5,
  root_id = 6,
  execution_thread = 8,
};
}

namespace instruction_field {
enum : uint32_t {
  name = 1,
  opcode = 2,
  shape = 3,
  metadata = 7,
  literal = 8,
  parameter_number = 9,
  fusion_kind = 11,
  tuple_index = 13,
  dimensions = 14,
  window = 15,
  slice = 17,
  exponent_bits = 18,
  mantissa_bits = 19,
  dynamic_slice_sizes = 20,
  padding = 21,
  custom_call_target = 28,
  dot_dimensions = 30,
  gather_dimensions = 33,
  gather_slice_sizes = 34,
  id = 35,
  operand_ids = 36,
  control_predecessor_ids = 37,
  called_computation_ids = 38,
  sharding = 40,
  backend_config = 43,
  scatter_dimensions = 48,
  precision = 51,
  constrain_layout = 56,
  operand_layouts = 57,
  is_stable = 60,
  comparison_direction = 63,
  custom_call_has_side_effect = 65,
  indices_are_sorted = 67,
  frontend_attributes = 68,
  unique_indices = 69,
  rng_algorithm = 70,
  comparison_type = 72,
  api_version = 77,
  k = 81,
  statistics = 82,
  largest = 85,
  original_value = 88,
  is_composite = 89,
};
}

namespace shape_field {
enum : uint32_t { element_type = 2, dimensions = 3, tuple_shapes = 4, layout = 5, is_dynamic = 6 };
}
namespace layout_field {
enum : uint32_t { minor_to_major = 1, tail_padding_alignment = 16 };
}
namespace program_shape_field {
enum : uint32_t { parameters = 1, result = 2, parameter_names = 3 };
}

using Message = protozero::pbf_reader;

// protozero checks that values fit the bytes; that a field is of the expected wire type is for its
// caller to check. What does not fit is an exception of protozero's, caught by the reader's entry.

inline void require(const Message& at, protozero::pbf_wire_type type) {
  if (at.wire_type() != type) throw protozero::unknown_pbf_wire_type_exception();
}
inline int64_t take_integer(Message& at) {
  require(at, protozero::pbf_wire_type::varint);
  return at.get_int64();
}
inline bool take_flag(Message& at) { return take_integer(at) != 0; }
inline std::string_view take_bytes(Message& at) {
  require(at, protozero::pbf_wire_type::length_delimited);
  const protozero::data_view view = at.get_view();
  return {view.data(), view.size()};
}
/// Repeated integers come packed, or one by one.
inline void take_integers(Message& at, std::vector<int64_t>& into) {
  if (at.wire_type() != protozero::pbf_wire_type::length_delimited) {
    into.push_back(take_integer(at));
    return;
  }
  for (const int64_t value : at.get_packed_int64()) into.push_back(value);
}
inline Message message(std::string_view bytes) { return Message(bytes.data(), bytes.size()); }

}  // namespace heddle::hlo::proto
