// Products of few query rows by the machine's tiles: a tile has sixteen rows, of which a group's
// queries, or their probabilities, take a few. Keys are the rows of a tile where they lie, if they
// are bf16, so that a cache is read and hardly touched; codes become bf16, which holds them all.
//
//   scores   16 or 32 keys x the columns of Q,    sums over whole tiles of d
//   output   the rows of P x 32 columns of V,     sums over 64 keys, two rows of V side by side
//
// A number of f32 is the sum of three of bf16, cut off 8 bits at a time: with codes the queries,
// which have the codes' scales in them, and the probabilities are so many rows, as far as a tile
// has room (three parts of five rows, two of eight). An infinity that meets parts of both signs, or
// a 0, would be a NaN; codes have none. Where all is bf16 there is one part, and probabilities are
// rounded as tiles of many rows round them.
//
// Multiplying codes in f32 took a core three times what it takes to read them (few_rows.h).
#pragma once

#include "engine/cpu/kernels/constants.h"
#include "engine/cpu/kernels/few_rows.h"
#include "engine/cpu/kernels/tile_products.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Rows of anything as bf16 pairs, zeros up to whole tiles.
struct CodePairs : Tiles {
  static constexpr int64_t kUnit = kPack * kDepth;

  static bool lies_ready(const View& v) {
    return v.element == Element::bf16 && v.stride[3] == 1 && v.stride[2] % kPack == 0 &&
           v.dims[3] % kUnit == 0;
  }
  static void read(const View& v, const char* p, int64_t columns, Real* words) {
    uint16_t* const out = reinterpret_cast<uint16_t*>(words);
    const int64_t whole = v.stride[3] == 1 ? columns / kLanes * kLanes : 0;
    if (whole > 0 && v.element == Element::bf16) {
      __builtin_memcpy(out, p, static_cast<size_t>(whole) * sizeof *out);
    } else if (whole > 0 && v.element == Element::i8) {
      convert(whole, out,
              [&](int64_t d) { return load_i8(reinterpret_cast<const int8_t*>(p) + d); });
    } else if (whole > 0 && v.element == Element::f8e4m3) {
      convert(whole, out,
              [&](int64_t d) { return load_f8e4m3(reinterpret_cast<const uint8_t*>(p) + d); });
    } else if (v.element == Element::i4) {
      return read_four_bits(reinterpret_cast<const uint8_t*>(p), columns, out);
    }
    for (int64_t d = whole; d < round_up(columns, kUnit); d += kLanes) {
      Real rest[kLanes] = {};
      if (d < columns) {
        read_row(v.element, p + d * v.stride[3] * v.element_bytes, v.stride[3], v.element_bytes,
                 smaller(kLanes, columns - d), rest);
      }
      store_bf16_fast(out + d, load(rest));
    }
  }

 private:
  template <class Load>
  static void convert(int64_t columns, uint16_t* out, const Load& load_at) {
    for (int64_t d = 0; d < columns; d += kLanes) store_bf16_fast(out + d, load_at(d));
  }
  static void read_four_bits(const uint8_t* p, int64_t columns, uint16_t* out) {
    const int64_t whole = columns / kLanes * kLanes;
    convert(whole, out, [&](int64_t d) { return load_i4(p + d / 2); });
    for (int64_t d = whole; d < round_up(columns, kUnit); d += kLanes) {
      Real rest[kLanes] = {};
      if (d < columns) read_four_bit_row(p + d / 2, columns - d, rest);
      store_bf16_fast(out + d, load(rest));
    }
  }
};

/// How queries and probabilities lie in tiles: part n of row r is row n * rows + r of them.
struct TileRows {
  int rows, parts;
};
inline TileRows tile_rows_of(const AttentionArguments& a, int64_t rows) {
  const bool are_exact = a.k->element == Element::bf16;
  const int64_t parts = are_exact ? 1 : smaller(3, 16 / larger(1, rows));
  return {static_cast<int>(rows), static_cast<int>(parts)};
}

