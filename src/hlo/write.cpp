#include "hlo/write.h"

#include <fmt/format.h>

#include <fstream>

#include "hlo/float_text.h"
#include "hlo/quoting.h"

namespace heddle::hlo {
namespace {

class Writer {
 public:
  explicit Writer(const TextStyle& style) : style_(style) {}

  void module(const Module& module);
  void computation(const Computation& computation);
  void instruction(const Instruction& instruction);
  void literal(const Literal& literal);
  std::string take() { return std::move(out_); }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void name(std::string_view name) {
    if (style_.percent_names) out_ += '%';
    out_ += name;
  }
  // Before element i of a list that XLA numbers every fifth element of.
  void separate(size_t i) {
    if (i > 0) out_ += ", ";
    if (i > 0 && i % 5 == 0 && style_.operand_numbers) put("/*index={}*/", i);
  }
  void signature(const Computation& computation);
  void attribute(const Attribute& attribute);
  void elements(const Literal& literal, int dimension, int64_t& next);
  void element(const Literal& literal, int64_t index);

  void value(const Verbatim& verbatim) { out_ += verbatim.text; }
  void value(bool flag) { out_ += flag ? "true" : "false"; }
  void value(int64_t number) { put("{}", number); }
  void value(const std::vector<int64_t>& numbers) { put("{{{}}}", fmt::join(numbers, ",")); }
  void value(const std::string& text) { out_ += quote(text); }
  void value(const std::vector<SliceDimension>& slice);
  void value(const std::vector<PaddingDimension>& padding);
  void value(const std::vector<WindowDimension>& window);
  void value(const std::vector<Shape>& shapes);
  void value(const Computation* computation) { name(computation->name()); }
  template <class T>
  void value(const std::vector<T*>& named) {
    out_ += '{';
    for (size_t i = 0; i < named.size(); ++i) {
      if (i > 0) out_ += ", ";
      name(named[i]->name());
    }
    out_ += '}';
  }

