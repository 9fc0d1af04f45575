#include "engine/cuda/storage_check.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem) {
  if (std::holds_alternative<problem::Fp8AttentionBackwardProblem>(problem))
    return error(Code::graph_not_supported,
                 "cuda: no kernel takes the backward of attention on fp8 operands");
  return {};
}

}  // namespace heddle::engine::cuda
