// New rows of K and V put behind those that caches hold, normalised, rotated and turned into codes
// on the way, and Q normalised and rotated alike (problem::CacheAppendProblem says the arithmetic).
// A warp takes a row of a head.
#pragma once

#include "../attention/codes.cuh"
#include "../ptx/sync.cuh"
#include "config.h"
#include "rows.cuh"
#include "vector.cuh"

namespace heddle::streaming {

template <class Config>
struct CacheAppend {
  using C = Config;
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kColumns = max_of(C::kQkDim, C::kVDim);
  static constexpr int kRun = C::kRun;
  static constexpr int kEach = C::kAligned ? kRun : 1;  ///< columns of an access

  /// Grid append_blocks, one more, and any number besides: append_blocks = batch * length *
  /// head_blocks, and these ceil(heads / kWarps), heads being those of Q and, with caches, of K and
  /// V.
  HEDDLE_DEVICE static void run(const CacheAppendArguments& args) {
    __shared__ __align__(16) float rows[kWarps][kColumns];
    ptx::grid_dependents_launch();
    const int warp = threadIdx.x / 32;
    const int block = blockIdx.x, others = block - args.append_blocks;
    if (others < 0) {
      const int token = args.by_head_blocks.quotient(block);
      append(args, token, (block - token * args.head_blocks) * kWarps + warp, rows[warp]);
    } else if (others == 0) {
      write_lengths(args);
    } else if constexpr (C::kCaches && !C::kPaged) {
      const i64 first = (others - 1) * static_cast<i64>(kWarps) + warp;
      const i64 step = (gridDim.x - args.append_blocks - 1) * static_cast<i64>(kWarps);
      carry_over<typename C::KCache, C::kQkDim>(args, args.k_cache, first, step);
      carry_over<typename C::VCache, C::kVDim>(args, args.v_cache, first, step);
    }
  }

 private:
  /// Rows of a batch entry.
  struct Entry {
    i64 total, past;
    int added;
  };

  /// Of 64 bits as near as 32 come.
  template <int kBits>
  HEDDLE_DEVICE static int number(const EntryNumbers& numbers, int batch) {
    const i64 at = batch * numbers.stride;
    if constexpr (kBits == 32) return static_cast<const i32*>(numbers.data)[at];
    const i64 n = static_cast<const i64*>(numbers.data)[at];
    return static_cast<int>(n < -2147483648LL  ? -2147483648LL
                            : n > 2147483647LL ? 2147483647LL
                                               : n);
  }

  HEDDLE_DEVICE static Entry entry_of(const CacheAppendArguments& args, int batch) {
    Entry entry;
    entry.added = args.length;
    if constexpr (C::kNewLengthBits != 0)
      entry.added =
          min_of(max_of(number<C::kNewLengthBits>(args.new_lengths, batch), 0), args.length);
    entry.total = entry.added;
    if constexpr (C::kTotalLengthBits != 0) {
      const i64 n = number<C::kTotalLengthBits>(args.total_lengths, batch) + args.total_offset;
      entry.total = n < 0 ? 0 : n;
    }
    entry.past = entry.total > entry.added ? entry.total - entry.added : 0;
    return entry;
  }

  HEDDLE_DEVICE static void write_number(const EntryNumbers& numbers, int batch, i64 n) {
    if (numbers.data == nullptr) return;
    const i64 at = batch * numbers.stride;
    if (numbers.are_64_bit)
      static_cast<i64*>(numbers.data)[at] = n;
    else
      static_cast<i32*>(numbers.data)[at] = static_cast<i32>(n);
  }

  HEDDLE_DEVICE static void write_lengths(const CacheAppendArguments& args) {
    for (int batch = threadIdx.x; batch < args.batch; batch += kThreads) {
      const Entry entry = entry_of(args, batch);
      write_number(args.lengths_q, batch, entry.added < entry.total ? entry.added : entry.total);
      write_number(args.lengths_kv, batch,
                   entry.total < args.capacity ? entry.total : args.capacity);
    }
  }

