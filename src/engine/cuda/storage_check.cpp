#include "engine/cuda/storage_check.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem) {
  const auto* const attention = std::get_if<problem::AttentionProblem>(&problem);
  if (!attention) return {};
  if (attention->structure.scores == problem::kAbsent) return {};
  return error(Code::graph_not_supported, "cuda: sdpa scores are wanted, which no kernel writes");
}

}  // namespace heddle::engine::cuda
