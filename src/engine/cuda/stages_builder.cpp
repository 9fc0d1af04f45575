#include "engine/cuda/stages_builder.h"

namespace heddle::engine::cuda {

using problem::OperandId;

OperandId StagesBuilder::temporary_like(OperandId shape, DataType dtype, int64_t columns) {
  Dims dims = sizes_.layout(shape).dims;
  if (columns != 0) dims[3] = columns;
  Dims strides = *dense_strides(dims);
  for (int i = 0; i < dims.rank(); ++i) strides[i] = dims[i] == 1 ? 0 : strides[i];
  structure_.operands.push_back({.dtype = dtype});
  sizes_.layouts.push_back({.dims = dims, .strides = strides});
  temporary_bytes_.push_back(element_count(dims).value_or(0) * size_of(dtype));
  return static_cast<OperandId>(structure_.operands.size()) - 1;
}

OperandId StagesBuilder::temporary_number() {
  structure_.operands.push_back({.dtype = DataType::f32});
  sizes_.layouts.push_back({.dims = {1, 1, 1, 1}, .strides = {0, 0, 0, 0}});
  temporary_bytes_.push_back(size_of(DataType::f32));
  return static_cast<OperandId>(structure_.operands.size()) - 1;
}

void StagesBuilder::add(std::vector<Step>& steps, Stages& stages) {
  for (Step& step : steps) {
    if (auto* rope = std::get_if<RopeStep>(&step)) {
      rope->rope.structure.operands = structure_.operands;
      rope->rope.sizes.layouts = sizes_.layouts;
    } else if (auto* scaled = std::get_if<ScaledCopyStep>(&step)) {
      scaled->types.operands = structure_.operands;
      scaled->layouts.layouts = sizes_.layouts;
    } else if (auto* factors = std::get_if<FactorsStep>(&step)) {
      factors->types.operands = structure_.operands;
    } else {
      CopyStep& copy = std::get<CopyStep>(step);
      copy.types.operands = structure_.operands;
      copy.layouts.layouts = sizes_.layouts;
      // Pages and rings are copied as they lie, however they are read.
      for (OperandId id : {copy.x, copy.y})
        if (problem::Storage& storage = copy.types.type(id).storage; !storage.is_ragged())
          storage = {};
    }
    std::visit([&](auto& one) { stages.steps.emplace_back(std::move(one)); }, step);
  }
}

Stages StagesBuilder::finish(Stage attention) && {
  Stages stages;
  add(before_, stages);
  stages.steps.push_back(std::move(attention));
  add(after_, stages);
  stages.temporary_bytes = std::move(temporary_bytes_);
  stages.operand_count = structure_.operands.size();
  return stages;
}

}  // namespace heddle::engine::cuda
