// Operations that move elements and compute none.
#include <algorithm>
#include <functional>
#include <numeric>

#include "hlo/interpreter/codec.h"
#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {
namespace {

using Strides = std::vector<int64_t>;

Result<Literal> broadcast(Machine& machine, const Instruction& x, const Literal& operand) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  const Strides from = row_major_strides(operand.shape().dims());
  Strides spread(x.shape().rank(), 0);
  for (size_t i = 0; i < from.size(); ++i) spread[x.dimensions()[i]] = from[i];
  strided_copy(size_of(out.shape().type()), out.shape().dims(), operand.data(), spread,
               out.mutable_data(), row_major_strides(out.shape().dims()));
  return out;
}

Result<Literal> transpose(Machine& machine, const Instruction& x, const Literal& operand) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  const Strides from = row_major_strides(operand.shape().dims());
  Strides permuted;
  for (int64_t dimension : x.dimensions()) permuted.push_back(from[dimension]);
  strided_copy(size_of(out.shape().type()), out.shape().dims(), operand.data(), permuted,
               out.mutable_data(), row_major_strides(out.shape().dims()));
  return out;
}

Result<Literal> reverse(Machine& machine, const Instruction& x, const Literal& operand) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  if (out.element_count() == 0) return out;
  Strides from = row_major_strides(operand.shape().dims());
  int64_t start = 0;
  for (int64_t dimension : x.dimensions()) {
    start += (operand.shape().dim(static_cast<int>(dimension)) - 1) * from[dimension];
    from[dimension] = -from[dimension];
  }
  const int64_t size = size_of(out.shape().type());
  strided_copy(size, out.shape().dims(), operand.data() + start * size, from, out.mutable_data(),
               row_major_strides(out.shape().dims()));
  return out;
}

// out[i] = operand[starts + i * steps]
Result<Literal> window_of(Machine& machine, const Instruction& x, const Literal& operand,
                          const Strides& starts, const Strides& steps) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  if (out.element_count() == 0) return out;
  const Strides strides = row_major_strides(operand.shape().dims());
  Strides from(strides.size());
  int64_t start = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    start += starts[i] * strides[i];
    // Of a single element no step is taken, and a step may be of any length.
    from[i] = out.shape().dim(static_cast<int>(i)) > 1 ? steps[i] * strides[i] : 0;
  }
  const int64_t size = size_of(out.shape().type());
  strided_copy(size, out.shape().dims(), operand.data() + start * size, from, out.mutable_data(),
               row_major_strides(out.shape().dims()));
  return out;
}

Result<Literal> slice(Machine& machine, const Instruction& x, const Literal& operand) {
  Strides starts;
  Strides steps;
  for (const SliceDimension& range : x.slice()) {
    starts.push_back(range.start);
    steps.push_back(range.stride);
  }
  return window_of(machine, x, operand, starts, steps);
}

// Start indices clamped so that a window of `sizes` lies inside.
Strides clamped_starts(std::span<const Literal> starts, const Shape& array,
                       std::span<const int64_t> sizes) {
  Strides clamped;
  for (int i = 0; i < array.rank(); ++i) {
    const int64_t start = starts[i].get_integer(0);
    const int64_t room = array.dim(i) - sizes[i];
    // A u64 beyond int64 reads as negative, and is too large all the same.
    const bool huge = starts[i].shape().type() == ElementType::u64 && start < 0;
    clamped.push_back(huge ? room : std::clamp<int64_t>(start, 0, room));
  }
  return clamped;
}

Result<Literal> dynamic_slice(Machine& machine, const Instruction& x, const Operands& operands) {
  const Shape& array = operands[0].shape();
  const Strides starts =
      clamped_starts(std::span(operands).subspan(1), array, x.integers("dynamic_slice_sizes"));
  return window_of(machine, x, operands[0], starts, Strides(array.rank(), 1));
}

// Writes `part` into `whole` at `starts`, every `steps`-th element.
void put(Literal& whole, const Literal& part, const Strides& starts, const Strides& steps) {
  if (part.element_count() == 0) return;
  const Strides strides = row_major_strides(whole.shape().dims());
  Strides to(strides.size());
  int64_t start = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    start += starts[i] * strides[i];
    to[i] = steps[i] * strides[i];
  }
  const int64_t size = size_of(whole.shape().type());
  strided_copy(size, part.shape().dims(), part.data(), row_major_strides(part.shape().dims()),
               whole.mutable_data() + start * size, to);
}

Result<Literal> dynamic_update_slice(Machine& machine, const Instruction& x, Operands operands) {
  const Strides starts = clamped_starts(std::span(operands).subspan(2), operands[0].shape(),
                                        operands[1].shape().dims());
  const Strides steps(starts.size(), 1);
  HEDDLE_ASSIGN(const Literal update,
                convert_to(operands[1], operands[0].shape().type(), machine.meter()));
  if (operands[0].is_unshared()) {
    Literal whole = std::move(operands[0]);
    put(whole, update, starts, steps);
    return whole;
  }
  HEDDLE_ASSIGN(Literal whole, machine.result_of(x));
  std::copy(operands[0].data(), operands[0].data() + operands[0].byte_count(),
            whole.mutable_data());
  put(whole, update, starts, steps);
  return whole;
}

