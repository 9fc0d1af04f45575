#include "support/score_mods.h"

#include <cmath>

#include "support/pointwise_programs.h"

namespace heddle::testing {

using graph::PointwiseMode;
using graph::TensorId;

namespace {

class Draw {
 public:
  Draw(Random& random, Program& program)
      : random_(random), structure_(random.structure()), program_(program) {}

  graph::ScoreModifier modifier(const Dims& extents, double boolean_mask, double hidden_rows,
                                double functions);

 private:
  TensorId inner() {
    const TensorId id = program_.add("score_" + std::to_string(++count_), DataType::f32, extents_);
    program_.graph[id].is_virtual = true;
    return id;
  }
  TensorId constant(double value) {
    const TensorId id = program_.add("constant", DataType::f32, {1, 1, 1, 1});
    program_.graph[id].constant = value;
    return id;
  }
  TensorId apply(PointwiseMode mode, std::vector<TensorId> inputs, int32_t axis = 0) {
    const TensorId out = inner();
    modifier_.ops.push_back({mode, std::move(inputs), out, axis, ""});
    return out;
  }
  TensorId captured();
  TensorId step(TensorId score);
  TensorId index(int32_t axis) { return apply(PointwiseMode::gen_index, {}, axis); }
  TensorId function(TensorId score);
  TensorId shown();