  /// A row of a token: the heads of Q, then K's, then V's.
  HEDDLE_DEVICE static void append(const CacheAppendArguments& args, int token, int head,
                                   float* x) {
    const int batch = args.by_length.quotient(token), row = token - batch * args.length;
    // A row is on its way while the entry's lengths are: its memory is there, new or not.
    if (head < args.q_heads) {
      if (args.q_out == nullptr) return;
      const Row<typename C::Q, C::kQkDim> q(args.q, batch, head, row);
      const Entry entry = entry_of(args, batch);
      if (row < entry.added) {
        const Rotation rotation(args, batch, entry.past + row, row);
        q.put(x);
        if constexpr (C::kQNorm) normalise<typename C::QWeight>(args.q, x);
        rotation.turn(x);
      } else {
        for (int c = threadIdx.x % 32; c < C::kQkDim; c += 32) x[c] = 0;
        __syncwarp();
      }
      using Q = typename C::QOut;
      write_numbers<C::kQkDim>(
          static_cast<Q*>(args.q_out) + at(args.q_out_stride, batch, head, row), x);
      return;
    }
    if constexpr (C::kCaches) {
      head -= args.q_heads;
      i64 to;
      if (head < args.kv_heads) {
        const Row<typename C::K, C::kQkDim> k(args.k, batch, head, row);
        const Entry entry = entry_of(args, batch);
        if (row >= entry.added || !place(args.k_cache, entry, batch, head, row, to)) return;
        const Rotation rotation(args, batch, entry.past + row, row);
        k.put(x);
        if constexpr (C::kKNorm) normalise<typename C::KWeight>(args.k, x);
        rotation.turn(x);
        write<typename C::KCache, C::kQkDim>(args.k_cache, to, head, x);
      } else if (head -= args.kv_heads; head < args.kv_heads) {
        const Row<typename C::V, C::kVDim> v(args.v, batch, head, row);
        const Entry entry = entry_of(args, batch);
        if (row >= entry.added || !place(args.v_cache, entry, batch, head, row, to)) return;
        v.put(x);
        write<typename C::VCache, C::kVDim>(args.v_cache, to, head, x);
      }
    }
  }

  HEDDLE_DEVICE static i64 at(const long long (&stride)[3], i64 batch, int head, i64 row) {
    return batch * stride[0] + head * stride[1] + row * stride[2];
  }

  /// Where the element of a new row's first column lies; false if the cache has no place for it.
  HEDDLE_DEVICE static bool place(const CacheArguments& cache, const Entry& entry, int batch,
                                  int head, int row, i64& to) {
    const i64 token = entry.past + row;
    if constexpr (C::kPaged) {
      const i64 page = token / cache.rows;
      if (page >= cache.pages) return false;
      const i64 block = integer_at(cache.table, cache.table_is_64_bit,
                                   batch * cache.table_stride[0] + page * cache.table_stride[1]);
      if (block < 0 || block >= cache.blocks) return false;
      to = at(cache.stride, block, head, token - page * cache.rows);
      return true;
    } else if constexpr (C::kRing) {
      // Of more new rows than a ring holds the last ones stay.
      if (row < entry.added - cache.rows) return false;
      to = at(cache.stride, batch, head, token % cache.rows);
      return true;
    } else {
      to = at(cache.stride, batch, head, token);
      return token < cache.rows;
    }
  }

  /// kCount columns of a row, loaded when it is made and put down as f32 when asked for.
  template <typename X, int kCount>
  class Row {
   public:
    HEDDLE_DEVICE Row(const NewRows& from, int batch, int head, int row) {
      const X* source = static_cast<const X*>(from.data) + at(from.stride, batch, head, row);
#pragma unroll
      for (int n = 0; n < kRuns; ++n)
        if (const int c = column(n); c < kCount) runs_[n].load(source + c);
    }

    HEDDLE_DEVICE void put(float* x) const {
#pragma unroll
      for (int n = 0; n < kRuns; ++n) {
        const int c = column(n);
        if (c >= kCount) continue;
        float value[kRun];
        runs_[n].get(value);
#pragma unroll
        for (int i = 0; i < kRun; ++i) x[c + i] = value[i];
      }
      __syncwarp();
    }

