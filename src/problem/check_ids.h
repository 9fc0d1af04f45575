// The rules that hold wherever a structure names an operand.
#pragma once

#include "problem/operand_check.h"
#include "problem/operands.h"

namespace heddle::problem {

/// What is wrong with the ids of a structure, whatever is behind them.
template <class Structure>
Status check_ids(const OperandCheck& check, const Structure& structure) {
  Status status;
  const auto visit = [&](const char* label, OperandId id, Use use) {
    if (!status.is_ok()) return;
    status = check.exists(id, label);
    if (status.is_ok() && id != kAbsent && use == Use::written)
      status = check.is_writable(id, label);
  };
  operands(visit, structure);
  return status;
}

}  // namespace heddle::problem
