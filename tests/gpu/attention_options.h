// What attention programs are drawn for the tensor-core kernels.
#pragma once

#include "support/attention_programs.h"

namespace heddle::testing {

/// Both 16-bit types, lengths around and past the tile sizes.
inline AttentionOptions gpu_options() {
  AttentionOptions options;
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  return options;
}

/// Dense tensors, whose rows the copy engine can fetch: on Hopper these run the kernels made for
/// it.
inline AttentionOptions aligned_options() {
  AttentionOptions options = gpu_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.paged = options.block_mask = options.rng_dump = 0;
  return options;
}

/// What Hopper's backward kernels take is drawn most often.
inline AttentionOptions aligned_backward_options() {
  AttentionOptions options = aligned_options();
  options.max_head_dim = 256;
  options.bias = options.value_heads_differ = options.ragged = 0.05;
  return options;
}

}  // namespace heddle::testing
