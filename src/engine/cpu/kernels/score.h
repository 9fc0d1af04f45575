// Score expressions, evaluated a row of a tile at a time: every step is one pass over a strip of
// keys, so the cost of choosing the operation is spread over the strip. Steps that do not depend
// on the key (slopes, row numbers, lengths) are computed once, as one number.
#pragma once

#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/visible.h"
#include "problem/score.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// The cells being scored: keys j0 + first .. j0 + last of one query row.
struct ScoreCells {
  int64_t b, h, row;
  Lengths lengths;
  int64_t j0, first, last;  ///< first and last are multiples of kLanes
  int64_t loadable;         ///< keys past this have no operand to load from (first .. last)
};

/// Memory for evaluating a score expression on a strip of keys.
struct ScoreScratch {
  ScoreValue* values;
  Real* strips;
  int64_t strip_length;
};

inline Float value_at(const ScoreValue& x, int64_t j) {
  return x.strip ? load(x.strip + j) : all(x.number);
}

template <class Function>
inline void map_cells(const ScoreCells& cells, bool is_number, ScoreValue& out, Real* strip,
                      Function function) {
  if (is_number) {
    Real lanes[kLanes];
    store(lanes, function(cells.first));
    out = {nullptr, lanes[0]};
    return;
  }
  for (int64_t j = cells.first; j < cells.last; j += kLanes) store(strip + j, function(j));
  out = {strip, 0};
}

inline Float truth(Mask condition) { return select(condition, all(1), zero()); }
inline Mask is_true(Float x) { return equal(truth(equal(x, zero())), zero()); }

template <class Function>
inline void unary(const ScoreCells& cells, const ScoreValue& a, ScoreValue& out, Real* strip,
                  Function function) {
  map_cells(cells, !a.strip, out, strip, [&](int64_t j) { return function(value_at(a, j)); });
}
template <class Function>
inline void binary(const ScoreCells& cells, const ScoreValue& a, const ScoreValue& b,
                   ScoreValue& out, Real* strip, Function function) {
  map_cells(cells, !a.strip && !b.strip, out, strip,
            [&](int64_t j) { return function(value_at(a, j), value_at(b, j)); });
}

/// A libm function: lane by lane over a strip, once for a number (the slopes of ALiBi).
template <class Function>
inline void unary_libm(const ScoreCells& cells, const ScoreValue& a, ScoreValue& out, Real* strip,
                       Function function) {
  if (!a.strip) {
    out = {nullptr, function(a.number)};
    return;
  }
  unary(cells, a, out, strip, [&](Float x) { return each_lane(x, function); });
}
template <class Function>
inline void binary_libm(const ScoreCells& cells, const ScoreValue& a, const ScoreValue& b,
                        ScoreValue& out, Real* strip, Function function) {
  if (!a.strip && !b.strip) {
    out = {nullptr, function(a.number, b.number)};
    return;
  }
  binary(cells, a, b, out, strip, [&](Float x, Float y) { return each_lane(x, y, function); });
}

/// The operand's row, in place if it lies as a strip does and none of it is missing.
inline ScoreValue loaded(const ScoreCells& cells, const View& v, Real* strip) {
  const int64_t at = origin(v, cells.b, cells.h) + cells.row * v.stride[2];
  if (v.stride[3] == 0) return {nullptr, number_at(v, at)};
  const int64_t count = smaller(cells.last, cells.loadable) - cells.first;
  const char* start = v.data + (at + (cells.j0 + cells.first) * v.stride[3]) * v.element_bytes;
  if (v.element == kRealElement && v.stride[3] == 1 && count == cells.last - cells.first)
    return {reinterpret_cast<const Real*>(start) - cells.first, 0};
  read_row(v.element, start, v.stride[3], v.element_bytes, count, strip + cells.first);
  fill(strip + cells.first + count, cells.last - cells.first - count, 0);
  return {strip, 0};
}

