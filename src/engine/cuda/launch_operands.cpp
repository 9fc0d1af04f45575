#include "engine/cuda/launch_operands.h"

namespace heddle::engine::cuda {

attention::Tensor tensor_of(const problem::AttentionStructure& structure,
                            const problem::AttentionSizes& sizes, problem::OperandId id) {
  attention::Tensor tensor{};
  if (id == problem::kAbsent) return tensor;
  const problem::OperandType& type = structure.operands[static_cast<size_t>(id)];
  const problem::OperandLayout& layout = sizes.layouts[static_cast<size_t>(id)];
  for (int i = 0; i < 4 && i < layout.strides.rank(); ++i) tensor.stride[i] = layout.strides[i];
  tensor.multiplier = layout.ragged_multiplier;
  if (type.ragged_offsets != problem::kAbsent) {
    tensor.offsets_are_64_bit =
        structure.operands[static_cast<size_t>(type.ragged_offsets)].dtype == DataType::i64;
  }
  return tensor;
}

bool rows_are_aligned(const problem::AttentionStructure& structure,
                      const problem::AttentionSizes& sizes, problem::OperandId id) {
  if (id == problem::kAbsent) return true;
  const problem::OperandLayout& layout = sizes.layouts[static_cast<size_t>(id)];
  const int64_t element = size_of(structure.operands[static_cast<size_t>(id)].dtype);
  // Ragged sequences may start anywhere their offsets say.
  if (structure.operands[static_cast<size_t>(id)].ragged_offsets != problem::kAbsent &&
      layout.ragged_multiplier * element % 16 != 0) {
    return false;
  }
  for (int i = 0; i + 1 < layout.strides.rank(); ++i) {
    if (layout.dims[i] > 1 && layout.strides[i] * element % 16 != 0) return false;
  }
  return layout.dims.back() * element % 16 == 0;
}

}  // namespace heddle::engine::cuda
