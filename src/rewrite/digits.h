// Every dimension of every value as a list of digits: the sizes into which the program's reshapes
// ever cut it. A merged dimension of 1024 that some reshape splits into [256, 4] has the digits
// {256, 4}, wherever it goes. With all dimensions cut alike, each reshape only regroups digits, so
// axes keep their identity through merges and splits, whatever their rank, position or size.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "hlo/module.h"

namespace heddle::rewrite {

class Digits {
 public:
  explicit Digits(const hlo::Module& module);

  /// Sizes of the digits of dimension `dim` of the array `x`, most significant first; their product
  /// is the dimension's size. Empty for a dimension of size 1.
  std::vector<int64_t> of(const hlo::Instruction* x, int dim) const;

 private:
  using Slot = int32_t;
  /// Dimensions of a reshape that hold the same elements on both sides.
  struct Regrouping {
    std::vector<Slot> before, after;
  };

  void add_slots(const hlo::Instruction* x);
  void link_instruction(const hlo::Instruction* x);
  void link_reshape(const hlo::Instruction* x);
  void link_dot(const hlo::Instruction* x);
  /// All dimensions of two values of one shape, tuples included.
  void link_whole(const hlo::Instruction* a, int first_leaf_a, const hlo::Instruction* b,
                  int first_leaf_b, const hlo::Shape& shape);
  void link(const hlo::Instruction* a, int64_t dim_a, const hlo::Instruction* b, int64_t dim_b);
  void unite(Slot a, Slot b);
  Slot root(Slot slot) const;
  Slot slot(const hlo::Instruction* x, int leaf, int64_t dim) const;
  /// Spreads the cuts of one regrouping to all its dimensions; whether anything changed.
  bool spread(const Regrouping& regrouping);

  std::unordered_map<const hlo::Instruction*, std::vector<Slot>> leaves_;  // first slot per leaf
  mutable std::vector<Slot> parent_;
  std::vector<int64_t> size_;
  std::vector<std::set<int64_t>> cuts_;  // at roots: products of the digits right of a cut
  std::vector<Regrouping> regroupings_;
};

/// The arrays in a shape, in order; an array has one leaf.
int leaf_count(const hlo::Shape& shape);
/// The first leaf of element `index` of a tuple.
int first_leaf(const hlo::Shape& tuple, int64_t index);

}  // namespace heddle::rewrite
