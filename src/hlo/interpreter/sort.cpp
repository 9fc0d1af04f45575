#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

// A stable merge sort of our own: the comparator is the program's and may be no order at all, which
// the standard library's sorts do not survive.
Status merge_sort(std::vector<int64_t>& order,
                  const std::function<Result<bool>(int64_t, int64_t)>& before) {
  const auto n = static_cast<int64_t>(order.size());
  std::vector<int64_t> merged(order.size());
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * width) {
      const int64_t middle = std::min(begin + width, n);
      const int64_t end = std::min(begin + 2 * width, n);
      int64_t a = begin;
      int64_t b = middle;
      for (int64_t to = begin; to < end; ++to) {
        bool take_b = a == middle;
        if (!take_b && b < end) {
          HEDDLE_ASSIGN(take_b, before(order[b], order[a]));
        }
        merged[to] = take_b ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
  return {};
}

}  // namespace

Result<Literal> evaluate_sort(Machine& machine, const Instruction& x, Operands operands) {
  const Shape shape = operands[0].shape();
  const auto along = static_cast<int>(x.dimensions()[0]);
  const int64_t length = shape.dim(along);
  const int64_t stride = row_major_strides(shape.dims())[along];
  const int64_t count = shape.element_count();
  HEDDLE_TRY(machine.spend(x, count * (length > 1 ? 1 : Machine::kElementsPerValue)));
  Operands sorted;
  for (const Literal& operand : operands) {
    HEDDLE_ASSIGN(Literal out, machine.allocate(operand.shape()));
    sorted.push_back(std::move(out));
  }
  const auto before = [&](int64_t a, int64_t b) -> Result<bool> {
    HEDDLE_TRY(machine.spend(x, Machine::kElementsPerValue * x.operand_count()));
    Operands arguments;
    for (const Literal& operand : operands) {
      arguments.push_back(scalar_at(operand, a));
      arguments.push_back(scalar_at(operand, b));
    }
    HEDDLE_ASSIGN(const Literal result, machine.run(*x.to_apply(), std::move(arguments)));
    return result.get_integer(0) != 0;
  };
  const int64_t lines = length == 0 ? 0 : count / length;
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t first = line / stride * stride * length + line % stride;
    std::vector<int64_t> order(length);
    for (int64_t i = 0; i < length; ++i) order[i] = first + i * stride;
    HEDDLE_TRY(merge_sort(order, before));
    for (size_t k = 0; k < operands.size(); ++k) {
      const int64_t size = size_of(operands[k].shape().type());
      std::byte* const to = sorted[k].mutable_data();
      for (int64_t i = 0; i < length; ++i) {
        const std::byte* from = operands[k].data() + order[i] * size;
        std::copy(from, from + size, to + (first + i * stride) * size);
      }
    }
  }
  if (x.shape().is_tuple()) return Literal::tuple(std::move(sorted));
  return std::move(sorted[0]);
}

Result<Literal> evaluate_topk(Machine& machine, const Instruction& x, Operands operands) {
  const Literal& operand = operands[0];
  const ElementType type = operand.shape().type();
  const int64_t length = operand.shape().dims().back();
  const int64_t k = *x.integer("k");
  const bool largest = x.boolean("largest", true);
  HEDDLE_ASSIGN(Literal values, machine.allocate(x.shape().elements()[0]));
  HEDDLE_ASSIGN(Literal indices, machine.allocate(x.shape().elements()[1]));
  const int64_t lines = length == 0 ? 0 : operand.element_count() / length;
  if (lines == 0) return Literal::tuple({std::move(values), std::move(indices)});
  HEDDLE_TRY(machine.spend(x, operand.element_count() * std::bit_width(uint64_t(length)) * 16));
  std::vector<int64_t> order(length);
  const bool exact = is_integral(type);  // 64-bit integers do not fit into f64
  for (int64_t line = 0; line < lines; ++line) {
    std::iota(order.begin(), order.end(), line * length);
    const auto before = [&](int64_t a, int64_t b) -> Result<bool> {
      if (!largest) std::swap(a, b);
      if (type == ElementType::u64) {
        return static_cast<uint64_t>(operand.get_integer(a)) >
               static_cast<uint64_t>(operand.get_integer(b));
      }
      if (exact) return operand.get_integer(a) > operand.get_integer(b);
      // NaN counts as the largest.
      const double x = operand.get(a);
      const double y = operand.get(b);
      return x > y || (x != x && y == y);
    };
    HEDDLE_TRY(merge_sort(order, before));
    for (int64_t i = 0; i < k; ++i) {
      indices.set_integer(line * k + i, order[i] - line * length);
      if (exact) {
        values.set_integer(line * k + i, operand.get_integer(order[i]));
      } else {
        values.set(line * k + i, operand.get(order[i]));
      }
    }
  }
  return Literal::tuple({std::move(values), std::move(indices)});
}

}  // namespace heddle::hlo
