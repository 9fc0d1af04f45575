// Elements at many columns at once: a run of columns as views move, cut and join them. What a
// program does to each half of a vector, or to every second number of it, is then read once.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "rewrite/element.h"

namespace heddle::rewrite {

/// Positions along a dimension: first, first + step, and so on.
struct Run {
  int64_t first = 0, step = 1;
  friend bool operator==(const Run&, const Run&) = default;
};

class Runs {
 public:
  /// All runs that are read together have `count` positions.
  Runs(Elements& elements, int64_t count) : elements_(elements), count_(count) {}

  /// `element` with `columns`, digits of its place, at the positions of `run`; nothing if these are
  /// no run of each digit.
  std::optional<Element> at(Element element, const Index& columns, Run run);

  /// One step through a view that only renames the place; if `rounded`, through roundings too.
  /// Whether anything was looked through.
  bool look_through(Element& element, bool rounded);
  /// The same through a slice, a concatenation or padding, whose value is then a scalar.
  bool look_into_parts(Element& element);

  /// The positions that `index`, made of digits of runs alone, stands for.
  std::optional<Run> run_of(const Index& index) const;
  bool is_of_run(Var v) const { return runs_.contains(v); }
  int64_t last(const Run& run) const { return run.first + run.step * (count_ - 1); }
  int64_t count() const { return count_; }

 private:
  Index index_at(const Run& run, int64_t size);
  std::optional<std::vector<Index>> regroup(const std::vector<Index>& from,
                                            const std::vector<int64_t>& dims);
  /// The first of two digits that `v` is taken apart to, the second counting `minor` positions.
  bool split(Var v, int64_t minor, Index& digits);
  bool into_slice(Element& element);
  bool into_concatenation(Element& element);
  bool into_padding(Element& element);

  Elements& elements_;
  int64_t count_ = 1;
  std::unordered_map<Var, Run> runs_;
};

}  // namespace heddle::rewrite
