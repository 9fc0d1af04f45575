// The shape an operation gives, from its operands' shapes and its attributes.
#pragma once

#include "core/status.h"
#include "hlo/instruction.h"

namespace heddle::hlo {

/// The result's shape without layout, or a sentence about operands or attributes that do not fit.
/// Operations whose result their operands do not determine (parameter, iota, reshape, broadcast,
/// convert, custom-call, unknown ones, ...) check what can be checked against the instruction's own
/// shape and give that. A dot's element type is the instruction's own too.
Result<Shape> infer_shape(const Instruction& instruction);

/// Whether an operation, its shape or that of an operand, is of unknown size. No rule holds it to
/// its operands and attributes then: the readers make it an unknown one, carried and not
/// understood.
bool has_unknown_sizes(const Instruction& instruction);

}  // namespace heddle::hlo
