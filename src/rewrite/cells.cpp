#include "rewrite/cells.h"

#include <algorithm>
#include <cmath>

#include "hlo/interpreter/storage.h"
#include "hlo/interpreter/strided.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Literal;
using hlo::Opcode;

namespace {

// Cumulative sums of cumulative sums: each is a vector of its own.
constexpr int kMaxSumsOfSums = 3;

bool is_window_sum(Elements& elements, const Element& e) {
  const Instruction* x = e.x;
  if (!x->is(Opcode::reduce_window) || x->operand_count() != 2 || x->shape().rank() != 1 ||
      x->window().size() != 1 || elements.splat(e.frame, x->operand(1)) != 0.0)
    return false;
  const Instruction* combine = x->to_apply()->root();
  const hlo::WindowDimension window = x->window()[0];
  return combine->is(Opcode::add) && combine->operand(0)->is(Opcode::parameter) &&
         combine->operand(1)->is(Opcode::parameter) && combine->operand(0) != combine->operand(1) &&
         window.stride == 1 && window.lhs_dilate == 1 && window.rhs_dilate == 1;
}

bool is_fixed_leaf(Elements& elements, const Element& e, int levels);

std::optional<std::vector<Step>> fixed_steps(Elements& elements, const Element& element,
                                             int levels) {
  auto steps = steps_of(elements, element, [](const Element& e) { return Arithmetic::knows(e.x); });
  if (!steps || !std::all_of(steps->begin(), steps->end(), [&](const Step& step) {
        return !step.operands.empty() || is_fixed_leaf(elements, step.element, levels);
      }))
    return std::nullopt;
  return steps;
}

bool is_fixed_leaf(Elements& elements, const Element& e, int levels) {
  if (!e.x->shape().is_array() || !is_computed_in(e.x->shape().type())) return false;
  if (const Literal* literal = e.x->literal()) return !literal->is_elided();
  if (e.x->is(Opcode::iota)) return true;
  return levels > 0 && is_window_sum(elements, e) &&
         fixed_steps(elements, elements.fresh(e.frame, e.x->operand(0)), levels - 1);
}

/// Sums over a window of a vector, as cumulative sums are written.
std::optional<Literal> window_sums(const Instruction* x, const Literal& vector) {
  const hlo::WindowDimension window = x->window()[0];
  const ElementType type = x->shape().type();
  const int64_t size = vector.element_count();
  std::vector<uint64_t> sums{0};  // wrapped, as narrower types' are when they are stored
  int64_t most = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double value = vector.get(i);
    if (hlo::is_floating(type)) {
      // Whole numbers whose sums are exact in any order.
      if (std::trunc(value) != value || !(std::abs(value) <= 1e15)) return std::nullopt;
      if ((most += static_cast<int64_t>(std::abs(value))) > largest_exact(type))
        return std::nullopt;
      sums.push_back(sums.back() + static_cast<uint64_t>(static_cast<int64_t>(value)));
    } else {
      sums.push_back(sums.back() + static_cast<uint64_t>(vector.get_integer(i)));
    }
  }
  auto result = Literal::zeros(hlo::Shape(type, {x->shape().dim(0)}));
  if (!result) return std::nullopt;
  for (int64_t i = 0; i < result->element_count(); ++i) {
    const int64_t first = std::clamp<int64_t>(i - window.pad_low, 0, size);
    const int64_t end = std::clamp<int64_t>(i - window.pad_low + window.size, first, size);
    const auto sum = static_cast<int64_t>(sums[end] - sums[first]);
    if (hlo::is_floating(type)) {
      result->set(i, static_cast<double>(sum));
    } else {
      result->set_integer(i, sum);
    }
  }
  return std::move(*result);
}

std::optional<Literal> positions(ElementType type, int64_t size) {
  auto line = Literal::zeros(hlo::Shape(type, {size}));
  if (!line) return std::nullopt;
  const bool is_floating = hlo::is_floating(type);
  for (int64_t i = 0; i < size; ++i) {
    if (is_floating) {
      line->set(i, static_cast<double>(i));
      if (line->get(i) != static_cast<double>(i)) return std::nullopt;
    } else {
      line->set_integer(i, i);
    }
  }
  return std::move(*line);
}

}  // namespace

std::optional<std::vector<Step>> fixed_steps_of(Elements& elements, const Element& element) {
  return fixed_steps(elements, element, kMaxSumsOfSums);
}

