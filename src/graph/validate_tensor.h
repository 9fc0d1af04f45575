// Rules of single tensors. Internal to validation.
#pragma once

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::graph {

/// Sets a missing data type from the graph's; a scalar's missing dims; missing strides of given
/// dims.
Status infer_tensor(const Graph& graph, Tensor& tensor);
/// Dims positive and in 32 bits, as many strides as dims, no negative stride, the last byte within
/// 63 bits; scalars are scalars; a ragged offset has its shape and type.
Status validate_tensor(const Graph& graph, TensorId id);
/// No two indices of a tensor that is written share an element (the batch stride of a ragged tensor
/// is not used, so it is not looked at).
Status validate_written(const Tensor& tensor);

}  // namespace heddle::graph
