#include "hlo/module.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "hlo/stable_order.h"

namespace heddle::hlo {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
}

// Words that text without '%' would not take for a name.
bool is_reserved(std::string_view name) {
  static constexpr std::string_view kWords[] = {"ENTRY", "HloModule", "ROOT", "false",
                                                "inf",   "nan",       "true"};
  return element_type_from_name(name).has_value() ||
         std::find(std::begin(kWords), std::end(kWords), name) != std::end(kWords);
}

// "add.12" -> "add": names that a number was already put to are numbered anew.
std::string_view without_number(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return name;
  const std::string_view digits = name.substr(dot + 1);
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })
             ? name.substr(0, dot)
             : name;
}

// Follows references from one module's computations, and a computation's instructions, to
// another's.
class Mapping {
 public:
  /// The computation whose instructions are put in next.
  void begin(const Computation& from) { instructions_.assign(from.instruction_count(), nullptr); }
  void put(const Instruction* from, Instruction* to) { instructions_[from->position()] = to; }
  void put(const Computation* from, Computation* to) { computations_[from] = to; }
  Instruction* at(Instruction* from) const { return instructions_[from->position()]; }
  // Computations that were not copied are shared.
  Computation* at(Computation* from) const {
    const auto found = computations_.find(from);
    return found == computations_.end() ? from : found->second;
  }
  std::vector<Instruction*> at(std::span<Instruction* const> from) const {
    std::vector<Instruction*> to;
    to.reserve(from.size());
    for (Instruction* instruction : from) to.push_back(at(instruction));
    return to;
  }
  Attribute at(const Attribute& attribute) const {
    Attribute copy = attribute;
    if (auto* one = std::get_if<Computation*>(&copy.value)) *one = at(*one);
    if (auto* many = std::get_if<std::vector<Computation*>>(&copy.value)) {
      for (Computation*& computation : *many) computation = at(computation);
    }
    if (auto* many = std::get_if<std::vector<Instruction*>>(&copy.value)) {
      for (Instruction*& instruction : *many) instruction = at(instruction);
    }
    return copy;
  }

 private:
  std::vector<Instruction*> instructions_;  // by position
  std::unordered_map<const Computation*, Computation*> computations_;
};

}  // namespace

Module::~Module() = default;

std::string_view Module::header_text(std::string_view name) const {
  for (const HeaderAttribute& attribute : header_) {
    if (attribute.name == name) return attribute.text;
  }
  return {};
}

std::vector<Computation*> Module::computations() const {
  std::vector<Computation*> list;
  list.reserve(computations_.size());
  for (const auto& computation : computations_) list.push_back(computation.get());
  return list;
}

std::vector<Computation*> Module::callees_first() const {
  std::unordered_map<const Computation*, int> position;
  for (size_t i = 0; i < computations_.size(); ++i) {
    position.emplace(computations_[i].get(), static_cast<int>(i));
  }
  std::vector<Dependency> dependencies;
  for (size_t i = 0; i < computations_.size(); ++i) {
    for (const auto& instruction : computations_[i]->instructions_) {
      for (const Computation* callee : instruction->called_computations()) {
        if (auto found = position.find(callee); found != position.end()) {
          dependencies.push_back({found->second, static_cast<int>(i)});
        }
      }
    }
  }
  std::vector<Computation*> order;
  order.reserve(computations_.size());
  for (int i : stable_order(static_cast<int>(computations_.size()), dependencies))
    order.push_back(computations_[i].get());
  return order;
}

Computation* Module::find_computation(std::string_view name) const {
  for (const auto& computation : computations_) {
    if (computation->name() == name) return computation.get();
  }
  return nullptr;
}

std::vector<Instruction*> Module::callers(const Computation* computation) const {
  std::vector<Instruction*> callers;
  for (const auto& owner : computations_) {
    for (const auto& instruction : owner->instructions_) {
      const std::vector<Computation*> called = instruction->called_computations();
      if (std::find(called.begin(), called.end(), computation) != called.end()) {
        callers.push_back(instruction.get());
      }
    }
  }
  return callers;
}

int Module::instruction_count() const {
  int count = 0;
  for (const auto& computation : computations_) count += computation->instruction_count();
  return count;
}

Computation* Module::add_computation(std::string_view name) {
  std::unique_ptr<Computation> computation(new Computation);
  computation->name_ = unique_name(name);
  computation->module_ = this;
  computations_.push_back(std::move(computation));
  return computations_.back().get();
}

