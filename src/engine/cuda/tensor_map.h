// Tensor maps: how the copy engine sees a (batch, head, row, column) operand.
#pragma once

#include "engine/cuda/driver.h"
#include "problem/facts.h"

namespace heddle::engine::cuda {

/// All of a map but the address: dims and strides innermost first, and the box that one copy moves.
struct MapShape {
  TensorMapType type = TensorMapType::bfloat16;
  uint64_t dims[4] = {};
  uint64_t stride_bytes[3] = {};  ///< of dims 1, 2, 3
  unsigned box_columns = 64;      ///< of 128 bytes, swizzled
  unsigned box_rows = 64;
};

/// Whether the copy engine can move `id`: contiguous columns, all other strides positive multiples
/// of 16 bytes below 2^40. The base address is the caller's duty, checked at execution.
bool can_copy(const problem::AttentionStructure& structure, const problem::AttentionFacts& facts,
              problem::OperandId id);
Status check_copies(const problem::AttentionStructure& structure,
                    const problem::AttentionFacts& facts, problem::OperandId id);

/// The map of an operand of 16-bit elements or booleans with contiguous columns.
MapShape map_shape(const problem::AttentionStructure& structure,
                   const problem::AttentionSizes& sizes, problem::OperandId id, int box_rows);

/// The map of a dense tensor of bytes with contiguous columns, such as fp8, two in an element.
MapShape map_shape_of_bytes(const problem::OperandLayout& layout, int box_rows);

/// Makes the map, 0.09 us; of an operand without elements there is none, and nothing to copy. At
/// execution, not with the plan, which a thread without a context may make.
Status encode(const Driver& driver, const MapShape& shape, void* address, TensorMap& map);

}  // namespace heddle::engine::cuda
