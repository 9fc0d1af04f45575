#include "tools/changed_part.h"

#include <string>
#include <unordered_map>
#include <vector>

#include "tools/heddle_call.h"

namespace heddle::tools {

using hlo::Instruction;

namespace {

// A picture of more is no picture.
constexpr size_t kMostInstructions = 300;

using Names = std::unordered_map<std::string, const Instruction*>;

Names names_of(const hlo::Computation& computation) {
  Names names;
  for (const Instruction* x : computation.instructions()) names.emplace(x->name(), x);
  return names;
}

/// The first call of either kind.
std::vector<const Instruction*> examples(const std::vector<const Instruction*>& calls) {
  std::vector<const Instruction*> found;
  for (const bool backward : {false, true})
    for (const Instruction* call : calls)
      if (is_backward(*call) == backward) {
        found.push_back(call);
        break;
      }
  return found;
}

class Comparison {
 public:
  Comparison(const hlo::Computation& before, const hlo::Computation& after)
      : before_(names_of(before)), after_(names_of(after)), old_root_(before.root()) {
    std::vector<const Instruction*> calls;
    for (const Instruction* x : after.dependency_order())
      if (is_heddle_call(*x) && !before_.contains(x->name())) calls.push_back(x);
    const std::vector<const Instruction*> shown = examples(calls);
    for (const Instruction* call : shown) {
      part_.after.insert(call);
      add_made_before(*call);
      add_made_after(*call);
    }
    part_.calls = static_cast<int>(shown.size());
    part_.of = static_cast<int>(calls.size());
  }

  ChangedPart take() { return std::move(part_); }

 private:
  bool is_made(const Instruction& x) const {
    return !before_.contains(x.name()) && !is_heddle_call(x);
  }

  void add_made_before(const Instruction& x) {
    for (const Instruction* operand : x.operands())
      if (is_made(*operand) && part_.after.insert(operand).second) add_made_before(*operand);
  }

  /// Up to what was there before, and from there what it was made of then.
  void add_made_after(const Instruction& x) {
    if (x.is_root()) add_gone(old_root_);
    for (const Instruction* user : x.users()) {
      if (is_made(*user)) {
        if (part_.after.insert(user).second) add_made_after(*user);
      } else if (const auto old = before_.find(user->name()); old != before_.end()) {
        for (const Instruction* operand : old->second->operands()) add_gone(operand);
      }
    }
  }

  void add_gone(const Instruction* x) {
    std::vector<const Instruction*> next = {x};
    for (size_t i = 0; i < next.size() && part_.before.size() < kMostInstructions; ++i) {
      if (after_.contains(next[i]->name()) || !part_.before.insert(next[i]).second) continue;
      for (const Instruction* operand : next[i]->operands()) next.push_back(operand);
    }
  }

  Names before_, after_;
  const Instruction* old_root_;
  ChangedPart part_;
};

}  // namespace

ChangedPart changed_part(const hlo::Computation& before, const hlo::Computation& after) {
  return Comparison(before, after).take();
}

}  // namespace heddle::tools
