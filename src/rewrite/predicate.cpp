#include "rewrite/predicate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Cells evaluated at a time; a 16k x 16k mask is read in blocks of rows.
constexpr int64_t kBlock = 1 << 18;
constexpr int64_t kMaxCells = int64_t{1} << 28;

const Extent* find(const std::vector<Extent>& extents, Var v) {
  for (const Extent& e : extents)
    if (e.var == v) return &e;
  return nullptr;
}

using Arithmetic = std::function<double(const double*)>;

/// The operation on values, or null if it is not one of integers, comparisons and truth.
Arithmetic arithmetic(const Instruction* x) {
  const bool truth = x->shape().type() == hlo::ElementType::pred;
  const bool integral = hlo::is_integral(x->shape().type());
  switch (x->opcode()) {
    case Opcode::add:
      return [](const double* v) { return v[0] + v[1]; };
    case Opcode::subtract:
      return [](const double* v) { return v[0] - v[1]; };
    case Opcode::multiply:
      return [](const double* v) { return v[0] * v[1]; };
    case Opcode::divide:
      if (integral)
        return [](const double* v) { return v[1] == 0 ? NAN : std::trunc(v[0] / v[1]); };
      return [](const double* v) { return v[0] / v[1]; };
    case Opcode::remainder:
      return [](const double* v) { return std::fmod(v[0], v[1]); };
    case Opcode::minimum:
      return [](const double* v) { return std::min(v[0], v[1]); };
    case Opcode::maximum:
      return [](const double* v) { return std::max(v[0], v[1]); };
    case Opcode::negate:
      return [](const double* v) { return -v[0]; };
    case Opcode::abs:
      return [](const double* v) { return std::abs(v[0]); };
    case Opcode::floor:
      return [](const double* v) { return std::floor(v[0]); };
    case Opcode::and_:
      if (!truth) return nullptr;
      return [](const double* v) { return double(v[0] != 0 && v[1] != 0); };
    case Opcode::or_:
      if (!truth) return nullptr;
      return [](const double* v) { return double(v[0] != 0 || v[1] != 0); };
    case Opcode::xor_:
      if (!truth) return nullptr;
      return [](const double* v) { return double((v[0] != 0) != (v[1] != 0)); };
    case Opcode::not_:
      if (!truth) return nullptr;
      return [](const double* v) { return double(v[0] == 0); };
    case Opcode::select:
      return [](const double* v) { return v[0] != 0 ? v[1] : v[2]; };
    case Opcode::convert:
      if (truth) return [](const double* v) { return double(v[0] != 0); };
      if (integral) return [](const double* v) { return std::trunc(v[0]); };
      return [](const double* v) { return v[0]; };
    case Opcode::compare: {
      const std::string_view d = x->direction();
      if (d == "EQ") return [](const double* v) { return double(v[0] == v[1]); };
      if (d == "NE") return [](const double* v) { return double(v[0] != v[1]); };
      if (d == "LT") return [](const double* v) { return double(v[0] < v[1]); };
      if (d == "LE") return [](const double* v) { return double(v[0] <= v[1]); };
      if (d == "GT") return [](const double* v) { return double(v[0] > v[1]); };
      if (d == "GE") return [](const double* v) { return double(v[0] >= v[1]); };
      return nullptr;
    }
    default:
      return nullptr;
  }
}

/// Visits every cell of `vars` within `extents`; gives each variable's value.
void for_each(const std::vector<Extent>& cells, const std::function<void(const int64_t*)>& visit) {
  std::vector<int64_t> at;
  for (const Extent& e : cells) {
    if (e.begin >= e.end) return;
    at.push_back(e.begin);
  }
  for (;;) {
    visit(at.data());
    size_t i = cells.size();
    for (;; --i) {
      if (i == 0) return;
      if (++at[i - 1] < cells[i - 1].end) break;
      at[i - 1] = cells[i - 1].begin;
    }
  }
}

/// The linear position along a dimension, as a weighted sum of its digits.
struct Position {
  std::vector<std::pair<size_t, int64_t>> terms;  // (variable's place in the grid, weight)
  int64_t operator()(const int64_t* at) const {
    int64_t sum = 0;
    for (const auto& [i, weight] : terms) sum += at[i] * weight;
    return sum;
  }
};

Position position(const Elements& elements, const Index& index, const std::vector<Var>& vars) {
  Position result;
  int64_t weight = 1;
  for (auto digit = index.rbegin(); digit != index.rend(); ++digit) {
    result.terms.emplace_back(std::find(vars.begin(), vars.end(), *digit) - vars.begin(), weight);
    weight *= elements.size(*digit);
  }
  return result;
}

