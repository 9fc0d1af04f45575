#include "rewrite/numbering.h"

#include <algorithm>
#include <string_view>

#include "hlo/unread_fields.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr size_t kUsualKey = 256;  // of most operations, in bytes

void append(std::string& key, int64_t number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// With its length, so that what follows cannot be taken for a part of it.
void append(std::string& key, std::string_view text) {
  append(key, static_cast<int64_t>(text.size()));
  key += text;
}

void append(std::string& key, std::span<const int64_t> numbers) {
  append(key, static_cast<int64_t>(numbers.size()));
  key.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
}

/// A layout that is not said is the row-major one.
bool is_row_major(const hlo::Layout& layout) {
  const std::vector<int64_t>& dims = layout.minor_to_major;
  return layout.rest.empty() && std::is_sorted(dims.rbegin(), dims.rend());
}

void append(std::string& key, const hlo::Shape& shape) {
  append(key, static_cast<int64_t>(shape.type()));
  append(key, static_cast<int64_t>(shape.elements().size()));
  for (const hlo::Shape& element : shape.elements()) append(key, element);
  append(key, shape.dims());
  for (int i = 0; i < shape.rank(); ++i) key += shape.is_dynamic(i) ? '<' : '=';
  const bool says_layout = shape.layout() && !is_row_major(*shape.layout());
  key += says_layout ? 'L' : 'R';
  if (!says_layout) return;
  append(key, shape.layout()->minor_to_major);
  append(key, shape.layout()->rest);
}

void append(std::string& key, const hlo::SliceDimension& s) {
  for (int64_t n : {s.start, s.limit, s.stride}) append(key, n);
}
void append(std::string& key, const hlo::PaddingDimension& p) {
  for (int64_t n : {p.low, p.high, p.interior}) append(key, n);
}
void append(std::string& key, const hlo::WindowDimension& w) {
  for (int64_t n :
       {w.size, w.stride, w.pad_low, w.pad_high, w.lhs_dilate, w.rhs_dilate, int64_t{w.reversed}})
    append(key, n);
}

template <class T>
void append(std::string& key, const std::vector<T>& list) {
  append(key, static_cast<int64_t>(list.size()));
  for (const T& element : list) append(key, element);
}

/// Where in the source an operation stood, and what tools that follow values were told of it.
bool changes_no_value(std::string_view attribute) {
  return attribute == "metadata" || attribute == "origin" || attribute == "original_value" ||
         attribute == "statistics";
}

/// Operations that give another value each time, hold the program's order, or are matched one by
/// one.
bool equals_nothing(const Instruction* x) {
  return x->is(Opcode::opt_barrier) || x->is(Opcode::while_) || x->is(Opcode::custom_call) ||
         x->is(Opcode::unknown) || x->is(Opcode::rng) || x->is(Opcode::rng_bit_generator) ||
         !x->control_predecessors().empty() || x->has_side_effect();
}

}  // namespace

int64_t Numbering::intern(std::string key) {
  return keys_.try_emplace(std::move(key), static_cast<int64_t>(keys_.size())).first->second;
}

bool Numbering::append_callee(const Computation* callee, std::string& key) const {
  const auto known = computations_.find(callee);
  if (known == computations_.end()) return false;
  append(key, known->second);
  return true;
}

