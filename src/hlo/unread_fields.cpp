#include "hlo/unread_fields.h"

#include "hlo/proto_fields.h"

namespace heddle::hlo {
namespace {

/// Whether a field says nothing that is not known otherwise. Any other is compared by its bytes,
/// also where an attribute is made of it: precision, comparison type, window and sharding say more
/// than their attributes do, and what XLA adds later is not known at all.
bool is_known_otherwise(uint32_t number) {
  namespace field = proto::instruction_field;
  switch (number) {
    // What the instruction itself holds.
    case field::name:
    case field::opcode:
    case field::shape:
    case field::literal:
    case field::parameter_number:
    case field::id:
    case field::operand_ids:
    case field::control_predecessor_ids:
    case field::called_computation_ids:
    // What its attributes say whole; instructions that Heddle adds have these alone.
    case field::tuple_index:
    case field::dimensions:
    case field::slice:
    case field::dynamic_slice_sizes:
    case field::padding:
    case field::dot_dimensions:
    case field::comparison_direction:
    // Where in the source it stood, and what tools that follow values through XLA were told of it.
    case field::metadata:
    case field::statistics:
    case field::original_value:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string unread_fields(std::string_view wire) {
  std::string out;
  proto::Message at = proto::message(wire);
  for (size_t start = 0; at.next(); start = wire.size() - at.length()) {
    const uint32_t number = at.tag();
    at.skip();
    const std::string_view field = wire.substr(start, wire.size() - at.length() - start);
    // XLA writes frontend attributes also where there are none.
    const bool is_empty =
        number == proto::instruction_field::frontend_attributes && field.back() == '\0';
    if (!is_known_otherwise(number) && !is_empty) out += field;
  }
  return out;
}

}  // namespace heddle::hlo
