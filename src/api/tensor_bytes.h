// How much memory a bound tensor takes.
#pragma once

#include <functional>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::api {

/// The host's memory of a tensor, or null where there is none.
using HostMemory = std::function<const void*(graph::TensorId)>;

/// Bytes from the first element of `id` to past its last. Of a packed tensor as its offsets and the
/// lengths of the ops that read or write it say, which are read in the host's memory: to past the
/// last row of an entry.
Result<int64_t> tensor_bytes(const graph::Graph& graph, graph::TensorId id, const HostMemory& host);

}  // namespace heddle::api