bool Numbering::append_attribute(const hlo::Attribute& attribute, std::string& key) const {
  append(key, attribute.name);
  append(key, static_cast<int64_t>(attribute.value.index()));
  if (const auto* verbatim = std::get_if<hlo::Verbatim>(&attribute.value)) {
    append(key, verbatim->text);
  } else if (const auto* flag = std::get_if<bool>(&attribute.value)) {
    append(key, int64_t{*flag});
  } else if (const auto* number = std::get_if<int64_t>(&attribute.value)) {
    append(key, *number);
  } else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute.value)) {
    append(key, *numbers);
  } else if (const auto* string = std::get_if<std::string>(&attribute.value)) {
    append(key, *string);
  } else if (const auto* slice = std::get_if<std::vector<hlo::SliceDimension>>(&attribute.value)) {
    append(key, *slice);
  } else if (const auto* pad = std::get_if<std::vector<hlo::PaddingDimension>>(&attribute.value)) {
    append(key, *pad);
  } else if (const auto* window =
                 std::get_if<std::vector<hlo::WindowDimension>>(&attribute.value)) {
    append(key, *window);
  } else if (const auto* shapes = std::get_if<std::vector<hlo::Shape>>(&attribute.value)) {
    append(key, *shapes);
  } else if (const auto* callee = std::get_if<Computation*>(&attribute.value)) {
    return append_callee(*callee, key);
  } else if (const auto* callees = std::get_if<std::vector<Computation*>>(&attribute.value)) {
    return std::all_of(callees->begin(), callees->end(),
                       [&](const Computation* c) { return append_callee(c, key); });
  } else {
    return false;
  }
  return true;
}

int64_t Numbering::number_of(const hlo::Literal& literal) {
  const std::string_view bytes(reinterpret_cast<const char*>(literal.data()),
                               static_cast<size_t>(literal.byte_count()));
  auto& known = literals_[std::hash<std::string_view>()(bytes)];
  for (const auto& [other, number] : known)
    if (other == literal) return number;
  known.emplace_back(literal, intern("literal " + std::to_string(keys_.size())));
  return known.back().second;
}

int64_t Numbering::operation(const Instruction* x) {
  if (equals_nothing(x)) return -1;
  std::string key;
  key.reserve(kUsualKey);
  append(key, x->opcode_name());
  append(key, x->shape());
  append(key, x->parameter_number());
  for (const hlo::Attribute& attribute : x->attributes())
    if (!changes_no_value(attribute.name) && !append_attribute(attribute, key)) return -1;
  append(key, std::string_view());  // the attributes' end: each has a name
  append(key, hlo::unread_fields(x->wire()));
  if (const hlo::Literal* literal = x->literal()) {
    if (literal->is_elided()) return -1;
    append(key, number_of(*literal));
  }
  return intern(std::move(key));
}

std::vector<const Instruction*> Numbering::number(const Computation* computation) {
  std::vector<const Instruction*> representative(computation->instruction_count());
  std::unordered_map<std::string, const Instruction*> first;
  operations_.assign(computation->instruction_count(), -1);
  for (const Instruction* x : computation->dependency_order()) {
    const Instruction*& chosen = representative[x->position()];
    chosen = x;
    const int64_t what = operations_[x->position()] = operation(x);
    if (what < 0 || x->is(Opcode::parameter)) continue;
    std::string key;
    append(key, what);
    for (const Instruction* operand : x->operands())
      append(key, representative[operand->position()]->id());
    chosen = first.try_emplace(std::move(key), x).first->second;
  }
  number_whole(computation);
  return representative;
}

/// A computation is what its root is made of: operations in the order in which they are met from
/// there, operands by their places in that order. One that holds an operation without an equal has
/// none either.
void Numbering::number_whole(const Computation* computation) {
  std::string key;
  append(key, static_cast<int64_t>(computation->parameters().size()));
  append(key, computation->trailing());
  std::vector<int64_t> places(computation->instruction_count(), -1);  // by position
  int64_t met = 0;
  std::vector<std::pair<const Instruction*, int>> path{{computation->root(), 0}};
  while (!path.empty()) {
    auto& [x, next] = path.back();
    if (next == 0 && places[x->position()] >= 0) {
      path.pop_back();
    } else if (next < x->operand_count()) {
      const Instruction* operand = x->operand(next++);
      if (places[operand->position()] < 0) path.emplace_back(operand, 0);
    } else {
      const int64_t what = operations_[x->position()];
      if (what < 0) return;
      append(key, what);
      append(key, static_cast<int64_t>(x->operand_count()));
      for (const Instruction* operand : x->operands()) append(key, places[operand->position()]);
      places[x->position()] = met++;
      path.pop_back();
    }
  }
  computations_[computation] = intern("computation " + key);
}

}  // namespace heddle::rewrite
