// New rows of K and V put behind those that caches hold, normalised, rotated and turned into codes
// on the way, and Q normalised and rotated alike (problem::CacheAppendProblem says the arithmetic).
// kLanes threads side by side take a row of a head in registers: each loads its columns, and beside
// them those they are turned with, so that none waits for another.
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
  static constexpr int kLanes = append_lanes(kColumns, kRun);
  using Args = CacheAppendArguments<C::kWide>;
  using Stride = typename Args::Stride;
  using Cache = CacheArguments<Stride>;

  /// Grid append_blocks, one more, and any number besides: append_blocks of kThreads / kLanes rows
  /// each, those of Q, if it is wanted, and, with caches, of K and of V.
  HEDDLE_DEVICE static void run(const Args& args) {
    ptx::grid_dependents_launch();
    const int block = blockIdx.x, others = block - args.append_blocks;
    if (others < 0) {
      append(args, block * (kThreads / kLanes) + threadIdx.x / kLanes);
    } else if (others == 0) {
      write_lengths(args);
    } else if constexpr (C::kCaches && !C::kPaged) {
      const i64 first = (others - 1) * static_cast<i64>(kWarps) + threadIdx.x / 32;
      const i64 step = (gridDim.x - args.append_blocks - 1) * static_cast<i64>(kWarps);
      carry_over<typename C::KCache, C::kQkDim>(args, kK, first, step);
      carry_over<typename C::VCache, C::kVDim>(args, kV, first, step);
    }
  }

 private:
  /// Whose row it is: in this order they lie in the arguments.
  static constexpr int kQ = 0, kK = 1, kV = 2;
  /// Rows of Q, K and V pass by the same instructions, which are to be fetched once.
  static constexpr bool kAlike = C::kCaches && C::kQkDim == C::kVDim && C::kQNorm == C::kKNorm &&
                                 is_same<typename C::Q, typename C::K> &&
                                 is_same<typename C::Q, typename C::V> &&
                                 is_same<typename C::QOut, typename C::KCache> &&
                                 is_same<typename C::QOut, typename C::VCache> &&
                                 is_same<typename C::QWeight, typename C::KWeight>;

  /// Rows of a batch entry; a length and an offset of 32 bits are up to 2^32 - 2 together.
  struct Entry {
    u32 total, past, added;
  };

  /// Of 64 bits as near as 32 come.
  template <int kBits>
  HEDDLE_DEVICE static int number(const void* numbers, i64 at) {
    if constexpr (kBits == 32) return static_cast<const i32*>(numbers)[at];
    const i64 n = static_cast<const i64*>(numbers)[at];
    return static_cast<int>(n < -2147483648LL  ? -2147483648LL
                            : n > 2147483647LL ? 2147483647LL
                                               : n);
  }

  template <int kBits>
  HEDDLE_DEVICE static int number(const EntryNumbers<Stride>& numbers, int batch) {
    return number<kBits>(numbers.data, static_cast<i64>(numbers.stride) * batch);
  }

  HEDDLE_DEVICE static u32 least(u32 a, u32 b) { return a < b ? a : b; }

  HEDDLE_DEVICE static Entry entry_of(const Args& args, int batch) {
    Entry entry;
    entry.added = args.length;
    if constexpr (C::kNewLengthBits != 0)
      entry.added =
          min_of(max_of(number<C::kNewLengthBits>(args.new_lengths, batch), 0), args.length);
    entry.total = entry.added;
    if constexpr (C::kTotalLengthBits != 0) {
      const int n = number<C::kTotalLengthBits>(args.total_lengths, batch), by = args.total_offset;
      entry.total = static_cast<u32>(max_of(n, -by)) + by;
    }
    entry.past = entry.total > entry.added ? entry.total - entry.added : 0;
    return entry;
  }

  HEDDLE_DEVICE static void write_number(const EntryNumbers<Stride>& numbers, int batch, int n) {
    if (numbers.data == nullptr) return;
    const i64 at = static_cast<i64>(numbers.stride) * batch;
    if (numbers.are_64_bit)
      static_cast<i64*>(numbers.data)[at] = n;
    else
      static_cast<i32*>(numbers.data)[at] = n;
  }

  HEDDLE_DEVICE static void write_lengths(const Args& args) {
    for (int batch = threadIdx.x; batch < args.batch; batch += kThreads) {
      const Entry entry = entry_of(args, batch);
      write_number(args.lengths_q, batch, least(entry.added, entry.total));
      write_number(args.lengths_kv, batch, least(entry.total, args.capacity));
    }
  }

  /// The index-th row of all: a token's heads of Q, then K's, then V's.
  HEDDLE_DEVICE static void append(const Args& args, int index) {
    const int token = args.by_heads.quotient(index), batch = args.by_length.quotient(token);
    if (batch >= args.batch) return;
    const int row = token - batch * args.length;
    int head = index - token * args.heads, part = kQ;
    if (C::kCaches && head >= args.q_heads) {
      head -= args.q_heads, part = kK;
      if (head >= args.kv_heads) head -= args.kv_heads, part = kV;
    }
    if constexpr (kAlike) {
      append_row<typename C::Q, typename C::QOut, typename C::QWeight, C::kQkDim, true>(
          args, part, batch, head, row);
    } else if (part == kQ) {
      append_row<typename C::Q, typename C::QOut, typename C::QWeight, C::kQkDim, true>(
          args, kQ, batch, head, row);
    } else if constexpr (C::kCaches) {
      if (part == kK)
        append_row<typename C::K, typename C::KCache, typename C::KWeight, C::kQkDim, true>(
            args, kK, batch, head, row);
      else
        append_row<typename C::V, typename C::VCache, typename C::KWeight, C::kVDim, false>(
            args, kV, batch, head, row);
    }
  }

  template <typename X, typename Y, typename W, int kCount, bool kTurns>
  HEDDLE_DEVICE static void append_row(const Args& args, int part, int batch, int head, int row) {
    const auto& from = args.from[part];
    // A row is on its way while the entry's lengths are: its memory is there, new or not.
    Row<X, kCount, kTurns> x(static_cast<const X*>(from.data) + at(from.stride, batch, head, row));
    const Entry entry = entry_of(args, batch);
    Rotation rotation;
    if (kTurns && part != kV) rotation.load(args, batch, entry.past + row, row);
    const bool is_new = C::kNewLengthBits == 0 || row < entry.added;
    i64 to;
    if ((part != kQ && !is_new) || !place(args, part, entry, batch, head, row, to)) return;
    x.get();
    if ((C::kQNorm && part == kQ) || (C::kKNorm && part == kK))
      x.template normalise<W>(args.norm[part]);
    if (kTurns && part != kV) x.turn(rotation);
    if (!is_new) x.clear();
    write<Y>(static_cast<Y*>(args.to[part].data) + to, x, args, part, head);
  }

  /// The lanes of this row.
  HEDDLE_DEVICE static u32 row_mask() {
    if constexpr (kLanes == 32)
      return 0xffffffffu;
    else
      return ((1u << kLanes) - 1) << (threadIdx.x % 32 & ~(kLanes - 1));
  }

  HEDDLE_DEVICE static i64 at(const Stride (&stride)[3], u32 batch, u32 head, u32 row) {
    return static_cast<u64>(stride[0]) * batch + static_cast<u64>(stride[1]) * head +
           static_cast<u64>(stride[2]) * row;
  }

  /// Where the element of a row's first column goes; false if a cache has no place for it.
  HEDDLE_DEVICE static bool place(const Args& args, int part, const Entry& entry, int batch,
                                  int head, int row, i64& to) {
    const auto& rows = args.to[part];
    u32 slot = part == kQ ? row : entry.past + row;
    if constexpr (C::kPaged) {
      if (part != kQ) {
        const Cache& pages = args.cache[part - kK];
        const u32 page = slot / rows.rows;
        if (page >= pages.pages) return false;
        const i64 block = integer_at(pages.table, pages.table_is_64_bit,
                                     batch * pages.table_stride[0] + page * pages.table_stride[1]);
        if (block < 0 || block >= pages.blocks) return false;
        batch = static_cast<int>(block);
        slot -= page * rows.rows;
      }
    } else if constexpr (C::kRing) {
      // Of more new rows than a ring holds the last ones stay.
      if (part != kQ && static_cast<u32>(row) + rows.rows < entry.added) return false;
      slot %= rows.rows;
    }
    to = at(rows.stride, batch, head, slot);
    return slot < rows.rows;
  }

  // A lane has pairs of runs, the n-th of them the unit(n)-th of the row. Columns that turn
  // together are in one, so that no lane waits for another.
  static constexpr int kTurningUnits = C::kRopeDim / 2 / kRun;
  HEDDLE_DEVICE static int unit(int n) { return kLanes * n + threadIdx.x % kLanes; }

  /// What a lane's pairs of columns are turned by: kRun numbers for a pair of runs.
  class Rotation {
   public:
    HEDDLE_DEVICE void load(const Args& args, int batch, u32 token, int row) {
      if constexpr (C::kRopeDim == 0) return;
      u32 position = token;
      if constexpr (C::kPositionBits != 0)
        position =
            max_of(number<C::kPositionBits>(args.positions, args.position_stride[0] * batch +
                                                                args.position_stride[1] * row),
                   0);
      const u32 nearest = least(position, args.table_rows - 1);  // there is
      const auto* cosines = static_cast<const typename C::Cosine*>(args.cosines) +
                            static_cast<u64>(args.cosine_stride[0]) * nearest;
      const auto* sines = static_cast<const typename C::Sine*>(args.sines) +
                          static_cast<u64>(args.sine_stride[0]) * nearest;
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        if (unit(n) >= kTurningUnits) continue;
#pragma unroll
        for (int j = 0; j < kRun; j += kEach) {
          const int c = unit(n) * kRun + j;
          cosines_[n][j / kEach].load(cosines + at_column(c, args.cosine_stride[1]));
          sines_[n][j / kEach].load(sines + at_column(c, args.sine_stride[1]));
        }
      }
    }

    HEDDLE_DEVICE void get(int n, float (&cosine)[kRun], float (&sine)[kRun]) const {
#pragma unroll
      for (int j = 0; j < kRun; j += kEach) {
        float some_cosines[kEach], some_sines[kEach];
        cosines_[n][j / kEach].get(some_cosines);
        sines_[n][j / kEach].get(some_sines);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          cosine[j + i] = some_cosines[i], sine[j + i] = some_sines[i];
      }
    }

   private:
    static constexpr int kPairs = max_of(1, ceil_div(kTurningUnits, kLanes));
    static constexpr int kEach = C::kTableRun;
    HEDDLE_DEVICE static u64 at_column(u64 c, u64 stride) { return kEach > 1 ? c : stride * c; }
    Packed<typename C::Cosine, kEach> cosines_[kPairs][kRun / kEach];
    Packed<typename C::Sine, kEach> sines_[kPairs][kRun / kEach];
  };

  /// A lane's pairs of runs of a row of kCount columns.
  template <typename X, int kCount, bool kTurns>
  class Row {
   public:
    static constexpr int kPairs = ceil_div(kCount, 2 * kLanes * kRun);
    float value[kPairs][2 * kRun];

    HEDDLE_DEVICE explicit Row(const X* from) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n)