Computation* Module::clone(const Computation* computation, std::string_view name) {
  Computation* copy = add_computation(name.empty() ? computation->name() : name);
  copy->trailing_ = computation->trailing_;
  copy->wire_ = computation->wire_;
  copy->parameters_.resize(computation->parameters_.size());
  Mapping mapping;
  mapping.begin(*computation);
  for (Instruction* original : computation->dependency_order()) {
    std::unique_ptr<Instruction> instruction(new Instruction);
    instruction->opcode_ = original->opcode_;
    instruction->unknown_opcode_ = original->unknown_opcode_;
    instruction->shape_ = original->shape_;
    instruction->operands_ = mapping.at(original->operands());
    for (const Attribute& attribute : original->attributes_) {
      instruction->attributes_.push_back(mapping.at(attribute));
    }
    instruction->literal_ = original->literal_;
    instruction->parameter_number_ = original->parameter_number_;
    instruction->wire_ = original->wire_;
    Instruction* added = copy->insert(std::move(instruction), original->name());
    if (added->parameter_number_ >= 0) copy->parameters_[added->parameter_number_] = added;
    mapping.put(original, added);
  }
  copy->root_ = mapping.at(computation->root_);
  return copy;
}

int Module::remove_dead_computations() {
  std::unordered_set<const Computation*> live;
  std::vector<const Computation*> pending;
  const auto mark = [&](const Computation* computation) {
    if (live.insert(computation).second) pending.push_back(computation);
  };
  if (entry_) mark(entry_);
  while (!pending.empty()) {
    const Computation* computation = pending.back();
    pending.pop_back();
    for (const auto& instruction : computation->instructions_) {
      for (const Computation* callee : instruction->called_computations()) mark(callee);
    }
  }
  return static_cast<int>(std::erase_if(
      computations_, [&](const auto& computation) { return !live.count(computation.get()); }));
}

int Module::remove_dead() {
  // Once each: what has an effect never goes, so that no call loses the one that it was kept for.
  int removed = remove_dead_computations(), gone = 0;
  for (const auto& computation : computations_) gone += computation->remove_dead();
  return removed + gone + (gone > 0 ? remove_dead_computations() : 0);
}

std::unique_ptr<Module> Module::copy() const {
  auto module = std::make_unique<Module>(name_);
  module->header_ = header_;
  module->tables_ = tables_;
  module->style_ = style_;
  module->wire_ = wire_;
  module->next_id_ = next_id_;
  module->names_ = names_;
  module->suffixes_ = suffixes_;
  Mapping mapping;
  for (const auto& original : computations_) {
    std::unique_ptr<Computation> computation(new Computation);
    computation->name_ = original->name_;
    computation->module_ = module.get();
    computation->trailing_ = original->trailing_;
    computation->wire_ = original->wire_;
    mapping.put(original.get(), computation.get());
    module->computations_.push_back(std::move(computation));
  }
  for (size_t i = 0; i < computations_.size(); ++i) {
    const Computation& original = *computations_[i];
    Computation& computation = *module->computations_[i];
    mapping.begin(original);
    for (const auto& from : original.instructions_) {
      std::unique_ptr<Instruction> to(new Instruction);
      to->id_ = from->id_;
      to->name_ = from->name_;
      to->opcode_ = from->opcode_;
      to->unknown_opcode_ = from->unknown_opcode_;
      to->computation_ = &computation;
      to->shape_ = from->shape_;
      to->literal_ = from->literal_;
      to->parameter_number_ = from->parameter_number_;
      to->wire_ = from->wire_;
      mapping.put(from.get(), to.get());
      computation.append(std::move(to));
    }
    for (const auto& from : original.instructions_) {
      Instruction* to = mapping.at(from.get());
      to->operands_ = mapping.at(from->operands());
      to->users_ = mapping.at(from->users());
      to->attributes_.reserve(from->attributes_.size());
      for (const Attribute& attribute : from->attributes_) {
        to->attributes_.push_back(mapping.at(attribute));
      }
    }
    computation.parameters_ = mapping.at(std::span<Instruction* const>(original.parameters_));
    computation.root_ = original.root_ ? mapping.at(original.root_) : nullptr;
  }
  module->entry_ = entry_ ? mapping.at(entry_) : nullptr;
  return module;
}

std::string Module::unique_name(std::string_view wish) {
  std::string name(wish);
  for (char& c : name) {
    if (!is_name_character(c)) c = '_';
  }
  if (name.empty() || !is_name_start(name.front()) || is_reserved(name)) name = "_" + name;
  if (names_.insert(name).second) return name;
  const std::string base(without_number(name));
  int64_t& suffix = suffixes_[base];
  do {
    name = base + "." + std::to_string(++suffix);
  } while (!names_.insert(name).second);
  return name;
}

}  // namespace heddle::hlo
