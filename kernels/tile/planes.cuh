// Elements as what tensor cores multiply exactly: 16-bit planes. bf16 and f16 are one plane; an f32
// is the exact sum of three bf16 of 8 significant bits each, cut off one after the other, so that
// it needs neither a scale nor a pass over the data to find one.
//
// Of the nine products of two such triples the six largest are taken; the others are below 2^-24 of
// the whole. Tensor cores cut their sums off where f32 arithmetic rounds them, which in long sums
// of one sign adds up: the products of first planes are therefore summed over one tile only and
// then added in f32, and the small products on their own beside them.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/types.cuh"
#include "shared_tile.cuh"

namespace heddle::tile {

template <typename T>
struct Planes {
  using Element = T;
  static constexpr int kCount = 1;
};
template <>
struct Planes<float> {
  using Element = bf16;
  static constexpr int kCount = 3;
};

/// A tile of T in shared memory, plane after plane.
template <typename T, int kRowCount, int kColumnCount>
struct PlaneTile : SharedTile<kRowCount, kColumnCount> {
  static constexpr int kPlanes = Planes<T>::kCount;
  static constexpr int kPlaneBytes = SharedTile<kRowCount, kColumnCount>::kBytes;
  static constexpr int kBytes = kPlanes * kPlaneBytes;
};

/// Splits a pair of values: word i of each plane is its share of them, packed.
template <int kPlanes, int kWords>
HEDDLE_DEVICE void split_pair(float low, float high, u32 (&words)[kPlanes][kWords], int i) {
  constexpr u32 kUpperHalves = 0x7632;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    words[plane][i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), kUpperHalves);
    low -= __uint_as_float(__float_as_uint(low) & 0xffff0000u);
    high -= __uint_as_float(__float_as_uint(high) & 0xffff0000u);
  }
}

/// What sums of equal sign lack after one slice of 16 and after two, as a share of themselves: of
/// dot products, and of sums over keys or queries (measured).
template <int kSlices>
inline constexpr float kDotsLack = (kSlices == 1 ? 0.45f : 0.67f) * 0x1p-23f;
template <int kSlices>
inline constexpr float kSumsLack = (kSlices == 1 ? 0.43f : 0.59f) * 0x1p-23f;

/// A operand of one product: a fragment of 16 x 16 for each plane.
template <typename T>
using PlaneFragment = u32[Planes<T>::kCount][4];

/// Sums (16 x 8*kGroups) of a product over some slices, large terms apart from small ones.
template <typename T, int kGroups>
struct PlaneSums {
  float large[kGroups][4], small[kGroups][4];

  /// Zeroes the sums once d[0..kGroups-1] are known: the assembler would put off the additions to
  /// them to the end of everything, with all sums held until then.
  HEDDLE_DEVICE void clear_after(const float (*d)[4]) {
    const u32 none = blockDim.y - 1;  // 0, which the assembler cannot know
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        large[n][i] = __uint_as_float(__float_as_uint(d[n][i]) & none);
        small[n][i] = large[n][i];
      }
    }
  }

  /// Adds a * b for column groups n and n + 1, whose operands b holds (see load_matrix_x4).
  /// kTransposed: in the order of b * a, which rounds to the same numbers.
  template <bool kTransposed>
  HEDDLE_DEVICE void multiply(int n, const PlaneFragment<T>& a, const PlaneFragment<T>& b) {
    using Plane = typename Planes<T>::Element;
#pragma unroll
    for (int rank = Planes<T>::kCount - 1; rank >= 0; --rank) {
#pragma unroll
      for (int i = 0; i <= rank; ++i) {
        auto& sums = rank == 0 ? large : small;
        const int of_a = kTransposed ? rank - i : i, of_b = rank - of_a;
        ptx::mma_m16n8k16<Plane>(sums[n], a[of_a], b[of_b][0], b[of_b][1]);
        ptx::mma_m16n8k16<Plane>(sums[n + 1], a[of_a], b[of_b][2], b[of_b][3]);
      }
    }
  }

  /// d += the sums of column group n, which lack a share of themselves: beside the small
  /// products f32 can tell it.
  HEDDLE_DEVICE void add_to(int n, float (&d)[4], float lacking) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Infinity times a plane that happens to be zero is no number, unlike infinity times the
      // whole: infinite and undefined results are those of the first planes alone.
      const bool finite = fabsf(large[n][i]) < __int_as_float(0x7f800000);
      const float rest = finite ? ptx::fma(large[n][i], lacking, small[n][i]) : 0.0f;
      d[i] += large[n][i] + rest;
    }
  }
};

}  // namespace heddle::tile
