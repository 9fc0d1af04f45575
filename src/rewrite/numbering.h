// Value numbering: which instructions of a computation compute the same value by the same
// operation. Two do if everything that is known of them is equal: shape, operands, every attribute,
// the fields of their messages that nothing here reads, literals, and the computations they call,
// whole.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "hlo/module.h"

namespace heddle::rewrite {

class Numbering {
 public:
  /// For each instruction, by position, the first one of the same value in dependency order; itself
  /// if it is the first, has an effect, or cannot be compared. Computations are numbered after
  /// those that they call: an operation whose callee has no number yet equals nothing else.
  std::vector<const hlo::Instruction*> number(const hlo::Computation* computation);
  /// What an instruction of the computation numbered last is apart from its operands: equal for
  /// those of any computation that give the same of the same operands, -1 if it equals no other.
  /// Parameters are told apart by their numbers alone.
  int64_t operation_of(const hlo::Instruction* x) const { return operations_[x->position()]; }

 private:
  int64_t intern(std::string key);
  bool append_attribute(const hlo::Attribute& attribute, std::string& key) const;
  bool append_callee(const hlo::Computation* callee, std::string& key) const;
  int64_t number_of(const hlo::Literal& literal);
  int64_t operation(const hlo::Instruction* x);
  void number_whole(const hlo::Computation* computation);

  std::unordered_map<std::string, int64_t> keys_;
  std::unordered_map<size_t, std::vector<std::pair<hlo::Literal, int64_t>>> literals_;  // by hash
  std::vector<int64_t> operations_;  // of the current computation, by position
  /// Equal for computations that compute the same of the same arguments.
  std::unordered_map<const hlo::Computation*, int64_t> computations_;
};

}  // namespace heddle::rewrite
