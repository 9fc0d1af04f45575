// The keys that a block's query rows see: each of a thread's two rows, and the tiles of any and of
// all rows together.
#pragma once

#include "../attention/visible.cuh"
#include "../tile/fragment.cuh"

namespace heddle::sm80 {

template <int kTileM, int kTileN>
struct SeenKeys {
  int begin, end;              ///< tiles that some row sees
  int whole_begin, whole_end;  ///< keys that every row of the sequence sees
  attention::KeyInterval rows[2];

  /// `intervals` is shared memory for 2 * kTileM numbers. By all threads, as many as rows or more;
  /// those of a warp have the 16 rows from 16 * row_warp on.
  HEDDLE_DEVICE SeenKeys(const attention::ForwardParameters& p, int* intervals, int first_row,
                         int row_warp, int q_length, int kv_length) {
    int *const lo = intervals, *const hi = intervals + kTileM;
    if (threadIdx.x < kTileM) {
      const int row = first_row + threadIdx.x;
      attention::KeyInterval keys{0, 0};
      if (row < q_length)
        keys = attention::visible_keys(p.bounds, p.bound_count, row, q_length, kv_length);
      lo[threadIdx.x] = keys.lo;
      hi[threadIdx.x] = keys.hi > keys.lo ? keys.hi : keys.lo;
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    int first = kv_length, last = 0;
    whole_begin = 0;
    whole_end = kv_length;
    for (int r = lane; r < kTileM; r += 32) {
      if (lo[r] < hi[r]) {
        first = min(first, lo[r]);
        last = max(last, hi[r]);
      }
      if (first_row + r < q_length) {
        whole_begin = max(whole_begin, lo[r]);
        whole_end = min(whole_end, hi[r]);
      }
    }
    begin = __reduce_min_sync(0xffffffffu, first) / kTileN;
    end = ceil_div(__reduce_max_sync(0xffffffffu, last), kTileN);
    whole_begin = __reduce_max_sync(0xffffffffu, whole_begin);
    whole_end = __reduce_min_sync(0xffffffffu, whole_end);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_warp * 16 + lane / 4 + 8 * half;
      rows[half] = {lo[row], hi[row]};
    }
  }

  HEDDLE_DEVICE bool whole(int first_key) const {
    return first_key >= whole_begin && first_key + kTileN <= whole_end;
  }
  HEDDLE_DEVICE bool sees(int half, int column) const {
    return column >= rows[half].lo && column < rows[half].hi;
  }
};

}  // namespace heddle::sm80
