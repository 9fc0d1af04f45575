#include "engine/cuda/fp8_stages.h"

#include "engine/cuda/attention_check.h"
#include "engine/cuda/stages_builder.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::Fp8AttentionBackwardProblem;
using problem::Fp8AttentionBackwardStructure;
using problem::Fp8AttentionProblem;
using problem::Fp8AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

Status check_rows(const AttentionStructure& s, const problem::AttentionSizes& sizes) {
  for (const auto& [id, name] : {std::pair{s.q, "q"}, {s.k, "k"}, {s.v, "v"}}) {
    const problem::Storage& storage = s.type(id).storage;
    if (storage.is_ring())
      return error(Code::graph_not_supported,
                   "cuda: fp8 attention: {} is a ring, expected dense, ragged or pages", name);
  }
  return check_lists_of_lengths(s, sizes);
}

/// Steps around an attention, over its operands as they grow.
class Fp8Stages {
 public:
  Fp8Stages(AttentionStructure& structure, problem::AttentionSizes& sizes)
      : structure_(structure),
        queries_(SideLengths::of_queries(structure)),
        keys_(SideLengths::of_keys(structure)),
        build_(structure, sizes) {}

  OperandId product(double number, std::vector<OperandId> of, std::vector<OperandId> by = {}) {
    const OperandId to = build_.temporary_number();
    factors_.products.push_back({to, number, std::move(of), std::move(by)});
    return to;
  }
  void zero(OperandId id) {
    if (id != kAbsent) factors_.zeroed.push_back(id);
  }
  OperandId zeroed_number() {
    const OperandId id = build_.temporary_number();
    zero(id);
    return id;
  }

  /// The tensor becomes its numbers, times those of `factor`.
  void widen(const char* name, OperandId& id, DataType type, bool of_queries,
             OperandId factor = kAbsent) {
    ScaledCopyStep step;
    step.name = name;
    step.x = id;
    step.y = id = build_.temporary_like(id, type);
    step.factor = factor;
    const problem::Storage storage = build_.type(step.x).storage;
    if (storage.is_paged())
      build_.type(step.y).storage = storage;  // of all pages: a sequence's rows lie anywhere
    else
      end_at(of_queries ? queries_ : keys_, step);
    widened_.push_back(std::move(step));
  }

  /// The result is made of an f32 tensor.
  void narrow(const char* name, OperandId& id, bool of_queries, OperandId factor, OperandId scale,
              OperandId largest) {
    ScaledCopyStep step;
    step.name = name;
    step.x = build_.temporary_like(id, DataType::f32);
    step.y = id;
    id = step.x;
    step.factor = factor;
    step.scale = scale;
    step.largest = largest;
    zero(largest);
    // Of a dense tensor the attention writes the rows past a length, too.
    if (build_.type(step.y).storage.is_ragged()) end_at(of_queries ? queries_ : keys_, step);
    build_.after(std::move(step));
  }

  /// The largest of 1 / x.
  void largest_reciprocal(const char* name, OperandId x, OperandId largest) {
    ScaledCopyStep step;
    step.name = name;
    step.x = step.y = x;
    step.reciprocal = true;
    step.largest = largest;
    zero(largest);
    build_.after(std::move(step));
  }

  StagesBuilder& build() { return build_; }

  Stages finish(Stage attention) && {
    // What the kernels behind read comes first.
    build_.before(std::move(factors_));
    for (ScaledCopyStep& step : widened_) build_.before(std::move(step));
    return std::move(build_).finish(std::move(attention));
  }

 private:
  AttentionStructure& structure_;
  const SideLengths queries_, keys_;
  StagesBuilder build_;
  FactorsStep factors_;
  std::vector<ScaledCopyStep> widened_;
};

}  // namespace

