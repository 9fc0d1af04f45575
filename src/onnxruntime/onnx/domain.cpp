#include "onnxruntime/onnx/attention.h"
#include "onnxruntime/onnx/rms_norm.h"
#include "onnxruntime/onnx/rotary_embedding.h"

namespace heddle::onnxruntime {

const Domain& domain() {
  static constexpr const Operator* kOperators[] = {
      &kAttention, &kRotaryEmbedding, &kRmsNormalization, &kSimplifiedLayerNormalization};
  static constexpr Domain kDomain{"", kOperators};
  return kDomain;
}

}  // namespace heddle::onnxruntime
