#include "onnxruntime/microsoft/operators.h"

#include "onnxruntime/microsoft/group_query_attention.h"
#include "onnxruntime/microsoft/multi_head_attention.h"
#include "onnxruntime/microsoft/rotary_embedding.h"

namespace heddle::onnxruntime {
namespace {

constexpr const Operator* kOperators[] = {&kGroupQueryAttention, &kMultiHeadAttention,
                                          &kMicrosoftRotaryEmbedding};

}  // namespace

const Domain kMicrosoftDomain{"com.microsoft", kOperators};

}  // namespace heddle::onnxruntime
