// What a module's results need, loop state by loop state, and of conditionals result by result and
// argument by argument: an element that a loop only hands to itself is dead.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "hlo/module.h"
#include "rewrite/branch_reads.h"

namespace heddle::rewrite {

class Liveness {
 public:
  /// `replaced`: instructions that will be computed by a call from these operands instead of from
  /// their own. `reads` may be of the module before calls and elements were added to it.
  using Replaced =
      std::unordered_map<const hlo::Instruction*, std::vector<const hlo::Instruction*>>;
  Liveness(const hlo::Module& module, const Callers& callers, const BranchReads& reads,
           const Replaced& replaced = {});

  bool is_live(const hlo::Instruction* x) const { return live_.contains(x); }
  /// Of a loop's state, a conditional's results or what a branch's parameter is.
  bool is_live(const hlo::Instruction* tuple, int64_t element) const {
    return states_.contains({tuple, element});
  }
  /// Whether the elements of this loop's or conditional's tuples are told apart.
  bool tells_apart(const hlo::Instruction* x) const { return !whole_.contains(x); }
  /// Whether this branch has to give `element` of its conditional's results.
  bool is_given(const hlo::Computation* branch, int64_t element) const {
    return given_.contains({branch, element});
  }

 private:
  void need(const hlo::Instruction* x);
  /// What happens in `computation` whether its result is read or not.
  void need_effects(const hlo::Computation* computation);
  void need_state(const hlo::Instruction* loop, int64_t element);
  void need_all_state(const hlo::Instruction* loop);
  void need_result(const hlo::Instruction* conditional, int64_t element);
  void need_given(const hlo::Computation* branch, int64_t element);
  void need_choice(const hlo::Instruction* conditional);
  void need_all_results(const hlo::Instruction* conditional);
  void need_argument(const hlo::Instruction* parameter, int64_t element);
  /// The loop whose state `x` is in its body or condition; null if it is none.
  const hlo::Instruction* loop_of(const hlo::Instruction* x) const;
  /// Element `element` of `tuple`; whether that is one of those that are told apart.
  bool need_element(const hlo::Instruction* tuple, int64_t element);
  void run();

  const BranchReads& reads_;
  const Replaced& replaced_;
  const Callers& callers_;
  /// Loops and conditionals whose tuples are not taken apart.
  std::unordered_set<const hlo::Instruction*> whole_;
  std::unordered_set<const hlo::Instruction*> live_;
  std::set<std::pair<const hlo::Instruction*, int64_t>> states_;
  std::set<std::pair<const hlo::Computation*, int64_t>> given_;
  std::vector<const hlo::Instruction*> work_;
};

/// Removes the elements of loop states, of conditionals' results and of what branches are given
/// that nothing needs, wherever they are made and taken apart, and then what only they needed; a
/// result that one of the branches need not give is 0 there. `reads` is of `module`.
Status remove_dead_state(hlo::Module& module, const BranchReads& reads = {});

}  // namespace heddle::rewrite
