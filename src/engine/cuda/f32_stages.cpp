#include "engine/cuda/f32_stages.h"

#include <algorithm>

#include "engine/cuda/stages_builder.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

bool has_f32(const AttentionStructure& structure, std::initializer_list<OperandId> others) {
  const auto type = [&](OperandId id) { return structure.type(id).dtype; };
  const DataType q = type(structure.q);
  return (q == DataType::bf16 || q == DataType::f16) &&
         std::any_of(others.begin(), others.end(),
                     [&](OperandId id) { return id != kAbsent && type(id) == DataType::f32; });
}

/// A rope that turns nothing: it copies, from one type to another.
RopeStep copy(OperandId from, OperandId to) {
  RopeStep step;
  step.rope.structure.x = from;
  step.rope.structure.y = to;
  return step;
}

class Widener {
 public:
  explicit Widener(StagesBuilder& build) : build_(build) {}

  void input(OperandId& id) {
    if (id == kAbsent || build_.type(id).dtype == DataType::f32) return;
    const OperandId widened = build_.temporary_like(id, DataType::f32);
    // Pages are copied as they lie; the rows of ragged sequences go to where dense ones are.
    if (const problem::Storage& storage = build_.type(id).storage; storage.is_paged())
      build_.type(widened).storage = storage;
    build_.before(copy(id, widened));
    id = widened;
  }
  void output(OperandId& id, const SideLengths& lengths) {
    if (id == kAbsent || build_.type(id).dtype == DataType::f32) return;
    RopeStep step = copy(build_.temporary_like(id, DataType::f32), id);
    end_at(lengths, build_.type(id), step);
    id = step.rope.structure.x;
    build_.after(std::move(step));
  }

 private:
  StagesBuilder& build_;
};

}  // namespace

std::optional<Stages> f32_stages(const AttentionProblem& problem) {
  if (!has_f32(problem.structure, {problem.structure.o})) return {};
  AttentionProblem attention = problem;
  AttentionStructure& s = attention.structure;
  StagesBuilder build(s, attention.sizes);
  Widener widen(build);
  for (OperandId* id : {&s.q, &s.k, &s.v}) widen.input(*id);
  widen.output(s.o, SideLengths::of_queries(s));
  return std::move(build).finish(attention);
}

std::optional<Stages> f32_stages(const AttentionBackwardProblem& problem) {
  AttentionBackwardProblem attention = problem;
  problem::AttentionBackwardStructure& s = attention.structure;
  AttentionStructure& forward = s.forward;
  if (!has_f32(forward, {forward.o, s.d_o, s.d_q, s.d_k, s.d_v})) return {};
  StagesBuilder build(forward, attention.sizes);
  Widener widen(build);
  for (OperandId* id : {&forward.q, &forward.k, &forward.v, &forward.o, &s.d_o}) widen.input(*id);
  widen.output(s.d_q, SideLengths::of_queries(forward));
  for (OperandId* id : {&s.d_k, &s.d_v}) widen.output(*id, SideLengths::of_keys(forward));
  return std::move(build).finish(attention);
}

}  // namespace heddle::engine::cuda
