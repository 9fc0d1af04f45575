// The spellings of the graph's enumerations, ops and tensors, in the text form and in error
// sentences.
#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace heddle::graph {

std::string_view name(PointwiseMode mode);
std::string_view name(DiagonalAlignment alignment);
std::string_view name(RopePairing pairing);
/// "sdpa", "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward", "rope", "rope_backward", "rms_norm",
/// "rms_norm_backward", "layer_norm", "layer_norm_backward", "instance_norm",
/// "instance_norm_backward", "batch_norm", "batch_norm_backward", "cache_append", "pointwise".
std::string_view op_name(const Node& node);
/// Its own name; of one without, its op's.
std::string_view name(const Node& node);
/// "tensor 'query' (uid 1)".
std::string describe(const Tensor& tensor);

/// Sets `value` to the enumerator spelled `text`; false if there is none.
bool from_name(std::string_view text, PointwiseMode& value);
bool from_name(std::string_view text, DiagonalAlignment& value);
bool from_name(std::string_view text, RopePairing& value);

/// "halves, interleaved": every spelling of the value's enumeration.
std::string choices(PointwiseMode);
std::string choices(DiagonalAlignment);
std::string choices(RopePairing);

/// How many tensors the op takes.
int arity(PointwiseMode mode);
/// Whether the op's result is a truth value (comparisons and logic).
bool is_predicate(PointwiseMode mode);
/// Whether it is an activation or the derivative of one; tanh_fwd and sigmoid_fwd, which are
/// functions as any other, are none.
bool is_activation(PointwiseMode mode);

}  // namespace heddle::graph
