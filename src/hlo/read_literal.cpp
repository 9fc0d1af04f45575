#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "hlo/float_text.h"
#include "hlo/reader.h"

namespace heddle::hlo {
namespace {

constexpr int kMaxDepth = 64;

std::pair<int64_t, uint64_t> integer_range(ElementType type) {
  int bits = static_cast<int>(size_of(type)) * 8;
  if (type == ElementType::s4 || type == ElementType::u4) bits = 4;
  if (type == ElementType::s2 || type == ElementType::u2) bits = 2;
  if (is_unsigned_integral(type)) {
    return {0, bits == 64 ? std::numeric_limits<uint64_t>::max() : (uint64_t{1} << bits) - 1};
  }
  const uint64_t largest = (uint64_t{1} << (bits - 1)) - 1;
  return {-static_cast<int64_t>(largest) - 1, largest};
}

}  // namespace

Result<Literal> Reader::read_literal(const Shape& shape, int depth) {
  const size_t start = in_.skip_blanks();
  if (in_.accept("{...}")) return Literal::elided(shape);
  if (shape.is_tuple()) {
    if (depth == kMaxDepth) return in_.complaint(start, "expected tuples nested less than 64 deep");
    HEDDLE_TRY(in_.expect("("));
    std::vector<Literal> elements;
    for (size_t i = 0; i < shape.elements().size(); ++i) {
      if (i > 0) HEDDLE_TRY(in_.expect(","));
      HEDDLE_ASSIGN(Literal element, read_literal(shape.elements()[i], depth + 1));
      elements.push_back(std::move(element));
    }
    HEDDLE_TRY(in_.expect(")"));
    return Literal::tuple(std::move(elements));
  }
  if (!shape.is_array()) return in_.complaint(start, "expected a constant of an array or a tuple");
  for (int64_t dim : shape.dims()) {
    if (dim == kUnbounded) return in_.complaint(start, "expected a constant of known size");
  }
  // Every element takes at least one character, so what is allocated is bounded by the text.
  if (shape.element_count() > static_cast<int64_t>(in_.remaining())) {
    return in_.complaint(start,
                         fmt::format("expected {} elements for {}, the text ends before",
                                     shape.element_count(), to_string_without_layout(shape)));
  }
  HEDDLE_ASSIGN(Literal literal, Literal::zeros(shape));
  int64_t next = 0;
  HEDDLE_TRY(read_elements(shape, 0, literal, next));
  return literal;
}

Status Reader::read_elements(const Shape& shape, int dimension, Literal& literal, int64_t& next) {
  if (dimension == shape.rank()) return read_element(literal, next++);
  HEDDLE_TRY(in_.expect("{"));
  for (int64_t i = 0; i < shape.dim(dimension); ++i) {
    if (i > 0) HEDDLE_TRY(in_.expect(","));
    HEDDLE_TRY(read_elements(shape, dimension + 1, literal, next));
  }
  if (in_.peek() != '}') {
    return in_.expected(fmt::format("'}}' after {} elements", shape.dim(dimension)));
  }
  return in_.expect("}");
}

Status Reader::read_element(Literal& literal, int64_t index) {
  const ElementType type = literal.shape().type();
  const size_t start = in_.skip_blanks();
  const auto out_of_range = [&] {
    return in_.complaint(start, fmt::format("expected a number in the range of {}", name(type)));
  };
  if (type == ElementType::pred) {
    if (in_.accept_word("true")) {
      literal.set_integer(index, 1);
    } else if (!in_.accept_word("false")) {
      HEDDLE_ASSIGN(const int64_t value, in_.expect_integer("true, false, 1 or 0"));
      if (value != 0 && value != 1) {
        return in_.complaint(start, "expected true, false, 1 or 0");
      }
      literal.set_integer(index, value);
    }
    return {};
  }
  if (is_complex(type)) {
    const ElementType part = type == ElementType::c64 ? ElementType::f32 : ElementType::f64;
    std::byte* bytes = literal.mutable_data();
    const bool both = in_.accept("(");
    for (int i = 0; i < (both ? 2 : 1); ++i) {
      if (i > 0) HEDDLE_TRY(in_.expect(","));
      const size_t at = in_.skip_blanks();
      size_t length = 0;
      switch (read_float_text(part, in_.between(at, at + in_.remaining()), bytes, 2 * index + i,
                              length)) {
        case FloatText::ok:
          in_.rewind(at + length);
          break;
        case FloatText::out_of_range:
          return out_of_range();
        case FloatText::malformed:
          return in_.expected("a number");
      }
    }
    return both ? in_.expect(")") : Status();
  }
  if (is_floating(type)) {
    size_t length = 0;
    switch (read_float_text(type, in_.between(start, start + in_.remaining()),
                            literal.mutable_data(), index, length)) {
      case FloatText::ok:
        in_.rewind(start + length);
        return {};
      case FloatText::out_of_range:
        return out_of_range();
      case FloatText::malformed:
        return in_.expected("a number");
    }
  }
  const auto [smallest, largest] = integer_range(type);
  if (in_.peek() == '-') {
    HEDDLE_ASSIGN(const int64_t value, in_.expect_integer("an integer"));
    if (value < smallest) return out_of_range();
    literal.set_integer(index, value);
    return {};
  }
  const std::string_view digits = in_.between(start, start + in_.remaining());
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure == std::errc::invalid_argument) return in_.expected("an integer");
  if (failure != std::errc() || value > largest) return out_of_range();
  in_.rewind(start + static_cast<size_t>(end - digits.data()));
  literal.set_integer(index, static_cast<int64_t>(value));
  return {};
}

}  // namespace heddle::hlo
