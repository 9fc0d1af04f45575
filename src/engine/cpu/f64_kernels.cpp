// Attention in f64, of fewer levels than f32: those that differ in bf16 alone share one.
#include "engine/cpu/isa.h"

namespace heddle::engine::cpu {

namespace portable_f64 {
extern const AttentionKernels<double> kF64Kernels;
}
#if defined(HEDDLE_CPU_HAS_AVX2_F64)
namespace avx2_f64 {
extern const AttentionKernels<double> kF64Kernels;
}
#endif
#if defined(HEDDLE_CPU_HAS_AVX512_F64)
namespace avx512_f64 {
extern const AttentionKernels<double> kF64Kernels;
}
#endif

template <>
const AttentionKernels<double>& attention_kernels_of([[maybe_unused]] Isa isa) {
#if defined(HEDDLE_CPU_HAS_AVX512_F64)
  // What stands in for tiles in tests may be all that a machine has.
  const bool is_avx512 = isa >= Isa::avx512 && (isa != Isa::amx || is_available(Isa::avx512_bf16));
  if (is_avx512) return avx512_f64::kF64Kernels;
#endif
#if defined(HEDDLE_CPU_HAS_AVX2_F64)
  if (isa == Isa::avx2) return avx2_f64::kF64Kernels;
#endif
  return portable_f64::kF64Kernels;
}
template <>
std::span<const KernelShape> attention_shapes<double>() {
  return kF64Shapes;
}

}  // namespace heddle::engine::cpu