  const TextStyle& style_;
  std::string out_;
};

void Writer::module(const Module& module) {
  put("HloModule {}", module.name());
  for (const HeaderAttribute& attribute : module.header()) {
    put(", {}={}", attribute.name, attribute.text);
  }
  out_ += "\n\n";
  if (!module.tables().empty()) put("{}\n\n\n", module.tables());
  for (const Computation* computation : module.callees_first()) {
    this->computation(*computation);
    out_ += "\n";
  }
}

void Writer::signature(const Computation& computation) {
  out_ += " (";
  for (size_t i = 0; i < computation.parameters().size(); ++i) {
    const Instruction* parameter = computation.parameters()[i];
    if (i > 0) out_ += ", ";
    put("{}: {}", parameter->name(), to_string_without_layout(parameter->shape()));
  }
  put(") -> {}", to_string_without_layout(computation.root()->shape()));
}

void Writer::computation(const Computation& computation) {
  if (computation.is_entry()) out_ += "ENTRY ";
  name(computation.name());
  if (style_.signatures) signature(computation);
  out_ += " {\n";
  for (const Instruction* instruction : computation.dependency_order()) {
    out_ += instruction->is_root() ? "  ROOT " : "  ";
    this->instruction(*instruction);
    out_ += '\n';
  }
  put("}}{}\n", computation.trailing());
}

void Writer::instruction(const Instruction& instruction) {
  name(instruction.name());
  put(" = {} {}(", to_string(instruction.shape()), instruction.opcode_name());
  if (instruction.is(Opcode::parameter)) put("{}", instruction.parameter_number());
  if (instruction.literal()) literal(*instruction.literal());
  for (size_t i = 0; i < instruction.operands().size(); ++i) {
    separate(i);
    name(instruction.operands()[i]->name());
  }
  out_ += ')';
  for (const Attribute& attribute : instruction.attributes()) this->attribute(attribute);
}

void Writer::attribute(const Attribute& attribute) {
  put(", {}=", attribute.name);
  std::visit([this](const auto& alternative) { value(alternative); }, attribute.value);
}

void Writer::value(const std::vector<SliceDimension>& slice) {
  bool strided = false;
  for (const SliceDimension& range : slice) strided = strided || range.stride != 1;
  out_ += '{';
  for (size_t i = 0; i < slice.size(); ++i) {
    put("{}[{}:{}", i > 0 ? ", " : "", slice[i].start, slice[i].limit);
    if (strided) put(":{}", slice[i].stride);
    out_ += ']';
  }
  out_ += '}';
}

void Writer::value(const std::vector<PaddingDimension>& padding) {
  bool interior = false;
  for (const PaddingDimension& pad : padding) interior = interior || pad.interior != 0;
  for (size_t i = 0; i < padding.size(); ++i) {
    put("{}{}_{}", i > 0 ? "x" : "", padding[i].low, padding[i].high);
    if (interior) put("_{}", padding[i].interior);
  }
}

void Writer::value(const std::vector<WindowDimension>& window) {
  const auto field = [&](std::string_view name, auto differs, auto print) {
    bool needed = name == "size" && !window.empty();
    for (const WindowDimension& w : window) needed = needed || differs(w);
    if (!needed) return;
    put("{}{}=", name == "size" ? "" : " ", name);
    for (size_t i = 0; i < window.size(); ++i) {
      if (i > 0) out_ += 'x';
      print(window[i]);
    }
  };
  using W = WindowDimension;
  out_ += '{';
  field(
      "size", [](const W&) { return false; }, [&](const W& w) { put("{}", w.size); });
  field(
      "stride", [](const W& w) { return w.stride != 1; }, [&](const W& w) { put("{}", w.stride); });
  field(
      "pad", [](const W& w) { return w.pad_low != 0 || w.pad_high != 0; },
      [&](const W& w) { put("{}_{}", w.pad_low, w.pad_high); });
  field(
      "lhs_dilate", [](const W& w) { return w.lhs_dilate != 1; },
      [&](const W& w) { put("{}", w.lhs_dilate); });
  field(
      "rhs_dilate", [](const W& w) { return w.rhs_dilate != 1; },
      [&](const W& w) { put("{}", w.rhs_dilate); });
  field(
      "rhs_reversal", [](const W& w) { return w.reversed; },
      [&](const W& w) { put("{}", w.reversed ? 1 : 0); });
  out_ += '}';
}

void Writer::value(const std::vector<Shape>& shapes) {
  out_ += '{';
  for (size_t i = 0; i < shapes.size(); ++i) {
    put("{}{}", i > 0 ? ", " : "", to_string(shapes[i]));
  }
  out_ += '}';
}

void Writer::literal(const Literal& literal) {
  if (literal.shape().is_tuple() && !(literal.elements().empty() && literal.is_elided())) {
    out_ += '(';
    for (size_t i = 0; i < literal.elements().size(); ++i) {
      out_ += i > 0 ? ", " : " ";
      this->literal(literal.elements()[i]);
    }
    out_ += " )";
    return;
  }
  if (literal.is_elided()) {
    out_ += "{...}";
    return;
  }
  int64_t next = 0;
  elements(literal, 0, next);
}

// Vectors are printed `{1, 2}`, higher ranks `{ { 1, 2 }, { 3, 4 } }`, like XLA does.
void Writer::elements(const Literal& literal, int dimension, int64_t& next) {
  const Shape& shape = literal.shape();
  if (dimension == shape.rank()) return element(literal, next++);
  const bool spaced = shape.rank() > 1 && shape.dim(dimension) > 0;
  out_ += spaced ? "{ " : "{";
  for (int64_t i = 0; i < shape.dim(dimension); ++i) {
    if (i > 0) out_ += ", ";
    elements(literal, dimension + 1, next);
  }
  out_ += spaced ? " }" : "}";
}

void Writer::element(const Literal& literal, int64_t index) {
  const ElementType type = literal.shape().type();
  if (type == ElementType::pred) {
    const bool flag = literal.get_integer(index) != 0;
    out_ += literal.shape().rank() == 0 ? (flag ? "true" : "false") : (flag ? "1" : "0");
  } else if (is_complex(type)) {
    const ElementType part = type == ElementType::c64 ? ElementType::f32 : ElementType::f64;
    put("({}, {})", write_float_text(part, literal.data(), 2 * index),
        write_float_text(part, literal.data(), 2 * index + 1));
  } else if (is_floating(type)) {
    out_ += write_float_text(type, literal.data(), index);
  } else if (type == ElementType::u64) {
    put("{}", static_cast<uint64_t>(literal.get_integer(index)));
  } else {
    put("{}", literal.get_integer(index));
  }
}

const TextStyle kDefaultStyle;

}  // namespace

std::string write_text(const Module& module) {
  Writer writer(module.style());
  writer.module(module);
  return writer.take();
}

Status write_file(const Module& module, const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << write_text(module);
  file.close();
  if (!file) return error(Code::io_failed, "{} cannot be written", path);
  return {};
}

std::string to_string(const Instruction& instruction) {
  Writer writer(instruction.module()->style());
  writer.instruction(instruction);
  return writer.take();
}

std::string to_string(const Computation& computation) {
  Writer writer(computation.module()->style());
  writer.computation(computation);
  return writer.take();
}

std::string to_string(const Literal& literal) {
  Writer writer(kDefaultStyle);
  writer.literal(literal);
  return writer.take();
}

}  // namespace heddle::hlo
