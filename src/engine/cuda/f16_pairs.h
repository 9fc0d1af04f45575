// f32 operands as pairs of f16 in the workspace, for the Hopper kernels
// (kernels/sm90/f16_pairs.cuh): two launches before the kernel that reads them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/launch_operands.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/f16_pairs_arguments.h"

namespace heddle::engine::cuda {

/// What f32 attention keeps at the start of its workspace: the word that
/// attention::ForwardParameters::fallback points to.
inline constexpr int64_t kFallbackBytes = 256;

/// Which limit of the kernels that read pairs, of `most_columns`, a problem of `op` breaks.
Status check_f16_pairs(const char* op, const problem::AttentionStructure& structure,
                       const problem::AttentionSizes& sizes, int most_columns);

class F16PairsStep {
 public:
  /// An operand, how many rows a copy of its pairs moves, and 2 to which power rows may stay behind
  /// its head's largest value.
  struct Operand {
    problem::OperandId id;
    int box_rows;
    int spread = 15;
  };
  /// Where an operand lies, as bound, and what its reader is given of its pairs.
  struct Reader {
    const attention::Tensor& source;
    const attention::Lengths& rows;
    TensorMap& map;
    sm90::F16Pairs& pairs;
  };

  /// At most four operands; its kernels become the lowering's.
  F16PairsStep(Lowering& lowering, const problem::AttentionSizes& sizes,
               const std::vector<Operand>& operands);

  /// Linear in the lengths.
  int64_t workspace_bytes() const { return bytes_; }

  /// Queues the kernels; fills in the readers, which are in the order of the operands.
  /// `fallback` is set or cleared (attention::ForwardParameters).
  Status execute(const Execution& at, char* workspace, unsigned* fallback,
                 std::span<const Reader> readers) const;

 private:
  /// Offsets into the workspace.
  struct Place {
    MapShape shape;
    int64_t pairs, largest, units, norms;
  };

  std::array<size_t, 2> kernels_{};
  std::array<Launch, 2> launches_{};
  sm90::PairsArguments arguments_{};
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

}  // namespace heddle::engine::cuda
