// Times of Heddle's own attention on this CPU, for one cell of the benchmark at a time.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "core/status.h"

namespace heddle::tools {

/// Batch 1, 8 heads, as many keys as queries.
struct BenchmarkCell {
  DataType dtype = DataType::f32;
  int64_t head_dim = 64;
  int64_t sequence = 512;
  bool causal = false;
  bool backward = false;  ///< forward and backward together; else forward alone

  /// 4 H S^2 d of the forward's two products, halved when causal; 3.5 times that with the backward.
  double flops() const;
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
