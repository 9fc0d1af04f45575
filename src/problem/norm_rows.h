// A norm's tensors as rows of columns, counted over as few dims as their strides allow.
#pragma once

#include "problem/operands.h"

namespace heddle::problem {

class NormRows {
 public:
  explicit NormRows(const NormProblem& problem) : NormRows(problem.structure, problem.sizes) {}
  explicit NormRows(const NormBackwardProblem& problem)
      : NormRows(problem.structure, problem.sizes) {}
  explicit NormRows(const ChannelNormProblem& problem)
      : NormRows(problem.structure, problem.sizes) {}
  explicit NormRows(const ChannelNormBackwardProblem& problem)
      : NormRows(problem.structure, problem.sizes) {}

  /// Neighbouring dims of x that all tensors step through as one: the innermost of them, and how
  /// many steps they have.
  struct Joined {
    int dim;
    int64_t extent;
  };
  std::vector<Joined> row_dims, column_dims;
  int64_t rows = 0, columns = 0;
  /// Elements an access may take in every tensor: 16 bytes of x, or fewer, down to 1.
  int vector = 1;

 private:
  struct Member {
    OperandId id;
    RowPart part;
  };
  template <class Structure>
  NormRows(const Structure& structure, const OperandLayouts& sizes) : sizes_(sizes) {
    tensors(
        [&](const char*, OperandId id, Use, RowPart part) {
          if (id != kAbsent) members_.push_back({id, part});
        },
        structure);
    join(structure.normalised_dims,
         static_cast<int>(16 / size_of(structure.type(structure.x).dtype)));
  }
  void join(int normalised_dims, int widest);
  std::vector<Joined> joined(int first, int end, RowPart other) const;
  bool steps_by(int width) const;

  const OperandLayouts& sizes_;
  std::vector<Member> members_;  ///< those present; the first is x
};

}  // namespace heddle::problem
