// The products of the decode kernel: a step's keys with the queries, and its values with the
// weights. Either are numbers, or codes, which become pairs of f16 in registers.
//
// Sums over columns, and over keys, may be taken in any order: a lane gets its operands of products
// from codes that lie side by side. Of a key the four lanes of a quad take a quarter of the columns
// each, from queries in the same order; of a value the eight quads an eighth each, and so sums of
// them lie.
//
// Turned (decode_config.h) the same registers are the operands, the other way round: two groups of
// eight keys, or of eight columns of O, are one operand's rows, and queries and weights the columns
// of the other.
#pragma once

#include "../attention/code_pairs.cuh"
#include "decode_config.h"
#include "scores.cuh"

namespace heddle::sm80 {

/// The block's rows of queries: row r is of token r / group and of head r % group of the group.
template <typename T>
struct GroupedRows {
  static constexpr bool kInPages = false;
  const attention::Tensor& tensor;
  int batch, first_head, group;

  HEDDLE_DEVICE const T* operator()(int row) const {
    return attention::element_pointer<const T>(tensor, batch, first_head + row % group, row / group,
                                               0);
  }
};

/// Rows of so many bytes of codes. Those that fill lines of 128 bytes lie in them one behind the
/// other, the chunks of each line turned about, so that both lanes that copy lines and those that
/// read rows find them in different banks.
template <int kBytes>
struct CodeTile {
  /// Rows after which chunks lie as before.
  static constexpr int kTurnRows = kBytes < tile::kLineBytes ? 4 * tile::kLineBytes / kBytes : 8;

