#include "engine/cpu/fp8_kernels.h"

namespace heddle::engine::cpu {

namespace portable {
extern const Fp8Kernels kFp8Kernels;
}
#if defined(HEDDLE_CPU_HAS_AVX2)
namespace avx2 {
extern const Fp8Kernels kFp8Kernels;
}
#endif
#if defined(HEDDLE_CPU_HAS_AVX512)
namespace avx512 {
extern const Fp8Kernels kFp8Kernels;
}
#endif
#if defined(HEDDLE_CPU_HAS_AVX512_BF16)
namespace avx512_bf16 {
extern const Fp8Kernels kFp8Kernels;
}
#endif

const Fp8Kernels& fp8_kernels_of([[maybe_unused]] Isa isa) {
#if defined(HEDDLE_CPU_HAS_AVX2)
  if (isa == Isa::avx2) return avx2::kFp8Kernels;
#endif
#if defined(HEDDLE_CPU_HAS_AVX512)
  if (isa == Isa::avx512) return avx512::kFp8Kernels;
#endif
#if defined(HEDDLE_CPU_HAS_AVX512_BF16)
  if (isa == Isa::avx512_bf16) return avx512_bf16::kFp8Kernels;
  // Tiles multiply none of this. What stands in for them in tests may be all that a machine has.
  if (isa == Isa::amx && is_available(Isa::avx512_bf16)) return avx512_bf16::kFp8Kernels;
#endif
  return portable::kFp8Kernels;
}

}  // namespace heddle::engine::cpu
