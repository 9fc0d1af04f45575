#include <algorithm>

#include "hlo/infer_rules.h"
#include "hlo/read.h"
#include "hlo/reader.h"

namespace heddle::hlo {
namespace {

constexpr size_t kUsualRank = 4;  // at most, of most arrays

}  // namespace

bool Reader::shape_comes_next() {
  if (in_.peek() == '(') return true;
  const size_t start = in_.offset();
  const std::string_view name = in_.accept_name();
  const bool is_shape = !name.empty() && in_.peek_raw() == '[';
  in_.rewind(start);
  return is_shape;
}

Result<Shape> Reader::read_shape(int depth) {
  const size_t start = in_.skip_blanks();
  if (!in_.accept("(")) return read_array_shape();
  if (depth == kMaxTupleDepth) {
    return in_.complaint(start, "expected tuples nested less than 64 deep");
  }
  std::vector<Shape> elements;
  if (!in_.accept(")")) {
    do {
      HEDDLE_ASSIGN(Shape element, read_shape(depth + 1));
      elements.push_back(std::move(element));
    } while (in_.accept(","));
    HEDDLE_TRY(in_.expect(")"));
  }
  Shape shape = Shape::tuple(std::move(elements));
  if (part_count(shape) > kMaxTupleParts) {
    return in_.complaint(start, "expected a tuple of at most 65536 elements in all");
  }
  return shape;
}

Result<Shape> Reader::read_array_shape() {
  const size_t start = in_.skip_blanks();
  const std::optional<ElementType> type = element_type_from_name(in_.peek_name());
  if (!type) return in_.expected("a shape");
  in_.accept_name();
  HEDDLE_TRY(in_.expect("["));
  std::vector<int64_t> dims;
  std::vector<int> dynamic;
  if (!in_.accept("]")) {
    dims.reserve(kUsualRank);
    do {
      const int i = static_cast<int>(dims.size());
      if (i == kMaxHloRank) return in_.complaint(start, "expected at most 64 dimensions");
      if (in_.accept("?")) {
        dims.push_back(kUnbounded);
        dynamic.push_back(i);
        continue;
      }
      if (in_.accept("<=")) dynamic.push_back(i);
      const size_t at = in_.skip_blanks();
      HEDDLE_ASSIGN(const int64_t dim, in_.expect_integer("a dimension"));
      if (dim < 0) return in_.complaint(at, "expected a dimension of 0 or more");
      dims.push_back(dim);
    } while (in_.accept(","));
    HEDDLE_TRY(in_.expect("]"));
  }
  if (!has_sane_size(dims)) {
    return in_.complaint(start, "expected a shape of at most 2^48 elements");
  }
  if (!is_array_type(*type) && !dims.empty()) {
    return in_.complaint(start, fmt::format("expected {}[] without dimensions", name(*type)));
  }
  Shape shape(*type, std::move(dims));
  for (int i : dynamic) shape.set_dynamic(i);
  // In a signature a '{' may open the body instead; a layout begins with a digit, ':' or '}'.
  const size_t brace = in_.offset();
  if (!in_.accept("{")) return shape;
  const char first = in_.peek();
  const bool is_layout = (first >= '0' && first <= '9') || first == ':' || first == '}';
  if (!is_layout || !is_array_type(*type)) {
    in_.rewind(brace);
    return shape;
  }
  HEDDLE_ASSIGN(Layout layout, read_layout(shape.rank()));
  // Scalars have but one layout; saying so adds nothing.
  if (shape.rank() > 0 || !layout.rest.empty()) shape.set_layout(std::move(layout));
  return shape;
}

Result<Layout> Reader::read_layout(int rank) {
  const size_t start = in_.skip_blanks();
  Layout layout;
  if (in_.peek() != ':' && in_.peek() != '}') {
    layout.minor_to_major.reserve(rank);
    do {
      HEDDLE_ASSIGN(const int64_t dim, in_.expect_integer("a dimension of the layout"));
      layout.minor_to_major.push_back(dim);
    } while (in_.accept(","));
  }
  if (in_.peek() == ':') {
    HEDDLE_ASSIGN(const std::string_view rest, in_.expect_verbatim("the layout's tiles"));
    layout.rest = rest;
  }
  if (static_cast<int>(layout.minor_to_major.size()) != rank ||
      !are_distinct_dimensions(layout.minor_to_major, rank)) {
    return in_.complaint(start, fmt::format("expected a layout that orders {} dimensions", rank));
  }
  HEDDLE_TRY(in_.expect("}"));
  return layout;
}

Result<Shape> Reader::read_whole_shape() {
  HEDDLE_ASSIGN(Shape shape, read_shape(0));
  if (!in_.at_end()) return in_.expected("the end of the shape");
  return shape;
}

Result<Shape> read_shape(std::string_view text) { return Reader(text, "shape").read_whole_shape(); }

}  // namespace heddle::hlo
