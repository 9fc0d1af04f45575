// From a problem's operands to what kernels are given: strides once, when the plan is made, and
// addresses at each execution.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "attention/parameters.h"
#include "core/status.h"
#include "problem/facts.h"
#include "problem/operands.h"

namespace heddle::engine::cuda {

/// Strides of an operand; data and offsets stay null until bind_entries().
attention::Tensor tensor_of(const problem::AttentionStructure& structure,
                            const problem::AttentionSizes& sizes, problem::OperandId id);

/// One entry of a parameter block that an execution fills in: an operand's address or, for a
/// pass-by-value scalar, its value.
struct Entry {
  enum class Kind : uint8_t { address, integer, real };
  size_t offset = 0;  ///< bytes into the parameter block
  problem::OperandId operand = problem::kAbsent;
  Kind kind = Kind::address;
  DataType dtype = DataType::f32;  ///< of the scalar in host memory
};

/// Fills the entries of a parameter block. Integers are written as 64 bits, reals as f32. (Called
/// bind, it would be std::bind of a vector of them wherever <functional> is included.)
void bind_entries(std::span<const Entry> entries, std::span<void* const> buffers, void* parameters);

/// Whether each of `operands` starts on 16 bytes, as the kernel planned for it was told.
Status check_addresses(std::span<const problem::NamedOperand> operands,
                       std::span<void* const> buffers);

/// Whether all rows of the structure's tensors can start on 16 bytes. Base addresses are the
/// caller's duty, checked at execution.
template <class Structure>
bool rows_are_aligned(const Structure& structure, const std::vector<problem::OperandType>& types,
                      const problem::AttentionFacts& facts) {
  return std::ranges::all_of(problem::tensors_of(structure), [&](const problem::NamedOperand& one) {
    return facts.operand(one.id).has_aligned_rows(types[static_cast<size_t>(one.id)].dtype);
  });
}

}  // namespace heddle::engine::cuda
