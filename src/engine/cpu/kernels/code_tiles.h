// Products of few rows of f32 with keys and values that are codes, by tiles: codes are multiplied
// as they are, and the other factor is taken apart into numbers as short as the machine multiplies,
// which lose no more of it than f32 does.
//
// Integers, for codes of 8 and of 4 bits: a row of the other factor is whole numbers of 31 bits
// times a power of two, in four digits. Sums of their products are not rounded.
// ShortFloats, for f8e4m3, whose numbers are bf16's too: an f32 is the sum of three bf16.
//
// Parts of four rows are the 16 rows, or columns, of a tile. Keys are a tile's rows as they lie,
// parts of Q its columns; values are interleaved, as many keys to a word as it has codes, for parts
// of P. While one of K and V is multiplied, the other's next rows are fetched.
//
// A step of 32 heads on 8, 8192 keys of d 128, 16 threads of a Sapphire Rapids, from products in
// f32 (few_rows.h) to these: int8 0.30 to 0.19 ms, int4 0.38 to 0.19, f8e4m3 0.47 to 0.41. What is
// left is not products: half of it interleaves values, a third copies keys, a tenth is the softmax
// (by profile, int8, with tiles that do nothing).
#pragma once

#include "engine/cpu/kernels/few_rows.h"
#include "engine/cpu/kernels/softmax.h"
#if defined(HEDDLE_CPU_LEVEL_BF16)
#include "engine/cpu/kernels/tile_products.h"
#endif

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

#if defined(HEDDLE_CPU_LEVEL_BF16)

/// Codes that are widened at a time, columns of values that are multiplied at a time.
inline constexpr int64_t kCodeColumns = 64;