std::optional<Literal> spread(const Literal& values, const std::vector<int64_t>& dims) {
  if (values.shape().dims() == dims) return values;
  std::vector<int64_t> strides = hlo::row_major_strides(values.shape().dims());
  for (size_t i = 0; i < dims.size(); ++i)
    if (values.shape().dim(static_cast<int>(i)) == 1) strides[i] = 0;
  auto result = Literal::uninitialized(hlo::Shape(values.shape().type(), dims));
  if (!result) return std::nullopt;
  hlo::strided_copy(hlo::size_of(values.shape().type()), dims, values.data(), strides,
                    result->mutable_data(), hlo::row_major_strides(dims));
  return std::move(*result);
}

double work_of(const std::vector<Step>& steps, const std::vector<Extent>& extents) {
  double work = 0;
  for (const Step& step : steps) {
    double cells = 1;
    for (const Extent& extent : extents)
      if (varies(step.element, {extent.var}))
        cells *= static_cast<double>(extent.end - extent.begin);
    work += cells;
  }
  return work;
}

std::optional<Literal> Cells::evaluate(const std::vector<Step>& steps,
                                       const std::vector<Extent>& extents) {
  std::vector<int> last_use(steps.size(), -1);
  for (size_t i = 0; i < steps.size(); ++i)
    for (int operand : steps[i].operands) last_use[operand] = static_cast<int>(i);
  std::vector<Literal> values(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    auto value = step(steps[i], values, extents);
    if (!value) return std::nullopt;
    values[i] = std::move(*value);
    for (int operand : steps[i].operands)
      if (last_use[operand] == static_cast<int>(i)) values[operand] = Literal();
  }
  return std::move(values.back());
}

std::optional<Literal> Cells::step(const Step& step, std::vector<Literal>& values,
                                   const std::vector<Extent>& extents) {
  if (step.operands.empty()) return leaf(step.element, extents);
  std::vector<int64_t> dims;
  for (size_t i = 0; i < extents.size(); ++i) {
    int64_t size = 1;
    for (int operand : step.operands)
      size = std::max(size, values[operand].shape().dim(static_cast<int>(i)));
    dims.push_back(size);
  }
  std::vector<Literal> operands;
  for (int number : step.operands) {
    auto operand = spread(values[number], dims);
    if (!operand) return std::nullopt;
    operands.push_back(std::move(*operand));
  }
  return arithmetic_.apply_exactly(step.element.x, std::move(operands));
}

std::optional<Literal> Cells::leaf(const Element& e, const std::vector<Extent>& extents) {
  const Instruction* x = e.x;
  // What the numbers are taken from, and the dimensions of it that `e` has a place in.
  std::optional<Literal> source;
  std::vector<Index> at = e.at;
  if (x->literal()) {
    source = *x->literal();
  } else if (x->is(Opcode::iota)) {
    const auto along = static_cast<int>(x->iota_dimension());
    source = positions(x->shape().type(), x->shape().dim(along));
    at = {e.at[along]};
  } else {
    const Element vector = elements_.fresh(e.frame, x->operand(0));
    const auto steps = fixed_steps_of(elements_, vector);
    std::vector<Extent> whole;
    for (Var v : vector.at[0]) whole.push_back({v, 0, elements_.size(v)});
    auto values = steps ? evaluate(*steps, whole) : std::nullopt;
    if (!values) return std::nullopt;
    std::vector<int64_t> dims;
    for (const Extent& extent : whole) dims.push_back(extent.end);
    values = spread(*values, dims);
    if (values) source = window_sums(x, *values);
  }
  if (!source) return std::nullopt;
  std::vector<int64_t> dims(extents.size(), 1), strides(extents.size(), 0);
  int64_t offset = 0;
  const std::vector<int64_t> of_source = hlo::row_major_strides(source->shape().dims());
  for (size_t i = 0; i < at.size(); ++i) {
    int64_t step = of_source[i];
    for (auto digit = at[i].rbegin(); digit != at[i].rend(); ++digit) {
      const auto extent = std::find_if(extents.begin(), extents.end(),
                                       [&](const Extent& each) { return each.var == *digit; });
      if (extent == extents.end()) return std::nullopt;
      const auto place = static_cast<size_t>(extent - extents.begin());
      dims[place] = extent->end - extent->begin;
      strides[place] += step;
      offset += extent->begin * step;
      step *= elements_.size(*digit);
    }
  }
  auto value = Literal::uninitialized(hlo::Shape(source->shape().type(), dims));
  if (!value) return std::nullopt;
  const int64_t size = hlo::size_of(source->shape().type());
  if (value->element_count() > 0)
    hlo::strided_copy(size, dims, source->data() + offset * size, strides, value->mutable_data(),
                      hlo::row_major_strides(dims));
  return std::move(*value);
}

}  // namespace heddle::rewrite
