#include "rewrite/runs.h"

#include <algorithm>

#include "rewrite/view_step.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

Index Runs::index_at(const Run& run, int64_t size) {
  if (size == 1) return {};
  const Var v = elements_.fresh(size);
  runs_[v] = run;
  return {v};
}

std::optional<Element> Runs::at(Element element, const Index& columns, Run run) {
  std::vector<int64_t> sizes;
  for (const Var v : columns) sizes.push_back(elements_.size(v));
  const auto digits = regroup({index_at(run, elements_.size(columns))}, sizes);
  if (!digits) return std::nullopt;
  for (Index& index : element.at) {
    Index renamed;
    for (const Var v : index) {
      const auto column = std::find(columns.begin(), columns.end(), v);
      if (column == columns.end()) {
        renamed.push_back(v);
      } else {
        const Index& digit = (*digits)[column - columns.begin()];
        renamed.insert(renamed.end(), digit.begin(), digit.end());
      }
    }
    index = std::move(renamed);
  }
  return element;
}

std::optional<Run> Runs::run_of(const Index& index) const {
  Run run{0, 0};
  int64_t weight = 1;
  for (auto v = index.rbegin(); v != index.rend(); ++v) {
    const auto found = runs_.find(*v);
    if (found == runs_.end()) return std::nullopt;
    run.first += found->second.first * weight;
    run.step += found->second.step * weight;
    weight *= elements_.size(*v);
  }
  return run;
}

bool Runs::split(Var v, int64_t minor, Index& digits) {
  const auto found = runs_.find(v);
  const int64_t size = elements_.size(v);
  if (found == runs_.end() || size % minor != 0) return false;
  const Run run = found->second;
  Run high{run.first / minor, 0}, low{run.first % minor, run.step};
  if (run.step % minor == 0) {
    high.step = run.step / minor;
    low.step = 0;
  } else if (last(run) / minor != high.first) {
    return false;
  }
  digits = index_at(high, size / minor);
  const Index second = index_at(low, minor);
  digits.insert(digits.end(), second.begin(), second.end());
  return true;
}

std::optional<std::vector<Index>> Runs::regroup(const std::vector<Index>& from,
                                                const std::vector<int64_t>& dims) {
  Index rest = flat(from);
  std::reverse(rest.begin(), rest.end());  // the next digit is the last
  std::vector<Index> result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t covered = 1;
    while (covered < dims[i]) {
      if (rest.empty()) return std::nullopt;
      const Var v = rest.back();
      rest.pop_back();
      const int64_t left = dims[i] / covered;
      if (elements_.size(v) <= left) {
        covered *= elements_.size(v);
        result[i].push_back(v);
        continue;
      }
      Index digits;
      if (dims[i] % covered != 0 || elements_.size(v) % left != 0 ||
          !split(v, elements_.size(v) / left, digits))
        return std::nullopt;
      rest.insert(rest.end(), digits.rbegin(), digits.rend());
    }
    if (covered != dims[i]) return std::nullopt;
  }
  if (!rest.empty()) return std::nullopt;
  return result;
}

bool Runs::look_through(Element& element, bool rounded) {
  element.x = elements_.representative(element.x);
  const Instruction* x = element.x;
  switch (x->opcode()) {
    case Opcode::transpose:
    case Opcode::broadcast:
    case Opcode::reshape:
    case Opcode::copy:
      return step_behind_view(element, [this](const std::vector<Index>& at, const auto& dims) {
        return regroup(at, dims);
      });
    case Opcode::convert:
      if (!is_widening(x->operand(0)->shape().type(), x->shape().type()) &&
          !(rounded && is_rounding(x)))
        return false;
      element.x = x->operand(0);
      return true;
    case Opcode::get_tuple_element:
    case Opcode::dynamic_slice: {
      Element behind = elements_.resolve(element);
      if (behind == element) return false;
      element = std::move(behind);
      return true;
    }
    default:
      return false;
  }
}

bool Runs::look_into_parts(Element& element) {
  switch (element.x->opcode()) {
    case Opcode::slice:
      return into_slice(element);
    case Opcode::concatenate:
      return into_concatenation(element);
    case Opcode::pad:
      return into_padding(element);
    default:
      return false;
  }
}

bool Runs::into_slice(Element& element) {
  const Instruction* from = element.x->operand(0);
  std::vector<Index> at = element.at;
  for (int dim = 0; dim < from->shape().rank(); ++dim) {
    const hlo::SliceDimension& s = element.x->slice()[dim];
    const int64_t size = from->shape().dim(dim);
    if (s.start == 0 && s.limit == size && s.stride == 1) continue;
    const auto run = run_of(at[dim]);
    if (!run) return false;
    at[dim] = index_at({s.start + run->first * s.stride, run->step * s.stride}, size);
  }
  element = {element.frame, from, std::move(at)};
  return true;
}

bool Runs::into_concatenation(Element& element) {
  const auto dim = static_cast<int>(element.x->dimensions()[0]);
  const auto run = run_of(element.at[dim]);
  if (!run) return false;
  int64_t start = 0;
  for (const Instruction* part : element.x->operands()) {
    const int64_t size = part->shape().dim(dim);
    if (run->first >= start && run->first < start + size) {
      if (last(*run) < start || last(*run) >= start + size) return false;
      element.at[dim] = index_at({run->first - start, run->step}, size);
      element.x = part;
      return true;
    }
    start += size;
  }
  return false;
}

bool Runs::into_padding(Element& element) {
  const Instruction* from = element.x->operand(0);
  std::vector<Index> at = element.at;
  for (int dim = 0; dim < from->shape().rank(); ++dim) {
    const hlo::PaddingDimension& p = element.x->padding()[dim];
    if (p.low == 0 && p.high == 0 && p.interior == 0) continue;
    const int64_t size = from->shape().dim(dim), spread = p.interior + 1;
    const auto run = run_of(at[dim]);
    if (!run) return false;
    const int64_t first = run->first - p.low, end = last(*run) - p.low;
    const int64_t extent = size == 0 ? 0 : (size - 1) * spread + 1;
    const bool is_before = first < 0 && end < 0, is_behind = first >= extent && end >= extent;
    const bool steps_alike = run->step % spread == 0;
    if (is_before || is_behind || (steps_alike && first % spread != 0)) {
      element = {element.frame, element.x->operand(1), {}};
      return true;
    }
    if (first < 0 || end < 0 || first >= extent || end >= extent || !steps_alike) return false;
    at[dim] = index_at({first / spread, run->step / spread}, size);
  }
  element = {element.frame, from, std::move(at)};
  return true;
}

}  // namespace heddle::rewrite
