#include <algorithm>
#include <cstring>

#include "hlo/interpreter/codec.h"
#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/parallel.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {
namespace {

// Calls f with the function of two numbers of type T that `opcode` names; false if there is none.
template <class T, class F>
bool with_monoid(Opcode opcode, F&& f) {
  switch (opcode) {
    case Opcode::add:
      f([](T x, T y) {
        if constexpr (std::is_floating_point_v<T>) return x + y;
        return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
      });
      return true;
    case Opcode::multiply:
      f([](T x, T y) {
        if constexpr (std::is_floating_point_v<T>) return x * y;
        return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
      });
      return true;
    case Opcode::maximum:
      f([](T x, T y) { return is_nan(x) ? x : is_nan(y) ? y : (x > y ? x : y); });
      return true;
    case Opcode::minimum:
      f([](T x, T y) { return is_nan(x) ? x : is_nan(y) ? y : (x < y ? x : y); });
      return true;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (opcode) {
      case Opcode::and_:
        f([](T x, T y) { return static_cast<T>(x & y); });
        return true;
      case Opcode::or_:
        f([](T x, T y) { return static_cast<T>(x | y); });
        return true;
      case Opcode::xor_:
        f([](T x, T y) { return static_cast<T>(x ^ y); });
        return true;
      default:
        break;
    }
  }
  return false;
}

constexpr int kLanes = 16;  // independent partial results, so that the loop vectorises

// out[i] = init . x[i][0] . x[i][1] ...; numbers of bf16 and f16 are combined in f32.
template <class Codec, class F>
void reduce_rows(int64_t rows, int64_t length, const typename Codec::Stored* x,
                 typename Codec::Computed init, typename Codec::Stored* out, F f) {
  using T = typename Codec::Computed;
  parallel_ranges(rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(length, 1)),
                  [=](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      const auto* row = x + i * length;
                      T total = init;
                      int64_t j = 0;
                      if (length >= kLanes) {
                        T lanes[kLanes];
                        for (int l = 0; l < kLanes; ++l) lanes[l] = Codec::load(row[l]);
                        for (j = kLanes; j + kLanes <= length; j += kLanes) {
                          for (int l = 0; l < kLanes; ++l) {
                            lanes[l] = f(lanes[l], Codec::load(row[j + l]));
                          }
                        }
                        for (int l = 0; l < kLanes; ++l) total = f(total, lanes[l]);
                      }
                      for (; j < length; ++j) total = f(total, Codec::load(row[j]));
                      out[i] = Codec::store(total);
                    }
                  });
}

// out[j] = init . x[0][j] . x[1][j] ...
template <class Codec, class F>
void reduce_columns(int64_t length, int64_t columns, const typename Codec::Stored* x,
                    typename Codec::Computed init, typename Codec::Stored* out, F f) {
  using T = typename Codec::Computed;
  parallel_ranges(columns, std::max<int64_t>(64, kElementwiseGrain / std::max<int64_t>(length, 1)),
                  [=](int64_t begin, int64_t end) {
                    std::vector<T> totals(end - begin, init);
                    for (int64_t i = 0; i < length; ++i) {
                      const auto* row = x + i * columns + begin;
                      for (int64_t j = 0; j < end - begin; ++j) {
                        totals[j] = f(totals[j], Codec::load(row[j]));
                      }
                    }
                    for (int64_t j = 0; j < end - begin; ++j)
                      out[begin + j] = Codec::store(totals[j]);
                  });
}

struct Split {
  std::vector<int64_t> kept;
  std::vector<int64_t> reduced;
  int64_t kept_count = 1;
  int64_t reduced_count = 1;
};

Split split_dimensions(const Shape& shape, std::span<const int64_t> reduced) {
  Split split;
  for (int i = 0; i < shape.rank(); ++i) {
    if (std::find(reduced.begin(), reduced.end(), i) == reduced.end()) {
      split.kept.push_back(i);
      split.kept_count *= shape.dim(i);
    } else {
      split.reduced.push_back(i);
      split.reduced_count *= shape.dim(i);
    }
  }
  return split;
}

