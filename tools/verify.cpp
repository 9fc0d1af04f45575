#include "tools/verify.h"

#include <algorithm>

#include "hlo/interpreter/evaluate.h"
#include "tools/heddle_call.h"
#include "tools/relative_error.h"

namespace heddle::tools {
namespace {

using hlo::Literal;

double relative_error(const Literal& value, const Literal& truth) {
  RelativeError error;
  for (int64_t i = 0; i < truth.element_count(); ++i) error.add(value.get(i), truth.get(i));
  return error.value();
}

void flatten(const Literal& value, std::vector<Literal>& leaves) {
  if (!value.shape().is_tuple()) {
    if (value.shape().is_array()) leaves.push_back(value);
    return;
  }
  for (const Literal& element : value.elements()) flatten(element, leaves);
}

Result<std::vector<Literal>> evaluate(const hlo::Module& module, std::span<const Literal> arguments,
                                      hlo::Precision precision) {
  hlo::EvaluateOptions options;
  options.precision = precision;
  options.custom_calls.emplace_back(std::string(kHeddleTarget), run_heddle_call);
  HEDDLE_ASSIGN(const Literal result, hlo::evaluate(module, arguments, options));
  std::vector<Literal> leaves;
  flatten(result, leaves);
  return leaves;
}

}  // namespace

Result<Verification> verify(const hlo::Module& original, const hlo::Module& fused, uint64_t seed) {
  HEDDLE_ASSIGN(const std::vector<Literal> arguments, hlo::random_arguments(original, seed));
  HEDDLE_ASSIGN(const std::vector<Literal> truth,
                evaluate(original, arguments, hlo::Precision::f64));
  HEDDLE_ASSIGN(const std::vector<Literal> before,
                evaluate(original, arguments, hlo::Precision::faithful));
  HEDDLE_ASSIGN(const std::vector<Literal> after,
                evaluate(fused, arguments, hlo::Precision::faithful));
  if (truth.size() != after.size())
    return error(Code::invalid_value, "the rewritten module has {} outputs, the original {}",
                 after.size(), truth.size());

  Verification verification;
  verification.ok = true;
  for (size_t i = 0; i < truth.size(); ++i) {
    OutputError output;
    output.shape = hlo::to_string_without_layout(before[i].shape());
    if (!hlo::same_dims(after[i].shape(), before[i].shape()) ||
        after[i].shape().type() != before[i].shape().type())
      return error(Code::invalid_value,
                   "output {} is {} in the rewritten module, {} in the original", i,
                   hlo::to_string(after[i].shape()), output.shape);
    output.original = relative_error(before[i], truth[i]);
    output.fused = relative_error(after[i], truth[i]);
    output.allowed = 2 * output.original + rounding_step(hlo::name(before[i].shape().type()));
    output.ok = output.fused <= output.allowed;
    verification.ok = verification.ok && output.ok;
    verification.max_relative_error = std::max(verification.max_relative_error, output.fused);
    verification.outputs.push_back(std::move(output));
  }
  return verification;
}

}  // namespace heddle::tools
