// How large the numbers of a term can be, as far as the program's text says it: a mask's fill that
// no term can be as low as hides what it fills.
#pragma once

#include "rewrite/element.h"

namespace heddle::rewrite {

/// Of scores before they are scaled: what a program means has exp() of their differences.
inline constexpr double kReachOfProducts = 1e5;

/// The largest size of an element of `x`; infinity if data may make it anything. A product of data,
/// as the scores themselves are one, is taken to be no larger than scores are, times what the text
/// multiplies its factors by.
double reach_of(Elements& elements, int frame, const hlo::Instruction* x);

/// The same where scores are multiplied by `x`: numbers of data are taken to be no larger than any
/// that leave scores of some use, and only what the text makes an infinity of, as the inverse of a
/// number that may be 0, can be anything.
double reach_of_factor(Elements& elements, int frame, const hlo::Instruction* x);

/// Whether the program may make an infinity, or no number, of finite numbers on the way to `x`.
bool may_be_infinite(Elements& elements, int frame, const hlo::Instruction* x);

}  // namespace heddle::rewrite
