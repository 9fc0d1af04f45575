// A computation: instructions in an order, parameters, a root.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "hlo/instruction.h"

namespace heddle::hlo {

class Module;

class Computation {
 public:
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  const std::string& name() const { return name_; }
  Module* module() const { return module_; }
  bool is_entry() const;
  Instruction* root() const { return root_; }
  void set_root(Instruction* root) { root_ = root; }
  /// By parameter number.
  const std::vector<Instruction*>& parameters() const { return parameters_; }
  Instruction* parameter(int i) const { return parameters_[i]; }

  /// In the order they were read or added; a view that edits of the computation invalidate.
  /// Operands may stand behind their users after an edit: see dependency_order().
  std::vector<Instruction*> instructions() const;
  int instruction_count() const { return static_cast<int>(instructions_.size()); }
  /// Every operand and control predecessor before its user; the stored order where that is one.
  /// Instructions on a cycle (which verify() refuses) are left out.
  std::vector<Instruction*> dependency_order() const;
  /// Stores them in that order, unless one is on a cycle.
  void sort();
  Instruction* find(std::string_view name) const;

  /// Appends an instruction. `name` is a wish: it is made unique in the module by a number.
  Instruction* add(Opcode opcode, Shape shape, std::vector<Instruction*> operands,
                   std::vector<Attribute> attributes = {}, std::string_view name = {});
  /// The same for an operation Heddle does not know.
  Instruction* add_unknown(std::string_view opcode, Shape shape, std::vector<Instruction*> operands,
                           std::vector<Attribute> attributes = {}, std::string_view name = {});
  Instruction* add_constant(Literal literal, std::string_view name = {});
  /// Appends a parameter numbered after the last one. Callers must be changed alike.
  Instruction* add_parameter(Shape shape, std::string_view name = {});
  /// Removes parameter `number`, which nobody may use, and renumbers those after it. Callers must
  /// be changed alike.
  Status remove_parameter(int number);
  /// Removes an instruction that has no users, is not the root and not a parameter.
  Status remove(Instruction* instruction);
  /// Removes whatever neither the root nor a side effect needs (parameters stay). Returns how many.
  int remove_dead();

  /// Text after the closing brace, verbatim: `, execution_thread="x"`.
  const std::string& trailing() const { return trailing_; }
  /// As Instruction::wire().
  std::string_view wire() const { return wire_; }

 private:
  friend class Module;
  friend class Reader;
  friend class ProtoReader;
  Computation() = default;
  Instruction* insert(std::unique_ptr<Instruction> instruction, std::string_view name);
  void append(std::unique_ptr<Instruction> instruction);
  /// Whether dependency_order() is the stored one.
  bool is_in_order() const;
  void count_positions();

  std::string name_;
  Module* module_ = nullptr;
  std::vector<std::unique_ptr<Instruction>> instructions_;
  std::vector<Instruction*> parameters_;
  Instruction* root_ = nullptr;
  std::string trailing_;
  std::string_view wire_;
};

}  // namespace heddle::hlo
