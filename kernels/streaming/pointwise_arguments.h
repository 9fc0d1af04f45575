// What the pointwise kernel is given at launch. Plain types: host and device share it. Strides
// count elements.
#pragma once

namespace heddle::streaming {

inline constexpr int kMostPointwiseOperands = 64;

struct PointwiseOperand {
  void* data;
  long long stride[4];  ///< batch, head, row, column; 0 where the operand is broadcast
};

/// Elements [batch, heads, rows, columns], of which a thread takes a vector of a row.
struct PointwiseArguments {
  PointwiseOperand operands[kMostPointwiseOperands];
  unsigned heads, rows, row_vectors;  ///< vectors of a row
  unsigned vectors;                   ///< of all rows
};

}  // namespace heddle::streaming
