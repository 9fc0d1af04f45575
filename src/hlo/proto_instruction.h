// One instruction in the protobuf form of HLO, apart from what it refers to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "hlo/attribute.h"
#include "hlo/instruction.h"
#include "hlo/literal.h"

namespace heddle::hlo::proto {

struct InstructionFields {
  std::string name, opcode;
  Shape shape;
  std::optional<Literal> literal;
  int64_t parameter_number = 0;
  /// By name as in text; those that refer to computations or instructions are missing.
  std::vector<Attribute> attributes;
  int64_t id = 0;
  std::vector<int64_t> operand_ids, control_predecessor_ids, called_computation_ids;
};

/// Throws protozero's exceptions.
Result<InstructionFields> read_instruction(std::string_view bytes);

/// A field's number and what follows it.
struct EncodedField {
  uint32_t number = 0;
  std::string bytes;  // with the tag
};

/// The fields that say `name`, an attribute of `instruction` that refers to nothing. Fails with a
/// sentence for the attributes that Heddle never makes.
Result<std::vector<EncodedField>> encode_attribute(const Instruction& instruction,
                                                   std::string_view name);

}  // namespace heddle::hlo::proto