  HEDDLE_DEVICE static constexpr u32 chunk_offset(int row, int chunk) {
    if constexpr (!codes_fill_lines(kBytes)) return row * code_row_bytes(kBytes) + 16 * chunk;
    const int place = row * (kBytes / 16) + chunk, line = place / 8;
    const int turn = kBytes < tile::kLineBytes ? 2 * (line % 4) : line % 8;
    return 16 * (8 * line + (place % 8 ^ turn));
  }
  /// Of row first + more: more is a lane's, first the same of all, and known when this is compiled,
  /// so that the lane's is counted once for many.
  HEDDLE_DEVICE static constexpr u32 byte_offset(int first, int more, int byte) {
    const int turned = first % kTurnRows;
    return (first - turned) * code_row_bytes(kBytes) + chunk_offset(turned + more, byte / 16) +
           byte % 16;
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
  /// Of a row of queries, a lane's, beside codes.
  static constexpr int kQuarter = Config::kQkDim / 4;
  static constexpr int kVGroups = 2 * ceil_div(Config::kVDim, 16);
  static constexpr bool kTurned = kConfig.turned;
  static_assert(!kTurned || kRowTiles == 1);
  /// Of queries in registers, turned two slices each.
  static constexpr int kQueryFragments = kTurned ? ceil_div(kQkSlices, 2) : kRowTiles * kQkSlices;
  static constexpr bool kKeyCodes = kConfig.k_codes(), kValueCodes = kConfig.v_codes();
  /// Two tiles in two parts are too many.
  static constexpr bool kQueryInRegisters =
      kTurned ||
      (kRowTiles * Config::kQkDim <= 128 && (kRowTiles == 1 || Config::kQueryParts == 1));
  /// What tensor cores multiply: f16 holds all codes.
  using KeyOperand = typename Choice<kKeyCodes, f16, T>::Type;
  using ValueOperand = typename Choice<kValueCodes, f16, T>::Type;
  using QueryTile = tile::PlaneTile<T, kConfig.rows(), Config::kQkDim>;
  using KeyTile = typename Choice<kKeyCodes, CodeTile<kConfig.key_bytes()>,
                                  tile::PlaneTile<T, kKeys, Config::kQkDim>>::Type;
  using ValueTile = typename Choice<kValueCodes, CodeTile<kConfig.value_bytes()>,
                                    tile::PlaneTile<T, kKeys, Config::kVDim>>::Type;
  using KeyPairs = attention::CodePairs<typename Choice<kKeyCodes, typename Config::K, i8>::Type>;
  using ValuePairs =
      attention::CodePairs<typename Choice<kValueCodes, typename Config::V, i8>::Type>;
  /// What all dot products, and sums of values, have too much of: queries, and weights, times what
  /// stands for 0.
  static constexpr bool kKeysLieAbove = kKeyCodes && KeyPairs::kAbove > 0,
                        kValuesLieAbove = kValueCodes && ValuePairs::kAbove > 0;
  /// Of f16 the smallest is 2^-24: many weights below that are a share of a sum. Each is
  /// 2^kWeightBits times as large as it is.
  static constexpr int kWeightBits = kValueCodes ? 15 : 0;
  static constexpr float kWeightScale = 1 << kWeightBits;
  /// Sums of values are so many times what they stand for.
  static constexpr float kSumScale =
      kWeightScale / (kValueCodes ? 1u << ValuePairs::kUnitBits : 1u);
  static constexpr int kQueryParts = Config::kQueryParts;
  using QueryFragment = u32[kQueryParts][4];
  using Queries = QueryFragment[kQueryInRegisters ? kQueryFragments : 1];
  /// Groups of four sums of a tile of rows: of dot products, and of O.
  static constexpr int kDotGroups = kTurned ? kKeys / 16 : kKeys / 8,
                       kOutGroups = kTurned ? kVGroups / 2 : kVGroups;
  /// Behind those of O the weights' own, times what stands for 0.
  static constexpr int kSumGroups = kOutGroups + kValuesLieAbove;
  using Weights = u32[kRowTiles][kKeys / 16][kTurned ? 2 : 4];
  using Dots = float[kRowTiles][kDotGroups][4];
  using DotsBelow = float[kRowTiles][2];
  using Out = float[kRowTiles][kSumGroups][4];

  u32 base;  ///< of shared memory
  int lane, warp;
  u32 query, query_factors;  ///< those of a sequence

  HEDDLE_DEVICE DecodeProducts(u32 memory, int lane_of_warp, int warp_of_block)
      : base(memory),
        lane(lane_of_warp),
        warp(warp_of_block),
        query(memory),
        query_factors(memory + kAt.query_factors) {}

  /// With the queries of one of query_slots().
  HEDDLE_DEVICE DecodeProducts of_slot(int slot) const {
    DecodeProducts products = *this;
    products.query = base + slot * kAt.query_bytes;
    products.query_factors = base + kAt.query_factors + slot * kConfig.query_factors() * 4;
    return products;
  }

  /// Queries in registers, where they are there. Returns what the dot products of the lane's own
  /// row, lane / 4, are to be multiplied by, for row_factor.
  HEDDLE_DEVICE float load_queries(Queries& queries) const {
    if constexpr (kTurned && kKeyCodes) {
      float x[kQuarter];
#pragma unroll
      for (int i = 0; i < kQuarter; i += 8) {
        u32 words[4];
        const int column = lane % 4 * kQuarter + i;
        ptx::load_shared(query + QueryTile::chunk_offset(lane / 4, column / 8), words);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float scales[2];
          ptx::load_shared(query_factors + 4 * (column + 2 * n), scales[0], scales[1]);
          ptx::unpack<T>(words[n], x[i + 2 * n], x[i + 2 * n + 1]);
          x[i + 2 * n] *= scales[0];
          x[i + 2 * n + 1] *= scales[1];
        }
      }
      const float factor = to_f16(x);
#pragma unroll
      for (int pair = 0; pair < kQuarter / 2; ++pair)
#pragma unroll
        for (int part = 0; part < kQueryParts; ++part)
          queries[pair / 4][part][pair % 4] = take_pair(x, pair);
      return factor;
    } else if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int n = 0; n < kQueryFragments; ++n) load_query(n, queries[n]);
    }
    return 1;
  }
  /// What the dot products of a row are to be multiplied by; `own` is what load_queries returned.
  HEDDLE_DEVICE float row_factor(float own, int row) const {
    if constexpr (!kKeyCodes) return 1;
    if constexpr (kTurned) return __shfl_sync(0xffffffffu, own, 4 * row);
    return ptx::load_shared_f32(query_factors + 4 * row);
  }

  /// Brings the scales of the keys' columns, which the queries of a sequence are multiplied by.
  HEDDLE_DEVICE void bring_scales(const attention::Scales& scales, int head) const {
    const float* const from = scales.data + head * scales.stride[0];
    for (int column = threadIdx.x; column < Config::kQkDim; column += kConfig.threads())
      ptx::copy_async_4(query_factors + 4 * column, from + column * scales.stride[1]);
  }

  /// Queries times the scales of the keys' columns, as fragments of f16, and what each row of dot
  /// products is to be multiplied by.
  HEDDLE_DEVICE void prepare_queries(const GroupedRows<T>& from, int first_row, int row_end,
                                     const attention::Scales& scales, int head) const {
    const int first = lane % 4 * kQuarter;
    const float* const column_scales = scales.data + head * scales.stride[0];
    for (int m = warp; m < kRowTiles; m += Config::kWarps) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * m + lane / 4 + 8 * half;
        const bool exists = row < row_end;
        const T* const at = from(exists ? row : first_row) + first;
        float x[kQuarter];
#pragma unroll
        for (int i = 0; i < kQuarter; i += 8) {
          u32 words[4];
          ptx::load_if<16>(exists, at + i, words);
#pragma unroll
          for (int n = 0; n < 4; ++n) ptx::unpack<T>(words[n], x[i + 2 * n], x[i + 2 * n + 1]);
        }
#pragma unroll
        for (int i = 0; i < kQuarter; ++i) x[i] *= column_scales[(first + i) * scales.stride[1]];
        const float factor = to_f16(x);
#pragma unroll
        for (int pair = 0; pair < kQuarter / 2; ++pair)
#pragma unroll
          for (int part = 0; part < kQueryParts; ++part)
            ptx::store_shared(
                query_fragment(m * kQkSlices + pair / 2, part) + 8 * (pair % 2) + 4 * half,
                take_pair(x, pair));
        if (lane % 4 == 0)
          ptx::store_shared(query_factors + 4 * (16 * m + lane / 4 + 8 * half), factor);
      }
    }
  }

  /// What dot products begin with, of a lane's two rows: 0, or what their sums have too much.
  HEDDLE_DEVICE void begin_dots(DotsBelow& below, const Queries& queries) const {
    Dots dots = {};
    if constexpr (kKeysLieAbove) {
#pragma unroll
      for (int k = 0; k < kQkSlices; ++k) {
        // Of slices two pairs each, as multiply_key_codes takes them.
        const u32 even = zero(2 * k), odd = zero(2 * k + 1);
        if constexpr (kTurned) {
#pragma unroll
          for (int part = 0; part < kQueryParts; ++part)
            multiply_query(dots[0][0], even, odd, even, odd, queries, k, part);
        } else {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            QueryFragment a;
            fetch_query(queries, m, k, a);
            multiply_by_parts(dots[m][0], a, even, odd);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) below[m][half] = dots[m][0][kTurned ? half : 2 * half];
  }

  /// dots = the queries' products with the keys at `stage`.
  HEDDLE_DEVICE void multiply_keys(Dots& dots, const DotsBelow& below, const Queries& queries,
                                   u32 stage) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (auto& sums : dots[m])
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = below[m][kTurned ? i % 2 : i / 2];
    if constexpr (kKeyCodes)
      multiply_key_codes(dots, queries, stage);
    else
      multiply_key_numbers(dots, queries, stage);
    order(dots);
  }

  /// A tile's weights as operands of products.
  template <int kSlices, int kRegisters, int kCount>
  HEDDLE_DEVICE static void pack_weights(u32 (&weights)[kSlices][kRegisters],
                                         const float (&scores)[kCount]) {
    if constexpr (kTurned) {
#pragma unroll
      for (int k = 0; k < kSlices; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          weights[k][i] =
              ptx::turn_matrix(ptx::pack<ValueOperand>(scores[4 * k + i], scores[4 * k + 2 + i]));
    } else {
      tile::pack_fragment<ValueOperand, kKeys>(weights, scores);
    }
  }

  /// Leaves a row's sums at shared memory's address `to`.
  HEDDLE_DEVICE void leave_row(const float (&out)[kSumGroups][4], int half, u32 to) const {
    constexpr int kFirst = kTurned ? 1 : 2, kSecond = kTurned ? 2 : 1;  ///< of a row, a column
    const float above = kValuesLieAbove ? out[kSumGroups - 1][kFirst * half] : 0.0f;
#pragma unroll
    for (int n = 0; n < kOutGroups; ++n) {
      const float sums[2] = {out[n][kFirst * half], out[n][kFirst * half + kSecond]};
      if constexpr (!kTurned && !kValueCodes) {
        ptx::store_shared(to + 4 * (8 * n + tile::fragment_column(lane)), sums[0], sums[1]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int group = kTurned ? 2 * n + i : n,
                  place = kTurned ? lane / 4 : tile::fragment_column(lane) + i;
        if constexpr (kValueCodes) {
          // A group is of a pair of codes.
          const float factor = 1.0f / ValuePairs::factor(group % ValuePairs::kCount);
          ptx::store_shared(to + 4 * (place * kVGroups + group), ptx::fma(sums[i], factor, -above));
        } else {
          ptx::store_shared(to + 4 * (8 * group + place), sums[i]);
        }
      }
    }
  }

  /// out += the weights' products with the values at `values`, kSumScale times as large.
  HEDDLE_DEVICE void multiply_values(Out& out, const Weights& weights, u32 values) const {
    if constexpr (kValueCodes)
      multiply_value_codes(out, weights, values);
    else
      multiply_value_numbers(out, weights, values);
  }

 private:
  /// Fragment n of queries, from shared memory.
  HEDDLE_DEVICE void load_query(int n, QueryFragment& a) const {
    if constexpr (kKeyCodes) {
#pragma unroll
      for (int part = 0; part < kQueryParts; ++part)
        ptx::load_shared(query_fragment(n, part), a[part]);
    } else if constexpr (kTurned)
      ptx::load_matrix_x4(query + QueryTile::chunk_offset(lane % 8, 4 * n + lane / 8), a[0]);
    else
      load_row_fragment<T, QueryTile>(query, 16 * (n / kQkSlices), n % kQkSlices, a);
  }
  HEDDLE_DEVICE void fetch_query(const Queries& queries, int m, int k, QueryFragment& a) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int part = 0; part < kQueryParts; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[part][i] = queries[m * kQkSlices + k][part][i];
    } else {
      load_query(m * kQkSlices + k, a);
    }
  }

  HEDDLE_DEVICE u32 query_fragment(int n, int part) const {
    return query + 16 * ((n * kQueryParts + part) * 32 + lane);
  }

  /// Of pair n of a quarter of the columns of a key: what stands for 0, negative.
  HEDDLE_DEVICE static constexpr u32 zero(int n) {
    return attention::negative_pair(attention::zero_pair<typename Config::K>(n % KeyPairs::kCount));
  }

  /// Of a quad that has a row, a quarter each, times a power of 2 that gives the largest number 15
  /// bits before the point. Returns the inverse, as large as the units of keys ask for.
  HEDDLE_DEVICE static float to_f16(float (&x)[kQuarter]) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) most = ptx::max(most, fabsf(x[i]));
    // Of a row with an infinity all else is as good as nothing.
    const u32 exponent = __float_as_uint(tile::quad_max(most)) >> 23;
    const bool is_finite = exponent < 255;
    const u32 kept = max_of(static_cast<int>(exponent), 15);
    const float factor = is_finite ? __uint_as_float((268 - kept) << 23) : 1.0f;
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
      x[i] *= factor;
      if (!is_finite && fabsf(x[i]) < __int_as_float(0x7f800000))
        x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
    }
    // Beyond what f32 holds scores are as good as infinite: the largest is kept from that.
    return is_finite ? __uint_as_float(min_of(kept - 14 + KeyPairs::kUnitBits, 254u) << 23) : 1.0f;
  }
  /// Two of a quarter that lie together as an operand of products, of columns whose codes are
  /// factor(pair) times too large. What rounding them leaves is left in x.
  HEDDLE_DEVICE static u32 take_pair(float (&x)[kQuarter], int pair) {
    const int word = pair / KeyPairs::kCount * 2 * KeyPairs::kCount,
              of_word = pair % KeyPairs::kCount;
    const float factor = KeyPairs::factor(of_word);
    float &low = x[word + KeyPairs::low_code(of_word)],
          &high = x[word + KeyPairs::high_code(of_word)];
    const u32 taken = ptx::pack<f16>(low / factor, high / factor);
    float low_taken, high_taken;
    ptx::unpack<f16>(taken, low_taken, high_taken);
    leave(low, low_taken * factor);
    leave(high, high_taken * factor);
    return taken;
  }
  /// Of an infinity nothing.
  HEDDLE_DEVICE static void leave(float& x, float taken) { x = x == taken ? 0.0f : x - taken; }

  /// A group of sums += two groups of eight keys or columns times slice k of queries or weights.
  template <typename Operand>
  HEDDLE_DEVICE static void multiply_turned(float (&sums)[4], u32 low, u32 high, u32 next_low,
                                            u32 next_high, const u32 (&columns)[2]) {
    const u32 rows[4] = {low, next_low, high, next_high};
    ptx::mma_m16n8k16<Operand>(sums, rows, columns[0], columns[1]);
  }
  /// Of slice k of a part of the queries.
  HEDDLE_DEVICE static void multiply_query(float (&sums)[4], u32 low, u32 high, u32 next_low,
                                           u32 next_high, const Queries& queries, int k, int part) {
    const u32(&two)[4] = queries[k / 2][part];
    const u32 columns[2] = {two[2 * (k % 2)], two[2 * (k % 2) + 1]};
    multiply_turned<KeyOperand>(sums, low, high, next_low, next_high, columns);
  }
  /// A group of sums += a slice of the queries times eight keys of codes.
  HEDDLE_DEVICE static void multiply_by_parts(float (&sums)[4], const QueryFragment& a, u32 low,
                                              u32 high) {
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) ptx::mma_m16n8k16<f16>(sums, a[part], low, high);
  }
  /// As DecodeCells has them.
  HEDDLE_DEVICE static void order(Dots& dots) {
    if constexpr (!kTurned) return;
#pragma unroll
    for (auto& sums : dots[0]) {
      const float second = sums[1];
      sums[1] = sums[2];
      sums[2] = second;
    }
  }
  HEDDLE_DEVICE void multiply_key_numbers(Dots& dots, const Queries& queries, u32 stage) const {
#pragma unroll
    for (int k = 0; k < kQkSlices; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        PlaneFragment<T> b;
        load_transposed_operand<T, KeyTile>(stage, 16 * n, k, b);
        if constexpr (kTurned) {
          multiply_query(dots[0][n], b[0][0], b[0][1], b[0][2], b[0][3], queries, k, 0);
        } else {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            QueryFragment a;
            fetch_query(queries, m, k, a);
            ptx::mma_m16n8k16<T>(dots[m][2 * n], a[0], b[0][0], b[0][1]);
            ptx::mma_m16n8k16<T>(dots[m][2 * n + 1], a[0], b[0][2], b[0][3]);
          }
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
        if constexpr (kTurned) {
          multiply_turned<T>(out[0][n], b[0][0], b[0][1], b[0][2], b[0][3], weights[0][k]);
        } else {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            ptx::mma_m16n8k16<T>(out[m][2 * n], weights[m][k], b[0][0], b[0][1]);
            ptx::mma_m16n8k16<T>(out[m][2 * n + 1], weights[m][k], b[0][2], b[0][3]);
          }
        }
      }
    }
  }

  HEDDLE_DEVICE void multiply_key_codes(Dots& dots, const Queries& queries, u32 stage) const {
    using Pairs = KeyPairs;
    constexpr int kLaneBytes = kConfig.key_bytes() / 4, kBytes = access_bytes(kLaneBytes);
    constexpr int kSlices = kBytes / 4 * Pairs::kCount / 2;  ///< of an access
    // Turned, of the second part: products wait for those before them, and few are at work.
    float rest[kDotGroups][4] = {};
#pragma unroll
    for (int i = 0; i < kLaneBytes / kBytes; ++i) {
      const auto pairs_of = [&](int n, u32(&pairs)[2 * kSlices]) {
        u32 codes[kBytes / 4];
        load_codes(
            stage + KeyTile::byte_offset(8 * n, lane / 4, lane % 4 * kLaneBytes + i * kBytes),
            codes);
#pragma unroll
        for (int word = 0; word < kBytes / 4; ++word)
          Pairs::of(codes[word], pairs + word * Pairs::kCount);
      };
#pragma unroll
      for (int n = 0; n < kDotGroups; ++n) {
        u32 pairs[2 * kSlices];
        if constexpr (kTurned) {
          u32 next[2 * kSlices];
          pairs_of(2 * n, pairs);
          pairs_of(2 * n + 1, next);
#pragma unroll
          for (int k = 0; k < kSlices; ++k)
#pragma unroll
            for (int part = 0; part < kQueryParts; ++part)
              multiply_query(part == 0 ? dots[0][n] : rest[n], pairs[2 * k], pairs[2 * k + 1],
                             next[2 * k], next[2 * k + 1], queries, i * kSlices + k, part);
        } else {
          pairs_of(n, pairs);
#pragma unroll
          for (int k = 0; k < kSlices; ++k) {
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
              QueryFragment a;
              fetch_query(queries, m, i * kSlices + k, a);
              multiply_by_parts(dots[m][n], a, pairs[2 * k], pairs[2 * k + 1]);
            }
          }
        }
      }
    }
    if constexpr (kTurned) {
#pragma unroll
      for (int n = 0; n < kDotGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[0][n][i] += rest[n][i];
    }
  }

  HEDDLE_DEVICE void multiply_value_codes(Out& out, const Weights& weights, u32 values) const {
    using Pairs = ValuePairs;
    constexpr int kLaneBytes = kConfig.value_bytes() / 8, kBytes = access_bytes(kLaneBytes);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      if constexpr (kValuesLieAbove) {
        constexpr u32 kZero = attention::zero_pair<typename Config::V>(0);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          if constexpr (kTurned)
            multiply_turned<f16>(out[m][kOutGroups], kZero, kZero, kZero, kZero, weights[m][k]);
          else
            ptx::mma_m16n8k16<f16>(out[m][kOutGroups], weights[m][k], kZero, kZero);
        }
      }
