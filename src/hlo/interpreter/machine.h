// The interpreter's heart: runs computations instruction by instruction.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/storage.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// The values an instruction is evaluated on. An operand nobody needs afterwards is not shared, so
/// that its memory can become the result's.
using Operands = std::vector<Literal>;

class Machine {
 public:
  Machine(const EvaluateOptions& options, FloatStorage storage);

  /// The root's value.
  Result<Literal> run(const Computation& computation, Operands arguments);
  /// The value of one instruction.
  Result<Literal> evaluate(const Instruction& x, Operands operands);
  /// The value of an operation that needs no other computation.
  Result<Literal> evaluate_alone(const Instruction& x, Operands operands);

  FloatStorage storage() const { return storage_; }
  const EvaluateOptions& options() const { return options_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
  ElementType storage_type(ElementType type) const { return hlo::storage_type(type, storage_); }
  /// A new value of the instruction's shape, elements undefined.
  Result<Literal> result_of(const Instruction& x) { return allocate(x.shape()); }
  /// A new value of `shape` with its storage type, elements undefined.
  Result<Literal> allocate(const Shape& shape);
  /// For elementwise operations: one of the operands if its memory is free and fits, else a new
  /// value, of x's element type and the dims of `like` (a reducer written for scalars may run on
  /// arrays). Take the operands' data() before: loops read each element before they write it.
  Result<Literal> reuse_or_allocate(const Instruction& x, const Shape& like, Operands& operands);
  /// Applies a computation of scalars to every element of the arguments, arrays of `count` elements
  /// each. With own storage, inner values are kept in f32 at least: rounding is the caller's.
  Result<Operands> run_on_elements(const Instruction& x, const Computation& computation,
                                   Operands arguments, int64_t count);
  /// Counts work of about `elements` elements towards max_steps.
  Status spend(const Instruction& x, int64_t elements);
  /// What handling one value costs beside its elements, in elements.
  static constexpr int64_t kElementsPerValue = 64;

 private:
  // The order instructions run in, and after which of them each value is last needed.
  struct Plan {
    std::vector<const Instruction*> order;
    std::unordered_map<const Instruction*, int> position;
    std::vector<int> last_use;
  };
  /// Says so of a computation with a value of unknown size.
  Result<const Plan*> plan_of(const Computation& computation);

  Result<Literal> evaluate_calls(const Instruction& x, Operands operands);
  Result<Literal> evaluate_while(const Instruction& x, Literal state);
  Result<Literal> evaluate_conditional(const Instruction& x, Operands operands);
  Result<Literal> evaluate_custom_call(const Instruction& x, Operands operands);
  Result<Literal> constant(const Instruction& x);
  Result<Literal> run_lifted(const Instruction& caller, const Computation& computation,
                             Operands arguments, int64_t count);

  const EvaluateOptions& options_;
  FloatStorage storage_;
  std::shared_ptr<MemoryMeter> meter_;
  std::unordered_map<const Computation*, Plan> plans_;
  std::unique_ptr<Machine> reducers_;  // with storage `wide`, made when first needed
  int64_t steps_ = 0;
  int depth_ = 0;
};

Status refuse(const Instruction& x, std::string_view why);

/// `value` with every floating array in `storage`'s type (tuples elementwise).
Result<Literal> to_storage(Literal value, FloatStorage storage,
                           std::shared_ptr<MemoryMeter> meter = nullptr);
/// `value`'s elements converted to `type`, as HLO's convert does.
Result<Literal> convert_to(const Literal& value, ElementType type,
                           std::shared_ptr<MemoryMeter> meter = nullptr);

/// Element `index` of an array, row-major, bit by bit.
Literal scalar_at(const Literal& array, int64_t index);

// One function for each group of operations; all checks of shapes are verify()'s.
Result<Literal> evaluate_unary(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_binary(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_compare(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_select(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_clamp(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_convert(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_bitcast_convert(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_movement(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_dot(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_convolution(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_reduce(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_reduce_window(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_map(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_sort(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_topk(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_gather(Machine& machine, const Instruction& x, Operands operands);
Result<Literal> evaluate_scatter(Machine& machine, const Instruction& x, Operands operands);
/// What `computation` of two scalars combines them with, if it is one commutative operation: add,
/// multiply, maximum, minimum, and, or, xor. Opcode::unknown otherwise.
Opcode monoid_of(const Computation& computation);
Result<Literal> evaluate_random_bits(Machine& machine, const Instruction& x, Operands operands);

}  // namespace heddle::hlo