#pragma unroll
        for (int second = 0; second < 2; ++second)
          if (has(n, second)) runs_[n][second].load(from + column(n, second));
    }

    /// The first column of a pair's first run, or second. Of halves a run lies in each; else, and
    /// behind the columns that turn, they are neighbours.
    HEDDLE_DEVICE static int column(int n, int second) {
      const int u = unit(n);
      if (kTurns && !C::kInterleaved && u < kTurningUnits)
        return (u + second * kTurningUnits) * kRun;
      return (2 * u + second) * kRun;
    }
    HEDDLE_DEVICE static bool has(int n, int second) { return column(n, second) < kCount; }

    /// What has been loaded, as numbers.
    HEDDLE_DEVICE void get() {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          float run[kRun];
          runs_[n][second].get(run);
#pragma unroll
          for (int i = 0; i < kRun; ++i) value[n][second * kRun + i] = run[i];
        }
      }
    }

    /// x * weight / sqrt(mean(x^2) + epsilon).
    template <typename W>
    HEDDLE_DEVICE void normalise(const NormWeight& by) {
      float squares = 0;
      visit([&](float& x, int) { squares += x * x; });
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(row_mask(), squares, apart);
      const double mean = static_cast<double>(squares) / kCount;
      const float inverse = static_cast<float>(1 / sqrt(mean + by.epsilon));
      visit([&](float& x, int c) {
        x *= inverse * ptx::widen(static_cast<const W*>(by.data)[c * by.stride]);
      });
    }

    HEDDLE_DEVICE void turn(const Rotation& by) {
      if constexpr (C::kRopeDim == 0) return;
#pragma unroll
      for (int n = 0; n < ceil_div(kTurningUnits, kLanes); ++n) {
        if (unit(n) >= kTurningUnits) continue;
        float cosine[kRun], sine[kRun];
        by.get(n, cosine, sine);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          float& a = value[n][C::kInterleaved ? 2 * i : i];
          float& b = value[n][C::kInterleaved ? 2 * i + 1 : kRun + i];
          const float first = a, second = b;
          a = first * cosine[i] - second * sine[i];
          b = second * cosine[i] + first * sine[i];
        }
      }
    }

    HEDDLE_DEVICE void clear() {
      visit([](float& x, int) { x = 0; });
    }

   private:
    /// visit(x, column) of each number.
    template <class Visit>
    HEDDLE_DEVICE void visit(Visit visit) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * kRun; ++i)
          if (has(n, i / kRun)) visit(value[n][i], column(n, i / kRun) + i % kRun);
      }
    }
    Packed<X, kRun> runs_[kPairs][2];
  };

  /// A row of numbers, or of codes.
  template <typename Y, class X>
  HEDDLE_DEVICE static void write(Y* to, const X& x, const Args& args, int part, int head) {
    using Codes = attention::Codes<Y>;
    u32 code[X::kPairs][2][kRun];
#pragma unroll
    for (int n = 0; n < X::kPairs; ++n) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int c = X::column(n, second);
        const float(&value)[2 * kRun] = x.value[n];
        if constexpr (Codes::kColumns == 0) {
          float run[kRun];
#pragma unroll
          for (int i = 0; i < kRun; ++i) run[i] = value[second * kRun + i];
          Packed<Y, kRun> out;
          out.set(run);
          if (X::has(n, second)) out.store(to + c);
        } else {
          const Cache& cache = args.cache[part - kK];
          const float* scales = cache.scales + head * cache.scale_stride[0];
#pragma unroll
          for (int i = 0; i < kRun; ++i)
            code[n][second][i] =
                X::has(n, second)
                    ? Codes::of(value[second * kRun + i], scales[(c + i) * cache.scale_stride[1]])
                    : 0;
        }
      }
    }
    if constexpr (Codes::kColumns > kRun)
      write_halves<X>(reinterpret_cast<u8*>(to), code);
    else if constexpr (Codes::kColumns > 0)
      write_codes<X, Codes::kColumns>(reinterpret_cast<u8*>(to), code);
  }

  /// Two codes to a byte, each of which is a run: the other one is some lane's, perhaps of another
  /// pair of runs. All low halves come first.
  template <class X>
  HEDDLE_DEVICE static void write_halves(u8* to, const u32 (&code)[X::kPairs][2][kRun]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < X::kPairs; ++n) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          const int c = X::column(n, second);
          if (!X::has(n, second) || c % 2 != half) continue;
          u8* byte = to + c / 2;
          *byte = static_cast<u8>(half == 0 ? code[n][second][0] : *byte | code[n][second][0] << 4);
        }
      }
      if (half == 0) __syncwarp(row_mask());
    }
  }

  /// Runs of whole bytes.
  template <class X, int kColumnsOfByte>
  HEDDLE_DEVICE static void write_codes(u8* to, const u32 (&code)[X::kPairs][2][kRun]) {
    constexpr int kBytes = kRun / kColumnsOfByte;
    struct __align__(kBytes) Bytes {
      u8 byte[kBytes];
    };
#pragma unroll
    for (int n = 0; n < X::kPairs; ++n) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        Bytes bytes;
#pragma unroll
        for (int at = 0; at < kBytes; ++at) {
          u32 byte = 0;
#pragma unroll
          for (int i = 0; i < kColumnsOfByte; ++i)
            byte |= code[n][second][at * kColumnsOfByte + i] << (8 / kColumnsOfByte * i);
          bytes.byte[at] = static_cast<u8>(byte);
        }
        if (X::has(n, second))
          *reinterpret_cast<Bytes*>(to + X::column(n, second) / kColumnsOfByte) = bytes;
      }
    }
  }

  // --- What is not new ------------------------------------------------------------------------

  /// Rows from the past into another buffer, and zeros where there are none.
  template <typename Y, int kCount>
  HEDDLE_DEVICE static void carry_over(const Args& args, int part, i64 first, i64 step) {
    const Cache& cache = args.cache[part - kK];
    const auto& to = args.to[part];
    if (!cache.carried) return;
    const i64 rows = static_cast<i64>(args.batch) * args.kv_heads * to.rows;
    for (i64 index = first; index < rows; index += step) {
      const i64 place = index / to.rows;
      const int slot = static_cast<int>(index - place * to.rows);
      const int batch = static_cast<int>(place / args.kv_heads);
      const int head = static_cast<int>(place - static_cast<i64>(batch) * args.kv_heads);
      const Entry entry = entry_of(args, batch);
      if (is_new(to.rows, entry, slot)) continue;
      int from;
      const bool is_there = was_at(cache, to.rows, entry, slot, from);
      const Y* x = static_cast<const Y*>(cache.past) +
                   (is_there ? at(cache.past_stride, batch, head, from) : 0);
      copy_row<Y, kCount>(is_there, x, static_cast<Y*>(to.data) + at(to.stride, batch, head, slot));
    }
  }

  /// The last token before `end` that a ring keeps at `slot`; negative if none was.
  HEDDLE_DEVICE static i64 token_at(int rows, i64 end, int slot) {
    const i64 behind = (end - 1 - slot) % rows;
    return end - 1 - (behind < 0 ? behind + rows : behind);
  }

  HEDDLE_DEVICE static bool is_new(int rows, const Entry& entry, int slot) {
    const i64 end = static_cast<i64>(entry.past) + entry.added;
    const i64 token = C::kRing ? token_at(rows, end, slot) : slot;
    return token >= entry.past && token < end;
  }

  /// The row of the past that belongs there, if it holds it.
  HEDDLE_DEVICE static bool was_at(const Cache& cache, int rows, const Entry& entry, int slot,
                                   int& from) {
    if (cache.past == nullptr) return false;
    const int held = min_of(rows, cache.past_rows);
    if constexpr (C::kRing) {
      const i64 token = token_at(rows, entry.past, slot);
      if (token < 0 || token < static_cast<i64>(entry.past) - held) return false;
      from = static_cast<int>(token % cache.past_rows);
      return true;
    } else {
      from = slot;
      return slot < entry.past && slot < held;
    }
  }

  template <typename Y, int kCount>
  HEDDLE_DEVICE static void copy_row(bool is_there, const Y* from, Y* to) {
    constexpr int kElements = kCount / max_of(1, attention::Codes<Y>::kColumns);
    /// Elements, of which every row is a multiple.
    constexpr int kTogether = min_of(kRun, 16 / static_cast<int>(sizeof(Y)));
    struct __align__(kTogether * sizeof(Y)) Bytes {
      u8 byte[kTogether * sizeof(Y)];
    };
    for (int c = threadIdx.x % 32 * kTogether; c < kElements; c += 32 * kTogether)
      *reinterpret_cast<Bytes*>(to + c) =
          is_there ? *reinterpret_cast<const Bytes*>(from + c) : Bytes{};
  }
};

}  // namespace heddle::streaming
