// The softmax of a query row.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/precision.h"

namespace heddle::reference {

/// One query row's softmax: max and sum include the sink. All of it is NaN where a visible score
/// is.
struct Softmax {
  double max, sum;
  std::vector<double> probability;

  double log_sum_exp() const {
    return max == -std::numeric_limits<double>::infinity()
               ? -std::numeric_limits<double>::infinity()
               : max + std::log(sum);
  }
};

inline Softmax softmax(const double* score, int64_t n, double sink, Precision round) {
  Softmax row{sink, 0, std::vector<double>(static_cast<size_t>(n), 0)};
  for (int64_t j = 0; j < n; ++j) {
    if (score[j] > row.max || std::isnan(score[j])) row.max = score[j];
  }
  if (row.max == -std::numeric_limits<double>::infinity()) return row;  // no visible key: P = 0
  row.sum = round.accumulated(std::exp(sink - row.max));
  for (int64_t j = 0; j < n; ++j) {
    row.probability[j] = round.accumulated(std::exp(score[j] - row.max));
    row.sum = round.accumulated(row.sum + row.probability[j]);
  }
  for (double& p : row.probability) p = round(p / row.sum);
  return row;
}

}  // namespace heddle::reference
