#include "onnxruntime/microsoft/group_query_attention.h"

namespace heddle::onnxruntime {

const Domain& domain() {
  static constexpr const Operator* kOperators[] = {&kGroupQueryAttention};
  static constexpr Domain kDomain{"com.microsoft", kOperators};
  return kDomain;
}

}  // namespace heddle::onnxruntime
