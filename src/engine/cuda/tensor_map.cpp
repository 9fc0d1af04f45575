#include "engine/cuda/tensor_map.h"

namespace heddle::engine::cuda {

bool can_copy(const problem::AttentionStructure& structure, const problem::AttentionFacts& facts,
              problem::OperandId id) {
  const problem::OperandFacts& operand = facts.operand(id);
  return operand.has_aligned_rows(structure.type(id).dtype) && operand.steps_forward;
}

Status check_copies(const problem::AttentionStructure& structure,
                    const problem::AttentionFacts& facts, problem::OperandId id) {
  if (can_copy(structure, facts, id)) return {};
  return error(Code::graph_not_supported,
               "cuda: sdpa operand {} has strides that the Hopper kernel's copies do not take: "
               "columns must be contiguous, all others positive multiples of 16 bytes below 2^40",
               id);
}

MapShape map_shape(const problem::AttentionStructure& structure,
                   const problem::AttentionSizes& sizes, problem::OperandId id, int box_rows) {
  const problem::OperandType& type = structure.type(id);
  const problem::OperandLayout& layout = sizes.layout(id);
  const auto element = static_cast<uint64_t>(size_of(type.dtype));
  MapShape shape;
  shape.type = type.dtype == DataType::f16       ? TensorMapType::float16
               : type.dtype == DataType::f32     ? TensorMapType::float32
               : type.dtype == DataType::boolean ? TensorMapType::uint8
                                                 : TensorMapType::bfloat16;
  shape.box_columns = static_cast<unsigned>(128 / element);
  shape.box_rows = static_cast<unsigned>(box_rows);
  const bool ragged = type.storage.is_ragged();
  for (int i = 0; i < 4; ++i) {
    const int axis = 3 - i;
    // Sequences of a ragged tensor are found by their offsets, not by a batch stride.
    shape.dims[i] = ragged && axis == 0 ? 1 : static_cast<uint64_t>(layout.dims[axis]);
    if (i == 0) continue;
    // A dim of one element has any stride: the least the driver takes.
    const uint64_t stride = static_cast<uint64_t>(layout.strides[axis]) * element;
    shape.stride_bytes[i - 1] = shape.dims[i] == 1 ? 16 : stride;
  }
  return shape;
}

MapShape map_shape_of_bytes(const problem::OperandLayout& layout, int box_rows) {
  MapShape shape;
  shape.type = TensorMapType::float16;
  shape.box_rows = static_cast<unsigned>(box_rows);
  for (int i = 0; i < 4; ++i) {
    const int axis = 3 - i;
    shape.dims[i] = static_cast<uint64_t>(layout.dims[axis]);
    if (i == 0)
      shape.dims[i] /= 2;
    else
      shape.stride_bytes[i - 1] =
          layout.dims[axis] == 1 ? 16 : static_cast<uint64_t>(layout.strides[axis]);
  }
  return shape;
}

Status encode(const Driver& driver, const MapShape& shape, void* address, TensorMap& map) {
  for (uint64_t dim : shape.dims) {
    if (dim == 0) return {};
  }
  const unsigned box[4] = {shape.box_columns, shape.box_rows, 1, 1};
  const unsigned ones[4] = {1, 1, 1, 1};
  return driver.check(driver.tensor_map_encode_tiled(
                          &map, shape.type, 4, address, shape.dims, shape.stride_bytes, box, ones,
                          0, TensorMapSwizzle::bytes128, TensorMapPromotion::bytes256, 0),
                      "cuTensorMapEncodeTiled");
}

}  // namespace heddle::engine::cuda
