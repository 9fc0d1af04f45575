#include "engine/cuda/score_tile_sm90.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/tensor_map.h"

namespace heddle::engine::cuda {

using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::OperandId;

namespace {
DataType type_of(const AttentionStructure& structure, OperandId id) {
  return structure.type(id).dtype;
}

/// Whether the operand has an element for each cell, so that it can come by tiles. One that a plan
/// has so may do with a single row or column where there is a single query or key.
bool has_cells(const AttentionSizes& sizes, const problem::OperandLayout& layout) {
  const Dims& planned = layout.dims_to_plan_for();
  return planned[2] > 1 && planned[3] > 1 &&
         layout.dims[2] >= std::min<int64_t>(2, sizes.q_length) &&
         layout.dims[3] >= std::min<int64_t>(2, sizes.kv_length);
}
}  // namespace

OperandId score_tile_operand(const AttentionStructure& structure, const AttentionSizes& sizes,
                             std::initializer_list<const problem::ScoreExpression*> expressions,
                             bool singles) {
  for (const problem::ScoreExpression* expression : expressions) {
    for (const problem::ScoreNode& node : expression->nodes) {
      if (node.op != problem::ScoreOp::load) continue;
      const DataType dtype = type_of(structure, node.operand);
      const bool fits = dtype == DataType::bf16 || dtype == DataType::f16 ||
                        dtype == DataType::boolean || (singles && dtype == DataType::f32);
      if (fits && has_cells(sizes, sizes.layout(node.operand)) &&
          check_copies(structure, sizes, node.operand).is_ok()) {
        return node.operand;
      }
    }
  }
  return problem::kAbsent;
}

sm90::Tiled tiled_of(DataType dtype) {
  return dtype == DataType::boolean ? sm90::Tiled::booleans : sm90::Tiled::values;
}

sm90::TiledOperand score_tile_arguments(const AttentionSizes& sizes, OperandId operand) {
  const Dims& dims = sizes.layout(operand).dims;
  return {.map = {}, .per_head = dims[1] > 1, .per_batch = dims[0] > 1};
}

}  // namespace heddle::engine::cuda
