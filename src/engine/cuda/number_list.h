// Lists of numbers that kernels know by their address alone: lengths, offsets, sinks.
#pragma once

#include <string_view>

#include "core/status.h"
#include "problem/operand.h"

namespace heddle::engine::cuda {

/// The numbers lie one beside the other, or a sentence about `name`.
Status check_number_list(std::string_view name, const problem::OperandLayout& layout);

}  // namespace heddle::engine::cuda
