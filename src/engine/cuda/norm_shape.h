// A norm problem's operands as rows of columns: checked, and counted over as few dims as their
// strides allow.
#pragma once

#include <span>
#include <vector>

#include "core/status.h"
#include "problem/operands.h"
#include "ptx/element.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {

class NormShape {
 public:
  NormShape(const std::vector<problem::OperandType>& types,
            const std::vector<problem::OperandLayout>& layouts, int32_t normalised_dims)
      : types_(types), layouts_(layouts), normalised_(normalised_dims) {}

  using Part = problem::RowPart;
  /// Joins dims that all tensors of the structure step through as one. Fails if the kernels do not
  /// take one of these, or so many rows, columns or dims.
  template <class Structure>
  Status set(const Structure& structure) {
    problem::tensors(
        [&](const char* label, problem::OperandId id, problem::Use, Part part) {
          if (id != problem::kAbsent) members_.push_back({label, id, part});
        },
        structure);
    return set();
  }

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  int row_dims() const { return static_cast<int>(row_dims_.size()); }
  int column_dims() const { return static_cast<int>(column_dims_.size()); }
  /// Whether some operand is f64, so that all is computed in f64.
  bool is_f64() const { return is_f64_; }
  /// Elements an access may take in every operand: 16 bytes of x, or fewer, down to 1.
  int vector() const { return vector_; }

  streaming::Extents extents() const;
  /// Strides of an operand; all 0 if it is absent. Its address is set at each execution.
  streaming::Tensor tensor(problem::OperandId id) const;

  /// What a configuration says of rows: their arithmetic, accesses and dims.
  template <class Config>
  void configure(Config& config) const {
    config.number = is_f64() ? Element::f64 : Element::f32;
    config.vector = vector();
    config.row_dims = row_dims();
    config.column_dims = column_dims();
  }
  /// Sets the type of an operand that is there.
  void set_element(Element& element, problem::OperandId id) const;

  /// Whether the buffers can be what the plan's operands are: as many, none missing or misaligned.
  Status check_buffers(std::span<void* const> buffers) const;

 private:
  struct Member {
    const char* label;
    problem::OperandId id;
    Part part;
  };

  Status set();
  Status check(const Member& member) const;
  bool steps_by(int vector) const;

  const std::vector<problem::OperandType>& types_;
  const std::vector<problem::OperandLayout>& layouts_;
  int32_t normalised_;
  std::vector<Member> members_;  ///< those present; the first is x
  int rows_ = 0, columns_ = 0, vector_ = 1;
  bool is_f64_ = false;
  /// Each joined dim: its innermost dim of x, and in `extents_` how many steps it has.
  struct Joined {
    int dim;
    int extent;
  };
  std::vector<Joined> row_dims_, column_dims_;
  std::vector<Joined> join(int first, int end, Part other) const;
};

}  // namespace heddle::engine::cuda