// `value` with the dimensions `first` before those of `second`, dense.
Result<Literal> ordered(Machine& machine, Literal value, const std::vector<int64_t>& first,
                        const std::vector<int64_t>& second) {
  std::vector<int64_t> order = first;
  order.insert(order.end(), second.begin(), second.end());
  if (std::is_sorted(order.begin(), order.end())) return value;
  const std::vector<int64_t> strides = row_major_strides(value.shape().dims());
  std::vector<int64_t> dims;
  std::vector<int64_t> from;
  for (int64_t dimension : order) {
    dims.push_back(value.shape().dim(static_cast<int>(dimension)));
    from.push_back(strides[dimension]);
  }
  HEDDLE_ASSIGN(Literal out,
                Literal::uninitialized(Shape(value.shape().type(), dims), machine.meter()));
  strided_copy(size_of(out.shape().type()), dims, value.data(), from, out.mutable_data(),
               row_major_strides(dims));
  return out;
}

// One array combined by one known operation.
Result<std::optional<Literal>> reduce_simply(Machine& machine, const Instruction& x, Opcode monoid,
                                             const Literal& value, const Literal& init,
                                             const Split& split) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  const ElementType type = out.shape().type();
  HEDDLE_ASSIGN(Literal source, convert_to(value, type, machine.meter()));
  HEDDLE_ASSIGN(const Literal start, convert_to(init, type, machine.meter()));
  const bool by_columns =
      !split.kept.empty() && !split.reduced.empty() && split.reduced.back() < split.kept.front();
  if (!by_columns) {
    HEDDLE_ASSIGN(source, ordered(machine, std::move(source), split.kept, split.reduced));
  }
  // A sum of 256 preds would wrap to false.
  if (type == ElementType::pred && monoid == Opcode::add) monoid = Opcode::or_;
  bool known = false;
  with_type(type, [&]<class Codec>() {
    using Stored = typename Codec::Stored;
    using T = typename Codec::Computed;
    const T first = Codec::load(*start.as<Stored>());
    known = with_monoid<T>(monoid, [&](auto f) {
      if (by_columns) {
        reduce_columns<Codec>(split.reduced_count, split.kept_count, source.as<Stored>(), first,
                              out.mutable_as<Stored>(), f);
      } else {
        reduce_rows<Codec>(split.kept_count, split.reduced_count, source.as<Stored>(), first,
                           out.mutable_as<Stored>(), f);
      }
    });
  });
  if (!known) return std::optional<Literal>();
  return std::optional<Literal>(std::move(out));
}

// The first `count` elements of an array, or those from `start` on: a copy.
Result<Literal> part(Machine& machine, const Literal& value, int64_t start, int64_t count) {
  const ElementType type = value.shape().type();
  HEDDLE_ASSIGN(Literal out, Literal::uninitialized(Shape(type, {count}), machine.meter()));
  if (count > 0) {
    std::memcpy(out.mutable_data(), value.data() + start * size_of(type), out.byte_count());
  }
  return out;
}