   private:
    static constexpr int kRuns = ceil_div(kCount, 32 * kRun);
    HEDDLE_DEVICE static int column(int n) { return (32 * n + threadIdx.x % 32) * kRun; }
    Packed<X, kRun, kEach> runs_[kRuns];
  };

  /// x * weight / sqrt(mean(x^2) + epsilon).
  template <typename W>
  HEDDLE_DEVICE static void normalise(const NewRows& by, float* x) {
    float squares = 0;
    for (int c = threadIdx.x % 32; c < C::kQkDim; c += 32) squares += x[c] * x[c];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, apart);
    const double mean = static_cast<double>(squares) / C::kQkDim;
    const float inverse = static_cast<float>(1 / sqrt(mean + by.epsilon));
    for (int c = threadIdx.x % 32; c < C::kQkDim; c += 32)
      x[c] *= inverse * ptx::widen(static_cast<const W*>(by.weight)[c * by.weight_stride]);
    __syncwarp();
  }

  /// A lane's part of a row of the tables, on its way from when it is made.
  class Rotation {
   public:
    HEDDLE_DEVICE Rotation(const CacheAppendArguments& args, int batch, i64 token, int row) {
      if constexpr (C::kRopeDim == 0) return;
      i64 position = token;
      if constexpr (C::kPositionBits != 0)
        position = integer_at(args.positions, C::kPositionBits == 64,
                              batch * args.position_stride[0] + row * args.position_stride[1]);
      // The nearest row there is.
      position = position < args.table_rows ? position : args.table_rows - 1;
      position = position > 0 ? position : 0;
      const auto* cosines =
          static_cast<const typename C::Cosine*>(args.cosines) + position * args.cosine_stride[0];
      const auto* sines =
          static_cast<const typename C::Sine*>(args.sines) + position * args.sine_stride[0];
#pragma unroll
      for (int n = 0; n < kRuns; ++n) {
        if (pair(n) >= kPairs) continue;
        cosine_[n] = cosines[pair(n) * args.cosine_stride[1]];
        sine_[n] = sines[pair(n) * args.sine_stride[1]];
      }
    }

    HEDDLE_DEVICE void turn(float* x) const {
      if constexpr (C::kRopeDim == 0) return;
#pragma unroll
      for (int n = 0; n < kRuns; ++n) {
        if (pair(n) >= kPairs) continue;
        float& a = x[C::kInterleaved ? 2 * pair(n) : pair(n)];
        float& b = x[C::kInterleaved ? 2 * pair(n) + 1 : pair(n) + kPairs];
        const float cosine = ptx::widen(cosine_[n]), sine = ptx::widen(sine_[n]);
        const float first = a, second = b;
        a = first * cosine - second * sine;
        b = second * cosine + first * sine;
      }
      __syncwarp();
    }

   private:
    static constexpr int kPairs = C::kRopeDim / 2, kRuns = max_of(1, ceil_div(kPairs, 32));
    HEDDLE_DEVICE static int pair(int n) { return 32 * n + threadIdx.x % 32; }
    typename C::Cosine cosine_[kRuns];
    typename C::Sine sine_[kRuns];
  };

  template <int kCount, typename Y>
  HEDDLE_DEVICE static void write_numbers(Y* to, const float* x) {
    for (int c = threadIdx.x % 32 * kRun; c < kCount; c += 32 * kRun) {
      float value[kRun];
#pragma unroll
      for (int n = 0; n < kRun; ++n) value[n] = x[c + n];
      Packed<Y, kRun, kEach> out;
      out.set(value);
      out.store(to + c);
    }
  }

  /// A row of numbers, or of codes.
  template <typename Y, int kCount>
  HEDDLE_DEVICE static void write(const CacheArguments& cache, i64 to, int head, const float* x) {
    Y* y = static_cast<Y*>(cache.data) + to;
    using Codes = attention::Codes<Y>;
    if constexpr (Codes::kColumns == 0) {
      write_numbers<kCount>(y, x);
    } else {
      constexpr int kBytes = kRun / Codes::kColumns;
      static_assert(kBytes > 0, "a byte's columns are one thread's");
      const float* scales = cache.scales + head * cache.scale_stride[0];
      for (int c = threadIdx.x % 32 * kRun; c < kCount; c += 32 * kRun) {
        u32 codes = 0;
#pragma unroll
        for (int n = 0; n < kRun; ++n)
          codes |= Codes::of(x[c + n], scales[(c + n) * cache.scale_stride[1]])
                   << (8 / Codes::kColumns * n);
        store_bytes<kBytes>(y + c / Codes::kColumns, codes);
      }
    }
  }

