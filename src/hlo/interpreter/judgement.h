// Whether a rewritten module still computes what its original does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "hlo/interpreter/evaluate.h"
#include "hlo/literal.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// One output (tuples flattened) of a rewritten module beside the original's. A row is the last
/// axis, with those before it where that is too short to tell an error from luck. Errors are
/// relative, in the Euclidean norm.
struct OutputJudgement {
  Shape shape;
  int64_t elements = 0;
  int64_t compared = 0;  ///< finite in the original
  /// NaN in the original, numbers in the rewritten module: what a row gives whose scores are all
  /// -inf, which is NaN by softmax and 0 in a call.
  int64_t filled = 0;
  double error = 0;  ///< of the output as a whole, from the original in f64
  // Of the row that comes closest to what it is allowed, or exceeds it most:
  double row_error = 0, row_allowed = 0, row_original = 0;
  std::string row;        ///< its index, "[1, 0, 7]"
  std::string complaint;  ///< why it is refused; empty if it is not
};

struct JudgeOptions {
  // Their precision is set by judge().
  EvaluateOptions original, rewritten;
  EvaluateOptions exact;  ///< of the rewritten module in f64
  uint64_t seed = 0;      ///< of the arguments nearby
};

/// Evaluates both modules on the same arguments, each value in its own type, and the original in
/// f64 too. The rewritten module may be twice as far from f64 as the original is, and a few
/// roundings, in every output and in each of its rows. Where the original itself is far from f64,
/// it is evaluated on nearby arguments too. What stays the same is meant: a huge finite number
/// swallows scores in f32 and not in f64 (of constants f64 is told), and the rewritten module must
/// agree with the original.
/// Where both agree in f64 and only the errors of a whole output are too large, the original's are
/// taken of five evaluations, on arguments nearby, as those of one may be small by luck.
/// What is lost in rounding tells nothing: there, and in rows with more errors than usual, both
/// must agree in f64. What is finite in the original must be. Fails if a module cannot be
/// evaluated, or outputs differ in shape.
Result<std::vector<OutputJudgement>> judge(const Module& original, const Module& rewritten,
                                           const std::vector<Literal>& arguments,
                                           const JudgeOptions& options = {});

/// The same rule for an output of a module whose value is known: every row of `actual` may be
/// `tolerance` from `expected`.
OutputJudgement judge(const Literal& expected, const Literal& actual, double tolerance);

/// A constant of a program that is evaluated in f64 instead. Beside a huge finite one f32 holds no
/// score, and f64 would: it becomes so large that f64 holds none either. Others stay.
double fill_for_f64(double constant);

/// The outputs of a module, or of a tuple.
std::vector<Literal> flattened(const Literal& value);

}  // namespace heddle::hlo
