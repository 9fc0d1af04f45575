// Packing: rows of an operand (any dtype, strides, pages) become words (arithmetic.h) in panels of
// kPanelColumns columns that the microkernel streams. Rows that do not exist become zeros, so
// whatever lies in them (NaN) is never read, and a probability of 0 there stays harmless.
#pragma once

#include "engine/cpu/kernels/microkernel.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Which rows of an operand to pack: `count` rows of (b, h) from row `first` on.
struct RowRange {
  const View* view;
  int64_t b, h, first, count;

  const char* address(int64_t r) const { return row_address(*view, b, h, first + r); }
};

/// Words from one staged row to the next.
template <class Arithmetic>
inline int64_t staging_pitch(int64_t columns) {
  return Arithmetic::kParts > 1 ? words_of<Arithmetic>(columns) : round_up(columns, kPanelColumns);
}

/// Addresses of `count` rows as words: the operand's own memory if it is that already, else copies
/// in `staging`.
template <class Arithmetic>
inline void rows_as_words(const RowRange& rows, int64_t at, int count, int64_t columns,
                          bool may_use_own, Real* staging, const Real** row) {
  const View& v = *rows.view;
  const bool own = may_use_own && Arithmetic::lies_ready(v);
  const int64_t pitch = staging_pitch<Arithmetic>(columns);
  const int64_t step = v.stride[2] * v.element_bytes;
  const bool by_steps = !v.pages && !v.ring;
  const char* base = by_steps && count > 0 ? rows.address(at) : nullptr;
  for (int r = 0; r < count; ++r) {
    const char* p = by_steps ? base + r * step : rows.address(at + r);
    row[r] = own && p ? reinterpret_cast<const Real*>(p) : staging + r * pitch;
    if (!p) {
      fill(staging + r * pitch, pitch, 0);
    } else if (!own) {
      Arithmetic::read(v, p, columns, staging + r * pitch);
    }
  }
}

/// x[0 .. columns) times the scales of head h's codes; nothing if the view holds none.
inline void multiply_by_scales(const View& codes, int64_t h, int64_t columns, Real* x) {
  if (!codes.scale) return;
  const float* scale = scales_of(codes, h);
  const int64_t step = codes.scale->stride[3];
  for (int64_t d = 0; d < columns; ++d) x[d] *= scale[d * step];
}

/// Transposed: panel n holds keys n * kPanelColumns .. as columns, so panel[word][key] is
/// contiguous in keys. `panels` has room for the count rounded up to kPanelColumns, times words.
template <class Arithmetic>
inline void pack_transposed(const RowRange& rows, int64_t columns, Real* panels, Real* staging) {
  const int64_t words = words_of<Arithmetic>(columns);
  const int64_t filled = Arithmetic::kParts > 1 ? words : words_filled<Arithmetic>(columns);
  for (int64_t at = 0; at < round_up(rows.count, kPanelColumns); at += kLanes) {
    Real* out = panels + at / kPanelColumns * kPanelColumns * words + at % kPanelColumns;
    const int count = static_cast<int>(larger(0, smaller(kLanes, rows.count - at)));
    const Real* row[kLanes];
    rows_as_words<Arithmetic>(rows, at, count, columns, true, staging, row);
    for (int64_t d = 0; d < words; d += kLanes) {
      const int width = static_cast<int>(smaller(kLanes, filled - d));
      const int written = static_cast<int>(smaller(kLanes, words - d));
      Float block[kLanes];
      if (count == kLanes && width == kLanes) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) block[r] = load(row[r] + d);
        transpose(block);
#pragma GCC unroll 16
        for (int c = 0; c < kLanes; ++c) store(out + (d + c) * kPanelColumns, block[c]);
        continue;
      }
      for (int r = 0; r < kLanes; ++r)
        block[r] = r >= count        ? zero()
                   : width == kLanes ? load(row[r] + d)
                                     : load_first(row[r] + d, width);
      transpose(block);
      for (int c = 0; c < written; ++c) store(out + (d + c) * kPanelColumns, block[c]);
    }
  }
}

