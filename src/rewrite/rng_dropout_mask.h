// Keep masks that a program draws with JAX's generator: uniform numbers made of Threefry bits at
// the mask's own places, compared with a constant. A fused call draws the very same (core/
// dropout_bits.h), so that no mask need be stored.
#pragma once

#include <array>
#include <optional>

#include "rewrite/words.h"

namespace heddle::rewrite {

struct RngDropoutMask {
  /// One word of the key: where the program has it, or its value.
  struct KeyWord {
    std::optional<Element> place;
    uint32_t value = 0;
  };
  std::array<KeyWord, 2> key;
  double keep_probability = 1;
  Linear index;  // of the bits drawn for the mask's labels
};

/// Nothing unless it is proved that `predicate`, or its negation, is such a mask.
std::optional<RngDropoutMask> rng_dropout_mask(Elements& elements, const Element& predicate,
                                               bool is_negated);

}  // namespace heddle::rewrite