// Any reducer, any number of arrays: the lower half of what is to be reduced is combined with the
// upper half until one row is left, which joins the initial values.
Result<Operands> reduce_by_halves(Machine& machine, const Instruction& x, Operands arrays,
                                  const Operands& inits, int64_t length, int64_t columns) {
  const size_t n = arrays.size();
  const Computation& reducer = *x.to_apply();
  while (length > 1) {
    const int64_t half = length / 2;
    Operands arguments;
    for (const Literal& array : arrays) {
      HEDDLE_ASSIGN(Literal lower, part(machine, array, 0, half * columns));
      arguments.push_back(std::move(lower));
    }
    for (const Literal& array : arrays) {
      HEDDLE_ASSIGN(Literal upper, part(machine, array, half * columns, half * columns));
      arguments.push_back(std::move(upper));
    }
    HEDDLE_ASSIGN(Operands combined,
                  machine.run_on_elements(x, reducer, std::move(arguments), half * columns));
    if (length % 2 != 0) {
      for (size_t i = 0; i < n; ++i) {
        const ElementType type = combined[i].shape().type();
        HEDDLE_ASSIGN(Literal joined,
                      Literal::uninitialized(Shape(type, {(half + 1) * columns}), machine.meter()));
        HEDDLE_ASSIGN(const Literal source, convert_to(arrays[i], type, machine.meter()));
        std::byte* to = joined.mutable_data();
        std::memcpy(to, combined[i].data(), combined[i].byte_count());
        const int64_t row = columns * size_of(type);
        std::memcpy(to + combined[i].byte_count(), source.data() + (length - 1) * row, row);
        combined[i] = std::move(joined);
      }
    }
    arrays = std::move(combined);
    length = half + length % 2;
  }
  Operands arguments;
  for (const Literal& init : inits) {
    const ElementType type = init.shape().type();
    HEDDLE_ASSIGN(Literal spread, Literal::uninitialized(Shape(type, {columns}), machine.meter()));
    fill(size_of(type), init.data(), spread.mutable_data(), columns);
    arguments.push_back(std::move(spread));
  }
  if (length == 0) return arguments;
  for (Literal& array : arrays) arguments.push_back(std::move(array));
  return machine.run_on_elements(x, reducer, std::move(arguments), columns);
}

}  // namespace

Result<Literal> evaluate_reduce(Machine& machine, const Instruction& x, Operands operands) {
  const size_t n = operands.size() / 2;
  const Split split = split_dimensions(operands[0].shape(), x.dimensions());
  HEDDLE_TRY(machine.spend(x, operands[0].element_count()));
  const Opcode monoid = n == 1 ? monoid_of(*x.to_apply()) : Opcode::unknown;
  if (monoid != Opcode::unknown) {
    HEDDLE_ASSIGN(std::optional<Literal> out,
                  reduce_simply(machine, x, monoid, operands[0], operands[1], split));
    if (out) return std::move(*out);
  }
  Operands arrays;
  Operands inits(operands.begin() + n, operands.end());
  for (size_t i = 0; i < n; ++i) {
    HEDDLE_ASSIGN(Literal array,
                  ordered(machine, std::move(operands[i]), split.reduced, split.kept));
    array.reinterpret_shape(Shape(array.shape().type(), {array.element_count()}));
    arrays.push_back(std::move(array));
  }
  HEDDLE_ASSIGN(Operands results, reduce_by_halves(machine, x, std::move(arrays), inits,
                                                   split.reduced_count, split.kept_count));
  const bool variadic = x.shape().is_tuple();
  for (size_t i = 0; i < n; ++i) {
    const Shape& shape = variadic ? x.shape().elements()[i] : x.shape();
    HEDDLE_ASSIGN(results[i],
                  convert_to(results[i], machine.storage_type(shape.type()), machine.meter()));
    results[i].reinterpret_shape(Shape(results[i].shape().type(), shape.dims()));
  }
  if (variadic) return Literal::tuple(std::move(results));
  return std::move(results[0]);
}

