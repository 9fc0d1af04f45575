#include <fmt/format.h>

#include "hlo/module.h"
#include "hlo/write.h"

namespace heddle::hlo {
namespace {

bool same_value(const AttributeValue& a, const AttributeValue& b) {
  if (a.index() != b.index()) return false;
  const auto same_names = [](const auto& x, const auto& y) {
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i]->name() != y[i]->name()) return false;
    }
    return true;
  };
  if (const auto* one = std::get_if<Computation*>(&a)) {
    return (*one)->name() == std::get<Computation*>(b)->name();
  }
  if (const auto* many = std::get_if<std::vector<Computation*>>(&a)) {
    return same_names(*many, std::get<std::vector<Computation*>>(b));
  }
  if (const auto* many = std::get_if<std::vector<Instruction*>>(&a)) {
    return same_names(*many, std::get<std::vector<Instruction*>>(b));
  }
  return a == b;
}

bool same_instruction(const Instruction& a, const Instruction& b) {
  if (a.name() != b.name() || a.opcode_name() != b.opcode_name() || a.shape() != b.shape() ||
      a.is_root() != b.is_root() || a.parameter_number() != b.parameter_number() ||
      a.operand_count() != b.operand_count() || a.attributes().size() != b.attributes().size() ||
      !a.literal() != !b.literal() || (a.literal() && !(*a.literal() == *b.literal()))) {
    return false;
  }
  for (int i = 0; i < a.operand_count(); ++i) {
    if (a.operand(i)->name() != b.operand(i)->name()) return false;
  }
  for (size_t i = 0; i < a.attributes().size(); ++i) {
    if (a.attributes()[i].name != b.attributes()[i].name ||
        !same_value(a.attributes()[i].value, b.attributes()[i].value)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool equal(const Module& a, const Module& b, std::string* difference) {
  const auto differ = [&](std::string sentence) {
    if (difference) *difference = std::move(sentence);
    return false;
  };
  if (a.name() != b.name()) return differ(fmt::format("names: {}, {}", a.name(), b.name()));
  if (a.header() != b.header()) return differ("the headers differ");
  if (a.tables() != b.tables()) return differ("the tables differ");
  const auto in_a = a.callees_first();
  const auto in_b = b.callees_first();
  if (in_a.size() != in_b.size()) {
    return differ(fmt::format("{} computations, {}", in_a.size(), in_b.size()));
  }
  for (size_t i = 0; i < in_a.size(); ++i) {
    const Computation& x = *in_a[i];
    const Computation& y = *in_b[i];
    if (x.name() != y.name() || x.is_entry() != y.is_entry() || x.trailing() != y.trailing()) {
      return differ(fmt::format("computations: {}, {}", x.name(), y.name()));
    }
    const auto in_x = x.dependency_order();
    const auto in_y = y.dependency_order();
    if (in_x.size() != in_y.size()) {
      return differ(fmt::format("{}: {} instructions, {}", x.name(), in_x.size(), in_y.size()));
    }
    for (size_t j = 0; j < in_x.size(); ++j) {
      if (!same_instruction(*in_x[j], *in_y[j])) {
        return differ(
            fmt::format("{}: {} | {}", x.name(), to_string(*in_x[j]), to_string(*in_y[j])));
      }
    }
  }
  return true;
}

}  // namespace heddle::hlo
