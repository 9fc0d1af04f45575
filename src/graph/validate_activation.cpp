#include "graph/validate_activation.h"

#include <cfloat>
#include <cmath>

#include "graph/names.h"

namespace heddle::graph {
namespace {

using Mode = PointwiseMode;

struct Number {
  const char* name;
  std::optional<double> ActivationNumbers::*value;
  Mode forward, backward;
};
constexpr Number kNumbers[] = {
    {"relu_lower_clip", &ActivationNumbers::relu_lower_clip, Mode::relu_fwd, Mode::relu_bwd},
    {"relu_upper_clip", &ActivationNumbers::relu_upper_clip, Mode::relu_fwd, Mode::relu_bwd},
    {"relu_lower_clip_slope", &ActivationNumbers::relu_lower_clip_slope, Mode::relu_fwd,
     Mode::relu_bwd},
    {"elu_alpha", &ActivationNumbers::elu_alpha, Mode::elu_fwd, Mode::elu_bwd},
    {"softplus_beta", &ActivationNumbers::softplus_beta, Mode::softplus_fwd, Mode::softplus_bwd},
    {"swish_beta", &ActivationNumbers::swish_beta, Mode::swish_fwd, Mode::swish_bwd},
};

}  // namespace

Status validate_activation(const Rules& rules, PointwiseMode mode,
                           const ActivationNumbers& numbers) {
  for (const Number& number : kNumbers) {
    const std::optional<double>& value = numbers.*number.value;
    if (!value) continue;
    if (mode != number.forward && mode != number.backward)
      return rules.fail(Code::invalid_value, "{} has a {}, expected none: only {} and {} have one",
                        name(mode), number.name, name(number.forward), name(number.backward));
    // Ops are computed in f32; NaN is no number either.
    if (!(std::fabs(*value) <= FLT_MAX))
      return rules.fail(Code::invalid_value, "{} has a {} of {}, expected a finite number of f32",
                        name(mode), number.name, *value);
  }
  const double lower = numbers.relu_lower_clip.value_or(0);
  if (numbers.relu_upper_clip && *numbers.relu_upper_clip < lower)
    return rules.fail(Code::invalid_value,
                      "{} has a relu_upper_clip of {} below its relu_lower_clip of {}", name(mode),
                      *numbers.relu_upper_clip, lower);
  // It divides, in f32.
  if (std::fabs(numbers.softplus_beta.value_or(1)) < FLT_MIN)
    return rules.fail(Code::invalid_value,
                      "{} has a softplus_beta of {}, expected 2^-126 or more in magnitude",
                      name(mode), *numbers.softplus_beta);
  return {};
}

}  // namespace heddle::graph
