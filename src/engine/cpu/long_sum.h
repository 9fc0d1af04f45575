// Sums in f64 of many numbers that come out as exact as those of a few.
#pragma once

#include <cmath>

namespace heddle::engine::cpu {

/// sum += x. What rounding took of it (Knuth's two-sum).
inline double add_to(double& sum, double x) {
  const double next = sum + x, added = next - sum;
  const double lost = (sum - (next - added)) + (x - added);
  sum = next;
  return lost;
}

/// A sum with what it lost; of infinities nothing is known but the sum.
inline double with_lost(double sum, double lost) { return std::isfinite(lost) ? sum + lost : sum; }

/// A sum that keeps what it loses.
class LongSum {
 public:
  void operator+=(double x) { lost_ += add_to(sum_, x); }
  double value() const { return with_lost(sum_, lost_); }

 private:
  double sum_ = 0, lost_ = 0;
};

}  // namespace heddle::engine::cpu
