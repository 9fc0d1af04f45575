// Where a value goes: its uses followed through views, tuples, calls and loops.
#pragma once

#include <functional>

#include "hlo/module.h"

namespace heddle::hlo {

/// Calls `visit(user, operand)` for every instruction that uses `value` or what its elements
/// became: after operations that move or slightly change elements, inside computations it is passed
/// to, after loops that carry it.
void for_each_use(const Instruction* value,
                  const std::function<void(const Instruction&, const Instruction*)>& visit);

}  // namespace heddle::hlo
