// The kernels in f64 of this instruction set: attention's.
#include "engine/cpu/kernels/attention_table.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

extern const AttentionKernels<double> kF64Kernels;
constinit const AttentionKernels<double> kF64Kernels = kAttentionKernels;

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
