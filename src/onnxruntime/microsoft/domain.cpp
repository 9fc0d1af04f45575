#include "onnxruntime/microsoft/group_query_attention.h"
#include "onnxruntime/microsoft/multi_head_attention.h"
#include "onnxruntime/microsoft/rotary_embedding.h"

namespace heddle::onnxruntime {

const Domain& domain() {
  static constexpr const Operator* kOperators[] = {&kGroupQueryAttention, &kMultiHeadAttention,
                                                   &kMicrosoftRotaryEmbedding};
  static constexpr Domain kDomain{"com.microsoft", kOperators};
  return kDomain;
}

}  // namespace heddle::onnxruntime