  template <int kBytes>
  HEDDLE_DEVICE static void store_bytes(void* to, u32 bytes) {
    if constexpr (C::kAligned && kBytes == 4) {
      *static_cast<u32*>(to) = bytes;
    } else if constexpr (C::kAligned && kBytes == 2) {
      *static_cast<u16*>(to) = static_cast<u16>(bytes);
    } else {
#pragma unroll
      for (int n = 0; n < kBytes; ++n) static_cast<u8*>(to)[n] = static_cast<u8>(bytes >> (8 * n));
    }
  }

  // --- What is not new ------------------------------------------------------------------------

  /// Rows from the past into another buffer, and zeros where there are none.
  template <typename Y, int kCount>
  HEDDLE_DEVICE static void carry_over(const CacheAppendArguments& args,
                                       const CacheArguments& cache, i64 first, i64 step) {
    if (!cache.carried) return;
    const i64 rows = static_cast<i64>(args.batch) * args.kv_heads * cache.rows;
    for (i64 index = first; index < rows; index += step) {
      const i64 place = index / cache.rows;
      const int slot = static_cast<int>(index - place * cache.rows);
      const int batch = static_cast<int>(place / args.kv_heads);
      const int head = static_cast<int>(place - static_cast<i64>(batch) * args.kv_heads);
      const Entry entry = entry_of(args, batch);
      if (is_new(cache, entry, slot)) continue;
      i64 from;
      const bool is_there = was_at(cache, entry, slot, from);
      const Y* x = static_cast<const Y*>(cache.past) +
                   (is_there ? at(cache.past_stride, batch, head, from) : 0);
      copy_row<Y, kCount>(is_there, x,
                          static_cast<Y*>(cache.data) + at(cache.stride, batch, head, slot));
    }
  }

  /// The last token before `end` that a ring keeps at `slot`; negative if none was.
  HEDDLE_DEVICE static i64 token_at(const CacheArguments& cache, i64 end, int slot) {
    const i64 behind = (end - 1 - slot) % cache.rows;
    return end - 1 - (behind < 0 ? behind + cache.rows : behind);
  }

  HEDDLE_DEVICE static bool is_new(const CacheArguments& cache, const Entry& entry, int slot) {
    const i64 end = entry.past + entry.added;
    const i64 token = C::kRing ? token_at(cache, end, slot) : slot;
    return token >= entry.past && token < end;
  }

  /// The row of the past that belongs there, if it holds it.
  HEDDLE_DEVICE static bool was_at(const CacheArguments& cache, const Entry& entry, int slot,
                                   i64& from) {
    if (cache.past == nullptr) return false;
    const int held = min_of(cache.rows, cache.past_rows);
    if constexpr (C::kRing) {
      const i64 token = token_at(cache, entry.past, slot);
      if (token < 0 || token < entry.past - held) return false;
      from = token % cache.past_rows;
      return true;
    } else {
      from = slot;
      return slot < entry.past && slot < held;
    }
  }

  template <typename Y, int kCount>
  HEDDLE_DEVICE static void copy_row(bool is_there, const Y* from, Y* to) {
    constexpr int kElements = kCount / max_of(1, attention::Codes<Y>::kColumns);
    constexpr int kTogether = C::kAligned ? 4 : 1;  ///< elements: every row is a multiple of them
    struct __align__(kTogether * sizeof(Y)) Bytes {
      u8 byte[kTogether * sizeof(Y)];
    };
    for (int c = threadIdx.x % 32 * kTogether; c < kElements; c += 32 * kTogether)
      *reinterpret_cast<Bytes*>(to + c) =
          is_there ? *reinterpret_cast<const Bytes*>(from + c) : Bytes{};
  }
};

}  // namespace heddle::streaming
