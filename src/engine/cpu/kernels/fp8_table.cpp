// The fp8 kernels of this instruction set, gathered.
#include "engine/cpu/kernels/fp8_attention.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const Fp8Kernels kFp8Kernels;
constinit const Fp8Kernels kFp8Kernels = {.forward = fp8_forward,
                                          .query_gradient = fp8_query_gradient,
                                          .key_gradient = fp8_key_gradient,
                                          .value_gradient = fp8_value_gradient};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
