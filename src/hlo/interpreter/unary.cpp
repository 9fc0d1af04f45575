#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hlo/interpreter/elementwise.h"
#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

template <class Codec>
bool map_float(Opcode opcode, int64_t n, const std::byte* a, std::byte* out) {
  using T = typename Codec::Computed;
  const auto map = [&](auto f) {
    map_elements<Codec, Codec>(n, a, out, f);
    return true;
  };
  switch (opcode) {
    case Opcode::abs:
      return map([](T x) { return std::fabs(x); });
    case Opcode::acos:
      return map([](T x) { return std::acos(x); });
    case Opcode::acosh:
      return map([](T x) { return std::acosh(x); });
    case Opcode::asin:
      return map([](T x) { return std::asin(x); });
    case Opcode::asinh:
      return map([](T x) { return std::asinh(x); });
    case Opcode::atanh:
      return map([](T x) { return std::atanh(x); });
    case Opcode::cbrt:
      return map([](T x) { return std::cbrt(x); });
    case Opcode::ceil:
      return map([](T x) { return std::ceil(x); });
    case Opcode::cosh:
      return map([](T x) { return std::cosh(x); });
    case Opcode::cosine:
      return map([](T x) { return std::cos(x); });
    case Opcode::erf:
      return map([](T x) { return std::erf(x); });
    case Opcode::exponential:
      return map([](T x) { return std::exp(x); });
    case Opcode::exponential_minus_one:
      return map([](T x) { return std::expm1(x); });
    case Opcode::floor:
      return map([](T x) { return std::floor(x); });
    case Opcode::log:
      return map([](T x) { return std::log(x); });
    case Opcode::log_plus_one:
      return map([](T x) { return std::log1p(x); });
    case Opcode::logistic:
      return map([](T x) { return T(1) / (T(1) + std::exp(-x)); });
    case Opcode::negate:
      return map([](T x) { return -x; });
    case Opcode::real:
      return map([](T x) { return x; });
    case Opcode::imag:
      return map([](T) { return T(0); });
    case Opcode::round_nearest_afz:
      return map([](T x) { return std::round(x); });
    case Opcode::round_nearest_even:
      return map([](T x) { return std::nearbyint(x); });
    case Opcode::rsqrt:
      return map([](T x) { return T(1) / std::sqrt(x); });
    case Opcode::sign:
      return map([](T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; });  // NaN and zeros stay
    case Opcode::sine:
      return map([](T x) { return std::sin(x); });
    case Opcode::sinh:
      return map([](T x) { return std::sinh(x); });
    case Opcode::sqrt:
      return map([](T x) { return std::sqrt(x); });
    case Opcode::tan:
      return map([](T x) { return std::tan(x); });
    case Opcode::tanh:
      return map([](T x) { return std::tanh(x); });
    default:
      return false;
  }
}

template <class Codec>
bool map_integer(Opcode opcode, int64_t n, const std::byte* a, std::byte* out) {
  using T = typename Codec::Computed;
  using U = std::make_unsigned_t<T>;
  const auto map = [&](auto f) {
    map_elements<Codec, Codec>(n, a, out, f);
    return true;
  };
  switch (opcode) {
    case Opcode::abs:
      return map([](T x) { return x < 0 ? static_cast<T>(U(0) - static_cast<U>(x)) : x; });
    case Opcode::negate:
      return map([](T x) { return static_cast<T>(U(0) - static_cast<U>(x)); });
    case Opcode::not_:
      return map([](T x) { return static_cast<T>(~x); });
    case Opcode::sign:
      return map([](T x) { return static_cast<T>((x > 0) - (x < 0)); });
    case Opcode::count_leading_zeros:
      return map([](T x) { return static_cast<T>(std::countl_zero(static_cast<U>(x))); });
    case Opcode::popcnt:
      return map([](T x) { return static_cast<T>(std::popcount(static_cast<U>(x))); });
    default:
      return false;
  }
}

