// Attention's kernels of this instruction set and Real, gathered.
#pragma once

#include "engine/cpu/kernels/backward.h"
#include "engine/cpu/kernels/dropout_dump.h"
#include "engine/cpu/kernels/forward.h"
#include "engine/cpu/kernels/rope.h"
#include "engine/cpu/kernels/score_output.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

inline constexpr AttentionKernels<Real> kAttentionKernels = {
    .shape = kShape,
    .forward = forward,
    .combine = combine,
    .row_dots = row_dots,
    .sink_gradient = sink_gradient,
    .backward = backward,
    .query_gradients = query_gradients,
    .load_gradient = load_gradient,
    .rope_table = rope_table,
    .rope_rows = rope_rows,
    .write_scores = write_scores,
    .dropout_dump = dropout_dump,
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
