// The kernels of this instruction set, gathered.
#include "engine/cpu/kernels/attention_table.h"
#include "engine/cpu/kernels/cache_append.h"
#include "engine/cpu/kernels/norm.h"
#include "engine/cpu/kernels/pointwise.h"
#include "engine/cpu/kernels/product_sample.h"
#include "engine/cpu/kernels/vector.h"

#define HEDDLE_CPU_STRING_EXPANDED(x) #x
#define HEDDLE_CPU_STRING(x) HEDDLE_CPU_STRING_EXPANDED(x)

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = HEDDLE_CPU_STRING(HEDDLE_CPU_LEVEL),
    .attention = kAttentionKernels,
    .append_row = append_row,
    .pointwise_strip = pointwise_strip,
    .norm_rows = norm_rows,
    .norm_backward_rows = norm_backward_rows,
    .product_sample = product_sample,
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