// Each position within the window is one array of the result's size, combined with what came
// before.
Result<Literal> evaluate_reduce_window(Machine& machine, const Instruction& x, Operands operands) {
  const size_t n = operands.size() / 2;
  const bool variadic = x.shape().is_tuple();
  const Shape& shape = variadic ? x.shape().elements()[0] : x.shape();
  const int rank = shape.rank();
  const auto window = x.window();
  std::vector<int64_t> padded_dims;
  std::vector<int64_t> sizes;
  int64_t positions = 1;
  for (int i = 0; i < rank; ++i) {
    const WindowDimension& w = window[i];
    const int64_t dim = operands[0].shape().dim(i);
    // Negative padding may leave less than nothing; then no window fits and the result is empty.
    padded_dims.push_back(std::max<int64_t>(
        0, (dim == 0 ? 0 : (dim - 1) * w.lhs_dilate + 1) + w.pad_low + w.pad_high));
    sizes.push_back(w.size);
    if (positions > (int64_t{1} << 40) / w.size) return refuse(x, "has too large a window");
    positions *= w.size;
  }
  if (!checked_element_count(padded_dims)) return refuse(x, "pads to more than 2^48 elements");
  const int64_t count = shape.element_count();
  Operands accumulators;
  Operands padded;
  for (size_t i = 0; i < n; ++i) {
    const ElementType type = operands[i].shape().type();
    HEDDLE_ASSIGN(const Literal init, convert_to(operands[n + i], type, machine.meter()));
    HEDDLE_ASSIGN(Literal total, Literal::uninitialized(Shape(type, {count}), machine.meter()));
    fill(size_of(type), init.data(), total.mutable_data(), count);
    accumulators.push_back(std::move(total));
    HEDDLE_ASSIGN(Literal wide, Literal::uninitialized(Shape(type, padded_dims), machine.meter()));
    fill(size_of(type), init.data(), wide.mutable_data(), wide.element_count());
    // The operand's elements that padding does not cut off, each at its place.
    const std::vector<int64_t> from_strides = row_major_strides(operands[i].shape().dims());
    const std::vector<int64_t> strides = row_major_strides(padded_dims);
    std::vector<int64_t> dims;
    std::vector<int64_t> to_strides;
    int64_t from = 0;
    int64_t to = 0;
    bool empty = count == 0;
    for (int d = 0; d < rank && !empty; ++d) {
      const WindowDimension& w = window[d];
      const int64_t step = w.lhs_dilate;
      const int64_t begin = w.pad_low >= 0 ? 0 : (-w.pad_low + step - 1) / step;
      const int64_t room = padded_dims[d] - 1 - w.pad_low;
      const int64_t end = room < 0 ? 0 : std::min(operands[i].shape().dim(d), room / step + 1);
      empty = end <= begin;
      if (empty) break;  // places beyond the array may be beyond int64 too
      dims.push_back(end - begin);
      to_strides.push_back(step * strides[d]);
      from += begin * from_strides[d];
      to += (w.pad_low + begin * step) * strides[d];
    }
    const int64_t size = size_of(type);
    if (!empty) {
      strided_copy(size, dims, operands[i].data() + from * size, from_strides,
                   wide.mutable_data() + to * size, to_strides);
    }
    padded.push_back(std::move(wide));
  }
  operands.clear();
  for (int64_t position = 0; position < positions && count > 0; ++position) {
    Operands arguments = std::move(accumulators);
    for (const Literal& wide : padded) {
      const std::vector<int64_t> strides = row_major_strides(padded_dims);
      std::vector<int64_t> steps(rank);
      int64_t rest = position;
      int64_t start = 0;
      for (int d = rank - 1; d >= 0; --d) {
        const WindowDimension& w = window[d];
        const int64_t at = rest % sizes[d];
        rest /= sizes[d];
        start += (w.reversed ? sizes[d] - 1 - at : at) * w.rhs_dilate * strides[d];
        steps[d] = w.stride * strides[d];
      }
      const ElementType type = wide.shape().type();
      HEDDLE_ASSIGN(Literal shifted, Literal::uninitialized(Shape(type, {count}), machine.meter()));
      strided_copy(size_of(type), shape.dims(), wide.data() + start * size_of(type), steps,
                   shifted.mutable_data(), row_major_strides(shape.dims()));
      arguments.push_back(std::move(shifted));
    }
    HEDDLE_ASSIGN(accumulators,
                  machine.run_on_elements(x, *x.to_apply(), std::move(arguments), count));
  }
  for (size_t i = 0; i < n; ++i) {
    const Shape& part = variadic ? x.shape().elements()[i] : x.shape();
    HEDDLE_ASSIGN(accumulators[i],
                  convert_to(accumulators[i], machine.storage_type(part.type()), machine.meter()));
    accumulators[i].reinterpret_shape(Shape(accumulators[i].shape().type(), part.dims()));
  }
  if (variadic) return Literal::tuple(std::move(accumulators));
  return std::move(accumulators[0]);
}

}  // namespace heddle::hlo
