// Rows of Q, K and V that are written out for a MultiHeadAttention: with a bias, out of a packed
// input, or of the beams of a shared buffer.
#pragma once

#include "onnxruntime/microsoft/multi_head_attention_shapes.h"

namespace heddle::onnxruntime::mha {

/// A part's rows with their bias, to where strides of batch, heads and rows say.
void copy_rows(Inputs inputs, const Shapes& s, const Part& part, void* to, const Dims& strides);

/// The rows of a shared buffer that a batch entry's beam says, and new ones behind them.
Status gather(Inputs inputs, const Shapes& s, const Part& part, size_t past, void* to);

}  // namespace heddle::onnxruntime::mha
