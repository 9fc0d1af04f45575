#include "hlo/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace heddle::hlo {
namespace {

void append(std::string& out, const Shape& shape, bool with_layout) {
  if (shape.is_tuple()) {
    out += '(';
    for (size_t i = 0; i < shape.elements().size(); ++i) {
      if (i > 0) out += ", ";
      // XLA numbers every fifth element, for people who count.
      if (i > 0 && i % 5 == 0) out += fmt::format("/*index={}*/", i);
      append(out, shape.elements()[i], with_layout);
    }
    out += ')';
    return;
  }
  out += name(shape.type());
  out += '[';
  for (int i = 0; i < shape.rank(); ++i) {
    if (i > 0) out += ',';
    if (shape.dim(i) == kUnbounded) {
      out += '?';
    } else {
      if (shape.is_dynamic(i)) out += "<=";
      out += std::to_string(shape.dim(i));
    }
  }
  out += ']';
  if (!with_layout || !shape.layout()) return;
  const Layout& layout = *shape.layout();
  // XLA prints no layout for a scalar unless it says something.
  if (shape.rank() == 0 && layout.rest.empty()) return;
  out += fmt::format("{{{}{}}}", fmt::join(layout.minor_to_major, ","), layout.rest);
}

}  // namespace

Shape::Shape(ElementType type, std::vector<int64_t> dims)
    : type_(type),
      dims_(std::move(dims)),
      unbounded_(std::find(dims_.begin(), dims_.end(), kUnbounded) != dims_.end()) {}

Shape Shape::tuple(std::vector<Shape> elements) {
  Shape shape(ElementType::tuple, {});
  shape.elements_ = std::move(elements);
  shape.unbounded_ = std::any_of(shape.elements_.begin(), shape.elements_.end(),
                                 [](const Shape& element) { return element.unbounded_; });
  return shape;
}

int64_t Shape::element_count() const {
  int64_t count = 1;
  for (int64_t dim : dims_) count *= dim;
  return is_array() ? count : 0;
}

bool Shape::is_dynamic() const {
  return std::find(dynamic_.begin(), dynamic_.end(), true) != dynamic_.end() ||
         std::any_of(elements_.begin(), elements_.end(),
                     [](const Shape& element) { return element.is_dynamic(); });
}

void Shape::set_dynamic(int i, bool dynamic) {
  dynamic_.resize(dims_.size());
  dynamic_[i] = dynamic;
  if (std::find(dynamic_.begin(), dynamic_.end(), true) == dynamic_.end()) dynamic_.clear();
}

void Shape::set_default_layout() {
  for (Shape& element : elements_) element.set_default_layout();
  if (!is_array()) return;
  layout_.reset();
  if (rank() == 0) return;
  Layout layout;
  for (int i = rank() - 1; i >= 0; --i) layout.minor_to_major.push_back(i);
  layout_ = std::move(layout);
}

Shape Shape::without_layout() const {
  Shape shape(type_, dims_);
  shape.dynamic_ = dynamic_;
  shape.unbounded_ = unbounded_;
  shape.elements_.reserve(elements_.size());
  for (const Shape& element : elements_) shape.elements_.push_back(element.without_layout());
  return shape;
}

Shape Shape::with_type(ElementType type) const {
  Shape shape = *this;
  shape.type_ = type;
  return shape;
}

namespace {

/// The product of dims, of which those that are `left_out` do not count.
std::optional<int64_t> element_count_but(std::span<const int64_t> dims,
                                         std::optional<int64_t> left_out) {
  int64_t count = 1;
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim == left_out) continue;
    if (dim < 0) return std::nullopt;
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (dim > kMaxElements / count) return std::nullopt;
    count *= dim;
  }
  return empty ? 0 : count;
}

}  // namespace

std::optional<int64_t> checked_element_count(std::span<const int64_t> dims) {
  return element_count_but(dims, std::nullopt);
}

bool has_sane_size(std::span<const int64_t> dims) {
  return element_count_but(dims, kUnbounded).has_value();
}

bool same_but_layout(const Shape& a, const Shape& b) {
  if (a.type() != b.type() || a.elements().size() != b.elements().size()) return false;
  return same_dims(a, b) && std::equal(a.elements().begin(), a.elements().end(),
                                       b.elements().begin(), same_but_layout);
}

bool same_dims(const Shape& a, const Shape& b) {
  if (a.dims() != b.dims()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.is_dynamic(i) != b.is_dynamic(i)) return false;
  }
  return true;
}

std::optional<std::vector<int64_t>> major_to_minor(const Shape& array) {
  std::vector<int64_t> order(array.dims().size());
  std::iota(order.begin(), order.end(), 0);
  if (!array.layout()) return order;
  const Layout& layout = *array.layout();
  if (!layout.rest.empty() || layout.minor_to_major.size() != order.size()) return std::nullopt;
  return std::vector<int64_t>(layout.minor_to_major.rbegin(), layout.minor_to_major.rend());
}

std::string to_string(const Shape& shape) {
  std::string out;
  append(out, shape, true);
  return out;
}

std::string to_string_without_layout(const Shape& shape) {
  std::string out;
  append(out, shape, false);
  return out;
}

}  // namespace heddle::hlo
