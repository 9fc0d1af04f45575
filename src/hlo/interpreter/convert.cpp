#include <cmath>
#include <cstring>
#include <limits>

#include "hlo/interpreter/elementwise.h"
#include "hlo/interpreter/machine.h"
#include "hlo/minifloat.h"

namespace heddle::hlo {
namespace {

// Floats become integers truncated and saturated, NaN becomes 0; integers wrap.
template <class To, class From>
To convert_scalar(From x) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (std::isnan(x)) return 0;
    // Powers of two are exact in every floating type, the largest integers are not.
    const From end = std::ldexp(From(1), std::numeric_limits<To>::digits);
    if (x >= end) return std::numeric_limits<To>::max();
    if constexpr (std::is_signed_v<To>) {
      if (x < -end) return std::numeric_limits<To>::min();
    } else {
      if (x <= -1) return 0;
    }
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <class To, class From>
void convert_all(int64_t n, const std::byte* a, std::byte* out) {
  using T = typename To::Computed;
  map_elements<To, From>(n, a, out, [](typename From::Computed x) -> T {
    if constexpr (std::is_same_v<To, Pred>) {
      return x != 0;
    } else {
      return convert_scalar<T>(x);
    }
  });
}

// Types the loops do not know (f8, s4, ...): element by element, through f64 or int64.
void convert_slowly(const Literal& from, Literal& to) {
  const bool integers =
      is_integral(from.shape().type()) || from.shape().type() == ElementType::pred;
  for (int64_t i = 0; i < from.element_count(); ++i) {
    if (integers && !is_floating(to.shape().type())) {
      to.set_integer(i, from.get_integer(i));
    } else {
      to.set(i, from.get(i));
    }
  }
}

}  // namespace

Result<Literal> convert_to(const Literal& value, ElementType type,
                           std::shared_ptr<MemoryMeter> meter) {
  const ElementType from = value.shape().type();
  if (from == type) return value;
  HEDDLE_ASSIGN(Literal out,
                Literal::uninitialized(Shape(type, value.shape().dims()), std::move(meter)));
  if (is_complex(from) || is_complex(type)) {
    return error(Code::graph_not_supported,
                 "cannot convert {} to {}: complex numbers are not known", name(from), name(type));
  }
  const int64_t n = value.element_count();
  std::byte* const y = out.mutable_data();
  bool known = false;
  with_type(from, [&]<class From>() {
    known = with_type(type, [&]<class To>() {
      if constexpr (std::is_same_v<typename From::Computed, double> &&
                    (std::is_same_v<To, Bfloat16> || std::is_same_v<To, Float16>)) {
        // Through f32 they would be rounded twice.
        for (int64_t i = 0; i < n; ++i) store(type, y, i, value.as<double>()[i]);
      } else {
        convert_all<To, From>(n, value.data(), y);
      }
    });
  });
  if (!known) convert_slowly(value, out);
  return out;
}

Result<Literal> to_storage(Literal value, FloatStorage storage,
                           std::shared_ptr<MemoryMeter> meter) {
  if (!value.shape().is_tuple()) {
    return convert_to(value, storage_type(value.shape().type(), storage), std::move(meter));
  }
  std::vector<Literal> elements;
  for (Literal& element : value.take_elements()) {
    HEDDLE_ASSIGN(Literal stored, to_storage(std::move(element), storage, meter));
    elements.push_back(std::move(stored));
  }
  return Literal::tuple(std::move(elements));
}

Result<Literal> evaluate_convert(Machine& machine, const Instruction& x, Operands operands) {
  const ElementType type = machine.storage_type(x.shape().type());
  if (type == operands[0].shape().type()) return std::move(operands[0]);
  return convert_to(operands[0], type, machine.meter());
}

// The bits are those of the program's types, whatever the storage.
Result<Literal> evaluate_bitcast_convert(Machine& machine, const Instruction& x,
                                         Operands operands) {
  if (bits_of(x.shape().type()) < 8 || bits_of(x.operand(0)->shape().type()) < 8) {
    return refuse(x, "of types narrower than a byte is not known");
  }
  // Between types of one size the operand's dims stay, also where a reducer runs on arrays.
  const bool same_size = size_of(x.shape().type()) == size_of(x.operand(0)->shape().type());
  const std::vector<int64_t> dims = same_size ? operands[0].shape().dims() : x.shape().dims();
  HEDDLE_ASSIGN(const Literal bits,
                convert_to(operands[0], x.operand(0)->shape().type(), machine.meter()));
  HEDDLE_ASSIGN(Literal out,
                Literal::uninitialized(Shape(x.shape().type(), dims), machine.meter()));
  if (out.byte_count() > 0) std::memcpy(out.mutable_data(), bits.data(), out.byte_count());
  return to_storage(std::move(out), machine.storage(), machine.meter());
}

}  // namespace heddle::hlo
