// What a while loop is: how often it runs, which of its state stays the same, and which of its
// state are stacks written or read at the induction variable.
#pragma once

#include <cstdint>
#include <optional>

#include "hlo/module.h"

namespace heddle::rewrite {

/// A loop that counts: state element `induction` goes 0, 1, ..., trips - 1.
struct CountedLoop {
  int64_t induction = 0;
  int64_t trips = 0;
};

/// Nothing unless start, step and condition prove the count.
std::optional<CountedLoop> counted(const hlo::Instruction* loop);
/// Whether the body hands element `index` of its state on unchanged.
bool is_invariant(const hlo::Computation* body, int64_t index);
/// What element `index` of a loop's state is when the loop starts; null if that is not in sight.
const hlo::Instruction* initial(const hlo::Instruction* loop, int64_t index);
/// The single dynamic-update-slice that writes one row of stack `index` an iteration, each once
/// (direction() of its index is not 0), with nothing else done to the stack in the body; null
/// otherwise.
const hlo::Instruction* stack_write(const hlo::Instruction* loop, const CountedLoop& count,
                                    int64_t index);
/// For an index expression of `body`: +1 if it is the induction variable, -1 if it is
/// trips - 1 - induction, 0 if neither.
int direction(const hlo::Instruction* loop, const CountedLoop& count,
              const hlo::Instruction* index);
/// Whether a dynamic-slice or -update-slice touches exactly one whole row: starts 0 but in
/// dimension 0. `first` is the operand number of the first start.
bool touches_one_row(const hlo::Instruction* x, int first, const hlo::Shape& row);

}  // namespace heddle::rewrite
