#include <algorithm>
#include <optional>
#include <protozero/exception.hpp>
#include <protozero/pbf_writer.hpp>
#include <unordered_map>
#include <unordered_set>

#include "hlo/proto_fields.h"
#include "hlo/proto_instruction.h"
#include "hlo/proto_literal.h"
#include "hlo/proto_shape.h"
#include "hlo/read_proto.h"

namespace heddle::hlo {
namespace {

using proto::EncodedField;
namespace field = proto::instruction_field;

bool refers(const AttributeValue& value) {
  return std::holds_alternative<Computation*>(value) ||
         std::holds_alternative<std::vector<Computation*>>(value) ||
         std::holds_alternative<std::vector<Instruction*>>(value);
}

/// The fields of `message` in their order, as they are, but for those in `but`.
void copy_fields(std::string_view message, const std::unordered_set<uint32_t>& but,
                 std::string& out) {
  proto::Message at = proto::message(message);
  for (size_t start = 0; at.next(); start = message.size() - at.length()) {
    const uint32_t number = at.tag();
    at.skip();
    if (!but.count(number)) out += message.substr(start, message.size() - at.length() - start);
  }
}

/// What differs between an instruction and the message it was read from, as fields to put in.
class Changes {
 public:
  void put(EncodedField field) {
    if (std::any_of(fields_.begin(), fields_.end(),
                    [&](const EncodedField& other) { return other.number == field.number; }))
      return;  // two attributes may be one field
    replaced_.insert(field.number);
    fields_.push_back(std::move(field));
  }
  template <class Write>
  void put(uint32_t number, Write&& write) {
    EncodedField field{number, {}};
    protozero::pbf_writer out(field.bytes);
    write(out);
    put(std::move(field));
  }
  void drop(uint32_t number) { replaced_.insert(number); }

  std::string applied_to(std::string_view message) const {
    std::string out;
    copy_fields(message, replaced_, out);
    for (const EncodedField& field : fields_) out += field.bytes;
    return out;
  }

 private:
  std::unordered_set<uint32_t> replaced_;
  std::vector<EncodedField> fields_;
};

class ProtoWriter {
 public:
  explicit ProtoWriter(const Module& module) : module_(module) {}

  Result<std::string> write() {
    HEDDLE_TRY(read_declared());
    number();
    std::string bytes;
    copy_fields(*module_.wire(),
                {proto::module_field::computations, proto::module_field::entry_name,
                 proto::module_field::entry_id},
                bytes);
    protozero::pbf_writer out(bytes);
    out.add_string(proto::module_field::entry_name, module_.entry()->name());
    out.add_int64(proto::module_field::entry_id, computation_ids_.at(module_.entry()));
    for (const Computation* computation : module_.callees_first()) {
      HEDDLE_ASSIGN(const std::string part, this->computation(*computation));
      out.add_message(proto::module_field::computations, part);
    }
    return bytes;
  }

 private:
  Status read_declared();
  void number();
  Result<std::string> computation(const Computation& computation);
  Result<std::string> instruction(const Instruction& x);
  Result<Shape> shape_of(const Instruction& x) const;
  Status put_attributes(const Instruction& x, const proto::InstructionFields& was,
                        Changes& changes) const;
  void put_references(const Instruction& x, Changes& changes) const;

