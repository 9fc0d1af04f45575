// Sums over axes, in one form for the several in which programs print them.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Sums from 0 of one number each, as gradients of broadcasts have them, are these numbers.
Status take_sums_of_one_away(hlo::Computation& computation);

/// Of two sums of what a dot gives, one of them over more axes, that one is made of the other. XLA
/// merges them: the gradient of keys that query heads share, and that of a bias of those keys, are
/// then sums of what each query head gives. Other sums are left as they are: a sum of rounded sums
/// is rounded once more.
Status write_sums_by_sums(hlo::Computation& computation);

/// A sum of what several softmaxes' gradients add up to, as that of a bias which layers share has
/// it, is the sum of each one's own sum.
Status add_sums_of_gradients(hlo::Computation& computation);

}  // namespace heddle::rewrite
