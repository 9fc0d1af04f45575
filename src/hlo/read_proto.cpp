#include "hlo/read_proto.h"

#include <protozero/exception.hpp>
#include <unordered_map>
#include <unordered_set>

#include "hlo/infer.h"
#include "hlo/proto_fields.h"
#include "hlo/proto_instruction.h"
#include "hlo/proto_shape.h"
#include "hlo/quoting.h"

namespace heddle::hlo {

// Instructions are known by the low half of their ids, computations by the whole.
class ProtoReader {
 public:
  explicit ProtoReader(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {}

  Result<std::unique_ptr<Module>> read() {
    std::string name, entry_name;
    int64_t entry_id = 0;
    std::vector<std::string_view> computations;
    std::string_view declared;
    for (proto::Message at = proto::message(*bytes_); at.next();) {
      switch (at.tag()) {
        case proto::module_field::name:
          name = proto::take_bytes(at);
          break;
        case proto::module_field::entry_name:
          entry_name = proto::take_bytes(at);
          break;
        case proto::module_field::computations:
          computations.push_back(proto::take_bytes(at));
          break;
        case proto::module_field::program_shape:
          declared = proto::take_bytes(at);
          break;
        case proto::module_field::entry_id:
          entry_id = proto::take_integer(at);
          break;
        case proto::module_field::schedule:
          if (!proto::take_bytes(at).empty())
            return error(Code::graph_not_supported,
                         "module {} is scheduled already, and Heddle rewrites modules before that",
                         name);
          break;
        default:
          at.skip();
      }
    }
    module_ = std::make_unique<Module>(name);
    module_->wire_ = bytes_;
    HEDDLE_TRY(read_entry_layout(declared));
    for (const std::string_view computation : computations)
      HEDDLE_TRY(read_computation(computation));
    const auto entry = computations_.find(entry_id);
    if (entry == computations_.end() || given_names_.at(entry_id) != entry_name) {
      return error(Code::malformed_input,
                   "module {}: the entry, {} with id {}, is not one of its computations", name,
                   entry_name, entry_id);
    }
    module_->entry_ = entry->second;
    if (const Status verified = module_->verify(); !verified.is_ok()) {
      return error(Code::malformed_input, "{}", verified.message());
    }
    return std::move(module_);
  }

 private:
  Status read_entry_layout(std::string_view declared);
  Status read_computation(std::string_view bytes);
  Status read_instruction(std::string_view bytes);
  Status add_references(Instruction& x, proto::InstructionFields& fields);
  Status add_called(Instruction& x, const std::vector<int64_t>& ids);
  Result<Instruction*> find(int64_t id, const Instruction& user) const;
  void take_name(std::string& name, std::unordered_set<std::string>& taken);

  std::shared_ptr<const std::string> bytes_;
  std::unique_ptr<Module> module_;
  std::unordered_map<int64_t, Computation*> computations_;
  std::unordered_set<std::string> computation_names_;
  std::unordered_map<int64_t, std::string> given_names_;  // of computations, before take_name
  // The computation being read.
  Computation* current_ = nullptr;
  std::unordered_map<uint32_t, Instruction*> instructions_;
  std::unordered_set<std::string> instruction_names_;
  std::unordered_map<int64_t, Instruction*> parameters_;
};

namespace {

uint32_t local(int64_t id) { return static_cast<uint32_t>(id); }

/// What the computations an operation calls are to it, in the order of their ids; empty: any
/// number of them, under one name.
std::vector<std::string_view> called_as(const Instruction& x, size_t count) {
  switch (x.opcode()) {
    case Opcode::while_:
      return {"body", "condition"};
    case Opcode::conditional:
      if (x.operand_count() > 0 && x.operand(0)->shape().type() == ElementType::pred && count == 2)
        return {"true_computation", "false_computation"};
      return {};
    case Opcode::select_and_scatter:
      return {"select", "scatter"};
    case Opcode::fusion:
      return {"calls"};
    case Opcode::custom_call:
    case Opcode::unknown:
      return {};
    default:
      return {"to_apply"};
  }
}

}  // namespace

Status ProtoReader::read_entry_layout(std::string_view declared) {
  if (declared.empty()) return {};
  HEDDLE_ASSIGN(const proto::ProgramShape shape, proto::read_program_shape(declared));
  std::string text = "{(";
  for (size_t i = 0; i < shape.parameters.size(); ++i) {
    if (i > 0) text += ", ";
    if (i > 0 && i % 5 == 0) text += fmt::format("/*index={}*/", i);
    text += to_string(shape.parameters[i]);
  }
  text += ")->" + to_string(shape.result) + "}";
  module_->header_.push_back({"entry_computation_layout", std::move(text)});
  return {};
}

Status ProtoReader::read_computation(std::string_view bytes) {
  std::unique_ptr<Computation> owned(new Computation);
  current_ = owned.get();
  current_->module_ = module_.get();
  current_->wire_ = bytes;
  instructions_.clear();
  instruction_names_.clear();
  parameters_.clear();
  int64_t id = 0, root_id = 0;
  std::vector<std::string_view> instructions;
  for (proto::Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case proto::computation_field::name:
        current_->name_ = proto::take_bytes(at);
        break;
      case proto::computation_field::instructions:
        instructions.push_back(proto::take_bytes(at));
        break;
      case proto::computation_field::id:
        id = proto::take_integer(at);
        break;
      case proto::computation_field::root_id:
        root_id = proto::take_integer(at);
        break;
      case proto::computation_field::execution_thread: {
        const std::string_view thread = proto::take_bytes(at);
        if (thread != "main" && !thread.empty())
          current_->trailing_ = fmt::format(", execution_thread={}", quote(thread));
        break;
      }
      default:
        at.skip();
    }
  }
  const std::string given_name = current_->name_;
  take_name(current_->name_, computation_names_);
  Computation* const computation = current_;
  module_->computations_.push_back(std::move(owned));
  for (const std::string_view instruction : instructions) HEDDLE_TRY(read_instruction(instruction));

