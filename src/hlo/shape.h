// Shapes of HLO values: arrays with an optional layout, tuples, tokens.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hlo/element_type.h"

namespace heddle::hlo {

/// The size of an unbounded dynamic dimension ("?" in text).
inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::min();

/// How an array lies in memory. `rest` is what text holds after the order, verbatim and with its
/// colon: tiles, memory space and the like (":T(8,128)S(1)").
struct Layout {
  std::vector<int64_t> minor_to_major;
  std::string rest;
  friend bool operator==(const Layout&, const Layout&) = default;
};

class Shape {
 public:
  /// A scalar pred without layout; what a shape is until it is assigned.
  Shape() = default;
  /// An array without a layout. Negative dims are the caller's error; the reader and inference
  /// never make one.
  Shape(ElementType type, std::vector<int64_t> dims);
  static Shape scalar(ElementType type) { return Shape(type, {}); }
  static Shape tuple(std::vector<Shape> elements);
  static Shape token() { return Shape(ElementType::token, {}); }

  ElementType type() const { return type_; }
  bool is_tuple() const { return type_ == ElementType::tuple; }
  bool is_array() const { return is_array_type(type_); }
  bool is_scalar() const { return is_array() && dims_.empty(); }

  int rank() const { return static_cast<int>(dims_.size()); }
  const std::vector<int64_t>& dims() const { return dims_; }
  int64_t dim(int i) const { return dims_[i]; }
  /// The number of elements. Shapes that came through the reader, inference or verify() hold
  /// at most kMaxElements, so this does not overflow for them.
  int64_t element_count() const;

  /// A dynamic dimension's size is an upper bound ("<=n"), or kUnbounded.
  bool is_dynamic() const;
  /// Whether a dimension, here or in an element, is kUnbounded.
  bool is_unbounded() const { return unbounded_; }
  bool is_dynamic(int i) const { return i < static_cast<int>(dynamic_.size()) && dynamic_[i]; }
  void set_dynamic(int i, bool dynamic = true);

  const std::optional<Layout>& layout() const { return layout_; }
  void set_layout(std::optional<Layout> layout) { layout_ = std::move(layout); }
  /// Sets the row-major layout, recursively through tuples. Scalars have but one layout: none is
  /// said.
  void set_default_layout();
  Shape without_layout() const;
  Shape with_type(ElementType type) const;

  const std::vector<Shape>& elements() const { return elements_; }
  /// To change types and layouts, not sizes.
  std::vector<Shape>& elements() { return elements_; }

  /// Everything compared, layouts too.
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  ElementType type_ = ElementType::pred;
  std::vector<int64_t> dims_;
  std::vector<bool> dynamic_;  // empty: all static
  bool unbounded_ = false;
  std::optional<Layout> layout_;
  std::vector<Shape> elements_;
};

/// Arrays with more elements are refused by the reader: their sizes in bytes stay within int64.
inline constexpr int64_t kMaxElements = int64_t{1} << 48;

/// The product of non-negative dims; nothing if one is negative or it exceeds kMaxElements.
/// Zero-sized dims do not hide an overflow of the others.
std::optional<int64_t> checked_element_count(std::span<const int64_t> dims);
/// Whether there is such a product of the dims that are known, those that are not kUnbounded.
bool has_sane_size(std::span<const int64_t> dims);
/// Equal up to layouts, recursively.
bool same_but_layout(const Shape& a, const Shape& b);
/// Equal dims (and dynamism) of two arrays; element types and layouts may differ.
bool same_dims(const Shape& a, const Shape& b);
/// The dimensions of an array in the order of its memory, from the one whose numbers lie furthest
/// apart; nothing if its layout is more than such an order (tiles, another memory).
std::optional<std::vector<int64_t>> major_to_minor(const Shape& array);
/// Text form with layouts: "f32[2,3]{1,0}", "(s32[], bf16[4]{0})".
std::string to_string(const Shape& shape);
std::string to_string_without_layout(const Shape& shape);

}  // namespace heddle::hlo
