// Fixed elements over rows and keys as whole numbers in pieces (zone.h), in the program's types.
#pragma once

#include <optional>

#include "rewrite/steps.h"
#include "rewrite/zone.h"

namespace heddle::rewrite {

/// The last of fixed steps over two axes, digits most significant first. Nothing if it is no whole
/// number that is linear in both indices on each of a few pieces.
std::optional<Pieces> pieces_of(Elements& elements, const std::vector<Step>& steps,
                                const Index& rows, const Index& keys);

}  // namespace heddle::rewrite
