// Evaluates a validated graph by the definitions of its ops.
#pragma once

#include "core/status.h"
#include "reference/values.h"

namespace heddle::reference {

/// Runs every node in order. Tensors between nodes are rounded once to their dtype when they are
/// read, as memory would round them, but for a row's statistics; results themselves stay f64.
/// `buffers` holds the inputs by uid (constants aside) and is not written. Fails if an input has no
/// buffer.
Result<Values> evaluate(const graph::Graph& graph, const Buffers& buffers,
                        Precision precision = {});

/// Stores each result into its buffer (if it has one), rounded once to its dtype; elements the
/// contract does not write keep what they hold.
void store_results(const Values& values, const Buffers& buffers);

}  // namespace heddle::reference