Result<Lowering> lower_fp8_by_16_bits(const Fp8AttentionProblem& problem, const Target& target) {
  const Fp8AttentionStructure& fp8 = problem.structure;
  AttentionProblem attention{fp8.attention, problem.sizes};
  AttentionStructure& s = attention.structure;
  HEDDLE_TRY(check_rows(s, attention.sizes));
  Fp8Stages stages(s, attention.sizes);
  s.scale = stages.product(s.scale == kAbsent ? attention.sizes.scale : 1,
                           {s.scale, fp8.descale_q, fp8.descale_k});
  // f16, whose P is the nearer one: codes and P are in its range.
  stages.widen("q", s.q, DataType::f16, true);
  stages.widen("k", s.k, DataType::f16, false);
  stages.widen("v", s.v, DataType::f16, false);
  const OperandId of_o = stages.product(1, {fp8.descale_v, fp8.descale_s, fp8.scale_s});
  if (s.o != kAbsent) stages.narrow("o", s.o, true, of_o, fp8.scale_o, fp8.amax_o);
  if (fp8.amax_s != kAbsent) {
    // A row's largest weight is 1 beside the sum of all beside it.
    s.sum_exp = stages.build().temporary_like(s.stats != kAbsent ? s.stats : s.q, DataType::f32, 1);
    s.max = stages.build().temporary_like(s.sum_exp, DataType::f32);
    stages.largest_reciprocal("P", s.sum_exp, fp8.amax_s);
  }
  return lower_stages(std::move(stages).finish(attention), target, lower);
}

Result<Lowering> lower_fp8_by_16_bits(const Fp8AttentionBackwardProblem& problem,
                                      const Target& target) {
  const Fp8AttentionBackwardStructure& fp8 = problem.structure;
  AttentionBackwardProblem attention{fp8.attention, problem.sizes};
  problem::AttentionBackwardStructure& s = attention.structure;
  AttentionStructure& f = s.forward;
  HEDDLE_TRY(check_rows(f, attention.sizes));
  Fp8Stages stages(f, attention.sizes);
  f.scale = stages.product(f.scale == kAbsent ? attention.sizes.scale : 1,
                           {f.scale, fp8.descale_q, fp8.descale_k});
  // bf16: gradients of codes are in no range of f16's. dO and V are codes, and O is what makes
  // rowsum(dO * O) one of them.
  const OperandId of_o = stages.product(1, {fp8.descale_o}, {fp8.descale_v});
  stages.widen("q", f.q, DataType::bf16, true);
  stages.widen("k", f.k, DataType::bf16, false);
  stages.widen("v", f.v, DataType::bf16, false);
  stages.widen("o", f.o, DataType::bf16, true, of_o);
  stages.widen("dO", s.d_o, DataType::bf16, true);
  // By which gradients of codes are those of the numbers that codes stand for.
  const auto gradient = [&](const char* name, OperandId& id, bool of_queries,
                            std::vector<OperandId> of, std::vector<OperandId> by, OperandId scale,
                            OperandId largest) {
    if (id == kAbsent) return;
    stages.narrow(name, id, of_queries, stages.product(1, std::move(of), std::move(by)), scale,
                  largest);
  };
  gradient("dQ", s.d_q, true, {fp8.descale_d_o, fp8.descale_v, fp8.descale_d_p, fp8.scale_d_p},
           {fp8.descale_q}, fp8.scale_d_q, fp8.amax_d_q);
  const OperandId given_d_k = s.d_k;
  gradient("dK", s.d_k, false, {fp8.descale_d_o, fp8.descale_v, fp8.descale_d_p, fp8.scale_d_p},
           {fp8.descale_k}, fp8.scale_d_k, fp8.amax_d_k);
  gradient("dV", s.d_v, false, {fp8.descale_d_o, fp8.descale_s, fp8.scale_s}, {}, fp8.scale_d_v,
           fp8.amax_d_v);
  if (fp8.amax_d_p != kAbsent) {
    if (given_d_k == kAbsent) s.d_k = stages.build().temporary_like(f.k, DataType::f32);
    s.largest_d_dot = stages.zeroed_number();
    FactorsStep last;
    last.products.push_back({fp8.amax_d_p,
                             1,
                             {s.largest_d_dot, fp8.descale_d_o, fp8.descale_v},
                             {fp8.descale_q, fp8.descale_k},
                             /*is_magnitude=*/true});
    stages.build().after(std::move(last));
  }
  return lower_stages(std::move(stages).finish(attention), target, lower);
}

}  // namespace heddle::engine::cuda
