#include "engine/cuda/stages_builder.h"

namespace heddle::engine::cuda {

using problem::OperandId;

OperandId StagesBuilder::temporary_like(OperandId shape, DataType dtype) {
  const Dims dims = sizes_.layout(shape).dims;
  Dims strides = *dense_strides(dims);
  for (int i = 0; i < dims.rank(); ++i) strides[i] = dims[i] == 1 ? 0 : strides[i];
  structure_.operands.push_back({.dtype = dtype});
  sizes_.layouts.push_back({.dims = dims, .strides = strides});
  temporary_bytes_.push_back(element_count(dims).value_or(0) * size_of(dtype));
  return static_cast<OperandId>(structure_.operands.size()) - 1;
}

void StagesBuilder::add(std::vector<RopeStep>& steps, Stages& stages) {
  for (RopeStep& step : steps) {
    problem::RopeStructure& rope = step.rope.structure;
    rope.operands = structure_.operands;
    step.rope.sizes.layouts = sizes_.layouts;
    // Pages are copied as they lie, by whatever table they are read.
    for (OperandId id : {rope.x, rope.y})
      if (problem::Storage& storage = rope.type(id).storage; storage.is_paged()) storage = {};
    stages.steps.emplace_back(std::move(step));
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

void end_at(const SideLengths& lengths, const problem::OperandType& type, RopeStep& step) {
  if (!type.storage.is_ragged()) return;
  step.lengths = lengths.operand;
  step.lengths_cumulative = lengths.cumulative;
}

}  // namespace heddle::engine::cuda
