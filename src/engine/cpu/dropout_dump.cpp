#include "engine/cpu/dropout_dump.h"

#include <algorithm>

#include "core/rounding.h"

namespace heddle::engine::cpu {

template <class Real>
void dump_dropout(const AttentionArguments& a, const AttentionKernels<Real>& kernels,
                  const Workers& workers) {
  constexpr int64_t kRowsPerTask = 64;
  const int64_t tiles = divide_up(a.q_length, kRowsPerTask);
  const int64_t row_bytes = kForwardKeys * int64_t{sizeof(Real)};
  for_each_task(a.batch * a.q_heads * tiles, workers, row_bytes, [&](int64_t task, char* scratch) {
    const int64_t head = task / tiles, first = task % tiles * kRowsPerTask;
    kernels.dropout_dump(a, head / a.q_heads, head % a.q_heads, first,
                         std::min(a.q_length, first + kRowsPerTask), scratch);
  });
}

template void dump_dropout(const AttentionArguments&, const AttentionKernels<float>&,
                           const Workers&);
template void dump_dropout(const AttentionArguments&, const AttentionKernels<double>&,
                           const Workers&);

}  // namespace heddle::engine::cpu