/// Part after part of x goes to out, `pitch` numbers apart; the last is rounded if it is the only
/// one.
inline void store_parts(Float x, int parts, int64_t pitch, uint16_t* out) {
  if (parts == 1) return store_bf16_fast(out, x);
  for (int n = 0; n < parts; ++n, out += pitch) {
    const Float high = high_of_pairs(x);
    store_bf16_fast(out, high);
    // Of an infinity nothing is left.
    x = select(less(absolute(x), all(kInfinity)), subtract(x, high), zero());
  }
}

/// The queries' parts as columns: words[word][column], sixteen of these. `rows_of_parts` has room
/// for as much.
inline void pack_queries(TileRows of, const Real* q, int64_t q_pitch, int64_t columns,
                         Real* rows_of_parts, Real* words) {
  const int64_t depth = words_of<CodePairs>(columns);
  fill(rows_of_parts, 16 * depth, 0);
  for (int r = 0; r < of.rows; ++r) {
    for (int64_t d = 0; d < columns; d += kLanes) {
      const int width = static_cast<int>(smaller(kLanes, columns - d));
      const Real* from = q + r * q_pitch + d;
      store_parts(width == kLanes ? load(from) : load_first(from, width), of.parts,
                  of.rows * depth * CodePairs::kPack,
                  reinterpret_cast<uint16_t*>(rows_of_parts + r * depth) + d);
    }
  }
  static_assert(kLanes == 16);
  for (int64_t w = 0; w < depth; w += kLanes) {
    Float block[kLanes];
    for (int c = 0; c < kLanes; ++c) block[c] = load(rows_of_parts + c * depth + w);
    transpose(block);
    for (int c = 0; c < kLanes; ++c) store(words + (w + c) * kLanes, block[c]);
  }
}

/// scores[r * pitch + j .. j + 16) = the sums of the parts' columns of dots[key][column].
inline void store_scores(TileRows of, const Real* dots, Real* scores, int64_t pitch) {
  Float column[kLanes];
#pragma GCC unroll 16
  for (int c = 0; c < kLanes; ++c) column[c] = load(dots + c * kLanes);
  transpose(column);
  Real sums[kLanes * kLanes];
#pragma GCC unroll 16
  for (int c = 0; c < kLanes; ++c) store(sums + c * kLanes, column[c]);
  for (int r = 0; r < of.rows; ++r) {
    Float sum = zero();
    for (int n = of.parts - 1; n >= 0; --n) sum = add(sum, load(sums + (n * of.rows + r) * kLanes));
    store(scores + r * pitch, sum);
  }
}

/// Keys at once, and rows of V.
inline constexpr int64_t kKeysAtOnce = 32, kValuesAtOnce = 64;

/// Rows as tiles read them.
struct PairRows {
  const Real* first;
  int64_t stride;  ///< in words
};
/// `count` rows from `at` on where they lie, or in `staging`, those that do not exist zeros.
inline PairRows pair_rows(const RowRange& rows, int64_t at, int64_t count, int64_t columns,
                          Real* staging) {
  const View& v = *rows.view;
  const bool by_steps = !v.pages && !v.ring;
  if (CodePairs::lies_ready(v) && by_steps && at + count <= rows.count) {
    return {reinterpret_cast<const Real*>(rows.address(at)), v.stride[2] / CodePairs::kPack};
  }
  const int64_t depth = words_of<CodePairs>(columns), step = v.stride[2] * v.element_bytes;
  const int64_t there = smaller(count, rows.count - at);
  const char* const base = by_steps && there > 0 ? rows.address(at) : nullptr;
  for (int64_t r = 0; r < count; ++r) {
    const char* const p = r >= there ? nullptr : by_steps ? base + r * step : rows.address(at + r);
    if (p) {
      CodePairs::read(v, p, columns, staging + r * depth);
    } else {
      fill(staging + r * depth, depth, 0);
    }
  }
  return {staging, depth};
}