/// 2^n of the normal range.
inline float power_of_two(int n) {
  const uint32_t bits = static_cast<uint32_t>(n + 127) << 23;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

/// What is the same of both kinds of whole numbers.
struct Integers {
  using Code = int8_t;
  static constexpr int kPerWord = 4, kParts = 4;

  /// What numbers of up to `most` are multiplied by before they are taken apart: to less than 2^30.
  static int power(float most) {
    uint32_t bits;
    __builtin_memcpy(&bits, &most, sizeof bits);
    const int n = 156 - static_cast<int>(bits >> 23);
    return n < 110 ? n : 110;
  }
  static float weight(int part, int power) { return power_of_two(8 * part - power); }
  /// Whether numbers of 0 and more, count of them, lose no more than in f32: what is rounded away
  /// is as large a part of the largest, and where that and two others are all that weighs much,
  /// their values may be 0 (the first tokens of a sequence, which many models pass their attention
  /// to).
  static bool hold(const Real* x, int64_t count) {
    Float most = zero(), large = zero(), rest = zero();
    for (int64_t i = 0; i < count; i += kLanes) most = max(most, load(x + i));
    const Float limit = all(max_of_lanes(most) * 0x1p-5f);
    for (int64_t i = 0; i < count; i += kLanes) {
      const Mask is_small = less(load(x + i), limit);
      large = add(large, select(is_small, zero(), all(1)));
      rest = max(rest, select(is_small, load(x + i), zero()));
    }
    return max_of_lanes(rest) == 0 || sum_of_lanes(large) > 3;
  }
  static void store_parts(Code* p, int64_t pitch, Float x) { store_digits(p, pitch, x); }
  static void interleave(const Code* const (&row)[4], float* out, int64_t pitch) {
    interleave_four(row, out, pitch);
  }
  template <int sum, int a, int b>
  static void add_product() {
    add_integer_product_of_tiles<sum, a, b>();
  }
  static Float sums(const float* p) { return load_integers(p); }
};

struct EightBits : Integers {
  static constexpr int64_t kPerByte = 1;
  static constexpr bool kLieReady = true;  ///< in memory as tiles take them

  static bool serves(const View& v) { return v.element == Element::i8 && v.stride[3] == 1; }
  /// kCodeColumns of them.
  static void widen(const char* p, Code* out) { __builtin_memcpy(out, p, kCodeColumns); }
};

struct FourBits : Integers {
  static constexpr int64_t kPerByte = 2;
  static constexpr bool kLieReady = false;

  static bool serves(const View& v) { return v.element == Element::i4; }
  static void widen(const char* p, Code* out) {
    widen_i4(reinterpret_cast<const uint8_t*>(p), out);
  }
};

struct ShortFloats {
  using Code = uint16_t;
  static constexpr int kPerWord = 2, kParts = 3;
  static constexpr int64_t kPerByte = 1;
  static constexpr bool kLieReady = false;

  static bool serves(const View& v) { return v.element == Element::f8e4m3 && v.stride[3] == 1; }
  static int power(float) { return 0; }
  static float weight(int, int) { return 1; }
  static bool hold(const Real*, int64_t) { return true; }
  static void store_parts(Code* p, int64_t pitch, Float x) {
    for (int n = kParts - 1; n >= 0; --n) {
      store_bf16_fast(p + n * pitch, x);
      x = subtract(x, load_bf16(p + n * pitch));
    }
  }
  static void widen(const char* p, Code* out) {
    widen_f8e4m3(reinterpret_cast<const uint8_t*>(p), out);
  }
  static void interleave(const Code* const (&row)[2], float* out, int64_t pitch) {
    for (int n = 0; n < kCodeColumns / kLanes; ++n)
      store(out + n * pitch, pair_up(row[0] + n * kLanes, row[1] + n * kLanes));
  }
  template <int sum, int a, int b>
  static void add_product() {
    add_product_of_tiles<sum, a, b>();
  }
  static Float sums(const float* p) { return load(p); }
};

/// f(T()) of the T that serves the codes; false if there is none, or if f says so.
template <class F>
inline bool with_codes_of(const View& v, F f) {
  if (EightBits::serves(v)) return f(EightBits());
  if (FourBits::serves(v)) return f(FourBits());
  return ShortFloats::serves(v) && f(ShortFloats());
}

/// The codes of a row from column d on; behind the last, where parts of Q are 0, those of zeros.
template <class T>
inline void widen_codes(const char* row, int64_t d, int64_t columns, typename T::Code* out) {
  const char* p = row + d / T::kPerByte;
  const int64_t left = columns - d;
  if (left >= kCodeColumns) return T::widen(p, out);
  char some[kCodeColumns] = {};
  __builtin_memcpy(some, p, static_cast<size_t>((left + T::kPerByte - 1) / T::kPerByte));
  T::widen(some, out);
}

/// What a task has of it. Rows come in sets of kSetRows.
class CodeTiles {
 public:
  CodeTiles(const ForwardScratch& at, void* memory) {
    char* const base = static_cast<char*>(memory);
    const auto floats = [&](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
    queries_ = floats(at.code_queries), weights_ = floats(at.code_weights);
    rows_ = floats(at.code_rows), parts_ = floats(at.code_parts);
    values_ = floats(at.code_values), sums_ = floats(at.code_sums);
  }

  /// Takes Q apart, for keys of this kind. Products in f32 serve rows with what is no number, or
  /// with numbers that are far from any that a program has.
  void take_queries(const View& keys, const Real* q, int64_t pitch, int64_t columns, int rows) {
    has_queries_ = true;
    for (int r = 0; r < rows && has_queries_; ++r)
      has_queries_ = can_be_taken_apart(q + r * pitch, columns);
    if (!has_queries_) return;
    has_queries_ = with_codes_of(keys, [&](auto codes) {
      take_apart<decltype(codes)>(q, pitch, columns, rows);
      return true;
    });
  }

  /// As few_rows_scores(), while `values` are fetched; false if these keys, or rows of Q, are not
  /// for tiles.
  bool scores(const RowRange& keys, const RowRange& values, int64_t columns, int rows,
              int64_t first, int64_t last, Real* out, int64_t pitch) const {
    return has_queries_ && with_codes_of(*keys.view, [&](auto codes) {
             multiply_keys<decltype(codes)>(keys, values, columns, rows, first, last, out, pitch);
             return true;
           });
  }

  /// As few_rows_output(), while `next` keys are fetched; false if these values, or their weights,
  /// are not for tiles.
  bool output(const RowRange& values, const RowRange& next, int64_t columns, int rows,
              const Real* p, int64_t pitch, int64_t first, int64_t last, Real* o,
              int64_t o_pitch) const {
    return with_codes_of(*values.view, [&](auto codes) {
      return multiply_values<decltype(codes)>(values, next, columns, rows, p, pitch, first, last, o,
                                              o_pitch);
    });
  }

 private:
  static constexpr int kSetRows = 4, kTileRows = 16;
  static constexpr int64_t kTileWords = 16 * 16;

  static bool can_be_taken_apart(const Real* q, int64_t columns) {
    Float most = zero(), nothing = zero();
    for (int64_t d = 0; d < columns; d += kLanes) {
      most = max(most, absolute(load(q + d)));
      nothing = add(nothing, multiply(load(q + d), zero()));
    }
    const float m = max_of_lanes(most);
    return sum_of_lanes(nothing) == 0 && m < 0x1p100f && (m == 0 || m > 0x1p-80f);
  }

  /// Words that a row of codes takes.
  template <class T>
  static int64_t words(int64_t columns) {
    return round_up(columns, kCodeColumns) / T::kPerWord;
  }

  /// Parts of row r of a set from x[first] on, count of them, at `parts`; then zeros up to `end`.
  template <class T>
  static void store_row(const Real* x, int64_t count, int64_t end, int64_t pitch, int r,
                        float* parts, float* weights) {
    Float most = zero();
    for (int64_t i = 0; i < count; i += kLanes) most = max(most, absolute(load(x + i)));
    const int power = T::power(max_of_lanes(most));
    const Float unit = all(power_of_two(power));
    auto* out = reinterpret_cast<typename T::Code*>(parts) + r * pitch;
    for (int64_t i = 0; i < end; i += kLanes)
      T::store_parts(out + i, kSetRows * pitch, i < count ? multiply(load(x + i), unit) : zero());
    for (int n = 0; n < T::kParts; ++n) weights[n] = T::weight(n, power);
  }

  /// The sum of row r's parts, kSetRows vectors apart.
  template <class T, class Part>
  static Float joined(const float* weights, const Part& part) {
    Float sum = multiply(part(0), all(weights[0]));
    for (int n = 1; n < T::kParts; ++n) sum = multiply_add(part(n), all(weights[n]), sum);
    return sum;
  }

  /// Row by row in rows_, then as columns: B's tiles, of 16 words of the rows each.
  template <class T>
  void take_apart(const Real* q, int64_t q_pitch, int64_t columns, int rows) {
    const int64_t pitch = words<T>(columns);
    for (int first = 0; first < rows; first += kSetRows) {
      fill(rows_, kTileRows * pitch, 0);
      for (int r = 0; r < smaller(kSetRows, rows - first); ++r)
        store_row<T>(q + (first + r) * q_pitch, columns, round_up(columns, kLanes),
                     pitch * T::kPerWord, r, rows_, weights_ + (first + r) * 4);
      float* tile = queries_ + first / kSetRows * kTileRows * pitch;
      for (int64_t word = 0; word < pitch; word += 16, tile += kTileWords) {
        Float block[kLanes];
        for (int n = 0; n < kLanes; ++n) block[n] = load(rows_ + n * pitch + word);
        transpose(block);
        for (int n = 0; n < kLanes; ++n) store(tile + n * 16, block[n]);
      }
    }
  }

  template <class T>
  void multiply_keys(const RowRange& keys, const RowRange& values, int64_t columns, int rows,
                     int64_t first, int64_t last, Real* scores, int64_t pitch) const {
    using Code = typename T::Code;
    const RowAddresses address(keys);
    const int64_t row_words = words<T>(columns);
    for (int64_t j = first; j < last; j += kTileRows) {
      fetch_rows(values, j);
      const char* row[kTileRows];
      address.take(j, row);
      for (int r = 0; r < kTileRows; ++r) {
        float* const out = rows_ + r * row_words;
        if (!row[r]) fill(out, row_words, 0);
        for (int64_t d = 0; row[r] && d < columns; d += kCodeColumns)
          widen_codes<T>(row[r], d, columns, reinterpret_cast<Code*>(out) + d);
      }
      for (int set = 0; set * kSetRows < rows; ++set) {
        const float* q = queries_ + set * kTileRows * row_words;
        zero_tile<0>();
        for (int64_t word = 0; word < row_words; word += 16, q += kTileWords) {
          load_tile<1>(rows_ + word, row_words);
          load_tile<2>(q, 16);
          T::template add_product<0, 1, 2>();
        }
        store_tile<0>(sums_, 16);
        Float part[kLanes];
        for (int n = 0; n < kLanes; ++n) part[n] = T::sums(sums_ + n * 16);
        transpose(part);
        for (int r = 0; r < kSetRows; ++r) {
          const int row = set * kSetRows + r;
          store(scores + row * pitch + j,
                joined<T>(weights_ + row * 4, [&](int n) { return part[n * kSetRows + r]; }));
        }
      }
    }
  }

  /// Columns from d on, of keys from `first` on, as B's tiles: those of each 16 columns one after
  /// the other.
  template <class T>
  void interleave_values(const RowAddresses address, const RowRange& next, int64_t columns,
                         int64_t d, int64_t first, int64_t count) const {
    using Code = typename T::Code;
    static constexpr Code kNothing[kCodeColumns] = {};
    const bool lie_ready = T::kLieReady && columns - d >= kCodeColumns;
    for (int64_t k = 0; k < count; k += T::kPerWord) {
      if (d == 0 && k % kLanes == 0) fetch_rows(next, k);
      alignas(64) Code widened[T::kPerWord][kCodeColumns];
      const char* p[T::kPerWord];
      address.take(first + k, p);
      const Code* row[T::kPerWord];
      for (int i = 0; i < T::kPerWord; ++i) {
        row[i] = !p[i]       ? kNothing
                 : lie_ready ? reinterpret_cast<const Code*>(p[i]) + d
                             : widened[i];
        if (p[i] && !lie_ready) widen_codes<T>(p[i], d, columns, widened[i]);
      }
      T::interleave(row, values_ + k / T::kPerWord * 16, kForwardKeys / T::kPerWord * 16);
    }
  }

  template <class T>
  bool multiply_values(const RowRange& values, const RowRange& next, int64_t columns, int rows,
                       const Real* p, int64_t p_pitch, int64_t first, int64_t last, Real* o,
                       int64_t o_pitch) const {
    constexpr int64_t kKeys = 16 * T::kPerWord;             // of a tile
    constexpr int64_t kPitch = kForwardKeys / T::kPerWord;  // words of a row of parts
    constexpr int64_t kSetWords = kTileRows * kPitch;
    for (int r = 0; r < rows; ++r)
      if (!T::hold(p + r * p_pitch + first, last - first)) return false;
    const int64_t count = round_up(last - first, kKeys);
    float weights[kShape.few_rows][4];
    for (int r = 0; r < rows; ++r)
      store_row<T>(p + r * p_pitch + first, last - first, count, kForwardKeys, r % kSetRows,
                   parts_ + r / kSetRows * kSetWords, weights[r]);
    const RowAddresses address(values);
    for (int64_t d = 0; d < columns; d += kCodeColumns) {
      interleave_values<T>(address, next, columns, d, first, count);
      const int64_t left = columns - d;
      for (int set = 0; set * kSetRows < rows; ++set) {
        const float* const a = parts_ + set * kSetWords;
        zero_tile<0>();
        zero_tile<1>();
        zero_tile<2>();
        zero_tile<3>();
        for (int64_t word = 0; word < count / T::kPerWord; word += 16) {
          const float* const b = values_ + word * 16;
          load_tile<4>(a + word, kPitch);
          load_tile<5>(b, 16);
          T::template add_product<0, 4, 5>();
          if (left > 16) {
            load_tile<6>(b + kPitch * 16, 16);
            T::template add_product<1, 4, 6>();
          }
          if (left > 32) {
            load_tile<5>(b + 2 * kPitch * 16, 16);
            T::template add_product<2, 4, 5>();
          }
          if (left > 48) {
            load_tile<6>(b + 3 * kPitch * 16, 16);
            T::template add_product<3, 4, 6>();
          }
        }
        store_tile<0>(sums_, kCodeColumns);
        store_tile<1>(sums_ + 16, kCodeColumns);
        store_tile<2>(sums_ + 32, kCodeColumns);
        store_tile<3>(sums_ + 48, kCodeColumns);
        for (int r = 0; r < smaller(kSetRows, rows - set * kSetRows); ++r) {
          const int row = set * kSetRows + r;
          Real* const out = o + row * o_pitch + d;
          for (int64_t c = 0; c < smaller(left, kCodeColumns); c += kLanes)
            store(out + c, add(load(out + c), joined<T>(weights[row], [&](int n) {
                                 return T::sums(sums_ + (n * kSetRows + r) * kCodeColumns + c);
                               })));
        }
      }
    }
    return true;
  }

  float *queries_, *weights_, *rows_, *parts_, *values_, *sums_;
  bool has_queries_ = false;
};

#else

/// A machine without tiles.
struct CodeTiles {
  CodeTiles(const ForwardScratch&, void*) {}
  void take_queries(const View&, const Real*, int64_t, int64_t, int) {}
  bool scores(const RowRange&, const RowRange&, int64_t, int, int64_t, int64_t, Real*,
              int64_t) const {
    return false;
  }
  bool output(const RowRange&, const RowRange&, int64_t, int, const Real*, int64_t, int64_t,
              int64_t, Real*, int64_t) const {
    return false;
  }
};

#endif

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
