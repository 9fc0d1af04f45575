// Norm, rope and pointwise problems, and copies, for the kernel matrix and the tests of their
// planning.
#pragma once

#include "engine/cuda/copy.h"
#include "problem/cache_append.h"
#include "problem/pointwise.h"
#include "problem/streaming.h"

namespace heddle::engine::cuda {

struct NormCase {
  int64_t columns = 4096, rows = 64;
  DataType x = DataType::bf16;       ///< of y, dY and dX too
  DataType weight = DataType::bf16;  ///< of bias and their gradients too
  bool bias = false;
  bool centred = false;  ///< LayerNorm, else RMSNorm
  /// Rows over three dims and columns over two, none of which can be joined.
  bool scattered = false;
  /// Of forwards: x is added to a residual and a bias, and the sum is wanted.
  bool residual = false;
};
problem::NormProblem norm_of(const NormCase& c);
problem::NormBackwardProblem norm_backward_of(const NormCase& c);

struct RopeCase {
  int64_t head_dim = 128;
  int32_t rope_dim = 128;
  DataType x = DataType::bf16, y = DataType::bf16;
  bool interleaved = false, tables = false, positions = false, per_row = false, ragged = false;
  bool inverse = false;
  bool leading = false;
  int64_t gap = 0;  ///< elements between rows
};
problem::RopeProblem rope_of(const RopeCase& c);

struct CopyCase {
  DataType x = DataType::bf16, y = DataType::bf16;
  int64_t x_columns = 64, y_columns = 64;
  bool ragged = false;  ///< y
  bool codes = false;   ///< x, of columns in twos if it is u8
};
CopyStep copy_of(const CopyCase& c);

/// New rows for a past in another buffer.
struct CacheAppendCase {
  int64_t head_dim = 128;
  int32_t rope_dim = 128;
  DataType x = DataType::bf16;
  DataType cache = DataType::bf16;  ///< i8, u8 and f8e4m3 are codes
  bool packed = false, norms = false, interleaved = false, positions = false;
  problem::Storage::Kind storage = problem::Storage::Kind::dense;
  int64_t gap = 0;         ///< elements between rows of Q, K and V
  int64_t table_gap = 0;   ///< between columns of tables
  bool far_apart = false;  ///< entries of caches, by a stride of more than 32 bits
};
problem::CacheAppendProblem append_of(const CacheAppendCase& c);

struct PointwiseCase {
  /// Each is added to the others, but for a boolean first one, which chooses.
  std::vector<DataType> inputs = {DataType::bf16, DataType::bf16};
  std::vector<DataType> results = {DataType::bf16};
  std::vector<problem::ScoreOp> functions = {};  ///< then, each of the number before it
  bool broadcast = false;                        ///< inputs but the first along rows or columns
  bool strided = false;                          ///< no columns are dense
  int64_t columns = 128;
};
problem::PointwiseProblem pointwise_of(const PointwiseCase& c);

}  // namespace heddle::engine::cuda
