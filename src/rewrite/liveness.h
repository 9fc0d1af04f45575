// What a module's results need, loop state by loop state: an element that a loop only hands to
// itself is dead.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hlo/module.h"

namespace heddle::rewrite {

class Liveness {
 public:
  /// `replaced`: instructions that will be computed by a call from these operands instead of from
  /// their own.
  using Replaced =
      std::unordered_map<const hlo::Instruction*, std::vector<const hlo::Instruction*>>;
  explicit Liveness(const hlo::Module& module, const Replaced& replaced = {});

  bool is_live(const hlo::Instruction* x) const { return live_.contains(x); }
  bool is_live(const hlo::Instruction* loop, int64_t element) const {
    return states_.contains({loop, element});
  }

 private:
  void need(const hlo::Instruction* x);
  /// What happens in `computation` whether its result is read or not.
  void need_effects(const hlo::Computation* computation);
  void need_state(const hlo::Instruction* loop, int64_t element);
  void need_all_state(const hlo::Instruction* loop);
  void run();

  const hlo::Module& module_;
  const Replaced& replaced_;
  /// By body and by condition.
  std::unordered_map<const hlo::Computation*, const hlo::Instruction*> loops_;
  std::unordered_set<const hlo::Instruction*> whole_;  // loops whose state is not taken apart
  std::unordered_set<const hlo::Instruction*> live_;
  std::set<std::pair<const hlo::Instruction*, int64_t>> states_;
  std::vector<const hlo::Instruction*> work_;
};

/// Removes the elements of loop states that nothing needs, from inits, bodies, conditions and
/// users, and then what only they needed. Returns how many elements.
int remove_dead_state(hlo::Module& module);

}  // namespace heddle::rewrite
