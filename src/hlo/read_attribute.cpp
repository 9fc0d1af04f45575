#include "hlo/quoting.h"
#include "hlo/reader.h"

namespace heddle::hlo {

Status Reader::read_attributes(bool known_opcode, std::vector<Attribute>& attributes) {
  while (in_.accept(",")) {
    const size_t start = in_.skip_blanks();
    HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("an attribute's name"));
    for (const Attribute& attribute : attributes) {
      if (attribute.name == name) {
        return in_.complaint(start, fmt::format("expected attribute {} only once", name));
      }
    }
    HEDDLE_TRY(in_.expect("="));
    const size_t value_start = in_.offset();
    const AttributeKind kind = attribute_kind(name);
    Result<AttributeValue> value = read_attribute_value(kind);
    const bool refers = kind == AttributeKind::computation || kind == AttributeKind::computations ||
                        kind == AttributeKind::instructions;
    if (!value.is_ok() && !known_opcode && !refers) {
      // An unknown operation may use the name for something else.
      in_.rewind(value_start);
      value = read_attribute_value(AttributeKind::verbatim);
    }
    if (!value.is_ok()) return value.status();
    attributes.push_back({std::string(name), std::move(value).value()});
  }
  return {};
}

Result<AttributeValue> Reader::read_attribute_value(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::verbatim: {
      HEDDLE_ASSIGN(const std::string_view text, in_.expect_verbatim("a value"));
      return AttributeValue(Verbatim{std::string(text)});
    }
    case AttributeKind::boolean: {
      if (in_.accept_word("true")) return AttributeValue(true);
      if (in_.accept_word("false")) return AttributeValue(false);
      return in_.expected("true or false");
    }
    case AttributeKind::integer: {
      HEDDLE_ASSIGN(const int64_t value, in_.expect_integer("an integer"));
      return AttributeValue(value);
    }
    case AttributeKind::integers: {
      HEDDLE_ASSIGN(std::vector<int64_t> values, read_integers());
      return AttributeValue(std::move(values));
    }
    case AttributeKind::string: {
      const size_t start = in_.skip_blanks();
      HEDDLE_ASSIGN(const std::string_view quoted, in_.expect_quoted());
      std::optional<std::string> text = unquote(quoted);
      if (!text) return in_.complaint(start, "expected a string with complete escapes");
      return AttributeValue(std::move(*text));
    }
    case AttributeKind::slice:
      return read_slice();
    case AttributeKind::padding:
      return read_padding();
    case AttributeKind::window:
      return read_window();
    case AttributeKind::shapes: {
      std::vector<Shape> shapes;
      HEDDLE_TRY(in_.expect("{"));
      if (!in_.accept("}")) {
        do {
          HEDDLE_ASSIGN(Shape shape, read_shape(0));
          shapes.push_back(std::move(shape));
        } while (in_.accept(","));
        HEDDLE_TRY(in_.expect("}"));
      }
      return AttributeValue(std::move(shapes));
    }
    case AttributeKind::computation:
      if (in_.peek() != '{') {
        HEDDLE_ASSIGN(Computation * computation, read_computation_name());
        return AttributeValue(computation);
      }
      [[fallthrough]];
    case AttributeKind::computations: {
      std::vector<Computation*> computations;
      HEDDLE_TRY(in_.expect("{"));
      if (!in_.accept("}")) {
        do {
          HEDDLE_ASSIGN(Computation * computation, read_computation_name());
          computations.push_back(computation);
        } while (in_.accept(","));
        HEDDLE_TRY(in_.expect("}"));
      }
      return AttributeValue(std::move(computations));
    }
    case AttributeKind::instructions: {
      std::vector<Instruction*> instructions;
      HEDDLE_TRY(in_.expect("{"));
      if (!in_.accept("}")) {
        do {
          const size_t at = in_.skip_blanks();
          HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("an instruction's name"));
          HEDDLE_ASSIGN(Instruction * instruction, find_instruction(name, at));
          instructions.push_back(instruction);
        } while (in_.accept(","));
        HEDDLE_TRY(in_.expect("}"));
      }
      return AttributeValue(std::move(instructions));
    }
  }
  return in_.expected("a value");
}

