// Operands bound to their buffers, as the kernels see them.
#pragma once

#include <span>
#include <string_view>

#include "core/status.h"
#include "engine/cpu/arguments.h"
#include "problem/operand.h"

namespace heddle::engine::cpu {

/// Fills in views[n] of each operand n. Fails, in sentences that begin with `op`, if a buffer is
/// missing or not aligned to its elements.
Status views_of(std::string_view op, const problem::OperandTypes& types,
                const problem::OperandLayouts& layouts, std::span<void* const> buffers,
                View* views);

/// A view of dense memory of our own, e.g. a rotated copy.
View dense_view(void* data, DataType dtype, const Dims& dims);

}  // namespace heddle::engine::cpu
