// A norm problem's operands as rows of columns: checked, and counted over as few dims as their
// strides allow.
#pragma once

#include <span>
#include <vector>

#include "core/status.h"
#include "problem/facts.h"
#include "problem/norm_rows.h"
#include "ptx/element.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {

class NormShape {
 public:
  /// Of a valid problem, which stays where it is.
  template <class Kind>
  explicit NormShape(const Kind& problem)
      : op_(norm_name(problem.structure)),
        types_(problem.structure.operands),
        layouts_(problem.sizes.layouts),
        joined_(problem),
        facts_(problem::facts_of(problem)) {}

  using Part = problem::RowPart;
  /// Notes the tensors of the structure. Fails if the kernels do not take one of these, or so many
  /// rows, columns or dims.
  template <class Structure>
  Status set(const Structure& structure) {
    problem::tensors(
        [&](const char* label, problem::OperandId id, problem::Use, Part part) {
          if (id != problem::kAbsent) members_.push_back({label, id, part});
        },
        structure);
    return set();
  }

  const problem::NormFacts& facts() const { return facts_; }
  int rows() const { return static_cast<int>(joined_.rows); }
  int columns() const { return static_cast<int>(joined_.columns); }
  /// Whether some operand is f64, so that all is computed in f64.
  bool is_f64() const { return is_f64_; }
  /// Elements an access may take in every operand: 16 bytes of x, or fewer, down to 1.
  int vector() const { return facts_.vector; }

  streaming::Extents extents() const;
  /// Strides of an operand; all 0 if it is absent. Its address is set at each execution.
  streaming::Tensor tensor(problem::OperandId id) const;

  /// What a configuration says of rows: their arithmetic, accesses and dims.
  template <class Config>
  void configure(Config& config) const {
    config.number = is_f64() ? Element::f64 : Element::f32;
    config.vector = vector();
    config.row_dims = facts_.row_dims;
    config.column_dims = facts_.column_dims;
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

  const char* op_;  ///< in sentences
  const std::vector<problem::OperandType>& types_;
  const std::vector<problem::OperandLayout>& layouts_;
  problem::NormRows joined_;
  problem::NormFacts facts_;
  std::vector<Member> members_;  ///< those present; the first is x
  bool is_f64_ = false;
};

}  // namespace heddle::engine::cuda
