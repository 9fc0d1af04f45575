// The kernel that runs before Hopper's where there are lengths or ragged tensors: it makes tensor
// maps of each batch entry's sequences, kernels/sm90/sequence_maps.cuh.
#pragma once

#include "engine/cuda/kernel_unit.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {

inline constexpr const char* kSequenceMapsName = "sequence_maps";
inline constexpr int kSequenceMapThreads = 128;

KernelUnit sequence_maps_unit();

/// Workspace the maps take.
int64_t sequence_map_bytes(int64_t batch);

/// Makes maps of four 16-bit tensors, q, k, v and o of `sequences.problem`. All but element_bytes
/// is given.
Status make_sequence_maps(const Kernel& kernel, sm90::SequenceMapArguments sequences, Queue& queue);

}  // namespace heddle::engine::cuda
