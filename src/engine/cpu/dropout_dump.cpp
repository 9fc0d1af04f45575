#include "engine/cpu/dropout_dump.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

void dump_dropout(const AttentionArguments& a, const Kernels& kernels, int workers, char* scratch,
                  int64_t scratch_bytes) {
  constexpr int64_t kRowsPerTask = 64;
  const int64_t tiles = divide_up(a.q_length, kRowsPerTask);
  for_each_task(a.batch * a.q_heads * tiles, workers, [&](int64_t task, int worker) {
    const int64_t head = task / tiles, first = task % tiles * kRowsPerTask;
    kernels.dropout_dump(a, head / a.q_heads, head % a.q_heads, first,
                         std::min(a.q_length, first + kRowsPerTask),
                         scratch + worker * scratch_bytes);
  });
}

}  // namespace heddle::engine::cpu
