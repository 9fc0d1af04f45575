#include "hlo/infer.h"
#include "hlo/infer_rules.h"
#include "hlo/reader.h"

namespace heddle::hlo {
namespace {

constexpr int kMaxDepth = 64;  // of operands written inside operands

// Omitted shapes are inferred; in all of them together this many parts and dimensions at most, so
// that `tuple(x, x)` of `tuple(x, x)` of ... cannot outgrow its text by much.
constexpr int64_t kMaxInferredParts = int64_t{1} << 19;

int64_t parts_and_dimensions(const Shape& shape) {
  int64_t count = 1 + shape.rank();
  for (const Shape& element : shape.elements()) count += parts_and_dimensions(element);
  return count;
}

// The operations whose shape follows from their operands and attributes alone.
bool determines_shape(Opcode opcode) {
  switch (opcode) {
    case Opcode::bitcast_convert:
    case Opcode::broadcast:
    case Opcode::constant:
    case Opcode::convert:
    case Opcode::dot:
    case Opcode::iota:
    case Opcode::map:
    case Opcode::parameter:
    case Opcode::reduce:
    case Opcode::reduce_window:
    case Opcode::reshape:
    case Opcode::rng_bit_generator:
    case Opcode::set_dimension_size:
      return false;
    case Opcode::call:
    case Opcode::concatenate:
    case Opcode::conditional:
    case Opcode::dynamic_slice:
    case Opcode::dynamic_update_slice:
    case Opcode::fusion:
    case Opcode::gather:
    case Opcode::get_dimension_size:
    case Opcode::get_tuple_element:
    case Opcode::opt_barrier:
    case Opcode::pad:
    case Opcode::reverse:
    case Opcode::scatter:
    case Opcode::slice:
    case Opcode::sort:
    case Opcode::transpose:
    case Opcode::tuple:
    case Opcode::while_:
      return true;
    default:
      return is_elementwise(opcode);
  }
}

}  // namespace

Result<Instruction*> Reader::find_instruction(std::string_view name, size_t at) {
  const auto found = instructions_.find(name);
  if (found == instructions_.end()) {
    return in_.complaint(at,
                         fmt::format("expected an instruction defined above in {}, there is no {}",
                                     current_->name(), name));
  }
  return found->second;
}

Result<Computation*> Reader::read_computation_name() {
  const size_t at = in_.skip_blanks();
  HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("a computation's name"));
  const auto found = computations_.find(name);
  if (found == computations_.end()) {
    return in_.complaint(at,
                         fmt::format("expected a computation defined above, there is no {}", name));
  }
  return found->second;
}

Result<Instruction*> Reader::read_operand(int depth) {
  const size_t at = in_.skip_blanks();
  if (depth == kMaxDepth) {
    return in_.complaint(at, "expected operands nested less than 64 deep");
  }
  // A shape before a name repeats what is known; before an opcode it is the nested result's.
  const bool with_shape = shape_comes_next();
  std::optional<Shape> shape;
  if (with_shape) {
    HEDDLE_ASSIGN(shape, read_shape(0));
  }
  const size_t name_at = in_.skip_blanks();
  const bool percent = in_.peek_raw() == '%';
  HEDDLE_ASSIGN(const std::string_view name, in_.expect_name("an operand"));
  if (!percent && in_.peek() == '(') {
    in_.rewind(at);
    return read_instruction_body({}, at, depth + 1);
  }
  HEDDLE_ASSIGN(Instruction * operand, find_instruction(name, name_at));
  if (shape && !same_value_shape(*shape, operand->shape())) {
    return in_.complaint(at, fmt::format("expected shape {} of {}, found {}",
                                         to_string_without_layout(operand->shape()), name,
                                         to_string_without_layout(*shape)));
  }
  return operand;
}

