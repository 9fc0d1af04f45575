// The operand that a score expression reads in every cell (a bias, a boolean mask): fetched by the
// copy engine a tile at a time, and taken from shared memory in the order in which the threads of a
// warp group hold S, or S^T.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/tma.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

/// kRows queries a line each, kKeys keys. Boxes of 128 bytes, swizzled: 64 values (f32: 32), or 128
/// booleans, of which the first kKeys count.
template <class Config, int kRows, int kKeys>
struct ScoreTile {
  using C = Config;
  using T = typename C::TiledElement;
  static constexpr bool kThere = C::kTiled != Tiled::none, kBooleans = C::kTiled == Tiled::booleans;
  static constexpr bool kSingles = !kBooleans && is_same<T, float>;
  static constexpr int kBoxKeys = kBooleans ? 128 : kSingles ? 32 : 64;
  static constexpr int kWords = kSingles ? 8 : 4;  ///< of a slice, what a thread holds
  static constexpr int kBoxes = kThere ? (kKeys + kBoxKeys - 1) / kBoxKeys : 0;
  static constexpr int kBoxBytes = kRows * tile::kLineBytes, kBytes = kBoxes * kBoxBytes;
  using Ring = tile::Ring<C::kTiledStages>;
  using Position = tile::RingPosition<C::kTiledStages>;

