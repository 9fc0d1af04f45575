// The kernels of this instruction set, gathered.
#include "engine/cpu/kernels/backward.h"
#include "engine/cpu/kernels/cache_append.h"
#include "engine/cpu/kernels/dropout_dump.h"
#include "engine/cpu/kernels/forward.h"
#include "engine/cpu/kernels/norm.h"
#include "engine/cpu/kernels/pointwise.h"
#include "engine/cpu/kernels/product_sample.h"
#include "engine/cpu/kernels/rope.h"
#include "engine/cpu/kernels/score_output.h"
#include "engine/cpu/kernels/vector.h"

#define HEDDLE_CPU_STRING_EXPANDED(x) #x
#define HEDDLE_CPU_STRING(x) HEDDLE_CPU_STRING_EXPANDED(x)

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = HEDDLE_CPU_STRING(HEDDLE_CPU_LEVEL),
    .attention =
        {
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
        },
    .append_row = append_row,
    .pointwise_strip = pointwise_strip,
    .norm_rows = norm_rows,
    .norm_backward_rows = norm_backward_rows,
    .product_sample = product_sample,
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