/// Evaluates `score` on the cells. dot and gradient hold one number a key (gradient may be null in
/// the forward pass). A root that is computed key by key is written to `result` if that is given;
/// it may be `dot`, which no step reads later. The value stays valid until the scratch or the
/// result are used again.
[[gnu::noinline]] inline ScoreValue evaluate(const Score& score, const ScoreCells& cells,
                                             const Real* dot, const Real* gradient,
                                             const ScoreScratch& scratch, Real* result = nullptr) {
  ScoreValue* values = scratch.values;
  using problem::ScoreOp;
  for (int32_t n = 0; n <= score.root; ++n) {
    const ScoreStep& step = score.steps[n];
    const ScoreValue a = step.a >= 0 ? values[step.a] : ScoreValue{nullptr, 0};
    const ScoreValue b = step.b >= 0 ? values[step.b] : ScoreValue{nullptr, 0};
    const ScoreValue c = step.c >= 0 ? values[step.c] : ScoreValue{nullptr, 0};
    ScoreValue& out = values[n];
    Real* strip = n == score.root && result ? result : scratch.strips + n * scratch.strip_length;
    const auto one = [&](auto function) { unary(cells, a, out, strip, function); };
    const auto two = [&](auto function) { binary(cells, a, b, out, strip, function); };
    const auto libm = [&](auto function) { unary_libm(cells, a, out, strip, function); };
    switch (static_cast<ScoreOp>(step.op)) {
      case ScoreOp::dot:
        out = {dot, 0};
        break;
      case ScoreOp::gradient:
        out = {gradient, 0};
        break;
      case ScoreOp::row:
        out = {nullptr, static_cast<Real>(cells.row)};
        break;
      case ScoreOp::batch:
        out = {nullptr, static_cast<Real>(cells.b)};
        break;
      case ScoreOp::head:
        out = {nullptr, static_cast<Real>(cells.h)};
        break;
      case ScoreOp::constant:
        out = {nullptr, static_cast<Real>(step.value)};
        break;
      case ScoreOp::q_length:
        out = {nullptr, static_cast<Real>(cells.lengths.q)};
        break;
      case ScoreOp::kv_length:
        out = {nullptr, static_cast<Real>(cells.lengths.kv)};
        break;
      case ScoreOp::column:
        map_cells(cells, false, out, strip, [&](int64_t j) {
          return add(all(static_cast<Real>(cells.j0 + j)), lane_numbers());
        });
        break;
      case ScoreOp::load:
        out = loaded(cells, *step.operand, strip);
        break;
      case ScoreOp::add:
        two([](Float x, Float y) { return add(x, y); });
        break;
      case ScoreOp::subtract:
        two([](Float x, Float y) { return subtract(x, y); });
        break;
      case ScoreOp::multiply:
        two([](Float x, Float y) { return multiply(x, y); });
        break;
      case ScoreOp::divide:
        two([](Float x, Float y) { return divide(x, y); });
        break;
      case ScoreOp::minimum:
        two([](Float x, Float y) { return select(equal(x, x), min(x, y), x); });
        break;
      case ScoreOp::maximum:
        two([](Float x, Float y) { return select(equal(x, x), max(x, y), x); });
        break;
      case ScoreOp::power:
        binary_libm(cells, a, b, out, strip, [](Real x, Real y) { return libm::pow(x, y); });
        break;
      case ScoreOp::modulo:
        binary_libm(cells, a, b, out, strip, [](Real x, Real y) { return libm::fmod(x, y); });
        break;
      case ScoreOp::negate:
        one([](Float x) { return subtract(all(-0.0), x); });
        break;
      case ScoreOp::absolute:
        one([](Float x) { return absolute(x); });
        break;
      case ScoreOp::exponential:
        one([](Float x) { return exp(x); });
        break;
      case ScoreOp::exponential_minus_one:
        libm([](Real x) { return libm::expm1(x); });
        break;
      case ScoreOp::logarithm:
        libm([](Real x) { return libm::log(x); });
        break;
      case ScoreOp::logarithm_plus_one:
        libm([](Real x) { return libm::log1p(x); });
        break;
      case ScoreOp::square_root:
        one([](Float x) { return square_root(x); });
        break;
      case ScoreOp::reciprocal_square_root:
        one([](Float x) { return divide(all(1), square_root(x)); });
        break;
      case ScoreOp::reciprocal:
        one([](Float x) { return divide(all(1), x); });
        break;
      case ScoreOp::tangent_hyperbolic:
        one([](Float x) { return tanh(x); });
        break;
      case ScoreOp::sigmoid:
        one([](Float x) { return sigmoid(x); });
        break;
      case ScoreOp::error_function:
        libm([](Real x) { return libm::erf(x); });
        break;
      case ScoreOp::sine:
        libm([](Real x) { return libm::sin(x); });
        break;
      case ScoreOp::cosine:
        libm([](Real x) { return libm::cos(x); });
        break;
      case ScoreOp::tangent:
        libm([](Real x) { return libm::tan(x); });
        break;
      case ScoreOp::floor:
        one([](Float x) { return floor(x); });
        break;
      case ScoreOp::ceil:
        one([](Float x) { return ceil(x); });
        break;
      case ScoreOp::equal:
        two([](Float x, Float y) { return truth(equal(x, y)); });
        break;
      case ScoreOp::not_equal:
        two([](Float x, Float y) { return subtract(all(1), truth(equal(x, y))); });
        break;
      case ScoreOp::less:
        two([](Float x, Float y) { return truth(less(x, y)); });
        break;
      case ScoreOp::less_equal:
        two([](Float x, Float y) { return truth(less_equal(x, y)); });
        break;
      case ScoreOp::greater:
        two([](Float x, Float y) { return truth(less(y, x)); });
        break;
      case ScoreOp::greater_equal:
        two([](Float x, Float y) { return truth(less_equal(y, x)); });
        break;
      case ScoreOp::logical_and:
        two([](Float x, Float y) { return select(is_true(x), truth(is_true(y)), zero()); });
        break;
      case ScoreOp::logical_or:
        two([](Float x, Float y) { return select(is_true(x), all(1), truth(is_true(y))); });
        break;
      case ScoreOp::logical_not:
        one([](Float x) { return truth(equal(x, zero())); });
        break;
      case ScoreOp::select:
        map_cells(cells, !a.strip && !b.strip && !c.strip, out, strip, [&](int64_t j) {
          return select(is_true(value_at(a, j)), value_at(b, j), value_at(c, j));
        });
        break;
    }
  }
  return values[score.root];
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
