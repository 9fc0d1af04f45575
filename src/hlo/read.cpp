#include "hlo/read.h"

#include <fstream>
#include <new>
#include <sstream>

#include "hlo/infer_rules.h"
#include "hlo/reader.h"

namespace heddle::hlo {
namespace {

bool is_table(std::string_view name) {
  return name == "FileNames" || name == "FunctionNames" || name == "FileLocations" ||
         name == "StackFrames";
}

}  // namespace

Status Reader::read_header() {
  if (in_.peek_name() == "module" || in_.peek() == '#')
    return in_.complaint(in_.skip_blanks(),
                         "expected HLO text, and this is MLIR, as StableHLO is printed; "
                         "jax.jit(f).lower(...).as_text(\"hlo\") prints HLO");
  if (!in_.accept_word("HloModule")) return in_.expected("'HloModule'");
  HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("the module's name"));
  module_ = std::make_unique<Module>(std::string(name));
  while (in_.accept(",")) {
    const size_t at = in_.skip_blanks();
    HEDDLE_ASSIGN(const std::string_view attribute, in_.expect_name("a header attribute's name"));
    if (!module_->header_text(attribute).empty()) {
      return in_.complaint(at, fmt::format("expected header attribute {} only once", attribute));
    }
    HEDDLE_TRY(in_.expect("="));
    HEDDLE_ASSIGN(const std::string_view text, in_.expect_verbatim("a value"));
    module_->header_.push_back({std::string(attribute), std::string(text)});
  }
  return {};
}

Status Reader::read_tables() {
  const size_t start = in_.skip_blanks();
  size_t end = start;
  while (is_table(in_.peek_name())) {
    const size_t before = in_.offset();
    in_.accept_name();
    // A computation may bear a table's name.
    if (in_.peek() == '{' || in_.peek() == '(') {
      in_.rewind(before);
      break;
    }
    while (in_.peek() >= '0' && in_.peek() <= '9') {
      HEDDLE_TRY(in_.expect_integer("the number of an entry").status());
      if (in_.peek() != '"' && in_.peek() != '{') return in_.expected("a string or '{'");
      HEDDLE_TRY(in_.expect_verbatim("an entry").status());
    }
    end = in_.offset();
    while (end > start &&
           std::string_view(" \t\r\n").find(in_.between(end - 1, end)) != std::string_view::npos) {
      --end;
    }
  }
  module_->tables_ = in_.between(start, end);
  return {};
}

Result<Reader::Signature> Reader::read_signature() {
  Signature signature;
  signature.offset = in_.skip_blanks();
  if (!in_.accept("(")) return signature;
  module_->style_.signatures = true;
  if (!in_.accept(")")) {
    do {
      HEDDLE_TRY(in_.expect_name("a parameter's name").status());
      HEDDLE_TRY(in_.expect(":"));
      HEDDLE_ASSIGN(Shape shape, read_shape(0));
      signature.parameters.push_back(std::move(shape));
    } while (in_.accept(","));
    HEDDLE_TRY(in_.expect(")"));
  }
  HEDDLE_TRY(in_.expect("->"));
  HEDDLE_ASSIGN(signature.result, read_shape(0));
  return signature;
}

Status Reader::read_instruction() {
  const bool is_root = in_.accept_word("ROOT");
  const size_t at = in_.skip_blanks();
  HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("an instruction or '}'"));
  HEDDLE_TRY(in_.expect("="));
  HEDDLE_ASSIGN(Instruction * instruction, read_instruction_body(name, at, 0));
  if (!is_root) return {};
  if (root_) return in_.complaint(at, fmt::format("expected one ROOT, {} is it", root_->name()));
  root_ = instruction;
  return {};
}

Status Reader::read_computation() {
  const bool is_entry = in_.accept_word("ENTRY");
  const size_t at = in_.skip_blanks();
  if (is_entry && module_->entry()) {
    return in_.complaint(at, fmt::format("expected one ENTRY, {} is it", module_->entry()->name()));
  }
  HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("a computation"));
  std::unique_ptr<Computation> owned(new Computation);
  current_ = owned.get();
  current_->name_ = name;
  current_->module_ = module_.get();
  module_->names_.insert(current_->name_);
  if (is_entry) module_->entry_ = current_;
  module_->computations_.push_back(std::move(owned));
  instructions_.clear();
  parameters_.clear();
  root_ = nullptr;

  HEDDLE_ASSIGN(const Signature signature, read_signature());
  HEDDLE_TRY(in_.expect("{"));
  do {
    HEDDLE_TRY(read_instruction());
  } while (!in_.accept("}"));
  HEDDLE_TRY(finish_computation(signature, root_, at));
  // Known from here on: nothing can call itself or what stands below.
  if (!computations_.emplace(name, current_).second) {
    return in_.complaint(at, fmt::format("expected a new name, {} is defined above", name));
  }
  return {};
}

Status Reader::finish_computation(const Signature& signature, Instruction* root, size_t at) {
  current_->root_ = root ? root : current_->instructions_.back().get();
  const auto count = static_cast<int64_t>(parameters_.size());
  for (const auto& [number, parameter] : parameters_) {
    if (number >= count) {
      return in_.complaint(at, fmt::format("expected parameters 0 to {} in {}, found number {}",
                                           count - 1, current_->name(), number));
    }
  }
  current_->parameters_.resize(count);
  for (const auto& [number, parameter] : parameters_) current_->parameters_[number] = parameter;
  if (signature.result) {
    bool fits = signature.parameters.size() == parameters_.size() &&
                same_value_shape(*signature.result, current_->root_->shape());
    for (size_t i = 0; fits && i < signature.parameters.size(); ++i) {
      fits = same_value_shape(signature.parameters[i], current_->parameters_[i]->shape());
    }
    if (!fits) {
      return in_.complaint(signature.offset,
                           fmt::format("expected the signature of {} to give the shapes of its "
                                       "parameters and its root",
                                       current_->name()));
    }
  }
  while (in_.accept(",")) {
    HEDDLE_ASSIGN(const std::string_view attribute, in_.expect_name("an attribute's name"));
    HEDDLE_TRY(in_.expect("="));
    HEDDLE_ASSIGN(const std::string_view value, in_.expect_verbatim("a value"));
    current_->trailing_ += fmt::format(", {}={}", attribute, value);
  }
  return {};
}

Result<std::unique_ptr<Module>> Reader::read_module() {
  HEDDLE_TRY(read_header());
  HEDDLE_TRY(read_tables());
  module_->style_.signatures = false;
  do {
    HEDDLE_TRY(read_computation());
  } while (!in_.at_end());
  if (!module_->entry_) module_->entry_ = current_;
  module_->style_.percent_names = in_.saw_percent();
  module_->style_.operand_numbers = operand_numbers_.value_or(in_.saw_percent());
  for (Instruction* instruction : anonymous_) {
    instruction->name_ = module_->unique_name(fmt::format("{}.anon", instruction->opcode_name()));
  }
  // What was read obeys all this by construction; a module nobody checked would be a trap.
  const Status verified = module_->verify();
  if (!verified.is_ok()) return in_.complaint(0, verified.message());
  return std::move(module_);
}

Result<std::unique_ptr<Module>> read_text(std::string_view text, std::string_view file) {
  try {
    return Reader(text, file).read_module();
  } catch (const std::bad_alloc&) {
    return error(Code::out_of_memory, "{}: no memory for a module of {} bytes of text", file,
                 text.size());
  }
}

Result<std::unique_ptr<Module>> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return error(Code::io_failed, "{} cannot be read", path);
  }
  return read_text(text.view(), path);
}

}  // namespace heddle::hlo
