#include "module_mutator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hlo/computation.h"
#include "hlo/read.h"
#include "hlo/write.h"

namespace heddle::fuzz {

using hlo::Instruction;
using hlo::Opcode;

std::string ModuleMutator::mutate(const std::string& text) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    if (draw(4) == 0) {
      std::string changed = changed_words(text);
      if (changed != text && hlo::read_text(changed)) return changed;
      continue;
    }
    const auto module = hlo::read_text(text);
    if (!module) return text;
    for (size_t i = 0, count = 1 + draw(3); i < count; ++i) change(**module);
    if (draw(2) == 0) (*module)->remove_dead();
    if ((*module)->verify().is_ok()) return hlo::write_text(**module);
  }
  return text;
}

std::string ModuleMutator::changed_words(std::string text) {
  static const std::vector<std::pair<std::string, std::string>> kWords{
      {"f32[", "bf16["},  {"bf16[", "f32["},
      {"f32[", "f16["},   {"s32[", "s8["},
      {"s32[", "u32["},   {"s32[", "s64["},
      {"f32[", "f64["},   {"bf16[", "f8e4m3fn["},
      {"pred[", "s32["},  {"=LT", "=GE"},
      {"=EQ", "=NE"},     {"maximum(", "minimum("},
      {"add(", "xor("},   {"iota_dimension=0", "iota_dimension=1"},
      {"{1,0}", "{0,1}"}, {"{0,1,2}", "{0,2,1}"}};
  std::string from, to;
  if (draw(2) == 0) {
    std::tie(from, to) = one_of(kWords);
  } else {  // a size
    const size_t at = text.find_first_of("[,", draw(text.size()));
    if (at == std::string::npos) return text;
    size_t end = at + 1;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end == at + 1) return text;
    from = text.substr(at + 1, end - at - 1);
    to = std::to_string(one_of(std::vector<int64_t>{0, 1, 2, 3, 5, 8, 16, 24, 31}));
  }
  const bool once = draw(4) == 0;
  size_t at = once ? text.find(from, draw(text.size())) : text.find(from);
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  for (; at != std::string::npos; at = text.find(from, at + to.size())) {
    const bool inside =
        from[0] >= '0' && from[0] <= '9' &&
        ((at > 0 && (digit(at - 1) || text[at - 1] == '.')) || digit(at + from.size()));
    if (inside) {
      at = text.find_first_not_of("0123456789", at);
      if (at == std::string::npos) break;
      continue;
    }
    text.replace(at, from.size(), to);
    if (once) break;
  }
  return text;
}

void ModuleMutator::change(hlo::Module& module) {
  const auto instructions = one_of(module.computations())->instructions();
  Instruction* x = one_of(instructions);
  switch (draw(6)) {
    case 0:
      return leave_out(x);
    case 1:
      return change_operation(x);
    case 2:
      return change_attribute(x);
    case 3:
      return change_constant(x);
    default:
      return change_operand(x);
  }
}

Instruction* ModuleMutator::another(const Instruction* x, Instruction* like) {
  std::vector<Instruction*> fitting;
  for (Instruction* y : x->computation()->dependency_order()) {
    if (y == x) break;
    if (y != like && hlo::same_but_layout(y->shape(), like->shape())) fitting.push_back(y);
  }
  return fitting.empty() ? like : one_of(fitting);
}

void ModuleMutator::change_operand(Instruction* x) {
  if (x->operand_count() == 0) return;
  const int i = static_cast<int>(draw(x->operand_count()));
  const int j = static_cast<int>(draw(x->operand_count()));
  if (i != j && draw(3) == 0) {
    Instruction* const first = x->operand(i);
    x->set_operand(i, x->operand(j));
    x->set_operand(j, first);
  } else {
    x->set_operand(i, another(x, x->operand(i)));
  }
}

void ModuleMutator::leave_out(Instruction* x) { x->replace_all_uses_with(another(x, x)); }

void ModuleMutator::change_operation(Instruction* x) {
  static const std::vector<Opcode> kUnary{Opcode::negate, Opcode::exponential, Opcode::tanh,
                                          Opcode::copy,   Opcode::abs,         Opcode::log,
                                          Opcode::sqrt,   Opcode::floor,       Opcode::logistic};
  static const std::vector<Opcode> kBinary{Opcode::add,    Opcode::subtract, Opcode::multiply,
                                           Opcode::divide, Opcode::maximum,  Opcode::minimum,
                                           Opcode::power,  Opcode::remainder};
  const bool unary = hlo::is_elementwise_unary(x->opcode());
  if (!unary && !hlo::is_elementwise_binary(x->opcode())) return;
  Instruction* instead = x->computation()->add(one_of(unary ? kUnary : kBinary), x->shape(),
                                               {x->operands().begin(), x->operands().end()});
  x->replace_all_uses_with(instead);
}

void ModuleMutator::change_attribute(Instruction* x) {
  if (x->attributes().empty()) return;
  const hlo::Attribute attribute = one_of(x->attributes());
  hlo::AttributeValue value = attribute.value;
  if (auto* number = std::get_if<int64_t>(&value)) {
    *number += draw(2) == 0 ? 1 : -1;
  } else if (auto* list = std::get_if<std::vector<int64_t>>(&value); list && !list->empty()) {
    std::swap((*list)[draw(list->size())], (*list)[draw(list->size())]);
    if (draw(2) == 0) (*list)[draw(list->size())] += draw(2) == 0 ? 1 : -1;
  } else if (auto* slice = std::get_if<std::vector<hlo::SliceDimension>>(&value);
             slice && !slice->empty()) {
    auto& s = (*slice)[draw(slice->size())];
    const int64_t by = draw(2) == 0 ? 1 : -1;
    s.start += by;
    s.limit += by;
  } else if (attribute.name == "direction") {
    value = hlo::Verbatim{one_of(std::vector<std::string>{"EQ", "NE", "LT", "LE", "GT", "GE"})};
  } else if (draw(4) == 0) {
    return x->erase(attribute.name);
  }
  x->set(attribute.name, std::move(value));
}

void ModuleMutator::change_constant(Instruction* x) {
  if (!x->literal() || x->literal()->is_elided() || !x->shape().is_array() ||
      x->literal()->element_count() == 0 || hlo::is_complex(x->shape().type()))
    return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static const std::vector<double> kValues{
      0, 1, -1, 2, 0.5, -kInfinity, kInfinity, NAN, -1e9, -3.4028e38, 1e30, 7, 255, -2147483648.0};
  hlo::Literal literal = *x->literal();
  const double value = one_of(kValues);
  const int64_t count = draw(2) == 0 ? literal.element_count() : 1;
  for (int64_t i = 0; i < count; ++i) literal.set(i, value);
  x->set_literal(std::move(literal));
}

}  // namespace heddle::fuzz
