#include <algorithm>

#include "core/rounding.h"
#include "engine/cpu/fp8_arguments.h"
#include "engine/cpu/scratch.h"

namespace heddle::engine::cpu {

Fp8Scratch fp8_scratch(int64_t qk_dim, int64_t v_dim) {
  int64_t end = 0;
  const auto floats = [&](int64_t count) {
    const int64_t at = end;
    end += round_up(count * int64_t{sizeof(float)}, 64);
    return at;
  };
  Fp8Scratch at{};
  at.q = floats(kFp8Rows * qk_dim);
  at.o = floats(kFp8Rows * v_dim);
  at.d_o = floats(kFp8Rows * v_dim);
  at.k_columns = floats(kFp8Keys * qk_dim);
  at.k_rows = floats(kFp8Keys * qk_dim);
  at.v_columns = floats(kFp8Keys * v_dim);
  at.v_rows = floats(kFp8Keys * v_dim);
  at.s = floats(kFp8Rows * kFp8Keys);
  at.d_s = floats(kFp8Rows * kFp8Keys);
  at.max = floats(kFp8Rows);
  at.sum = floats(kFp8Rows);
  at.row_dot = floats(kFp8Rows);
  at.result = floats(std::max(kFp8Rows, kFp8Keys) * std::max(qk_dim, v_dim));
  at.bytes = round_up(end, kScratchAlignment);
  return at;
}

}  // namespace heddle::engine::cpu
