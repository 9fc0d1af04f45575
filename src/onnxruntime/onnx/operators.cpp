#include "onnxruntime/onnx/operators.h"

#include "onnxruntime/onnx/attention.h"
#include "onnxruntime/onnx/norm.h"
#include "onnxruntime/onnx/rotary_embedding.h"

namespace heddle::onnxruntime {
namespace {

constexpr const Operator* kOperators[] = {&kAttention, &kRotaryEmbedding, &kRmsNormalization,
                                          &kSimplifiedLayerNormalization, &kLayerNormalization};

}  // namespace

const Domain kOnnxDomain{"", kOperators};

}  // namespace heddle::onnxruntime
