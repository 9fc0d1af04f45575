#include "onnxruntime/microsoft/operators.h"

#include "onnxruntime/microsoft/group_query_attention.h"
#include "onnxruntime/microsoft/multi_head_attention.h"
#include "onnxruntime/microsoft/rotary_embedding.h"
#include "onnxruntime/microsoft/skip_norm.h"

namespace heddle::onnxruntime {
namespace {

constexpr const Operator* kOperators[] = {
    &kGroupQueryAttention, &kMultiHeadAttention, &kMicrosoftRotaryEmbedding,
    &kSkipSimplifiedLayerNormalization, &kSkipLayerNormalization};

}  // namespace

const Domain kMicrosoftDomain{"com.microsoft", kOperators};

}  // namespace heddle::onnxruntime