/// As few_rows_scores(), of queries that are packed; `staging` has room for the words of twice
/// kKeysAtOnce rows: tiles are not loaded from what is on its way to memory, so the rows after
/// these are written before these are multiplied.
inline void few_rows_scores_by_tiles(const RowRange& keys, int64_t columns, TileRows of,
                                     const Real* queries, int64_t first, int64_t last,
                                     Real* staging, Real* scores, int64_t pitch) {
  const int64_t depth = words_of<CodePairs>(columns);
  const auto rows_at = [&](int64_t j) {
    for (int64_t next = 0; next < kKeysAtOnce; next += kLanes)
      fetch_rows(keys, j + kRowsAhead + next);
    return pair_rows(keys, j, smaller(kKeysAtOnce, last - j), columns,
                     staging + (j - first) / kKeysAtOnce % 2 * kKeysAtOnce * depth);
  };
  PairRows rows = rows_at(first);
  for (int64_t j = first; j < last; j += kKeysAtOnce) {
    const PairRows these = rows;
    if (j + kKeysAtOnce < last) rows = rows_at(j + kKeysAtOnce);
    alignas(64) Real dots[kKeysAtOnce * kLanes];
    if (last - j > kLanes) {
      multiply_tiles<2, 1, false>(these.first, these.stride, queries, kLanes, dots, kLanes, depth);
      store_scores(of, dots, scores + j, pitch);
      store_scores(of, dots + kLanes * kLanes, scores + j + kLanes, pitch);
    } else {
      multiply_tiles<1, 1, false>(these.first, these.stride, queries, kLanes, dots, kLanes, depth);
      store_scores(of, dots, scores + j, pitch);
    }
  }
}

/// As few_rows_output(). `words` has room for sixteen rows of a block's probabilities, `panels` for
/// twice kValuesAtOnce rows of V, and `parts` for sixteen rows of O.
inline void few_rows_output_by_tiles(const RowRange& values, int64_t columns, TileRows of,
                                     const Real* p, int64_t pitch, int64_t first, int64_t last,
                                     Real* staging, Real* words, Real* panels, Real* parts, Real* o,
                                     int64_t o_pitch) {
  const int64_t word_pitch = pitch / CodePairs::kPack;
  const int64_t keys = round_up(last - first, kValuesAtOnce);
  for (int r = 0; r < of.rows; ++r) {
    uint16_t* const out = reinterpret_cast<uint16_t*>(words + r * word_pitch);
    for (int64_t j = 0; j < keys; j += kLanes) {
      store_parts(first + j < last ? load(p + r * pitch + first + j) : zero(), of.parts,
                  of.rows * pitch, out + j);
    }
  }
  constexpr int64_t kDepth = kValuesAtOnce / CodePairs::kPack;
  const auto panels_of = [&](int64_t j) {
    return panels + j / kValuesAtOnce % 2 * kDepth * o_pitch;
  };
  const auto pack = [&](int64_t j) {
    const int64_t at = first + j;
    const int64_t count = larger(0, smaller(kValuesAtOnce, smaller(last, values.count) - at));
    for (int64_t next = 0; next < kValuesAtOnce; next += kLanes)
      fetch_rows(values, at + kValuesAtOnce + next);
    const RowRange these{values.view, values.b, values.h, values.first + at, count};
    pack_rows<CodePairs>(these, columns, kValuesAtOnce, panels_of(j), staging);
  };
  pack(0);
  for (int64_t j = 0; j < keys; j += kValuesAtOnce) {
    if (j + kValuesAtOnce < keys) pack(j + kValuesAtOnce);
    const Real* const row = words + j / CodePairs::kPack;
    for (int64_t d = 0; d < columns; d += kPanelColumns) {
      const Real* const panel = panels_of(j) + d * kDepth;
      if (j == 0) {
        multiply_tiles<1, 2, false>(row, word_pitch, panel, kPanelColumns, parts + d, o_pitch,
                                    kDepth);
      } else {
        multiply_tiles<1, 2, true>(row, word_pitch, panel, kPanelColumns, parts + d, o_pitch,
                                   kDepth);
      }
    }
  }
  for (int r = 0; r < of.rows; ++r) {
    for (int64_t d = 0; d < o_pitch; d += kLanes) {
      Float sum = load(o + r * o_pitch + d);
      for (int n = of.parts - 1; n >= 0; --n)
        sum = add(sum, load(parts + (n * of.rows + r) * o_pitch + d));
      store(o + r * o_pitch + d, sum);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
