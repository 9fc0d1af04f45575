#include "rewrite/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::FloatStorage;
using hlo::Instruction;
using hlo::Literal;
using hlo::Opcode;

bool is_computed_in(ElementType type) {
  switch (type) {
    case ElementType::pred:
    case ElementType::s8:
    case ElementType::s16:
    case ElementType::s32:
    case ElementType::s64:
    case ElementType::u8:
    case ElementType::u16:
    case ElementType::u32:
    case ElementType::u64:
      return true;
    default:
      return largest_exact(type) > 0;
  }
}

int64_t largest_exact(ElementType type) {
  switch (type) {
    case ElementType::bf16:
      return int64_t{1} << 8;
    case ElementType::f16:
      return int64_t{1} << 11;
    case ElementType::f32:
      return int64_t{1} << 24;
    case ElementType::f64:
      return int64_t{1} << 53;
    default:
      return 0;
  }
}

double largest_finite(ElementType type) {
  switch (type) {
    case ElementType::bf16:
      return 0x1.fep127;
    case ElementType::f16:
      return 65504;
    case ElementType::f32:
      return std::numeric_limits<float>::max();
    case ElementType::f64:
      return std::numeric_limits<double>::max();
    default:
      return 0;
  }
}

namespace {

bool is_known(Opcode opcode) {
  switch (opcode) {
    case Opcode::abs:
    case Opcode::add:
    case Opcode::and_:
    case Opcode::ceil:
    case Opcode::clamp:
    case Opcode::compare:
    case Opcode::convert:
    case Opcode::divide:
    case Opcode::floor:
    case Opcode::is_finite:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::multiply:
    case Opcode::negate:
    case Opcode::not_:
    case Opcode::or_:
    case Opcode::reduce_precision:
    case Opcode::remainder:
    case Opcode::round_nearest_afz:
    case Opcode::round_nearest_even:
    case Opcode::select:
    case Opcode::shift_left:
    case Opcode::shift_right_arithmetic:
    case Opcode::shift_right_logical:
    case Opcode::sign:
    case Opcode::subtract:
    case Opcode::xor_:
      return true;
    default:
      return false;
  }
}

std::optional<Literal> in_f64(const Literal& value) {
  if (!hlo::is_floating(value.shape().type())) return value;
  auto wide = hlo::convert_to(value, ElementType::f64);
  return wide ? std::optional(std::move(*wide)) : std::nullopt;
}

std::span<const double> numbers(const Literal& of_f64) {
  return {of_f64.as<double>(), static_cast<size_t>(of_f64.element_count())};
}

bool is_whole(const Literal& value) {
  if (value.shape().type() != ElementType::f64) return true;
  const auto most = static_cast<double>(largest_exact(ElementType::f64));
  const auto all = numbers(value);
  return std::all_of(all.begin(), all.end(),
                     [&](double x) { return std::trunc(x) == x && std::abs(x) <= most; });
}

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::isfinite(x) && std::abs(std::frexp(x, &exponent)) == 0.5;
}

/// Whether sums, differences and products of floating numbers, and their roundings, are what is
/// left to doubt of `x`; everything else gives one of its operands or a whole number near it.
bool may_round(const Instruction* x) {
  switch (x->opcode()) {
    case Opcode::add:
    case Opcode::convert:
    case Opcode::divide:
    case Opcode::multiply:
    case Opcode::reduce_precision:
    case Opcode::subtract:
      return hlo::is_floating(x->shape().type());
    default:
      return false;
  }
}

}  // namespace

Arithmetic::Arithmetic() : own_(options_, FloatStorage::own), wide_(options_, FloatStorage::f64) {}

bool Arithmetic::knows(const Instruction* x) {
  return is_known(x->opcode()) && x->shape().is_array() && is_computed_in(x->shape().type()) &&
         std::all_of(x->operands().begin(), x->operands().end(), [](const Instruction* operand) {
           return operand->shape().is_array() && is_computed_in(operand->shape().type());
         });
}

std::optional<Literal> Arithmetic::apply(const Instruction* x, std::vector<Literal> operands) {
  auto value = own_.evaluate_alone(*x, std::move(operands));
  return value ? std::optional(std::move(*value)) : std::nullopt;
}

std::optional<Literal> Arithmetic::apply_exactly(const Instruction* x,
                                                 std::vector<Literal> operands) {
  if (!may_round(x)) return apply(x, std::move(operands));
  auto value = apply(x, operands);
  const auto value_in_f64 = value ? in_f64(*value) : std::nullopt;
  if (!value_in_f64) return std::nullopt;
  for (Literal& operand : operands) {
    auto wide = in_f64(operand);
    if (!wide) return std::nullopt;
    operand = std::move(*wide);
  }
  if (x->is(Opcode::divide)) {
    const auto divisors = numbers(operands[1]);
    if (!std::all_of(divisors.begin(), divisors.end(), is_power_of_two)) return std::nullopt;
  }
  if (x->shape().type() == ElementType::f64) {
    // Nothing wider is at hand: whole numbers that f64 holds are what is exact beyond doubt.
    if (!is_whole(*value) || !std::all_of(operands.begin(), operands.end(), is_whole))
      return std::nullopt;
    return value;
  }
  const auto wide = wide_.evaluate_alone(*x, std::move(operands));
  if (!wide) return std::nullopt;
  const auto exact = numbers(*wide), own = numbers(*value_in_f64);
  if (!std::equal(own.begin(), own.end(), exact.begin(),
                  [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }))
    return std::nullopt;
  return value;
}

}  // namespace heddle::rewrite