#pragma unroll
      for (int i = 0; i < kLaneBytes / kBytes; ++i) {
        u32 codes[4][kBytes / 4];
#pragma unroll
        for (int key = 0; key < 4; ++key) {
          load_codes(
              values + ValueTile::byte_offset(16 * k + 8 * (key / 2), 2 * (lane % 4) + key % 2,
                                              lane / 4 * kLaneBytes + i * kBytes),
              codes[key]);
        }
#pragma unroll
        for (int word = 0; word < kBytes / 4; ++word) {
          const auto multiply_half = [&]<int kHalf>() {
            u32 low[Pairs::kCount], high[Pairs::kCount];
            Pairs::of(Pairs::template interleave<kHalf>(codes[0][word], codes[1][word]), low);
            Pairs::of(Pairs::template interleave<kHalf>(codes[2][word], codes[3][word]), high);
            const int first = (2 * (i * kBytes / 4 + word) + kHalf) * Pairs::kCount;
            if constexpr (kTurned) {
#pragma unroll
              for (int pair = 0; pair < Pairs::kCount; pair += 2)
                multiply_turned<f16>(out[0][(first + pair) / 2], low[pair], high[pair],
                                     low[pair + 1], high[pair + 1], weights[0][k]);
            } else {
#pragma unroll
              for (int pair = 0; pair < Pairs::kCount; ++pair)
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m)
                  ptx::mma_m16n8k16<f16>(out[m][first + pair], weights[m][k], low[pair],
                                         high[pair]);
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
