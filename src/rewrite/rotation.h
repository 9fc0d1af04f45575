// Rotary position embedding (Su et al., 2021) in the halves layout, as programs write it:
// concatenate(low * cos - high * sin, high * cos + low * sin), and its inverse.
#pragma once

#include <optional>

#include "rewrite/algebra.h"

namespace heddle::rewrite {

/// `y`, a concatenation along its dimension `depth`, is `x` rotated by the angles whose cosines and
/// sines two tables hold; by their negatives if `inverse`.
struct Rotation {
  Element y;  // the concatenation with labels, and the others in the same labels
  Element x;
  Element cosines, sines;  // over rows and `half`
  Index half;
  size_t depth = 0;
  bool inverse = false;
};

/// Nothing if `concatenation` is not a rotation of the whole of some x along its depth.
std::optional<Rotation> rotation_of(Elements& elements, Algebra& algebra, int frame,
                                    const hlo::Instruction* concatenation);

/// The same rotation with y's labels replaced by `at`.
std::optional<Rotation> relabelled(const Elements& elements, const Rotation& rotation,
                                   const std::vector<Index>& at);

}  // namespace heddle::rewrite