// Rounds to `mantissa_bits`, ties to even, and to the range of `exponent_bits`: what converting to
// such a type and back gives. Subnormals of the smaller type become zero.
double reduce_precision(double x, int64_t exponent_bits, int64_t mantissa_bits) {
  if (!std::isfinite(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -1022);  // a subnormal's digits are as coarse
  double rounded = x;
  if (mantissa_bits < 52) {
    const double unit = std::ldexp(1.0, exponent - static_cast<int>(mantissa_bits));
    rounded = std::nearbyint(x / unit) * unit;
  }
  if (exponent_bits >= 11) return rounded;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (std::ilogb(rounded) > bias) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  if (std::ilogb(rounded) < 1 - bias) return std::copysign(0.0, x);
  return rounded;
}

Result<Literal> evaluate_reduce_precision(Machine& machine, const Instruction& x,
                                          Operands operands) {
  // With every value in f64, roundings are left out: see Precision::f64.
  if (machine.storage() == FloatStorage::f64) return std::move(operands[0]);
  const ElementType type = machine.storage_type(x.shape().type());
  const int64_t exponent_bits = *x.integer("exponent_bits");
  const int64_t mantissa_bits = *x.integer("mantissa_bits");
  HEDDLE_ASSIGN(operands[0], convert_to(operands[0], type, machine.meter()));  // mixed precision
  const std::byte* a = operands[0].data();
  HEDDLE_ASSIGN(Literal out, machine.reuse_or_allocate(x, Shape(operands[0].shape()), operands));
  std::byte* const y = out.mutable_data();
  const bool known = with_float(type, [&]<class Codec>() {
    using T = typename Codec::Computed;
    map_elements<Codec, Codec>(out.element_count(), a, y, [=](T v) {
      return static_cast<T>(reduce_precision(v, exponent_bits, mantissa_bits));
    });
  });
  if (!known) return refuse(x, fmt::format("of {} is not known", name(type)));
  return out;
}

}  // namespace

Result<Literal> evaluate_unary(Machine& machine, const Instruction& x, Operands operands) {
  if (x.is(Opcode::reduce_precision)) {
    return evaluate_reduce_precision(machine, x, std::move(operands));
  }
  const ElementType type = operands[0].shape().type();
  const int64_t n = operands[0].element_count();
  const std::byte* a = operands[0].data();
  bool known = false;
  if (x.is(Opcode::is_finite)) {
    HEDDLE_ASSIGN(Literal out, machine.allocate(operands[0].shape().with_type(ElementType::pred)));
    std::byte* const y = out.mutable_data();
    known = with_float(type, [&]<class Codec>() {
      map_elements<Pred, Codec>(n, a, y,
                                [](typename Codec::Computed v) { return std::isfinite(v); });
    });
    if (known) return out;
  } else {
    const ElementType result_type = machine.storage_type(x.shape().type());
    if (result_type != type && is_floating(type) && is_floating(result_type)) {
      HEDDLE_ASSIGN(operands[0],
                    convert_to(operands[0], result_type, machine.meter()));  // mixed precision
      return evaluate_unary(machine, x, std::move(operands));
    }
    HEDDLE_ASSIGN(Literal out, machine.reuse_or_allocate(x, Shape(operands[0].shape()), operands));
    std::byte* const y = out.mutable_data();
    if (type == ElementType::pred && x.is(Opcode::not_)) {
      map_elements<Pred, Pred>(n, a, y, [](uint8_t v) { return static_cast<uint8_t>(!v); });
      known = true;
    } else {
      with_float(type, [&]<class Codec>() { known = map_float<Codec>(x.opcode(), n, a, y); }) ||
          with_integer(type,
                       [&]<class Codec>() { known = map_integer<Codec>(x.opcode(), n, a, y); });
    }
    if (known) return out;
  }
  return refuse(x, fmt::format("of {} is not known", name(type)));
}

}  // namespace heddle::hlo
