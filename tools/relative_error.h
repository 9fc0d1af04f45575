// How far values are from the truth: relative, in the Euclidean norm.
#pragma once

#include <cmath>
#include <limits>

namespace heddle::tools {

class RelativeError {
 public:
  void add(double value, double truth) {
    if (std::isfinite(value) && std::isfinite(truth)) {
      error_ += (value - truth) * (value - truth);
      norm_ += truth * truth;
    } else if (!(value == truth || (std::isnan(value) && std::isnan(truth)))) {
      differs_ = true;
    }
  }
  /// Infinite if an infinity or NaN stands where the truth has none, or the other way round.
  double value() const {
    if (differs_ || (norm_ == 0 && error_ > 0)) return std::numeric_limits<double>::infinity();
    return error_ == 0 ? 0 : std::sqrt(error_ / norm_);
  }

 private:
  double error_ = 0, norm_ = 0;
  bool differs_ = false;
};

}  // namespace heddle::tools
