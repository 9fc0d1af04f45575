// One instruction of a computation. Instructions live at a stable address inside their computation
// until they are removed; operands and users are kept in step by every edit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/attribute.h"
#include "hlo/literal.h"
#include "hlo/opcode.h"
#include "hlo/shape.h"

namespace heddle::hlo {

class Computation;
class Module;

class Instruction {
 public:
  Instruction(const Instruction&) = delete;
  Instruction& operator=(const Instruction&) = delete;

  /// Unique in the module and never used again after removal.
  int64_t id() const { return id_; }
  /// Without "%". Unique in its computation; names made by add() are unique in the module.
  const std::string& name() const { return name_; }
  Opcode opcode() const { return opcode_; }
  bool is(Opcode opcode) const { return opcode_ == opcode; }
  /// The spelling in text, also of an unknown operation.
  std::string_view opcode_name() const;
  Computation* computation() const { return computation_; }
  /// Where it stands among Computation::instructions().
  int position() const { return position_; }
  Module* module() const;
  bool is_root() const;

  const Shape& shape() const { return shape_; }
  void set_shape(Shape shape) { shape_ = std::move(shape); }

  std::span<Instruction* const> operands() const { return operands_; }
  Instruction* operand(int i) const { return operands_[i]; }
  int operand_count() const { return static_cast<int>(operands_.size()); }
  void set_operand(int i, Instruction* operand);
  /// Every instruction that has this one among its operands, once each, in the order in which they
  /// began to. Control dependencies do not count.
  std::span<Instruction* const> users() const { return users_; }
  /// Makes every user use `other` instead, and `other` the root if this was. Shapes must agree up
  /// to layout; verify() checks.
  void replace_all_uses_with(Instruction* other);

  // Attributes, in the order of the text. get<T>() gives nothing if absent or of another type.
  const std::vector<Attribute>& attributes() const { return attributes_; }
  const AttributeValue* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  template <class T>
  const T* get(std::string_view name) const {
    const AttributeValue* value = find(name);
    return value ? std::get_if<T>(value) : nullptr;
  }
  /// Replaces the value in place, or appends the attribute.
  void set(std::string_view name, AttributeValue value);
  void erase(std::string_view name);

  /// `name={1,2}`; empty if absent.
  std::span<const int64_t> integers(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name) const;
  bool boolean(std::string_view name, bool otherwise = false) const;
  /// The text of a verbatim attribute, or a string attribute's decoded characters; empty if absent.
  std::string_view text(std::string_view name) const;

  // What the common attributes are called, for the reader's sake.
  std::span<const int64_t> dimensions() const { return integers("dimensions"); }
  std::span<const int64_t> lhs_batch_dims() const { return integers("lhs_batch_dims"); }
  std::span<const int64_t> rhs_batch_dims() const { return integers("rhs_batch_dims"); }
  std::span<const int64_t> lhs_contracting_dims() const { return integers("lhs_contracting_dims"); }
  std::span<const int64_t> rhs_contracting_dims() const { return integers("rhs_contracting_dims"); }
  /// compare's direction: "EQ", "NE", "GE", "GT", "LE", "LT".
  std::string_view direction() const { return text("direction"); }
  /// get-tuple-element's index, iota's dimension, parameter's number; -1 if this is none of these.
  int64_t tuple_index() const { return integer("index").value_or(-1); }
  int64_t iota_dimension() const { return integer("iota_dimension").value_or(-1); }
  int64_t parameter_number() const { return parameter_number_; }
  std::span<const SliceDimension> slice() const;
  std::span<const PaddingDimension> padding() const;
  std::span<const WindowDimension> window() const;
  std::string_view custom_call_target() const { return text("custom_call_target"); }
  /// backend_config: what lies between the quotes, decoded, or the raw `{...}` text.
  std::string backend_config() const;

  /// A constant's value (perhaps elided); null for every other instruction.
  const Literal* literal() const { return literal_.get(); }
  void set_literal(Literal literal) {
    literal_ = std::make_shared<const Literal>(std::move(literal));
  }

  /// The computation of to_apply, calls, condition, body, ...; null if absent.
  Computation* called(std::string_view attribute) const;
  Computation* to_apply() const { return called("to_apply"); }
  Computation* condition() const { return called("condition"); }
  Computation* body() const { return called("body"); }
  /// Every computation this instruction refers to, in the order of its attributes.
  std::vector<Computation*> called_computations() const;
  /// Of a conditional, in the order of what they are given; none if it does not say them.
  std::vector<Computation*> branches() const;
  std::span<Instruction* const> control_predecessors() const;

  /// The message this was read from, if the module came in protobuf form: a view into
  /// Module::wire(). Copies of an instruction have it too; writing takes from it what is not read.
  std::string_view wire() const { return wire_; }
  void set_wire(std::string_view wire) { wire_ = wire; }

  /// Must stay although nobody uses it: by opcode, or a custom-call that says so, or something it
  /// calls has one. Unknown operations count as having one.
  bool has_side_effect() const;

 private:
  friend class Computation;
  friend class Module;
  friend class Reader;
  friend class ProtoReader;
  Instruction() = default;
  bool uses(const Instruction* operand) const;
  void drop_user(Instruction* user);

  int64_t id_ = 0;
  std::string name_;
  Opcode opcode_ = Opcode::unknown;
  std::string unknown_opcode_;
  Computation* computation_ = nullptr;
  int position_ = 0;
  Shape shape_;
  std::vector<Instruction*> operands_;
  std::vector<Instruction*> users_;
  std::vector<Attribute> attributes_;
  std::shared_ptr<const Literal> literal_;  // of few instructions, shared by copies of them
  int64_t parameter_number_ = -1;
  std::string_view wire_;
};

}  // namespace heddle::hlo
