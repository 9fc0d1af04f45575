// Small changes that keep every value and make one program out of its many printed forms: calls
// inlined, tuples taken apart where they are made, those of conditionals made of their elements,
// sums of one number each the numbers, dots that XLA merged several, softmaxes that are used in
// parts several, outer products multiplications, equal instructions merged, sums made of sums, dead
// ones removed.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

Status canonicalise(hlo::Module& module);

}  // namespace heddle::rewrite
