// Rows whose weights a backward pass cannot recompute from their log-sum-exp. Of n keys that share
// a row's largest score m each weighs 1/n, and the log-sum-exp is m + log(n); an f32 beside a huge
// m holds no log(n). Such a row is one whose every key a program hides by a huge negative number in
// place of -inf, with a select or a bias. A backward that is given the maximum and the sum apart
// loses nothing; one that is given the log-sum-exp alone takes the row for one without visible
// keys: its P is 0. This is the one definition, for scores that are more than dot products; the
// reference and every engine (device code: kernels/attention/online_softmax.cuh) agree with it.
#pragma once

namespace heddle {

/// From here down an f32, or an f64, holds whole numbers alone.
inline constexpr double kLeastLogSumExp = -0x1p23, kLeastLogSumExpInF64 = -0x1p52;

/// `log_sum_exp` in natural units, kept in f32 or f64.
constexpr bool weights_are_lost(double log_sum_exp, bool in_f64 = false) {
  return log_sum_exp <= (in_f64 ? kLeastLogSumExpInF64 : kLeastLogSumExp);
}

}  // namespace heddle
