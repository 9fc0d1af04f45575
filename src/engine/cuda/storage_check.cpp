#include "engine/cuda/storage_check.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem) {
  if (std::holds_alternative<problem::Fp8AttentionBackwardProblem>(problem))
    return error(Code::graph_not_supported,
                 "cuda: no kernel takes the backward of attention on fp8 operands");
  const auto* const attention = std::get_if<problem::AttentionProblem>(&problem);
  if (!attention) return {};
  if (attention->structure.scores == problem::kAbsent) return {};
  return error(Code::graph_not_supported, "cuda: sdpa scores are wanted, which no kernel writes");
}

}  // namespace heddle::engine::cuda
