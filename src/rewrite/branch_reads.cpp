#include "rewrite/branch_reads.h"

#include <algorithm>
#include <vector>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

using Place = BranchReads::Place;

/// Everything that a result is handed to, through tuples, loops' states and stacks.
class Passage {
 public:
  Passage(const Callers& callers, const std::map<Place, Place>& reads)
      : callers_(callers), reads_(reads) {}

  /// Whether all of it ends as an argument that is read as `result`.
  bool ends_in_branches(const Place& result) {
    result_ = result;
    see_elements(result.first, result.second);
    while (!work_.empty()) {
      const Instruction* x = work_.back();
      work_.pop_back();
      if (x->is_root()) return false;
      for (const Instruction* user : x->users())
        if (!is_passed_on(x, user)) return false;
    }
    return true;
  }

 private:
  void see(const Instruction* x) {
    if (seen_.insert(x).second) work_.push_back(x);
  }

  void see_elements(const Instruction* tuple, int64_t element) {
    for (const Instruction* user : tuple->users())
      if (user->is(Opcode::get_tuple_element) && user->tuple_index() == element) see(user);
  }

  void see_state(const Instruction* loop, int64_t element) {
    for (const Instruction* tuple :
         {loop, static_cast<const Instruction*>(loop->body()->parameter(0)),
          static_cast<const Instruction*>(loop->condition()->parameter(0))})
      see_elements(tuple, element);
  }

  bool is_passed_on(const Instruction* x, const Instruction* user) {
    switch (user->opcode()) {
      case Opcode::reshape:
      case Opcode::copy:
      case Opcode::dynamic_slice:
      case Opcode::dynamic_update_slice:
        see(user);
        return true;
      case Opcode::tuple:
        return is_taken_on(x, user);
      default:
        return false;
    }
  }

  /// Whether `tuple`, which holds `x`, hands it on.
  bool is_taken_on(const Instruction* x, const Instruction* tuple) {
    for (int i = 0; i < tuple->operand_count(); ++i) {
      if (tuple->operand(i) != x) continue;
      if (tuple->is_root() && !see_next(tuple, i)) return false;
      for (const Instruction* user : tuple->users())
        if (!is_element_taken_on(tuple, i, user)) return false;
    }
    return true;
  }

  bool is_element_taken_on(const Instruction* tuple, int element, const Instruction* user) {
    if (user->is(Opcode::while_)) {
      see_state(user, element);
      return true;
    }
    if (user->is(Opcode::opt_barrier)) {
      see_elements(user, element);
      return true;
    }
    if (!user->is(Opcode::conditional)) return false;
    int given = 0;
    for (const hlo::Computation* branch : user->branches())
      if (user->operand(++given) == tuple && !is_argument_taken_on(branch->parameter(0), element))
        return false;
    return true;
  }

  bool is_argument_taken_on(const Instruction* parameter, int64_t element) {
    const auto read = reads_.find({parameter, element});
    // An argument that nothing reads was never resolved.
    if (read == reads_.end()) return !is_read(parameter, element);
    if (read->second == result_) return true;
    const auto outer = outer_.find(read->second);
    if (outer == outer_.end()) return false;
    // Of the conditional around, read by the branch that gives it or by one that gives another.
    if (number_of(parameter->computation()) == outer->second) see_elements(parameter, element);
    return true;
  }

  int number_of(const hlo::Computation* branch) const {
    const std::vector<hlo::Computation*> branches = callers_.only(branch)->branches();
    return static_cast<int>(std::find(branches.begin(), branches.end(), branch) - branches.begin());
  }

  static bool is_read(const Instruction* parameter, int64_t element) {
    for (const Instruction* user : parameter->users())
      if (!user->is(Opcode::get_tuple_element) || user->tuple_index() == element) return true;
    return parameter->is_root();
  }

  /// `tuple` as what a loop's body makes of its state, or a branch gives.
  bool see_next(const Instruction* tuple, int64_t element) {
    const Instruction* caller = callers_.only(tuple->computation());
    if (!caller) return false;
    if (caller->is(Opcode::while_)) {
      see_state(caller, element);
      return true;
    }
    if (!caller->is(Opcode::conditional)) return false;
    outer_.insert({{caller, element}, number_of(tuple->computation())});
    see_elements(caller, element);
    return true;
  }

  const Callers& callers_;
  const std::map<Place, Place>& reads_;
  Place result_;
  std::map<Place, int> outer_;  // results of conditionals around, and the branch that gives them
  std::vector<const Instruction*> work_;
  std::set<const Instruction*> seen_;
};

}  // namespace

BranchReads::BranchReads(const Elements& elements) {
  for (size_t i = 0; i < elements.frames().size(); ++i) {
    const Frame& frame = elements.frames()[i];
    if (frame.branch < 0 || frame.read_by < 0) continue;
    for (const ReadBack& read : elements.reads(static_cast<int>(i)))
      reads_[{read.read->operand(0), read.read->tuple_index()}] = {frame.caller, read.result};
  }
  for (const auto& [argument, result] : reads_)
    if (!for_branches_.contains(result) &&
        Passage(elements.callers(), reads_).ends_in_branches(result))
      for_branches_.insert(result);
}

const BranchReads::Place* BranchReads::read_by(const Place& argument) const {
  const auto read = reads_.find(argument);
  return read == reads_.end() || !is_for_branches(read->second) ? nullptr : &read->second;
}

}  // namespace heddle::rewrite
