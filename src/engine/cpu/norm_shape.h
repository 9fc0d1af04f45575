// A norm problem's operands as rows, checked once at plan time.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/rounding.h"
#include "core/status.h"
#include "engine/cpu/norm_arguments.h"
#include "problem/operands.h"

namespace heddle::engine::cpu {

/// The rows of a norm problem: every dim of x before the last `normalised_dims`.
class NormShape {
 public:
  /// Of a problem that stays where it is.
  template <class Structure>
  NormShape(const Structure& structure, const std::vector<problem::OperandLayout>& layouts)
      : op_(problem::norm_name(structure)),
        types_(structure.operands),
        layouts_(layouts),
        normalised_(structure.normalised_dims) {}

  using Part = problem::RowPart;

  /// Takes the rows from x. Fails if they are longer than the engine counts, or a tensor of the
  /// structure has a type or strides that it does not take.
  template <class Structure>
  Status set(const Structure& structure) {
    HEDDLE_TRY(set_x(structure.x));
    Status status;
    problem::tensors(
        [&](std::string_view label, problem::OperandId id, problem::Use, Part part) {
          if (status.is_ok()) status = check(label, id, part);
        },
        structure);
    return status;
  }
  RowsView view(problem::OperandId id, Part part) const;  ///< data left null
  /// Sets the pointer of a present operand.
  Status bind(std::string_view label, problem::OperandId id, std::span<void* const> buffers,
              RowsView& view) const;

  const RowSpace& rows() const { return rows_; }
  int64_t row_count() const;
  int64_t padded_width() const { return round_up(rows_.width, 16); }
  /// Whether some floating operand is f64, so that all is computed in f64.
  bool is_wide() const;

 private:
  Status set_x(problem::OperandId x);
  Status check(std::string_view label, problem::OperandId id, Part part) const;
  /// The stride along the normalised dims; nothing if there is not one.
  std::optional<int64_t> column_stride(const problem::OperandLayout& layout) const;

  const char* op_;  ///< what sentences begin with
  const std::vector<problem::OperandType>& types_;
  const std::vector<problem::OperandLayout>& layouts_;
  int32_t normalised_;
  Dims x_dims_;
  int rank_ = 0;
  RowSpace rows_{};
};

}  // namespace heddle::engine::cpu
