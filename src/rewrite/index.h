// Index variables, the places that are counted by them, and other variables in their stead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::rewrite {

/// An index variable. Positive ones are free; negative ones are bound by a sum (algebra.h).
using Var = int32_t;
/// The place along one dimension: its digits, most significant first; none for a size of 1.
using Index = std::vector<Var>;

/// Which variable stands for which. There are as many as an array has digits, so that looking
/// through all of them is the quickest way to one.
class Renaming {
 public:
  using Pair = std::pair<Var, Var>;

  auto begin() const { return pairs_.begin(); }
  auto end() const { return pairs_.end(); }
  bool empty() const { return pairs_.empty(); }
  size_t size() const { return pairs_.size(); }

  auto find(Var from) const {
    return std::find_if(begin(), end(), [&](const Pair& pair) { return pair.first == from; });
  }
  /// What stands for `from`: it itself where nothing else does.
  Var of(Var from) const {
    const auto found = find(from);
    return found == end() ? from : found->second;
  }
  /// What stands for `from` from now on.
  Var& operator[](Var from) { return entry(from, 0); }
  /// What stands for `from`: `to`, unless another does already.
  Var try_emplace(Var from, Var to) { return entry(from, to); }

 private:
  Var& entry(Var from, Var to) {
    for (Pair& pair : pairs_)
      if (pair.first == from) return pair.second;
    return pairs_.emplace_back(from, to).second;
  }

  std::vector<Pair> pairs_;
};

}  // namespace heddle::rewrite
