// Small random changes of an HLO module that leave it one: what people might have written, or a
// compiler made of it.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "hlo/module.h"

namespace heddle::fuzz {

class ModuleMutator {
 public:
  explicit ModuleMutator(uint64_t seed) : engine_(seed) {}

  /// Another module's text; the given one where none of a few attempts gave a module.
  std::string mutate(const std::string& text);

 private:
  size_t draw(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[draw(list.size())];
  }
  /// One size, element type or word of the text becomes another, everywhere or once.
  std::string changed_words(std::string text);
  void change(hlo::Module& module);
  void change_operand(hlo::Instruction* x);
  void leave_out(hlo::Instruction* x);
  void change_operation(hlo::Instruction* x);
  void change_attribute(hlo::Instruction* x);
  void change_constant(hlo::Instruction* x);
  /// An instruction ahead of `x` whose value fits where `like`'s stands; `like` if there is none.
  hlo::Instruction* another(const hlo::Instruction* x, hlo::Instruction* like);

  std::mt19937_64 engine_;
};

}  // namespace heddle::fuzz