  const Module& module_;
  std::optional<proto::ProgramShape> declared_;
  std::string declared_bytes_;
  std::unordered_map<const Computation*, int64_t> computation_ids_;
  std::unordered_map<const Instruction*, int64_t> instruction_ids_;
};

Status ProtoWriter::read_declared() {
  for (proto::Message at = proto::message(*module_.wire()); at.next();) {
    if (at.tag() == proto::module_field::program_shape) {
      declared_bytes_ = proto::take_bytes(at);
    } else {
      at.skip();
    }
  }
  if (declared_bytes_.empty()) return {};
  HEDDLE_ASSIGN(declared_, proto::read_program_shape(declared_bytes_));
  if (declared_->parameters.size() != module_.entry()->parameters().size()) {
    return error(Code::invalid_value, "module {} declares {} parameters, and its entry has {}",
                 module_.name(), declared_->parameters.size(),
                 module_.entry()->parameters().size());
  }
  return {};
}

int64_t integer_field(std::string_view message, uint32_t number) {
  int64_t value = 0;
  for (proto::Message at = proto::message(message); at.next();) {
    if (at.tag() == number) {
      value = proto::take_integer(at);
    } else {
      at.skip();
    }
  }
  return value;
}

/// Computations keep their ids, but for those that XLA would not give: an id must fit into half of
/// an instruction's. Instructions are numbered in order: within their computation, its id in the
/// high half, if the module was so (XLA since 2025), else throughout the module.
void ProtoWriter::number() {
  int64_t next = 0;
  bool halves = false;
  std::unordered_set<int64_t> taken;
  const std::vector<Computation*> order = module_.callees_first();
  for (const Computation* computation : order) {
    if (computation->wire().empty()) continue;
    const int64_t id = integer_field(computation->wire(), proto::computation_field::id);
    if (id >= 0 && id <= INT32_MAX && taken.insert(id).second) {
      computation_ids_[computation] = id;
      next = std::max(next, id + 1);
    }
    const int64_t root = integer_field(computation->wire(), proto::computation_field::root_id);
    halves = halves || root >> 32 != 0;
  }
  for (const Computation* computation : order) {
    if (!computation_ids_.count(computation)) computation_ids_[computation] = next++;
  }
  int64_t local = 0;
  for (const Computation* computation : order) {
    if (halves) local = 0;
    const int64_t high = halves ? computation_ids_.at(computation) << 32 : 0;
    for (const Instruction* x : computation->dependency_order())
      instruction_ids_[x] = high | local++;
  }
}

Result<std::string> ProtoWriter::computation(const Computation& computation) {
  std::string bytes;
  proto::ProgramShape shape;
  std::vector<std::string> names;
  for (const Instruction* parameter : computation.parameters()) {
    HEDDLE_ASSIGN(Shape of_parameter, shape_of(*parameter));
    shape.parameters.push_back(std::move(of_parameter));
    names.push_back(parameter->name());
  }
  HEDDLE_ASSIGN(shape.result, shape_of(*computation.root()));
  std::string shape_bytes;
  for (proto::Message at = proto::message(computation.wire()); at.next();) {
    if (at.tag() == proto::computation_field::program_shape) {
      shape_bytes = proto::take_bytes(at);
    } else {
      at.skip();
    }
  }
  HEDDLE_ASSIGN(const proto::ProgramShape was, proto::read_program_shape(shape_bytes));
  if (shape_bytes.empty() || was != shape) shape_bytes = proto::write_program_shape(shape, names);

  namespace part = proto::computation_field;
  copy_fields(computation.wire(),
              {part::name, part::instructions, part::program_shape, part::id, part::root_id},
              bytes);
  protozero::pbf_writer out(bytes);
  out.add_string(part::name, computation.name());
  for (const Instruction* x : computation.dependency_order()) {
    HEDDLE_ASSIGN(const std::string instruction, this->instruction(*x));
    out.add_message(part::instructions, instruction);
  }
  out.add_message(part::program_shape, shape_bytes);
  out.add_int64(part::id, computation_ids_.at(&computation));
  out.add_int64(part::root_id, instruction_ids_.at(computation.root()));
  return bytes;
}

/// The instruction's own shape; at the edge of the entry with the layouts that are declared.
Result<Shape> ProtoWriter::shape_of(const Instruction& x) const {
  if (!declared_ || !x.computation()->is_entry()) return x.shape();
  const Shape* declared = x.is_root()               ? &declared_->result
                          : x.is(Opcode::parameter) ? &declared_->parameters[x.parameter_number()]
                                                    : nullptr;
  if (!declared || *declared == x.shape() || !same_but_layout(*declared, x.shape()))
    return x.shape();
  if (x.is(Opcode::custom_call) && x.has("operand_layout_constraints")) {
    return error(Code::graph_not_supported,
                 "the program's result is that of {}, a custom call whose layout is fixed and not "
                 "the declared one",
                 x.name());
  }
  return *declared;
}

Status ProtoWriter::put_attributes(const Instruction& x, const proto::InstructionFields& was,
                                   Changes& changes) const {
  const auto find = [](const std::vector<Attribute>& list, std::string_view name) {
    return std::find_if(list.begin(), list.end(),
                        [&](const Attribute& attribute) { return attribute.name == name; });
  };
  for (const Attribute& attribute : x.attributes()) {
    if (refers(attribute.value)) continue;
    const auto before = find(was.attributes, attribute.name);
    if (before != was.attributes.end() && before->value == attribute.value) continue;
    HEDDLE_ASSIGN(std::vector<EncodedField> fields, proto::encode_attribute(x, attribute.name));
    for (EncodedField& field : fields) changes.put(std::move(field));
  }
  for (const Attribute& attribute : was.attributes) {
    if (find(x.attributes(), attribute.name) == x.attributes().end()) {
      return error(Code::graph_not_supported,
                   "{} has lost its attribute {}, which cannot be written in protobuf", x.name(),
                   attribute.name);
    }
  }
  return {};
}

void ProtoWriter::put_references(const Instruction& x, Changes& changes) const {
  const auto put = [&](uint32_t number, const std::vector<int64_t>& ids) {
    changes.put(number, [&](protozero::pbf_writer& out) {
      if (!ids.empty()) out.add_packed_int64(number, ids.begin(), ids.end());
    });
  };
  changes.put(field::id, [&](protozero::pbf_writer& out) {
    out.add_int64(field::id, instruction_ids_.at(&x));
  });
  std::vector<int64_t> operands, before, called;
  for (const Instruction* operand : x.operands()) operands.push_back(instruction_ids_.at(operand));
  for (const Instruction* predecessor : x.control_predecessors())
    before.push_back(instruction_ids_.at(predecessor));
  for (const Computation* callee : x.called_computations())
    called.push_back(computation_ids_.at(callee));
  if (x.is(Opcode::while_)) {
    called = {computation_ids_.at(x.body()), computation_ids_.at(x.condition())};
  }
  put(field::operand_ids, operands);
  put(field::control_predecessor_ids, before);
  put(field::called_computation_ids, called);
}

Result<std::string> ProtoWriter::instruction(const Instruction& x) {
  const bool is_new = x.wire().empty();
  HEDDLE_ASSIGN(const proto::InstructionFields was, proto::read_instruction(x.wire()));
  HEDDLE_ASSIGN(const Shape shape, shape_of(x));
  Changes changes;
  if (is_new || x.name() != was.name) {
    changes.put(field::name,
                [&](protozero::pbf_writer& out) { out.add_string(field::name, x.name()); });
  }
  if (is_new) {
    changes.put(field::opcode, [&](protozero::pbf_writer& out) {
      const std::string_view opcode = x.opcode_name();
      out.add_string(field::opcode, opcode.data(), opcode.size());
    });
  }
  if (is_new || shape != was.shape) {
    changes.put(field::shape, [&](protozero::pbf_writer& out) {
      out.add_message(field::shape, proto::write_shape(shape));
    });
    if (!is_new && !same_but_layout(shape, was.shape)) {
      // Both speak of every part of a tuple, as it was.
      changes.drop(field::original_value);
      changes.drop(field::sharding);
    }
  }
  if (x.is(Opcode::parameter) && x.parameter_number() != was.parameter_number) {
    changes.put(field::parameter_number, [&](protozero::pbf_writer& out) {
      out.add_int64(field::parameter_number, x.parameter_number());
    });
  }
  if (x.literal() && !(was.literal && *was.literal == *x.literal())) {
    HEDDLE_ASSIGN(const std::string literal, proto::write_literal(*x.literal()));
    changes.put(field::literal,
                [&](protozero::pbf_writer& out) { out.add_message(field::literal, literal); });
  }
  HEDDLE_TRY(put_attributes(x, was, changes));
  put_references(x, changes);
  return changes.applied_to(x.wire());
}

}  // namespace

Result<std::string> write_proto(const Module& module) {
  if (!module.wire()) {
    return error(Code::invalid_value,
                 "module {} was not read from protobuf, so it cannot be written in it",
                 module.name());
  }
  try {
    return ProtoWriter(module).write();
  } catch (const protozero::exception& exception) {
    return error(Code::malformed_input, "module {}: {}", module.name(), exception.what());
  }
}

}  // namespace heddle::hlo
