#include <cmath>
#include <limits>
#include <type_traits>

#include "hlo/interpreter/elementwise.h"
#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

// NaN wins.
template <class T>
T maximum(T x, T y) {
  return is_nan(x) ? x : is_nan(y) ? y : (x > y ? x : y);
}
template <class T>
T minimum(T x, T y) {
  return is_nan(x) ? x : is_nan(y) ? y : (x < y ? x : y);
}

template <class Codec>
bool map_float(Opcode opcode, int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  using T = typename Codec::Computed;
  const auto map = [&](auto f) {
    map_pairs<Codec, Codec>(n, a, b, out, f);
    return true;
  };
  switch (opcode) {
    case Opcode::add:
      return map([](T x, T y) { return x + y; });
    case Opcode::atan2:
      return map([](T x, T y) { return std::atan2(x, y); });
    case Opcode::divide:
      return map([](T x, T y) { return x / y; });
    case Opcode::maximum:
      return map([](T x, T y) { return maximum(x, y); });
    case Opcode::minimum:
      return map([](T x, T y) { return minimum(x, y); });
    case Opcode::multiply:
      return map([](T x, T y) { return x * y; });
    case Opcode::power:
      return map([](T x, T y) { return std::pow(x, y); });
    case Opcode::remainder:
      return map([](T x, T y) { return std::fmod(x, y); });
    case Opcode::subtract:
      return map([](T x, T y) { return x - y; });
    default:
      return false;
  }
}

// Wrap-around arithmetic; division by zero gives all ones, remainder by zero the dividend, and the
// quotient that does not fit wraps, as XLA defines them.
template <class T>
T divide(T x, T y) {
  if (y == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && y == static_cast<T>(-1)) {
    return static_cast<T>(std::make_unsigned_t<T>(0) - static_cast<std::make_unsigned_t<T>>(x));
  }
  return static_cast<T>(x / y);
}
template <class T>
T remainder(T x, T y) {
  if (y == 0) return x;
  if (std::is_signed_v<T> && y == static_cast<T>(-1)) return 0;
  return static_cast<T>(x % y);
}
template <class T>
T power(T x, T y) {
  using U = std::make_unsigned_t<T>;
  if (std::is_signed_v<T> && y < 0) {
    if (x == 1) return 1;
    if (x == static_cast<T>(-1)) return y % 2 == 0 ? T(1) : T(-1);
    return 0;
  }
  uint64_t result = 1;
  uint64_t base = static_cast<U>(x);
  for (U exponent = static_cast<U>(y); exponent != 0; exponent = static_cast<U>(exponent >> 1)) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return static_cast<T>(result);
}

template <class Codec>
bool map_integer(Opcode opcode, int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  using T = typename Codec::Computed;
  using U = std::make_unsigned_t<T>;
  constexpr U kBits = std::numeric_limits<U>::digits;
  const auto map = [&](auto f) {
    map_pairs<Codec, Codec>(n, a, b, out, f);
    return true;
  };
  // 64-bit unsigned arithmetic wraps and truncates to what narrower types give.
  switch (opcode) {
    case Opcode::add:
      return map([](T x, T y) {
        return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
      });
    case Opcode::subtract:
      return map([](T x, T y) {
        return static_cast<T>(static_cast<uint64_t>(x) - static_cast<uint64_t>(y));
      });
    case Opcode::multiply:
      return map([](T x, T y) {
        return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
      });
    case Opcode::and_:
      return map([](T x, T y) { return static_cast<T>(x & y); });
    case Opcode::or_:
      return map([](T x, T y) { return static_cast<T>(x | y); });
    case Opcode::xor_:
      return map([](T x, T y) { return static_cast<T>(x ^ y); });
    case Opcode::maximum:
      return map([](T x, T y) { return x > y ? x : y; });
    case Opcode::minimum:
      return map([](T x, T y) { return x < y ? x : y; });
    case Opcode::divide:
      return map([](T x, T y) { return divide(x, y); });
    case Opcode::remainder:
      return map([](T x, T y) { return remainder(x, y); });
    case Opcode::power:
      return map([](T x, T y) { return power(x, y); });
    case Opcode::shift_left:
      return map([](T x, T y) {
        return static_cast<U>(y) < kBits
                   ? static_cast<T>(static_cast<uint64_t>(x) << static_cast<U>(y))
                   : T(0);
      });
    case Opcode::shift_right_logical:
      return map([](T x, T y) {
        return static_cast<U>(y) < kBits ? static_cast<T>(static_cast<U>(x) >> static_cast<U>(y))
                                         : T(0);
      });
    case Opcode::shift_right_arithmetic:
      return map([](T x, T y) {
        using S = std::make_signed_t<T>;
        const U by = static_cast<U>(y) < kBits ? static_cast<U>(y) : static_cast<U>(kBits - 1);
        return static_cast<T>(static_cast<S>(x) >> by);
      });
    default:
      return false;
  }
}

bool map_pred(Opcode opcode, int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  const auto map = [&](auto f) {
    map_pairs<Pred, Pred>(n, a, b, out, f);
    return true;
  };
  using T = uint8_t;
  switch (opcode) {
    case Opcode::and_:
    case Opcode::minimum:
    case Opcode::multiply:
      return map([](T x, T y) { return static_cast<T>(x & y); });
    case Opcode::add:
    case Opcode::or_:
    case Opcode::maximum:
      return map([](T x, T y) { return static_cast<T>(x | y); });
    case Opcode::xor_:
      return map([](T x, T y) { return static_cast<T>(x ^ y); });
    default:
      return false;
  }
}

}  // namespace

Result<Literal> evaluate_binary(Machine& machine, const Instruction& x, Operands operands) {
  const ElementType type = machine.storage_type(x.shape().type());
  for (Literal& operand : operands) {
    if (operand.shape().type() != type && is_floating(type)) {
      HEDDLE_ASSIGN(operand, convert_to(operand, type, machine.meter()));  // mixed precision
    }
  }
  const int64_t n = operands[0].element_count();
  const std::byte* a = operands[0].data();
  const std::byte* b = operands[1].data();
  HEDDLE_ASSIGN(Literal out, machine.reuse_or_allocate(x, Shape(operands[0].shape()), operands));
  std::byte* const y = out.mutable_data();
  bool known = false;
  if (type == ElementType::pred) {
    known = map_pred(x.opcode(), n, a, b, y);
  } else {
    with_float(type, [&]<class Codec>() { known = map_float<Codec>(x.opcode(), n, a, b, y); }) ||
        with_integer(type,
                     [&]<class Codec>() { known = map_integer<Codec>(x.opcode(), n, a, b, y); });
  }
  if (!known) return refuse(x, fmt::format("of {} is not known", name(type)));
  return out;
}

}  // namespace heddle::hlo
