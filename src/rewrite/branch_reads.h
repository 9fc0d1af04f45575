// What branches read back of what the same branches of other conditionals gave. Where nothing else
// reads a result, each branch has to give it only if its own reader needs it: the branches of a
// JAX conditional keep what their backwards need in the same results where shapes agree, sums of
// weights beside what another branch needs.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "rewrite/element.h"

namespace heddle::rewrite {

class BranchReads {
 public:
  /// A conditional and one of its results, or a branch's parameter and one of its elements.
  using Place = std::pair<const hlo::Instruction*, int64_t>;

  BranchReads() = default;
  explicit BranchReads(const Elements& elements);

  /// Whether only the same branches of other conditionals read this result.
  bool is_for_branches(const Place& result) const { return for_branches_.contains(result); }
  /// The result that an element of a branch's parameter is, if it is for branches; null otherwise.
  const Place* read_by(const Place& argument) const;

 private:
  std::map<Place, Place> reads_;  // results by arguments
  std::set<Place> for_branches_;
};

}  // namespace heddle::rewrite
