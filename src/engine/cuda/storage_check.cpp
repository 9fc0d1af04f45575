#include "engine/cuda/storage_check.h"

namespace heddle::engine::cuda {
namespace {

Status check_cache(const problem::OperandType& type, const char* name) {
  if (type.holds_codes())
    return error(Code::graph_not_supported, "cuda: sdpa {} is codes of {}, expected numbers", name,
                 heddle::name(type.dtype));
  if (type.storage.is_ring())
    return error(Code::graph_not_supported, "cuda: sdpa {} is a ring, expected rows or pages",
                 name);
  return {};
}

}  // namespace

Status check_storage(const problem::Problem& problem) {
  const auto* const attention = std::get_if<problem::AttentionProblem>(&problem);
  if (!attention) return {};
  const problem::AttentionStructure& s = attention->structure;
  HEDDLE_TRY(check_cache(s.type(s.k), "k"));
  HEDDLE_TRY(check_cache(s.type(s.v), "v"));
  if (s.scores != problem::kAbsent)
    return error(Code::graph_not_supported, "cuda: sdpa scores are wanted, which no kernel writes");
  if (s.sink == problem::kAbsent) return {};
  if (s.type(s.sink).dtype != DataType::f32)
    return error(Code::graph_not_supported, "cuda: sdpa sink is {}, expected f32",
                 heddle::name(s.type(s.sink).dtype));
  if (attention->sizes.layout(s.sink).dims[1] == attention->sizes.q_heads) return {};
  return error(Code::graph_not_supported, "cuda: sdpa sink is one for {} heads, expected one each",
               attention->sizes.q_heads);
}

}  // namespace heddle::engine::cuda
