// A rope node's attributes as a problem's Rope.
#pragma once

#include "fusion/operands.h"
#include "problem/attention.h"

namespace heddle::fusion {

/// All but Rope::rotated, which only the attention around it can tell.
problem::Rope rope_prologue(const graph::Graph& graph, const graph::Rope& op, Operands& operands);

}  // namespace heddle::fusion