Result<Literal> pad(Machine& machine, const Instruction& x, const Operands& operands) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  HEDDLE_ASSIGN(const Literal value, convert_to(operands[1], out.shape().type(), machine.meter()));
  fill(size_of(out.shape().type()), value.data(), out.mutable_data(), out.element_count());
  // The part of the operand that is not cut off by negative padding.
  const Literal& operand = operands[0];
  Strides starts;
  Strides steps;
  Strides from = row_major_strides(operand.shape().dims());
  std::vector<int64_t> dims;
  int64_t first = 0;
  for (int i = 0; i < operand.shape().rank(); ++i) {
    const PaddingDimension& padding = x.padding()[i];
    const int64_t step = padding.interior + 1;
    const int64_t begin = padding.low >= 0 ? 0 : (-padding.low + step - 1) / step;
    const int64_t room = out.shape().dim(i) - 1 - padding.low;  // of the last element's position
    const int64_t end = room < 0 ? 0 : std::min(operand.shape().dim(i), room / step + 1);
    if (end <= begin) return out;
    dims.push_back(end - begin);
    starts.push_back(padding.low + begin * step);
    steps.push_back(step);
    first += begin * from[i];
  }
  const Strides strides = row_major_strides(out.shape().dims());
  int64_t to_first = 0;
  Strides to(strides.size());
  for (size_t i = 0; i < strides.size(); ++i) {
    to_first += starts[i] * strides[i];
    to[i] = dims[i] > 1 ? steps[i] * strides[i] : 0;
  }
  const int64_t size = size_of(out.shape().type());
  strided_copy(size, dims, operand.data() + first * size, from,
               out.mutable_data() + to_first * size, to);
  return out;
}

Result<Literal> concatenate(Machine& machine, const Instruction& x, const Operands& operands) {
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  Strides starts(x.shape().rank(), 0);
  const Strides steps(x.shape().rank(), 1);
  const auto along = x.dimensions()[0];
  for (const Literal& operand : operands) {
    HEDDLE_ASSIGN(const Literal part, convert_to(operand, out.shape().type(), machine.meter()));
    put(out, part, starts, steps);
    starts[along] += operand.shape().dim(static_cast<int>(along));
  }
  return out;
}

Result<Literal> iota(Machine& machine, const Instruction& x) {
  const int64_t length = x.shape().dim(static_cast<int>(x.iota_dimension()));
  HEDDLE_ASSIGN(Literal line, machine.allocate(Shape(x.shape().type(), {length})));
  const ElementType type = line.shape().type();
  if (is_complex(type)) return refuse(x, fmt::format("of {} is not known", name(type)));
  for (int64_t i = 0; i < length; ++i) {
    if (is_floating(type)) {
      line.set(i, static_cast<double>(i));
    } else {
      line.set_integer(i, i);
    }
  }
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  Strides from(x.shape().rank(), 0);
  from[x.iota_dimension()] = 1;
  strided_copy(size_of(type), x.shape().dims(), line.data(), from, out.mutable_data(),
               row_major_strides(x.shape().dims()));
  return out;
}

Result<Literal> reshape(const Instruction& x, Literal operand) {
  operand.reinterpret_shape(Shape(operand.shape().type(), x.shape().dims()));
  return operand;
}

/// The numbers in the order of the operand's memory, read in that of the result's. Literals are
/// row-major.
Result<Literal> bitcast(Machine& machine, const Instruction& x, Literal operand) {
  const Shape &from = x.operand(0)->shape(), &to = x.shape();
  if (!from.is_array() || !to.is_array() || from.type() != to.type() ||
      from.element_count() != to.element_count())
    return refuse(x, "is only known between arrays of one type and size");
  const auto given = major_to_minor(from), wanted = major_to_minor(to);
  if (!given || !wanted) return refuse(x, "is only known between orders of dimensions");
  if (std::ranges::is_sorted(*given) && std::ranges::is_sorted(*wanted))
    return reshape(x, std::move(operand));
  const int64_t size = size_of(operand.shape().type());
  const auto strides_along = [](const Shape& shape, const std::vector<int64_t>& order) {
    const Strides all = row_major_strides(shape.dims());
    std::pair<std::vector<int64_t>, Strides> along;
    for (const int64_t dim : order) {
      along.first.push_back(shape.dim(static_cast<int>(dim)));
      along.second.push_back(all[dim]);
    }
    return along;
  };
  HEDDLE_ASSIGN(Literal memory, machine.result_of(x));
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  const auto [from_dims, from_strides] = strides_along(from, *given);
  strided_copy(size, from_dims, operand.data(), from_strides, memory.mutable_data(),
               row_major_strides(from_dims));
  const auto [to_dims, to_strides] = strides_along(to, *wanted);
  strided_copy(size, to_dims, memory.data(), row_major_strides(to_dims), out.mutable_data(),
               to_strides);
  return out;
}

}  // namespace

Result<Literal> evaluate_movement(Machine& machine, const Instruction& x, Operands operands) {
  switch (x.opcode()) {
    case Opcode::bitcast:
      return bitcast(machine, x, std::move(operands[0]));
    case Opcode::broadcast:
      return broadcast(machine, x, operands[0]);
    case Opcode::concatenate:
      return concatenate(machine, x, operands);
    case Opcode::dynamic_slice:
      return dynamic_slice(machine, x, operands);
    case Opcode::dynamic_update_slice:
      return dynamic_update_slice(machine, x, std::move(operands));
    case Opcode::iota:
      return iota(machine, x);
    case Opcode::pad:
      return pad(machine, x, operands);
    case Opcode::reshape:
      return reshape(x, std::move(operands[0]));
    case Opcode::reverse:
      return reverse(machine, x, operands[0]);
    case Opcode::slice:
      return slice(machine, x, operands[0]);
    default:
      return transpose(machine, x, operands[0]);
  }
}

}  // namespace heddle::hlo
