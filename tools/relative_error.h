// How far values are from the truth: relative, in the Euclidean norm.
#pragma once

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

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

/// The largest relative error of rounding to a type, by its name in graphs and in HLO; 0 of those
/// that hold no fractions.
inline double rounding_step(std::string_view type) {
  constexpr std::pair<std::string_view, double> kSteps[] = {
      {"f64", 0x1p-53},   {"f32", 0x1p-24},     {"f16", 0x1p-11},   {"bf16", 0x1p-8},
      {"f8e4m3", 0x1p-4}, {"f8e4m3fn", 0x1p-4}, {"f8e5m2", 0x1p-3},
  };
  for (const auto& [name, step] : kSteps)
    if (type == name) return step;
  return 0;
}

}  // namespace heddle::tools
