// The kernel that runs before Hopper's where there are lengths or ragged tensors: it makes tensor
// maps of each batch entry's sequences, kernels/sm90/sequence_maps.cuh.
#pragma once

#include "engine/cuda/lowering.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {

/// The number of the kernel that makes them.
size_t add_sequence_maps(Lowering& lowering);

/// Workspace the maps take.
int64_t sequence_map_bytes(int64_t batch);

/// Makes maps of 16-bit tensors by the kernel of this number. All but element_bytes is given.
Status make_sequence_maps(const Execution& at, size_t kernel, sm90::SequenceMapArguments sequences);

}  // namespace heddle::engine::cuda
