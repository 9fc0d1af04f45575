#include "engine/cuda/sequence.h"

#include <algorithm>
#include <array>

#include "core/rounding.h"

namespace heddle::engine::cuda {
namespace {

constexpr int64_t kAlignment = 256;

class Sequence final : public Launches {
 public:
  struct Part {
    std::shared_ptr<const Launches> launches;
    size_t first_kernel;
  };
  /// The parts use the workspace from `scratch_at` on, one after the other.
  Sequence(std::vector<Part> parts, std::vector<int64_t> temporary_at, int64_t scratch_at)
      : parts_(std::move(parts)), temporary_at_(std::move(temporary_at)), scratch_at_(scratch_at) {}

  Status execute(const Execution& at) const override {
    std::array<void*, kMostOperands> all;
    std::span<void* const> operands = at.buffers;
    if (!temporary_at_.empty()) {
      auto end = std::copy(at.buffers.begin(), at.buffers.end(), all.begin());
      for (int64_t temporary : temporary_at_) *end++ = at.workspace + temporary;
      operands = {all.begin(), end};
    }
    for (const auto& [launches, first_kernel] : parts_) {
      Execution part = at.part(first_kernel);
      part.buffers = operands;
      part.workspace += scratch_at_;
      HEDDLE_TRY(launches->execute(part));
    }
    return {};
  }

 private:
  std::vector<Part> parts_;
  std::vector<int64_t> temporary_at_;
  int64_t scratch_at_;
};

}  // namespace

Status check_operand_count(const Stages& stages) {
  if (stages.operand_count <= kMostOperands) return {};
  return error(Code::graph_not_supported,
               "cuda: a problem in stages has {} operands; its plan takes at most {}",
               stages.operand_count, kMostOperands);
}

Result<Lowering> lower_stages(const Stages& stages, const Target& target,
                              Result<Lowering> (*lower_attention)(const Problem&, const Target&)) {
  HEDDLE_TRY(check_operand_count(stages));
  std::vector<Lowering> parts;
  const auto lower_one = [&]<class Kind>(const Kind& step) {
    if constexpr (std::is_same_v<Kind, RopeStep>)
      return lower_rope_step(step, target);
    else if constexpr (std::is_same_v<Kind, CopyStep>)
      return lower_copy(step, target);
    else if constexpr (std::is_same_v<Kind, ScaledCopyStep>)
      return lower_scaled_copy(step, target);
    else if constexpr (std::is_same_v<Kind, FactorsStep>)
      return lower_factors(step, target);
    else
      return lower_attention(step, target);
  };
  for (const Stage& step : stages.steps) {
    HEDDLE_ASSIGN(Lowering part, std::visit(lower_one, step));
    parts.push_back(std::move(part));
  }
  return in_sequence(std::move(parts), stages.temporary_bytes);
}

Lowering in_sequence(std::vector<Lowering> parts, const std::vector<int64_t>& temporary_bytes,
                     std::string_view between_descriptions) {
  Lowering all;
  std::vector<int64_t> temporary_at;
  int64_t scratch_at = 0, scratch = 0;
  for (int64_t bytes : temporary_bytes) {
    temporary_at.push_back(scratch_at);
    scratch_at += round_up(bytes, kAlignment);
  }
  std::vector<Sequence::Part> launches;
  for (Lowering& part : parts) {
    launches.push_back({part.launches, all.add_kernels(part)});
    scratch = std::max(scratch, part.workspace_bytes);
    if (launches.size() > 1) all.description += between_descriptions;
    all.description += part.description;
    if (part.attention_path) all.attention_path = std::move(part.attention_path);
    std::move(part.passed_over.begin(), part.passed_over.end(),
              std::back_inserter(all.passed_over));
  }
  all.workspace_bytes = scratch_at + scratch;
  all.launches =
      std::make_shared<const Sequence>(std::move(launches), std::move(temporary_at), scratch_at);
  return all;
}

}  // namespace heddle::engine::cuda
