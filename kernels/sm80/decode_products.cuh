// The products of the decode kernel: a step's keys with the queries, and its values with the
// weights. Either are numbers, or codes, which become pairs of f16 in registers.
//
// Sums over columns, and over keys, may be taken in any order: a lane gets its operands of products
// from codes that lie side by side. Of a key the four lanes of a quad take a quarter of the columns
// each, from queries in the same order; of a value the eight quads an eighth each, and so sums of
// them lie.
#pragma once

#include "../attention/code_pairs.cuh"
#include "decode_config.h"
#include "scores.cuh"

namespace heddle::sm80 {

/// The block's rows of queries: row r is of token r / group and of head r % group of the group.
template <typename T>
struct GroupedRows {
  const attention::Tensor& tensor;
  int batch, first_head, group;

  HEDDLE_DEVICE const T* operator()(int row) const {
    return attention::element_pointer<const T>(tensor, batch, first_head + row % group, row / group,
                                               0);
  }
};

/// Rows of so many bytes of codes.
template <int kBytes>
struct CodeTile {
  HEDDLE_DEVICE static constexpr u32 chunk_offset(int row, int chunk) {
    return row * code_row_bytes(kBytes) + 16 * chunk;
  }
};

/// Of the widest accesses by which so many bytes, a multiple of 4, are read.
HEDDLE_DEVICE constexpr int access_bytes(int bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : 4;
}
template <int kWords>
HEDDLE_DEVICE void load_codes(u32 address, u32 (&codes)[kWords]) {
  if constexpr (kWords == 4)
    ptx::load_shared(address, codes);
  else if constexpr (kWords == 2)
    ptx::load_shared(address, codes[0], codes[1]);
  else
    codes[0] = ptx::load_shared_u32(address);
}

/// For a lane of a warp.
template <class Config>
struct DecodeProducts {
  using T = typename Config::Element;
  static constexpr DecodeConfig kConfig = Config::kValues;
  static constexpr DecodeLayout kAt = decode_layout_of(kConfig);
  static constexpr int kRowTiles = Config::kRowTiles, kKeys = Config::kKeys;
  static constexpr int kQkSlices = ceil_div(Config::kQkDim, 16);
  static constexpr int kVGroups = 2 * ceil_div(Config::kVDim, 16);
  static constexpr bool kQueryInRegisters = kRowTiles * Config::kQkDim <= 128;
  static constexpr bool kKeyCodes = kConfig.k_codes(), kValueCodes = kConfig.v_codes();
  /// What tensor cores multiply: f16 holds all codes.
  using KeyOperand = typename Choice<kKeyCodes, f16, T>::Type;
  using ValueOperand = typename Choice<kValueCodes, f16, T>::Type;
  using QueryTile = tile::PlaneTile<T, kConfig.rows(), Config::kQkDim>;
  using KeyTile = typename Choice<kKeyCodes, CodeTile<kConfig.key_bytes()>,
                                  tile::PlaneTile<T, kKeys, Config::kQkDim>>::Type;
  using ValueTile = typename Choice<kValueCodes, CodeTile<kConfig.value_bytes()>,
                                    tile::PlaneTile<T, kKeys, Config::kVDim>>::Type;
  /// Of f16 the smallest is 2^-24: many weights below that are a share of a sum. They are kept so
  /// many times larger.
  static constexpr float kWeightScale = kValueCodes ? 32768.0f : 1.0f;
  using Queries = PlaneFragment<KeyOperand>[kQueryInRegisters ? kRowTiles * kQkSlices : 1];
  using Weights = u32[kRowTiles][kKeys / 16][4];
  using Dots = float[kRowTiles][kKeys / 8][4];
  using Out = float[kRowTiles][kVGroups][4];

  u32 base;  ///< of shared memory
  int lane, warp;
  u32 query;        ///< those of a sequence
  u32 row_factors;  ///< beside codes of keys: of each row of them

  HEDDLE_DEVICE DecodeProducts(u32 memory, int lane_of_warp, int warp_of_block)
      : base(memory),
        lane(lane_of_warp),
        warp(warp_of_block),
        query(memory),
        row_factors(memory + kAt.row_factors) {}

  /// With the queries of one of query_slots().
  HEDDLE_DEVICE DecodeProducts of_slot(int slot) const {
    DecodeProducts products = *this;
    products.query = base + slot * kAt.query_bytes;
    products.row_factors = base + kAt.row_factors + slot * kConfig.rows() * 4;
    return products;
  }

