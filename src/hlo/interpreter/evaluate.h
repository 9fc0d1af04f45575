// Evaluates modules, so that a rewritten one can be compared with its original.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "hlo/literal.h"
#include "hlo/module.h"

namespace heddle::hlo {

enum class Precision : uint8_t {
  faithful,  // each value rounded to its own type, as the program says; dots accumulate in f32
             // (f64 for f64) and round once
  f64,       // every floating value kept in f64: converts and reduce-precision between floating
             // types change nothing, so what remains is the program's real-valued meaning
};

/// Runs a custom-call: gives the value of `call` for `operands`. In f64 mode floating operands
/// arrive as f64 arrays, and floating results may be f64 or the call's own type.
using CustomCallHandler =
    std::function<Result<Literal>(const Instruction& call, std::span<const Literal> operands)>;

struct EvaluateOptions {
  Precision precision = Precision::faithful;
  /// Iterations of one while loop, and instructions evaluated in all: hostile programs end.
  int64_t max_iterations = 1 << 20;
  int64_t max_steps = int64_t{1} << 32;
  /// Bytes of values alive at a time.
  int64_t max_bytes = int64_t{8} << 30;
  /// By custom_call_target. Sharding annotations and the like need none: see evaluate().
  std::vector<std::pair<std::string, CustomCallHandler>> custom_calls;
};

/// The value of the entry's root for `arguments`, one for each parameter, of its shape up to
/// layout. In f64 mode floating arguments may be f64 instead of their parameter's type, and
/// floating results are f64. Fails with graph_not_supported, naming the operation, for what it
/// cannot evaluate, and for elided constants; with invalid_value for arguments that do not fit and
/// exceeded limits. custom-calls to "Sharding", "SPMDFullToShardShape" and "SPMDShardToFullShape"
/// give their operand.
Result<Literal> evaluate(const Module& module, std::span<const Literal> arguments,
                         const EvaluateOptions& options = {});
/// The same for any computation of a module.
Result<Literal> evaluate(const Computation& computation, std::span<const Literal> arguments,
                         const EvaluateOptions& options = {});

}  // namespace heddle::hlo