Result<Reader::Arguments> Reader::read_arguments(Opcode opcode, const std::optional<Shape>& shape,
                                                 size_t at, int depth) {
  Arguments arguments;
  HEDDLE_TRY(in_.expect("("));
  if (opcode == Opcode::parameter) {
    const size_t number_at = in_.skip_blanks();
    HEDDLE_ASSIGN(arguments.parameter_number, in_.expect_integer("a parameter's number"));
    if (arguments.parameter_number < 0) {
      return in_.complaint(number_at, "expected a parameter's number, 0 or more");
    }
    HEDDLE_TRY(in_.expect(")"));
    return arguments;
  }
  if (opcode == Opcode::constant) {
    if (!shape) return in_.complaint(at, "expected a shape before constant");
    HEDDLE_ASSIGN(arguments.literal, read_literal(*shape, 0));
    HEDDLE_TRY(in_.expect(")"));
    return arguments;
  }
  if (in_.accept(")")) return arguments;
  do {
    const size_t before = in_.offset();
    HEDDLE_ASSIGN(Instruction * operand, read_operand(depth));
    arguments.operands.push_back(operand);
    if (arguments.operands.size() == 6) {
      operand_numbers_ =
          in_.between(before, in_.offset()).find("/*index=") != std::string_view::npos;
    }
  } while (in_.accept(","));
  HEDDLE_TRY(in_.expect(")"));
  return arguments;
}

// [shape] opcode(arguments)[, attributes]; nested ones (depth > 0) have neither name nor
// attributes.
Result<Instruction*> Reader::read_instruction_body(std::string_view name, size_t at, int depth) {
  std::optional<Shape> shape;
  if (shape_comes_next()) {
    HEDDLE_ASSIGN(shape, read_shape(0));
  }
  const size_t opcode_at = in_.skip_blanks();
  if (in_.peek_raw() == '%') return in_.expected("an operation");
  HEDDLE_ASSIGN(const std::string_view spelling, in_.expect_name("an operation"));
  const Opcode opcode = opcode_from_name(spelling);
  HEDDLE_ASSIGN(Arguments arguments, read_arguments(opcode, shape, opcode_at, depth));
  std::vector<Attribute> attributes;
  if (depth == 0) HEDDLE_TRY(read_attributes(opcode != Opcode::unknown, attributes));
  if (!shape && !determines_shape(opcode)) {
    return in_.complaint(opcode_at, fmt::format("expected a shape before {}", spelling));
  }

  std::unique_ptr<Instruction> owned(new Instruction);
  Instruction* x = owned.get();
  x->opcode_ = opcode;
  if (opcode == Opcode::unknown) x->unknown_opcode_ = spelling;
  x->id_ = module_->next_id_++;
  x->name_ = name;
  x->computation_ = current_;
  x->operands_ = std::move(arguments.operands);
  x->attributes_ = std::move(attributes);
  if (arguments.literal) x->set_literal(std::move(*arguments.literal));
  x->parameter_number_ = arguments.parameter_number;
  if (shape) x->shape_ = std::move(*shape);
  const std::string_view shown = name.empty() ? spelling : name;
  if (!name.empty() && !instructions_.emplace(name, x).second) {
    return in_.complaint(at, fmt::format("expected a new name, {} is defined above", shown));
  }
  if (opcode == Opcode::parameter && !parameters_.emplace(x->parameter_number_, x).second) {
    return in_.complaint(at, fmt::format("expected parameter {} only once", x->parameter_number_));
  }

  if (has_unknown_sizes(*x)) {
    if (!shape) {
      return in_.complaint(opcode_at,
                           fmt::format("expected a shape before {} of an unknown size", spelling));
    }
    x->opcode_ = Opcode::unknown;
    x->unknown_opcode_ = spelling;
  }
  const Result<Shape> inferred = infer_shape(*x);
  if (!inferred.is_ok()) return in_.complaint(at, inferred.status().message());
  if (!shape) {
    inferred_parts_ += parts_and_dimensions(*inferred);
    if (inferred_parts_ > kMaxInferredParts) {
      return in_.complaint(opcode_at, "expected a shape: too many were left to be inferred");
    }
    x->shape_ = *inferred;
    x->shape_.set_default_layout();
  } else if (!same_value_shape(*inferred, x->shape_)) {
    return in_.complaint(
        at, fmt::format("expected shape {} of {}, found {}", to_string_without_layout(*inferred),
                        shown, to_string_without_layout(x->shape_)));
  }
  for (Instruction* operand : x->operands_) {
    if (operand->users_.empty() || operand->users_.back() != x) operand->users_.push_back(x);
  }
  if (name.empty()) {
    anonymous_.push_back(x);
  } else {
    module_->names_.insert(x->name_);
  }
  current_->append(std::move(owned));
  return x;
}

}  // namespace heddle::hlo
