#include "engine/cuda/score_tile_sm90.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/tensor_map.h"

namespace heddle::engine::cuda {

using problem::AttentionFacts;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::OperandId;

namespace {
DataType type_of(const AttentionStructure& structure, OperandId id) {
  return structure.type(id).dtype;
}
}  // namespace

OperandId score_tile_operand(const AttentionStructure& structure, const AttentionFacts& facts,
                             std::initializer_list<const problem::ScoreExpression*> expressions,
                             bool singles) {
  for (const problem::ScoreExpression* expression : expressions) {
    for (const problem::ScoreNode& node : expression->nodes) {
      if (node.op != problem::ScoreOp::load) continue;
      const DataType dtype = type_of(structure, node.operand);
      const bool fits = dtype == DataType::bf16 || dtype == DataType::f16 ||
                        dtype == DataType::boolean || (singles && dtype == DataType::f32);
      if (fits && facts.operand(node.operand).has_cells &&
          can_copy(structure, facts, node.operand)) {
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
