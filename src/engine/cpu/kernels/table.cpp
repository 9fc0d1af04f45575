// The kernels of this instruction set, gathered.
#include "engine/cpu/kernels/forward.h"
#include "engine/cpu/kernels/vector.h"

#define HEDDLE_CPU_STRING_EXPANDED(x) #x
#define HEDDLE_CPU_STRING(x) HEDDLE_CPU_STRING_EXPANDED(x)

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = HEDDLE_CPU_STRING(HEDDLE_CPU_LEVEL),
    .panel_rows = kPanelRows,
    .panel_columns = 2 * kLanes,
    .forward_scratch_bytes = forward_scratch_bytes,
    .forward = forward,
    .combine = combine,
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