Result<std::vector<int64_t>> Reader::read_integers() {
  std::vector<int64_t> values;
  HEDDLE_TRY(in_.expect("{"));
  if (in_.accept("}")) return values;
  do {
    HEDDLE_ASSIGN(const int64_t value, in_.expect_integer("an integer"));
    values.push_back(value);
  } while (in_.accept(","));
  HEDDLE_TRY(in_.expect("}"));
  return values;
}

// `1x2x3` with separator 'x'; no blanks between.
Result<std::vector<int64_t>> Reader::read_separated(char separator) {
  std::vector<int64_t> values;
  for (;;) {
    HEDDLE_ASSIGN(const int64_t value, in_.expect_integer("an integer"));
    values.push_back(value);
    if (in_.peek_raw() != separator) return values;
    in_.rewind(in_.offset() + 1);
  }
}

Result<AttributeValue> Reader::read_slice() {
  std::vector<SliceDimension> slice;
  HEDDLE_TRY(in_.expect("{"));
  if (in_.accept("}")) return AttributeValue(std::move(slice));
  do {
    SliceDimension range;
    HEDDLE_TRY(in_.expect("["));
    HEDDLE_ASSIGN(range.start, in_.expect_integer("the start of a range"));
    HEDDLE_TRY(in_.expect(":"));
    HEDDLE_ASSIGN(range.limit, in_.expect_integer("the limit of a range"));
    if (in_.accept(":")) {
      HEDDLE_ASSIGN(range.stride, in_.expect_integer("the stride of a range"));
    }
    HEDDLE_TRY(in_.expect("]"));
    slice.push_back(range);
  } while (in_.accept(","));
  HEDDLE_TRY(in_.expect("}"));
  return AttributeValue(std::move(slice));
}

Result<AttributeValue> Reader::read_padding() {
  std::vector<PaddingDimension> padding;
  const char first = in_.peek();
  // A scalar's padding has no dimensions and no text.
  if (first != '-' && !(first >= '0' && first <= '9')) return AttributeValue(std::move(padding));
  for (;;) {
    const size_t at = in_.offset();
    HEDDLE_ASSIGN(const std::vector<int64_t> numbers, read_separated('_'));
    if (numbers.size() < 2 || numbers.size() > 3) {
      return in_.complaint(at, "expected low_high or low_high_interior");
    }
    padding.push_back({numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0});
    if (in_.peek_raw() != 'x') return AttributeValue(std::move(padding));
    in_.rewind(in_.offset() + 1);
  }
}

Result<AttributeValue> Reader::read_window() {
  std::vector<WindowDimension> window;
  HEDDLE_TRY(in_.expect("{"));
  while (!in_.accept("}")) {
    const size_t at = in_.skip_blanks();
    HEDDLE_ASSIGN(const std::string_view field, in_.expect_name("a field of the window or '}'"));
    HEDDLE_TRY(in_.expect("="));
    std::vector<int64_t> numbers;
    size_t count = 0;
    if (field == "pad") {
      HEDDLE_ASSIGN(const AttributeValue value, read_padding());
      for (const PaddingDimension& pad : std::get<std::vector<PaddingDimension>>(value)) {
        numbers.push_back(pad.low);
        numbers.push_back(pad.high);
      }
      count = numbers.size() / 2;
    } else {
      HEDDLE_ASSIGN(numbers, read_separated('x'));
      count = numbers.size();
    }
    if (window.empty()) window.resize(count);
    if (count != window.size()) {
      return in_.complaint(at, fmt::format("expected {} to have {} dimensions like the others",
                                           field, window.size()));
    }
    for (size_t i = 0; i < count; ++i) {
      WindowDimension& w = window[i];
      if (field == "size") {
        w.size = numbers[i];
      } else if (field == "stride") {
        w.stride = numbers[i];
      } else if (field == "pad") {
        w.pad_low = numbers[2 * i];
        w.pad_high = numbers[2 * i + 1];
      } else if (field == "lhs_dilate") {
        w.lhs_dilate = numbers[i];
      } else if (field == "rhs_dilate") {
        w.rhs_dilate = numbers[i];
      } else if (field == "rhs_reversal") {
        w.reversed = numbers[i] != 0;
      } else {
        return in_.complaint(at,
                             "expected size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal");
      }
    }
  }
  return AttributeValue(std::move(window));
}

}  // namespace heddle::hlo