  /// Slice k of query tile m, from shared memory.
  HEDDLE_DEVICE void load_query(int m, int k, PlaneFragment<KeyOperand>& a) const {
    if constexpr (kKeyCodes)
      ptx::load_shared(query_fragment(m, k), a[0]);
    else
      load_row_fragment<T, QueryTile>(query, 16 * m, k, a);
  }
  HEDDLE_DEVICE float row_factor(int row) const {
    return ptx::load_shared_f32(row_factors + 4 * row);
  }

  /// Queries times the scales of the keys' columns, as fragments of f16: rows times a power of 2
  /// that gives the largest number of each 15 bits before the point, and its inverse beside them.
  HEDDLE_DEVICE void prepare_queries(const GroupedRows<T>& from, int first_row, int row_end,
                                     const attention::Scales& scales, int head) const {
    using Pairs = attention::CodePairs<typename Config::K>;
    constexpr int kColumns = Config::kQkDim / 4;
    const int first = lane % 4 * kColumns;
    const float* const column_scales = scales.data + head * scales.stride[0];
    for (int m = warp; m < kRowTiles; m += Config::kWarps) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * m + lane / 4 + 8 * half;
        const bool exists = row < row_end;
        const T* const at = from(exists ? row : first_row) + first;
        float x[kColumns], most = 0;
#pragma unroll
        for (int i = 0; i < kColumns; i += 8) {
          u32 words[4];
          ptx::load_if<16>(exists, at + i, words);
#pragma unroll
          for (int n = 0; n < 4; ++n) ptx::unpack<T>(words[n], x[i + 2 * n], x[i + 2 * n + 1]);
        }
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          x[i] *= column_scales[(first + i) * scales.stride[1]];
          most = ptx::max(most, fabsf(x[i]));
        }
        // Of a row with an infinity all else is as good as nothing.
        const u32 exponent = __float_as_uint(tile::quad_max(most)) >> 23;
        const bool is_finite = exponent < 255;
        const u32 kept = max_of(static_cast<int>(exponent), 15);
        const float factor = is_finite ? __uint_as_float((268 - kept) << 23) : 1.0f;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          x[i] *= factor;
          if (!is_finite && fabsf(x[i]) < __int_as_float(0x7f800000))
            x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
        }
#pragma unroll
        for (int pair = 0; pair < kColumns / 2; ++pair) {
          const int word = pair / Pairs::kCount * 2 * Pairs::kCount, of_word = pair % Pairs::kCount;
          ptx::store_shared(query_fragment(m, pair / 2) + 8 * (pair % 2) + 4 * half,
                            ptx::pack<f16>(x[word + Pairs::low_code(of_word)],
                                           x[word + Pairs::high_code(of_word)]));
        }
        if (lane % 4 == 0)
          ptx::store_shared(row_factors + 4 * (16 * m + lane / 4 + 8 * half),
                            is_finite ? __uint_as_float((kept - 14) << 23) : 1.0f);
      }
    }
  }

  /// dots += the queries' products with the keys at `stage`.
  HEDDLE_DEVICE void multiply_keys(Dots& dots, const Queries& queries, u32 stage) const {
    if constexpr (kKeyCodes)
      multiply_key_codes(dots, queries, stage);
    else
      multiply_key_numbers(dots, queries, stage);
  }

  /// A tile's weights as operands of products.
  HEDDLE_DEVICE static void pack_weights(u32 (&weights)[kKeys / 16][4],
                                         float (&scores)[kKeys / 2]) {
    if constexpr (kValueCodes) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) scores[i] *= kWeightScale;
    }
    tile::pack_fragment<ValueOperand, kKeys>(weights, scores);
  }

  /// out += the weights' products with the values at `values`. Beside codes it is kWeightScale
  /// times as large, and column lane % 4 * 2 + i of group n is value column (that) * kVGroups + n.
  HEDDLE_DEVICE void multiply_values(Out& out, const Weights& weights, u32 values) const {
    if constexpr (kValueCodes)
      multiply_value_codes(out, weights, values);
    else
      multiply_value_numbers(out, weights, values);
  }

 private:
  HEDDLE_DEVICE void fetch_query(const Queries& queries, int m, int k,
                                 PlaneFragment<KeyOperand>& a) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[0][i] = queries[m * kQkSlices + k][0][i];
    } else {
      load_query(m, k, a);
    }
  }

  HEDDLE_DEVICE u32 query_fragment(int m, int k) const {
    return query + 16 * ((m * kQkSlices + k) * 32 + lane);
  }
  HEDDLE_DEVICE void multiply_key_numbers(Dots& dots, const Queries& queries, u32 stage) const {
#pragma unroll
    for (int k = 0; k < kQkSlices; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        PlaneFragment<T> b;
        load_transposed_operand<T, KeyTile>(stage, 16 * n, k, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          PlaneFragment<T> a;
          fetch_query(queries, m, k, a);
          ptx::mma_m16n8k16<T>(dots[m][2 * n], a[0], b[0][0], b[0][1]);
          ptx::mma_m16n8k16<T>(dots[m][2 * n + 1], a[0], b[0][2], b[0][3]);
        }
      }
    }
  }
  HEDDLE_DEVICE void multiply_value_numbers(Out& out, const Weights& weights, u32 values) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kVGroups / 2; ++n) {
        PlaneFragment<T> b;
        load_operand<T, ValueTile>(values, 16 * k, 16 * n, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::mma_m16n8k16<T>(out[m][2 * n], weights[m][k], b[0][0], b[0][1]);
          ptx::mma_m16n8k16<T>(out[m][2 * n + 1], weights[m][k], b[0][2], b[0][3]);
        }
      }
    }
  }

  HEDDLE_DEVICE void multiply_key_codes(Dots& dots, const Queries& queries, u32 stage) const {
    using Pairs = attention::CodePairs<typename Config::K>;
    constexpr int kLaneBytes = kConfig.key_bytes() / 4, kBytes = access_bytes(kLaneBytes);
    constexpr int kSlices = kBytes / 4 * Pairs::kCount / 2;  ///< of an access
    const u32 mine = stage + KeyTile::chunk_offset(lane / 4, 0) + lane % 4 * kLaneBytes;
#pragma unroll
    for (int i = 0; i < kLaneBytes / kBytes; ++i) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        u32 codes[kBytes / 4], pairs[2 * kSlices];
        load_codes(mine + KeyTile::chunk_offset(8 * n, 0) + i * kBytes, codes);
#pragma unroll
        for (int word = 0; word < kBytes / 4; ++word)
          Pairs::of(codes[word], pairs + word * Pairs::kCount);
#pragma unroll
        for (int k = 0; k < kSlices; ++k) {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            PlaneFragment<f16> a;
            fetch_query(queries, m, i * kSlices + k, a);
            ptx::mma_m16n8k16<f16>(dots[m][n], a[0], pairs[2 * k], pairs[2 * k + 1]);
          }
        }
      }
    }
  }

  HEDDLE_DEVICE void multiply_value_codes(Out& out, const Weights& weights, u32 values) const {
    using Pairs = attention::CodePairs<typename Config::V>;
    constexpr int kLaneBytes = kConfig.value_bytes() / 8, kBytes = access_bytes(kLaneBytes);
    const u32 mine = values + lane / 4 * kLaneBytes;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < kLaneBytes / kBytes; ++i) {
        u32 codes[4][kBytes / 4];
#pragma unroll
        for (int key = 0; key < 4; ++key) {
          const int row = 16 * k + 2 * (lane % 4) + key % 2 + key / 2 * 8;
          load_codes(mine + ValueTile::chunk_offset(row, 0) + i * kBytes, codes[key]);
        }
#pragma unroll
        for (int word = 0; word < kBytes / 4; ++word) {
          const auto multiply_half = [&]<int kHalf>() {
            u32 low[Pairs::kCount], high[Pairs::kCount];
            Pairs::of(Pairs::template interleave<kHalf>(codes[0][word], codes[1][word]), low);
            Pairs::of(Pairs::template interleave<kHalf>(codes[2][word], codes[3][word]), high);
#pragma unroll
            for (int pair = 0; pair < Pairs::kCount; ++pair) {
              const int n = (2 * (i * kBytes / 4 + word) + kHalf) * Pairs::kCount + pair;
#pragma unroll
              for (int m = 0; m < kRowTiles; ++m)
                ptx::mma_m16n8k16<f16>(out[m][n], weights[m][k], low[pair], high[pair]);
            }
          };
          multiply_half.template operator()<0>();
          multiply_half.template operator()<1>();
        }
      }
    }
  }
};

}  // namespace heddle::sm80