/// Sums over windows of a vector, as a cumulative sum is written.
std::optional<std::vector<double>> window_sums(Elements& elements, const Element& e) {
  const Instruction* x = e.x;
  if (x->operand_count() != 2 || x->shape().rank() != 1 || x->window().size() != 1 ||
      elements.splat(e.frame, x->operand(1)) != 0.0)
    return std::nullopt;
  const Instruction* combine = x->to_apply()->root();
  const hlo::WindowDimension window = x->window()[0];
  if (!combine->is(Opcode::add) || !combine->operand(0)->is(Opcode::parameter) ||
      !combine->operand(1)->is(Opcode::parameter) || combine->operand(0) == combine->operand(1) ||
      window.stride != 1 || window.lhs_dilate != 1 || window.rhs_dilate != 1)
    return std::nullopt;
  const Element from = elements.fresh(e.frame, x->operand(0));
  std::vector<Extent> extents;
  for (Var v : from.at[0]) extents.push_back({v, 0, elements.size(v)});
  const auto grid = evaluate(elements, from, extents);
  const int64_t size = x->operand(0)->shape().dim(0);
  // Fresh digits are numbered from the most significant: the grid is the vector, or one number.
  if (!grid || (static_cast<int64_t>(grid->values.size()) != size && grid->values.size() != 1) ||
      size > kMaxCells / std::max<int64_t>(window.size, 1))
    return std::nullopt;
  std::vector<double> sums;
  for (int64_t i = 0; i < x->shape().dim(0); ++i) {
    double sum = 0;
    for (int64_t j = i - window.pad_low; j < i - window.pad_low + window.size; ++j)
      if (j >= 0 && j < size) sum += grid->values[grid->values.size() == 1 ? 0 : j];
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace

std::optional<Grid> evaluate(Elements& elements, const Element& element,
                             const std::vector<Extent>& extents) {
  const Element e = elements.resolve(element);
  const Instruction* x = e.x;
  Grid grid;
  std::set<Var> support;
  for (const Index& index : e.at) support.insert(index.begin(), index.end());
  std::vector<Extent> cells;
  int64_t count = 1;
  for (Var v : support) {
    const Extent* extent = find(extents, v);
    if (!extent) return std::nullopt;
    grid.vars.push_back(v);
    cells.push_back(*extent);
    count *= extent->end - extent->begin;
  }
  grid.values.reserve(count);
  if (x->is(Opcode::iota)) {
    const Position place = position(elements, e.at[x->iota_dimension()], grid.vars);
    for_each(cells, [&](const int64_t* at) { grid.values.push_back(double(place(at))); });
    return grid;
  }
  if (const hlo::Literal* literal = x->literal()) {
    if (literal->is_elided() || hlo::is_complex(x->shape().type())) return std::nullopt;
    std::vector<Position> places;
    for (const Index& index : e.at) places.push_back(position(elements, index, grid.vars));
    for_each(cells, [&](const int64_t* at) {
      int64_t linear = 0;
      for (size_t i = 0; i < places.size(); ++i)
        linear = linear * x->shape().dim(static_cast<int>(i)) + places[i](at);
      grid.values.push_back(literal->get(linear));
    });
    return grid;
  }
  if (x->is(Opcode::reduce_window)) {
    const auto sums = window_sums(elements, e);
    if (!sums) return std::nullopt;
    const Position place = position(elements, e.at[0], grid.vars);
    for_each(cells, [&](const int64_t* at) { grid.values.push_back((*sums)[place(at)]); });
    return grid;
  }
  const Arithmetic f = arithmetic(x);
  if (!f) return std::nullopt;
  std::vector<Grid> operands;
  for (const Instruction* operand : x->operands()) {
    const bool scalar = operand->shape().is_scalar();
    auto values =
        evaluate(elements, {e.frame, operand, scalar ? std::vector<Index>{} : e.at}, extents);
    if (!values) return std::nullopt;
    operands.push_back(std::move(*values));
  }
  // Strides of each operand in the grid's variables.
  std::vector<std::vector<int64_t>> strides;
  for (const Grid& operand : operands) {
    std::vector<int64_t> stride(grid.vars.size());
    int64_t step = 1;
    for (size_t i = operand.vars.size(); i-- > 0;) {
      const auto place = std::find(grid.vars.begin(), grid.vars.end(), operand.vars[i]);
      if (place == grid.vars.end()) return std::nullopt;
      stride[place - grid.vars.begin()] = step;
      const Extent* extent = find(extents, operand.vars[i]);
      step *= extent->end - extent->begin;
    }
    strides.push_back(std::move(stride));
  }
  double arguments[3];
  for_each(cells, [&](const int64_t* at) {
    for (size_t i = 0; i < operands.size(); ++i) {
      int64_t linear = 0;
      for (size_t v = 0; v < cells.size(); ++v) linear += (at[v] - cells[v].begin) * strides[i][v];
      arguments[i] = operands[i].values[linear];
    }
    grid.values.push_back(f(arguments));
  });
  return grid;
}

std::vector<Var> support(const Algebra& algebra, const Mask& mask) {
  std::set<Var> all;
  for (AtomId id : mask.indicators)
    all.insert(algebra.support(id).begin(), algebra.support(id).end());
  return {all.begin(), all.end()};
}

Result<Band> band_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                     const Index& rows, const Index& keys) {
  Band band;
  if (!mask.hides_anything()) return band;
  for (AtomId id : mask.indicators) {
    std::vector<Extent> first_cell;
    for (Var v : algebra.support(id)) first_cell.push_back({v, 0, 1});
    if (!evaluate(elements, algebra.at(id).element, first_cell))
      return error(Code::graph_not_supported,
                   "the mask (%{}) depends on data that is known only when the program runs",
                   algebra.at(id).element.x->name());
  }
  for (Var v : support(algebra, mask))
    if (std::find(rows.begin(), rows.end(), v) == rows.end() &&
        std::find(keys.begin(), keys.end(), v) == keys.end())
      return error(Code::graph_not_supported,
                   "the mask differs between batch entries or heads; only masks of row and key "
                   "index become bounds");
  const int64_t q = elements.size(rows), k = elements.size(keys);
  if (q > kMaxCells / std::max<int64_t>(k, 1))
    return error(Code::graph_not_supported, "a mask of {} x {} is more than is evaluated", q, k);
  // Blocks of rows by the most significant digit (all digits but it run in full).
  const int64_t outer = rows.empty() ? 1 : elements.size(rows[0]);
  const int64_t inner = q / outer;
  const int64_t step = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, inner * k));
  // Bounds: every visible key obeys them, and every row's interval is exactly what they leave.
  // Max of j - i and of i - j + 1 over visible cells; far below any, yet safe to subtract, if none
  // is.
  constexpr int64_t kNothingSeen = INT64_MIN / 4;
  int64_t right = kNothingSeen, left = kNothingSeen;
  std::vector<std::pair<int64_t, int64_t>> intervals;
  std::vector<Var> order(rows);
  order.insert(order.end(), keys.begin(), keys.end());
  for (int64_t begin = 0; begin < outer; begin += step) {
    std::vector<Extent> extents;
    for (Var v : order) extents.push_back({v, 0, elements.size(v)});
    if (!rows.empty()) extents[0] = {rows[0], begin, std::min(outer, begin + step)};
    std::vector<Grid> grids;
    std::vector<std::vector<int64_t>> strides;
    for (AtomId id : mask.indicators) {
      auto grid = evaluate(elements, algebra.at(id).element, extents);
      if (!grid)
        return error(Code::graph_not_supported,
                     "the mask (%{}) depends on data that is known only when the program runs",
                     algebra.at(id).element.x->name());
      std::vector<int64_t> stride(order.size());
      int64_t width = 1;
      for (size_t i = grid->vars.size(); i-- > 0;) {
        const size_t place = std::find(order.begin(), order.end(), grid->vars[i]) - order.begin();
        stride[place] = width;
        width *= extents[place].end - extents[place].begin;
      }
      grids.push_back(std::move(*grid));
      strides.push_back(std::move(stride));
    }
    std::vector<Extent> row_cells(extents.begin(), extents.begin() + rows.size());
    std::vector<Extent> key_cells(extents.begin() + rows.size(), extents.end());
    const Position row_place = position(elements, rows, rows);
    const Position key_place = position(elements, keys, keys);
    bool whole = true;
    for_each(row_cells, [&](const int64_t* row) {
      const int64_t i = row_place(row);
      int64_t first = -1, last = -1, seen = 0;
      for_each(key_cells, [&](const int64_t* key) {
        size_t bits = 0;
        for (size_t g = 0; g < grids.size(); ++g) {
          int64_t linear = 0;
          for (size_t v = 0; v < order.size(); ++v)
            linear += strides[g][v] *
                      (v < rows.size() ? row[v] - extents[v].begin : key[v - rows.size()]);
          if (grids[g].values[linear] != 0) bits |= size_t{1} << g;
        }
        if (!mask.visible[bits]) return;
        const int64_t j = key_place(key);
        if (first < 0) first = j;
        last = j;
        ++seen;
        right = std::max(right, j - i);
        left = std::max(left, i - j + 1);
      });
      if (seen == 0) ++band.empty_rows;
      whole = whole && (seen == 0 || last - first + 1 == seen);
      intervals.emplace_back(seen == 0 ? 0 : first, seen == 0 ? -1 : last);
    });
    if (!whole)
      return error(Code::graph_not_supported, "the mask leaves keys in several pieces per row");
  }
  // intervals are in row order: digits run most significant first.
  bool right_binds = false, left_binds = false;
  for (int64_t i = 0; i < q; ++i) {
    const auto [first, last] = intervals[i];
    const int64_t lo = std::max<int64_t>(0, i - left + 1), hi = std::min(k - 1, i + right);
    if (last < first ? lo <= hi : (first != lo || last != hi))
      return error(Code::graph_not_supported,
                   "the mask is not a band around a diagonal (row {} sees keys {} to {})", i, first,
                   last);
    right_binds = right_binds || i + right < k - 1;
    left_binds = left_binds || i - left + 1 > 0;
  }
  if (right_binds) band.right = right;
  if (left_binds) band.left = left;
  return band;
}

}  // namespace heddle::rewrite