  const auto root = instructions_.find(local(root_id));
  if (root == instructions_.end()) {
    return error(Code::malformed_input, "the root of {}, id {}, is not one of its instructions",
                 computation->name_, root_id);
  }
  computation->root_ = root->second;
  computation->parameters_.resize(parameters_.size());
  for (const auto& [number, parameter] : parameters_) {
    if (number < 0 || number >= static_cast<int64_t>(parameters_.size())) {
      return error(Code::malformed_input, "{} has {} parameters, and one numbered {}",
                   computation->name_, parameters_.size(), number);
    }
    computation->parameters_[number] = parameter;
  }
  // Known from here on: nothing can call itself or what stands below.
  if (!computations_.emplace(id, computation).second) {
    return error(Code::malformed_input, "two computations have the id {}", id);
  }
  given_names_.emplace(id, given_name);
  return {};
}

/// References go by id, and XLA lets two computations have one name: the second gets another.
void ProtoReader::take_name(std::string& name, std::unordered_set<std::string>& taken) {
  while (!taken.insert(name).second) name = module_->unique_name(name);
  module_->names_.insert(name);
}

Result<Instruction*> ProtoReader::find(int64_t id, const Instruction& user) const {
  const auto found = instructions_.find(local(id));
  if (found == instructions_.end()) {
    return error(Code::malformed_input,
                 "{} in {} uses id {}, and no instruction ahead of it has that", user.name(),
                 current_->name(), id);
  }
  return found->second;
}

Status ProtoReader::read_instruction(std::string_view bytes) {
  HEDDLE_ASSIGN(proto::InstructionFields fields, proto::read_instruction(bytes));
  std::unique_ptr<Instruction> owned(new Instruction);
  Instruction* const x = owned.get();
  x->id_ = module_->next_id_++;
  x->name_ = std::move(fields.name);
  x->opcode_ = opcode_from_name(fields.opcode);
  if (x->opcode_ == Opcode::unknown) x->unknown_opcode_ = fields.opcode;
  x->computation_ = current_;
  x->shape_ = std::move(fields.shape);
  x->wire_ = bytes;
  if (x->opcode_ == Opcode::parameter) {
    x->parameter_number_ = fields.parameter_number;
    if (!parameters_.emplace(x->parameter_number_, x).second) {
      return error(Code::malformed_input, "{} has two parameters numbered {}", current_->name(),
                   x->parameter_number_);
    }
  }
  if (x->opcode_ == Opcode::constant) {
    if (!fields.literal || !same_but_layout(fields.literal->shape(), x->shape_)) {
      return error(Code::malformed_input, "constant {} in {} has no value of its shape", x->name_,
                   current_->name());
    }
    fields.literal->reinterpret_shape(x->shape_);
    x->set_literal(std::move(*fields.literal));
  }
  HEDDLE_TRY(add_references(*x, fields));
  if (!instructions_.emplace(local(fields.id), x).second) {
    return error(Code::malformed_input, "two instructions of {} have the id {}", current_->name(),
                 fields.id);
  }
  take_name(x->name_, instruction_names_);
  current_->append(std::move(owned));
  return {};
}

Status ProtoReader::add_references(Instruction& x, proto::InstructionFields& fields) {
  for (const int64_t id : fields.operand_ids) {
    HEDDLE_ASSIGN(Instruction * operand, find(id, x));
    x.operands_.push_back(operand);
    if (operand->users_.empty() || operand->users_.back() != &x) operand->users_.push_back(&x);
  }
  if (has_unknown_sizes(x)) {
    x.opcode_ = Opcode::unknown;
    x.unknown_opcode_ = fields.opcode;
  }
  // In text the computations come after an operation's own attributes, the rest after them.
  std::vector<Attribute> tail;
  while (!fields.attributes.empty()) {
    const std::string& name = fields.attributes.back().name;
    if (name != "backend_config" && name != "sharding" && name != "is_composite") break;
    tail.insert(tail.begin(), std::move(fields.attributes.back()));
    fields.attributes.pop_back();
  }
  x.attributes_ = std::move(fields.attributes);
  HEDDLE_TRY(add_called(x, fields.called_computation_ids));
  std::vector<Instruction*> before;
  for (const int64_t id : fields.control_predecessor_ids) {
    HEDDLE_ASSIGN(Instruction * predecessor, find(id, x));
    before.push_back(predecessor);
  }
  for (Attribute& attribute : tail) {
    if (attribute.name != "backend_config") x.attributes_.push_back(std::move(attribute));
  }
  if (!before.empty()) x.attributes_.push_back({"control-predecessors", std::move(before)});
  if (!tail.empty() && tail.back().name == "backend_config")
    x.attributes_.push_back(std::move(tail.back()));
  return {};
}

Status ProtoReader::add_called(Instruction& x, const std::vector<int64_t>& ids) {
  std::vector<Computation*> called;
  for (const int64_t id : ids) {
    const auto found = computations_.find(id);
    if (found == computations_.end()) {
      return error(Code::malformed_input,
                   "{} in {} calls id {}, and no computation ahead of it has that", x.name(),
                   current_->name(), id);
    }
    called.push_back(found->second);
  }
  if (called.empty()) return {};
  const std::vector<std::string_view> names = called_as(x, called.size());
  if (!names.empty() && names.size() != called.size()) {
    return error(Code::malformed_input, "{} in {}: {} calls {} computations, not {}", x.name(),
                 current_->name(), x.opcode_name(), names.size(), called.size());
  }
  if (x.is(Opcode::while_)) {  // text has the condition first
    x.attributes_.push_back({"condition", called[1]});
    x.attributes_.push_back({"body", called[0]});
  } else if (names.empty()) {
    const char* const name =
        x.is(Opcode::conditional) ? "branch_computations" : "called_computations";
    x.attributes_.push_back({name, std::move(called)});
  } else {
    for (size_t i = 0; i < names.size(); ++i)
      x.attributes_.push_back({std::string(names[i]), called[i]});
  }
  return {};
}

Result<std::unique_ptr<Module>> read_proto(std::string_view bytes) {
  try {
    return ProtoReader(std::make_shared<const std::string>(bytes)).read();
  } catch (const protozero::exception& exception) {
    return error(Code::malformed_input,
                 "the bytes are no serialized HloModuleProto: {} in a message of {} bytes",
                 exception.what(), bytes.size());
  } catch (const std::bad_alloc&) {
    return error(Code::out_of_memory, "no memory for a module of {} bytes", bytes.size());
  }
}

}  // namespace heddle::hlo
