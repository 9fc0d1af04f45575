// The kernels of this instruction set, gathered.
#include "engine/cpu/kernels/backward.h"
#include "engine/cpu/kernels/dropout_dump.h"
#include "engine/cpu/kernels/forward.h"
#include "engine/cpu/kernels/rms_norm.h"
#include "engine/cpu/kernels/rope.h"
#include "engine/cpu/kernels/vector.h"

#define HEDDLE_CPU_STRING_EXPANDED(x) #x
#define HEDDLE_CPU_STRING(x) HEDDLE_CPU_STRING_EXPANDED(x)

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = HEDDLE_CPU_STRING(HEDDLE_CPU_LEVEL),
    .panel_rows = kPanelRows,
    .panel_columns = 2 * kLanes,
    .few_rows = kFewRows,
    .backward_rows = kBackwardRows,
    .backward_keys = kBackwardKeys,
#if defined(HEDDLE_CPU_LEVEL_BF16)
    .multiplies_pairs = true,
#else
    .multiplies_pairs = false,
#endif
    .forward_scratch_bytes = forward_scratch_bytes,
    .forward = forward,
    .combine = combine,
    .backward_scratch_bytes = backward_scratch_bytes,
    .row_dots = row_dots,
    .sink_gradient = sink_gradient,
    .backward = backward,
    .query_gradients = query_gradients,
    .load_gradient = load_gradient,
    .rope_table = rope_table,
    .rope_rows = rope_rows,
    .dropout_dump = dropout_dump,
    .norm_rows = norm_rows,
    .norm_backward_rows = norm_backward_rows,
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
