// The checks that the ops' contracts are made of, each with its sentence. Internal to validation.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/status.h"
#include "graph/graph.h"
#include "graph/names.h"

namespace heddle::graph {

/// Checks the ports of one node. `port` is the name of a port as the contract spells it ("Q",
/// "dBias").
class Rules {
 public:
  Rules(Graph& graph, const Node& node);

  Graph& graph() const { return graph_; }
  const Tensor& operator[](TensorId id) const { return graph_[id]; }
  /// "sdpa 'attn'".
  const std::string& op() const { return op_; }
  /// "Q of sdpa 'attn' (tensor 'query', uid 1)".
  std::string subject(const char* port, TensorId id) const;
  /// A failure that begins with an incumbent sentence, then says which op.
  template <class... Args>
  Status fail(Code code, fmt::format_string<Args...> format, Args&&... args) const {
    return error(code, "{} (in {})", fmt::format(format, std::forward<Args>(args)...), op_);
  }

  Status present(const char* port, TensorId id) const;
  Status rank4(const char* port, TensorId id) const;
  Status dims_are(const char* port, TensorId id, const Dims& expected) const;
  /// Rank 4, each dim 1 or that of `full`; dims whose bit is set in `exact` may not be 1 unless
  /// full is.
  Status broadcasts_to(const char* port, TensorId id, const Dims& full, unsigned exact = 0) const;
  Status dtype_is(const char* port, TensorId id, std::initializer_list<DataType> allowed) const;
  /// A number beside tensors of type `io`, as which it is computed with: f32; f64 too beside f64.
  Status number_beside(const char* port, TensorId id, DataType io) const;
  /// The last stride is 1 (or the last dim is).
  Status unit_last_stride(const char* port, TensorId id) const;
  /// One element.
  Status is_scalar(const char* port, TensorId id) const;

  /// Sets what the caller left unset of an output. Strides default to dense ones, or to those of
  /// `like` if it has the same dims and no two of its indices share an element.
  void infer(TensorId id, const Dims& dims, TensorId like = kNone) const;
  /// As infer(); then the output must have these dims.
  Status makes(const char* port, TensorId id, const Dims& dims, TensorId like = kNone) const;

 private:
  Status has_strides(const char* port, TensorId id, int rank) const;

  Graph& graph_;
  std::string op_;
};

/// A file an op, the norms in one, and both passes of fp8.
Status validate_sdpa(const Rules& rules, Sdpa& op);
Status validate_sdpa_backward(const Rules& rules, SdpaBackward& op);
Status validate_sdpa_fp8(const Rules& rules, SdpaFp8& op);
Status validate_sdpa_fp8_backward(const Rules& rules, SdpaFp8Backward& op);
Status validate_rope(const Rules& rules, Rope& op);
Status validate_rms_norm(const Rules& rules, RmsNorm& op);
Status validate_rms_norm_backward(const Rules& rules, RmsNormBackward& op);
Status validate_layer_norm(const Rules& rules, LayerNorm& op);
Status validate_layer_norm_backward(const Rules& rules, LayerNormBackward& op);
Status validate_instance_norm(const Rules& rules, InstanceNorm& op);
Status validate_instance_norm_backward(const Rules& rules, InstanceNormBackward& op);
Status validate_batch_norm(const Rules& rules, BatchNorm& op);
Status validate_batch_norm_backward(const Rules& rules, BatchNormBackward& op);
Status validate_cache_append(const Rules& rules, CacheAppend& op);
Status validate_pointwise(const Rules& rules, PointwiseNode& op);

}  // namespace heddle::graph