/// One row (Singles) or two (Pairs) of a panel's columns d .. d + kPanelColumns; rows and columns
/// that do not exist are zeros. `depth`: rows of a plane of the panel.
inline void pack_panel_row(Singles, const Real* const* row, int count, int64_t d, int64_t columns,
                           int64_t, Real* out) {
  for (int n = 0; n < 2; ++n) {
    const int64_t at = d + n * kLanes, width = count > 0 ? columns - at : 0;
    store(out + n * kLanes, width >= kLanes ? load(row[0] + at)
                            : width > 0     ? load_first(row[0] + at, static_cast<int>(width))
                                            : zero());
  }
}
#if defined(HEDDLE_CPU_LEVEL_BF16)
inline void pack_panel_row(Pairs, const Real* const* row, int count, int64_t d, int64_t, int64_t,
                           Real* out) {
  static constexpr uint16_t kNothing[kPanelColumns] = {};
  const uint16_t* low = count > 0 ? reinterpret_cast<const uint16_t*>(row[0]) + d : kNothing;
  const uint16_t* high = count > 1 ? reinterpret_cast<const uint16_t*>(row[1]) + d : kNothing;
  for (int n = 0; n < kPanelColumns; n += kLanes) store(out + n, pair_up(low + n, high + n));
}
template <int kPlanes>
inline void pack_panel_row(Parts<kPlanes>, const Real* const* row, int count, int64_t d,
                           int64_t columns, int64_t depth, Real* out) {
  const int64_t plane = depth_of<Parts<kPlanes>>(columns);
  for (int n = 0; n < kPlanes; ++n, out += depth / 2 * kPanelColumns) {
    const Real* const part[2] = {count > 0 ? row[0] + n * plane : nullptr,
                                 count > 1 ? row[1] + n * plane : nullptr};
    pack_panel_row(Pairs(), part, count, d, columns, depth, out);
  }
}
#endif

/// As they lie: panel n holds columns n * kPanelColumns .., so panel[row][column] is contiguous in
/// columns. `depth` rows are written, those past rows.count as zeros; with Pairs, rows two by two;
/// of Parts, in a panel, plane after plane.
template <class Arithmetic>
inline void pack_rows(const RowRange& rows, int64_t columns, int64_t depth, Real* panels,
                      Real* staging) {
  const int64_t words = words_of<Arithmetic>(depth);
  // Pairs read whole panels of columns, which only staged rows have.
  const bool may_use_own = Arithmetic::kPack == 1 || columns % kPanelColumns == 0;
  for (int64_t at = 0; at < depth; at += kLanes) {
    const int count = static_cast<int>(larger(0, smaller(kLanes, rows.count - at)));
    const int written = static_cast<int>(smaller(kLanes, depth - at));
    const Real* row[kLanes];
    rows_as_words<Arithmetic>(rows, at, count, columns, may_use_own, staging, row);
    for (int64_t d = 0; d < columns; d += kPanelColumns) {
      Real* out = panels + d * words + at / Arithmetic::kPack * kPanelColumns;
      for (int r = 0; r < written; r += Arithmetic::kPack, out += kPanelColumns) {
        pack_panel_row(Arithmetic(), row + r, count - r, d, columns, depth, out);
      }
    }
  }
}

/// As they lie, in one piece with a fixed pitch (in words); rows past the count are zeros.
template <class Arithmetic>
inline void copy_rows(const RowRange& rows, int64_t columns, int64_t depth, Real* out,
                      int64_t pitch) {
  const int64_t words =
      Arithmetic::kParts > 1 ? words_of<Arithmetic>(columns) : words_filled<Arithmetic>(columns);
  for (int64_t r = 0; r < depth; ++r, out += pitch) {
    const bool exists = r < rows.count;
    if (exists) Arithmetic::read(*rows.view, rows.address(r), columns, out);
    const int64_t filled = exists ? words : 0;
    fill(out + filled, round_up(words, kLanes) - filled, 0);
  }
}

/// Whether the arithmetic takes the numbers of an operand, of `panels` of it (or rows), `pitch`
/// words apart, whose first planes are `plane` words.
template <class Arithmetic>
inline bool takes(const Real* words, int64_t panels, int64_t pitch, int64_t plane) {
  for (int64_t n = 0; n < panels; ++n)
    if (!Arithmetic::takes(words + n * pitch, plane)) return false;
  return true;
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
