// Rows of one operand that become those of another: what the launches of kernels that include
// streaming/rows.cuh share.
#pragma once

#include <span>

#include "core/status.h"
#include "engine/cuda/launches.h"
#include "problem/operand.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {

struct RowsStep {
  problem::OperandId x = problem::kAbsent, y = problem::kAbsent;
  /// Rows at or past the length of a batch entry are left alone: i32/i64 [B,1,1,1], or prefix sums
  /// [B+1,1,1,1].
  problem::OperandId lengths = problem::kAbsent;
  bool lengths_cumulative = false;
};

/// The operands of such a step, by id.
class RowsOperands {
 public:
  RowsOperands(const problem::OperandTypes& types, const problem::OperandLayouts& layouts,
               const RowsStep& step)
      : types_(types), layouts_(layouts), step_(step) {}

  const problem::OperandType& type(problem::OperandId id) const { return types_.type(id); }
  const problem::OperandLayout& layout(problem::OperandId id) const { return layouts_.layout(id); }
  /// Of a dim of one element 0, whatever it is given as.
  int64_t stride(problem::OperandId id, int d) const;
  bool is_64_bit(problem::OperandId id) const;
  /// Any of the two are ragged, or have lengths.
  bool are_ragged() const;

  /// Whether kernels take the rows, in sentences that begin with `op`.
  Status check(std::string_view op) const;
  /// One that is there is of one of the types.
  Status check_type(std::string_view op, std::string_view label, problem::OperandId id,
                    std::initializer_list<DataType> types) const;

  /// All that no address decides, and the grid of so many blocks' threads, where a row takes
  /// `units` of these. It is empty if there is nothing to write.
  Result<Launch> arrange(std::string_view op, int64_t units, int threads,
                         streaming::RowsArguments& arguments) const;
  void bind(std::span<void* const> buffers, streaming::RowsArguments& arguments) const;

 private:
  const problem::OperandTypes& types_;
  const problem::OperandLayouts& layouts_;
  const RowsStep& step_;
};

}  // namespace heddle::engine::cuda
