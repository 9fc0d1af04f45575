// From a problem's operands to what kernels are given: strides once, when the plan is made, and
// addresses at each execution.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/parameters.h"
#include "core/status.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// Strides of an operand; data and offsets stay null until bind().
attention::Tensor tensor_of(const problem::AttentionStructure& structure,
                            const problem::AttentionSizes& sizes, problem::OperandId id);

/// One entry of a parameter block that an execution must fill with an operand's address.
struct Address {
  size_t offset;  ///< bytes into the parameter block
  problem::OperandId operand;
};

/// Writes each operand's address into the parameter block.
inline void bind(std::span<const Address> addresses, std::span<void* const> buffers,
                 void* parameters) {
  for (const Address& address : addresses) {
    *reinterpret_cast<void**>(static_cast<char*>(parameters) + address.offset) =
        buffers[static_cast<size_t>(address.operand)];
  }
}

/// Whether every row of `id` can start on 16 bytes: all strides of dims > 1 are multiples of 16
/// bytes and so is the row's length. The base address is the caller's duty, checked at execution.
bool rows_are_aligned(const problem::AttentionStructure& structure,
                      const problem::AttentionSizes& sizes, problem::OperandId id);

}  // namespace heddle::engine::cuda
