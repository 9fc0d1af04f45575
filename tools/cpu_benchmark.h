// Times of Heddle's own attention on this CPU, for one cell of the benchmark at a time.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "core/status.h"

namespace heddle::tools {

/// What happens to a score before the softmax, beside the mask.
enum class BenchmarkScore : uint8_t {
  plain,
  bias,      ///< plus a bias [1, 1, queries, sequence]
  alibi,     ///< plus slope_h * (key - query)
  soft_cap,  ///< 50 tanh(score / 50)
};
inline constexpr const char* kBenchmarkScores[] = {"plain", "bias", "alibi", "soft_cap"};

/// Batch 1.
struct BenchmarkCell {
  DataType dtype = DataType::f32;
  int64_t head_dim = 64;
  int64_t sequence = 512;  ///< keys
  bool causal = false;     ///< the last query sees all keys
  bool backward = false;   ///< forward and backward together; else forward alone
  int64_t queries = 512;
  int64_t heads = 8, kv_heads = 8;
  BenchmarkScore score = BenchmarkScore::plain;

  /// 4 H d of the forward's two products for every query and key, halved when causal and as many of
  /// these as those; 3.5 times that with the backward.
  double flops() const;
  int64_t kv_bytes() const;
  std::string name() const;
};

struct BenchmarkResult {
  double seconds = 0;      ///< median
  double projection = 0;   ///< the output's component along its gradient, to compare programs by
  int64_t peak_bytes = 0;  ///< rise of resident memory over what the inputs took (Linux)
};

/// Runs the cell: inputs are read from `tensors` (bench/cells.py writes them), or random if that is
/// empty.
Result<BenchmarkResult> measure(const BenchmarkCell& cell, const std::string& tensors);

}  // namespace heddle::tools
