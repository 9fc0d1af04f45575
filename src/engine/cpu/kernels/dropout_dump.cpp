#include "engine/cpu/kernels/dropout_dump.h"

#include "engine/cpu/kernels/dropout.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void dropout_dump(const AttentionArguments& a, int64_t b, int64_t h, int64_t first, int64_t last,
                  void* scratch) {
  Real* factors = static_cast<Real*>(scratch);
  DropoutArguments dropout = a.dropout;
  dropout.factor = 1;
  const View& dump = *dropout.dump;
  for (int64_t i = first; i < last; ++i) {
    for (int64_t j0 = 0; j0 < a.kv_length; j0 += kForwardKeys) {
      const int64_t count = smaller(kForwardKeys, a.kv_length - j0);
      dropout_factors(dropout, a.q_heads, {b, h, i, {}, j0, 0, round_up(count, kLanes), count},
                      factors);
      char* out = row_address(dump, b, h, i) + j0 * dump.stride[3] * dump.element_bytes;
      write_row(dump.element, out, dump.stride[3], dump.element_bytes, count, factors, 1);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
