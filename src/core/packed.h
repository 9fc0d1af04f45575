// Sequences of a batch that lie one behind the other.
#pragma once

#include "core/dims.h"

namespace heddle {

/// Whether elements of a packed tensor [B,H,S,...] lie on top of each other by its strides alone:
/// where a sequence begins, and how long it is, is data. Where heads lie further apart than rows,
/// by the rows of all sequences together, one of S rows need not fit between two heads.
bool packed_overlaps_itself(Dims dims, const Dims& strides);

}  // namespace heddle