  /// One thread: the tile of queries from `row` and keys from `key`.
  HEDDLE_DEVICE static void load(const TiledOperand& operand, u32 shared, u32 barrier, int key,
                                 int row, int head, int batch) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box)
      ptx::tma_load_4d(shared + box * kBoxBytes, &operand.map, barrier, key + box * kBoxKeys, row,
                       operand.per_head ? head : 0, operand.per_batch ? batch : 0);
  }

  /// The bytes of w that are not 0, as their highest bits.
  HEDDLE_DEVICE static u32 set_bytes(u32 w) {
    return (((w & 0x7f7f7f7fu) + 0x7f7f7f7fu) | w) & 0x80808080u;
  }

  /// The value at place n of the fragment, of a slice's words.
  HEDDLE_DEVICE static float value(const u32 (&words)[kWords], int n) {
    if constexpr (kSingles) {
      return __uint_as_float(words[n % 8]);
    } else {
      float low, high;
      ptx::unpack<T>(words[n % 8 / 2], low, high);
      return n % 2 == 0 ? low : high;
    }
  }

  /// What a thread holds of a warp group's 64 rows of S, from row `group_row` of the tile.
  struct RowReader {
    u32 address;  ///< of the row this lane gives the address of; of f32, of the lane's own row
    u32 words[kWords];
    u32 bits[2];  ///< of booleans, of each row: 16 * (key / 8 % 2) + 8 * (key % 2) + key / 16

    HEDDLE_DEVICE RowReader(u32 tile, int group_row) {
      const int row = group_row + threadIdx.x % 128 / 32 * 16 +
                      (kSingles ? threadIdx.x % 32 / 4 : threadIdx.x % 16);
      address = tile + row * tile::kLineBytes;
      if constexpr (kBooleans) gather();
    }

    /// The place in the fragment that is to be read as number `turn`. Of booleans that is the order
    /// of their bits: seven come to predicates by one instruction (R2P), where else each takes one
    /// of its own: 4 to 8 % of booleans at d 64, 2 to 4 % at d 128.
    HEDDLE_DEVICE static constexpr int in_turn(int turn) {
      constexpr int kSlices = kKeys / 16;
      return kBooleans ? turn % kSlices * 8 + turn / kSlices : turn;
    }

    /// Takes 16 keys of values, slice `k`: two chunks of 8 keys, each of 8 rows and 8 more.
    HEDDLE_DEVICE void take(int k) {
      if constexpr (kSingles)
        take_singles(k);
      else if constexpr (!kBooleans)
        ptx::load_matrix_x4(chunk(address + k / 4 * kBoxBytes, 2 * (k % 4) + threadIdx.x % 32 / 16),
                            words);
    }

    /// The value at place n of the fragment, which is in the slice taken last.
    HEDDLE_DEVICE float at(int n) const {
      if constexpr (kBooleans) {
        return bits[n / 2 % 2] >> (n / 4 % 2 * 16 + n % 2 * 8 + n / 8) & 1 ? 1.0f : 0.0f;
      } else {
        return value(words, n);
      }
    }

   private:
    HEDDLE_DEVICE static u32 chunk(u32 line, int number) {
      return line + (number ^ threadIdx.x % 8) * 16;
    }
    /// Two neighbouring keys of each eight, of a row and the one 8 further.
    HEDDLE_DEVICE void take_singles(int k) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const u32 pair = address + k / 2 * kBoxBytes + lane % 2 * 8 +
                         ((4 * (k % 2) + 2 * group + lane % 4 / 2) ^ lane / 4) * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::load_shared(pair + 8 * half * tile::kLineBytes, words[4 * group + 2 * half],
                           words[4 * group + 2 * half + 1]);
      }
    }
    /// A matrix of pairs of bytes gives a lane four neighbouring keys, the fragment has two of each
    /// eight: bits are traded within the quad.
    HEDDLE_DEVICE void gather() {
      u32 quads[2] = {0, 0};  // of each row, bit 8 * (key % 4) + key / 16
#pragma unroll
      for (int k = 0; k < ceil_div(kKeys, 32) * 2; k += 2) {
        ptx::load_matrix_x4(chunk(address, k + threadIdx.x % 32 / 16), words);
#pragma unroll
        for (int i = 0; i < 4; ++i) quads[i % 2] |= set_bytes(words[i]) >> (7 - k - i / 2);
      }
      const int lane = threadIdx.x % 32, from = lane / 4 * 4 + lane % 4 / 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 near = __shfl_sync(0xffffffffu, quads[h], from) >> (lane % 2 * 16);
        const u32 far = __shfl_sync(0xffffffffu, quads[h], from + 2) >> (lane % 2 * 16);
        bits[h] = (near & 0xffffu) | far << 16;
      }
    }
  };

  /// What a thread holds of a warp group's 64 rows of S^T, from key `group_key` of the tile.
  struct ColumnReader {
    u32 address;  ///< of the row and chunk whose address this lane gives; of f32, of its first
    u32 words[kWords];
    u32 bits;  ///< of booleans, all: 8 * (key's half) + 16 * (query's parity) + (query / 8)

    HEDDLE_DEVICE ColumnReader(u32 tile, int group_key) {
      static_assert(kRows == 64 && kKeys % 64 == 0);
      const int lane = threadIdx.x % 32, warp_key = group_key + threadIdx.x % 128 / 32 * 16;
      if constexpr (kSingles) {
        const int row = 2 * (lane % 4), chunk = warp_key % 32 / 4 + lane / 16;
        address = tile + warp_key / 32 * kBoxBytes + row * tile::kLineBytes + (chunk ^ row) * 16 +
                  lane / 4 % 4 * 4;
        return;
      }
      const int row = kBooleans ? lane : lane / 16 * 8 + lane % 8;
      const int chunk = kBooleans ? warp_key / 16 : warp_key % 64 / 8 + lane / 8 % 2;
      address = tile + (kBooleans ? 0 : warp_key / 64 * kBoxBytes) + row * tile::kLineBytes +
                (chunk ^ row % 8) * 16;
      if constexpr (kBooleans) gather();
    }

    /// Takes 16 queries of values, slice `k`.
    HEDDLE_DEVICE void take(int k) {
      if constexpr (kSingles)
        take_singles(k);
      else if constexpr (!kBooleans)
        ptx::load_matrix_x4_transposed(address + k * 16 * tile::kLineBytes, words);
    }

    /// The value at place n of the fragment, which is in the slice taken last.
    HEDDLE_DEVICE float at(int n) const {
      if constexpr (kBooleans) {
        return bits >> (n / 8 * 2 + n % 8 / 4 + 8 * (n / 2 % 2) + 16 * (n % 2)) & 1 ? 1.0f : 0.0f;
      } else {
        return value(words, n);
      }
    }

   private:
    /// Two neighbouring queries of each eight, of a key and the one 8 further: no two lanes that
    /// load at once meet in a bank.
    HEDDLE_DEVICE void take_singles(int k) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int half = n / 2 % 2, parity = n % 2;
        // The chunk's number is the exclusive or of the key's and the row's: here of their bits.
        const u32 line = address ^ ((2 * half + parity) * 16);
        words[n] = ptx::load_shared_u32(line + (16 * k + 8 * (n / 4) + parity) * tile::kLineBytes);
      }
    }
    /// A transposing load moves pairs of bytes: it leaves two neighbouring keys with a lane, and
    /// not the two eight apart that the fragment has. Bits trade places cheaper than bytes.
    HEDDLE_DEVICE void gather() {
      const int lane = threadIdx.x % 32;
      u32 pairs = 0;  // bit 16 * (query's parity) + 8 * (key's) + (query / 8)
#pragma unroll
      for (int m = 0; m < kRows / 8; ++m) {
        if (m % 4 == 0) ptx::load_matrix_x4_transposed(address + m * 8 * tile::kLineBytes, words);
        pairs |= set_bytes(words[m % 4]) >> (7 - m);
      }
      const int from = lane / 8 * 4 + lane % 4, parity = lane / 4 % 2;
      const u32 near = __shfl_sync(0xffffffffu, pairs, from) >> (8 * parity);
      const u32 far = __shfl_sync(0xffffffffu, pairs, 16 + from) >> (8 * parity);
      bits = (near & 0x00ff00ffu) | (far & 0x00ff00ffu) << 8;
    }
  };
};

}  // namespace heddle::sm90