  Random &random_, &structure_;
  Program& program_;
  graph::ScoreModifier modifier_;
  Dims extents_;
  int count_ = 0;
};

/// A tensor of the outer graph, broadcast over some of the dims.
TensorId Draw::captured() {
  Dims dims = extents_;
  for (int axis = 0; axis < 4; ++axis) {
    if (structure_.chance(0.5)) dims[axis] = 1;
  }
  const TensorId id = program_.add("captured", DataType::f32, dims);
  program_.allocate(id);
  program_.fill(id, [&] { return random_.uniform(0.5, 1.5); });
  return id;
}

TensorId Draw::step(TensorId score) {
  switch (structure_.integer(0, 6)) {
    case 0: {  // soft cap
      const double cap = structure_.uniform(1, 5);
      const TensorId squashed =
          apply(PointwiseMode::tanh_fwd, {apply(PointwiseMode::div, {score, constant(cap)})});
      return apply(PointwiseMode::mul, {squashed, constant(cap)});
    }
    case 1:
      return apply(PointwiseMode::mul, {score, captured()});
    case 2:
      return apply(PointwiseMode::add, {score, captured()});
    case 3: {  // relative position
      const TensorId row = apply(PointwiseMode::gen_index, {}, 2);
      const TensorId column = apply(PointwiseMode::gen_index, {}, 3);
      const TensorId distance =
          apply(PointwiseMode::abs, {apply(PointwiseMode::sub, {row, column})});
      return apply(PointwiseMode::sub,
                   {score, apply(PointwiseMode::mul, {distance, constant(0.05)})});
    }
    case 4: {  // causal mask, or a checkerboard that is no interval
      const TensorId row = apply(PointwiseMode::gen_index, {}, 2);
      const TensorId column = apply(PointwiseMode::gen_index, {}, 3);
      TensorId keep = apply(PointwiseMode::cmp_ge, {row, column});
      if (structure_.chance(0.5)) {
        const TensorId parity =
            apply(PointwiseMode::mod, {apply(PointwiseMode::add, {row, column}), constant(2)});
        keep = apply(PointwiseMode::cmp_eq, {parity, constant(0)});
      }
      const double masked = structure_.chance(0.5) ? -INFINITY : -1e4;
      return apply(PointwiseMode::binary_select, {keep, score, constant(masked)});
    }
    case 5:
      // Not times its sigmoid: a masked -inf would become NaN.
      return apply(PointwiseMode::add, {score, apply(PointwiseMode::sigmoid_fwd, {score})});
    default:
      return apply(structure_.one_of({PointwiseMode::min, PointwiseMode::max}),
                   {score, captured()});
  }
}

/// A function of the score where it is smooth, or of positions and operands, added to it.
TensorId Draw::function(TensorId score) {
  using M = PointwiseMode;
  const TensorId positive = apply(M::add, {apply(M::abs, {score}), constant(1)});
  const auto plus = [&](TensorId x) { return apply(M::add, {score, x}); };
  const auto distance = [&] { return apply(M::sub, {index(2), index(3)}); };
  switch (structure_.integer(0, 13)) {
    case 0:
      return apply(structure_.one_of({M::log, M::sqrt, M::rsqrt, M::reciprocal}), {positive});
    case 1:
      return apply(structure_.one_of({M::erf, M::sin, M::cos}), {score});
    case 2:
      return apply(structure_.one_of({M::exp, M::tan}), {apply(M::tanh_fwd, {score})});
    case 3:
      return apply(M::pow, {positive, constant(structure_.uniform(-2, 2))});
    case 4:
      return apply(M::pow, {constant(2), apply(M::neg, {positive})});
    case 5:
      return apply(M::div, {score, positive});
    case 6:
      return plus(apply(structure_.one_of({M::floor, M::ceil}),
                        {apply(M::mul, {index(3), constant(0.125)})}));
    case 7:  // of both signs
      return plus(apply(M::mod, {distance(), constant(structure_.one_of({3.0, -7.0, 2.5}))}));
    case 8: {  // a quotient of up to 2^30, of which f32 holds all
      const TensorId each = apply(M::add, {captured(), apply(M::mul, {index(3), constant(0)})});
      return plus(apply(M::mul, {apply(M::mod, {each, constant(std::ldexp(3, -31))}),
                                 constant(std::ldexp(1, 29))}));
    }
    case 9:  // up to angles that are reduced in integers
      return plus(apply(structure_.one_of({M::sin, M::cos}),
                        {apply(M::mul, {distance(), constant(5000)})}));
    case 10:
      return plus(apply(M::log, {apply(M::add, {apply(M::abs, {distance()}), constant(1)})}));
    case 11:
      return plus(apply(M::pow, {constant(-0.5), apply(M::min, {index(3), constant(9)})}));
    case 12:  // smooth, as their slopes are where the scores are an activation's own derivative
      return apply(structure_.one_of({M::tanh_bwd, M::sigmoid_bwd, M::gelu_bwd,
                                      M::gelu_approx_tanh_bwd, M::softplus_bwd, M::swish_bwd}),
                   {captured(), score});
    default: {
      const TensorId made =
          apply(structure_.one_of({M::relu_fwd, M::elu_fwd, M::gelu_fwd, M::gelu_approx_tanh_fwd,
                                   M::softplus_fwd, M::swish_fwd}),
                {score});
      graph::Pointwise& op = modifier_.ops.back();
      random_numbers(structure_, op.mode, op.numbers);
      return made;
    }
  }
}

/// Booleans in runs, some longer than a block of keys.
TensorId Draw::shown() {
  Dims dims = extents_;
  for (int axis : {0, 1, 2}) {
    if (structure_.chance(0.4)) dims[axis] = 1;
  }
  if (structure_.chance(0.1)) dims[3] = 1;
  const TensorId id = program_.add("shown", DataType::boolean, dims,
                                   random_.chance(0.3) ? random_strides(random_, dims) : Dims{});
  program_.allocate(id);
  int64_t left = 0;
  bool value = false;
  program_.fill(id, [&] {
    if (left-- > 0) return value;
    left = random_.integer(0, random_.chance(0.5) ? 10 : 400);
    return value = random_.chance(0.5);
  });
  return id;
}

graph::ScoreModifier Draw::modifier(const Dims& extents, double boolean_mask, double hidden_rows,
                                    double functions) {
  extents_ = extents;
  TensorId score = modifier_.score_in = inner();
  // No draw without a chance: other tests' programs stay what they are.
  if (functions > 0 && structure_.chance(functions)) score = function(score);
  const int64_t steps = structure_.integer(1, 3);
  for (int64_t n = 0; n < steps; ++n) score = step(score);
  if (boolean_mask > 0 && structure_.chance(boolean_mask)) {
    TensorId keep = shown();
    if (structure_.chance(0.3)) {
      const TensorId row = apply(PointwiseMode::gen_index, {}, 2);
      const TensorId column = apply(PointwiseMode::gen_index, {}, 3);
      keep = apply(PointwiseMode::logical_and, {apply(PointwiseMode::cmp_ge, {row, column}), keep});
    }
    score = apply(PointwiseMode::binary_select, {keep, score, constant(-INFINITY)});
  }
  if (hidden_rows > 0 && structure_.chance(hidden_rows)) {
    const TensorId third =
        apply(PointwiseMode::mod, {apply(PointwiseMode::gen_index, {}, 2), constant(3)});
    const TensorId keep = apply(PointwiseMode::cmp_neq, {third, constant(0)});
    score = apply(PointwiseMode::binary_select, {keep, score, constant(-0x1p100)});
  }
  modifier_.score_out = score;
  return modifier_;
}

}  // namespace

graph::ScoreModifier random_score_mod_bprop(Random& random, Program& program,
                                            const graph::ScoreModifier& forward) {
  graph::ScoreModifier bprop;
  const Dims extents = program.graph[forward.score_in].dims;
  const auto inner = [&] {
    const TensorId id = program.add("bprop", DataType::f32, extents);
    program.graph[id].is_virtual = true;
    return id;
  };
  bprop.score_in = inner();
  const TensorId read = random.structure().chance(0.5) ? forward.score_in : forward.ops[0].output;
  const TensorId gate = inner();
  bprop.ops.push_back({PointwiseMode::sigmoid_fwd, {read}, gate, 0, ""});
  bprop.score_out = inner();
  bprop.ops.push_back({PointwiseMode::mul, {bprop.score_in, gate}, bprop.score_out, 0, ""});
  return bprop;
}

graph::ScoreModifier random_score_mod(Random& random, Program& program, const Dims& scores,
                                      double boolean_mask, double hidden_rows, double functions) {
  return Draw(random, program).modifier(scores, boolean_mask, hidden_rows, functions);
}

}  // namespace heddle::testing
