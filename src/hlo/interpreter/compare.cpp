#include <bit>
#include <cmath>

#include "hlo/interpreter/elementwise.h"
#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

// -NaN < -inf < ... < -0 < +0 < ... < inf < NaN, as integers that compare alike.
int32_t total_order(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? static_cast<int32_t>(0x7fffffff ^ bits) : bits;
}
int64_t total_order(double x) {
  const auto bits = std::bit_cast<int64_t>(x);
  return bits < 0 ? static_cast<int64_t>(0x7fffffffffffffff ^ bits) : bits;
}

template <class Codec, class Key>
void compare(std::string_view direction, int64_t n, const std::byte* a, const std::byte* b,
             std::byte* out, Key key) {
  using T = typename Codec::Computed;
  const auto map = [&](auto f) {
    map_pairs<Pred, Codec>(n, a, b, out, [=](T x, T y) { return f(key(x), key(y)); });
  };
  if (direction == "EQ") return map([](auto x, auto y) { return x == y; });
  if (direction == "NE") return map([](auto x, auto y) { return x != y; });
  if (direction == "GE") return map([](auto x, auto y) { return x >= y; });
  if (direction == "GT") return map([](auto x, auto y) { return x > y; });
  if (direction == "LE") return map([](auto x, auto y) { return x <= y; });
  return map([](auto x, auto y) { return x < y; });
}

// Spreads a scalar operand over the result's dims.
Result<Literal> spread(const Literal& value, const Shape& dims_of, Machine& machine) {
  if (value.shape().dims() == dims_of.dims()) return value;
  HEDDLE_ASSIGN(Literal out, machine.allocate(dims_of.with_type(value.shape().type())));
  std::byte* const to = out.mutable_data();
  const int64_t size = size_of(value.shape().type());
  for (int64_t i = 0; i < out.element_count(); ++i) {
    std::copy(value.data(), value.data() + size, to + i * size);
  }
  return out;
}

}  // namespace

Result<Literal> evaluate_compare(Machine& machine, const Instruction& x, Operands operands) {
  const ElementType type = operands[0].shape().type();
  if (operands[1].shape().type() != type) {
    HEDDLE_ASSIGN(operands[0], convert_to(operands[0], ElementType::f64, machine.meter()));
    HEDDLE_ASSIGN(operands[1], convert_to(operands[1], ElementType::f64, machine.meter()));
    return evaluate_compare(machine, x, std::move(operands));
  }
  HEDDLE_ASSIGN(Literal out, machine.allocate(operands[0].shape().with_type(ElementType::pred)));
  std::byte* const y = out.mutable_data();
  const int64_t n = out.element_count();
  const bool total = x.text("type") == "TOTALORDER";
  const bool known = with_type(type, [&]<class Codec>() {
    using T = typename Codec::Computed;
    if constexpr (std::is_floating_point_v<T>) {
      if (total) {
        return compare<Codec>(x.direction(), n, operands[0].data(), operands[1].data(), y,
                              [](T v) { return total_order(v); });
      }
    }
    compare<Codec>(x.direction(), n, operands[0].data(), operands[1].data(), y,
                   [](T v) { return v; });
  });
  if (!known) return refuse(x, fmt::format("of {} is not known", name(type)));
  return out;
}

Result<Literal> evaluate_select(Machine& machine, const Instruction& x, Operands operands) {
  const ElementType type = machine.storage_type(x.shape().type());
  for (int i = 1; i < 3; ++i) {
    if (operands[i].shape().type() != type) {
      HEDDLE_ASSIGN(operands[i],
                    convert_to(operands[i], type, machine.meter()));  // mixed precision
    }
  }
  if (operands[0].shape().rank() == 0) {
    return std::move(operands[operands[0].get_integer(0) != 0 ? 1 : 2]);
  }
  const auto* chosen = operands[0].as<uint8_t>();
  const std::byte* a = operands[1].data();
  const std::byte* b = operands[2].data();
  const Literal predicate = std::move(operands[0]);  // kept: its bytes may not become the result's
  operands.erase(operands.begin());
  HEDDLE_ASSIGN(Literal out, machine.reuse_or_allocate(x, Shape(operands[0].shape()), operands));
  std::byte* const y = out.mutable_data();
  const auto choose = [&]<class T>(T) {
    const T* on_true = reinterpret_cast<const T*>(a);
    const T* on_false = reinterpret_cast<const T*>(b);
    T* to = reinterpret_cast<T*>(y);
    parallel_ranges(out.element_count(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = chosen[i] ? on_true[i] : on_false[i];
    });
  };
  switch (size_of(type)) {
    case 1:
      choose(uint8_t());
      break;
    case 2:
      choose(uint16_t());
      break;
    case 4:
      choose(uint32_t());
      break;
    case 8:
      choose(uint64_t());
      break;
    default:
      return refuse(x, fmt::format("of {} is not known", name(type)));
  }
  return out;
}

Result<Literal> evaluate_clamp(Machine& machine, const Instruction& x, Operands operands) {
  const ElementType type = machine.storage_type(x.shape().type());
  const Shape value = operands[1].shape();
  for (Literal& operand : operands) {
    if (operand.shape().type() != type) {
      HEDDLE_ASSIGN(operand, convert_to(operand, type, machine.meter()));  // mixed precision
    }
    HEDDLE_ASSIGN(operand, spread(operand, value, machine));
  }
  HEDDLE_ASSIGN(Literal out, machine.allocate(value.with_type(type)));
  std::byte* const y = out.mutable_data();
  const bool known = with_type(type, [&]<class Codec>() {
    using Stored = typename Codec::Stored;
    using T = typename Codec::Computed;
    const Stored* low = operands[0].as<Stored>();
    const Stored* value = operands[1].as<Stored>();
    const Stored* high = operands[2].as<Stored>();
    Stored* to = reinterpret_cast<Stored*>(y);
    for (int64_t i = 0; i < out.element_count(); ++i) {
      const T v = Codec::load(value[i]);
      const T at_least = v < Codec::load(low[i]) ? Codec::load(low[i]) : v;  // NaN stays NaN
      to[i] = Codec::store(at_least > Codec::load(high[i]) ? Codec::load(high[i]) : at_least);
    }
  });
  if (!known) return refuse(x, fmt::format("of {} is not known", name(type)));
  return out;
}

}  // namespace heddle::hlo
