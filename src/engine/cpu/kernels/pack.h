// Packing: rows of K and V (any dtype, strides, pages) become panels of kPanelColumns columns that
// the microkernel streams. Rows that do not exist become zeros, so whatever lies in them (NaN) is
// never read, and a probability of 0 there stays harmless.
#pragma once

#include "engine/cpu/kernels/microkernel.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Which rows of an operand to pack: `count` rows of (b, h) from row `first` on.
struct RowRange {
  const View* view;
  int64_t b, h, first, count;
};

/// The rows' addresses as f32: the operand's own memory where it is that already, else converted
/// into `staging` (kLanes rows of `columns` rounded up to whole vectors).
inline void rows_as_f32(const RowRange& rows, int64_t at, int count, int64_t columns,
                        float* staging, const float** row) {
  const View& v = *rows.view;
  const bool direct = is_f32_row(v);
  const int64_t pitch = round_up(columns, kLanes);
  const char* base = v.pages ? nullptr : row_address(v, rows.b, rows.h, rows.first + at);
  for (int r = 0; r < count; ++r) {
    const char* p = v.pages ? row_address(v, rows.b, rows.h, rows.first + at + r)
                            : base + r * v.stride[2] * v.element_bytes;
    if (direct) {
      row[r] = reinterpret_cast<const float*>(p);
    } else {
      read_row(v.element, p, v.stride[3], v.element_bytes, columns, staging + r * pitch);
      row[r] = staging + r * pitch;
    }
  }
}

/// Transposed: panel n holds keys n*kPanelColumns .. as columns, so panel[column][key] is
/// contiguous in keys. `panels` has room for count rounded up to kPanelColumns, times columns.
inline void pack_transposed(const RowRange& rows, int64_t columns, float* panels, float* staging) {
  for (int64_t at = 0; at < round_up(rows.count, kPanelColumns); at += kLanes) {
    float* out = panels + at / kPanelColumns * kPanelColumns * columns + at % kPanelColumns;
    const int count = static_cast<int>(larger(0, smaller(kLanes, rows.count - at)));
    const float* row[kLanes];
    rows_as_f32(rows, at, count, columns, staging, row);
    for (int64_t d = 0; d < columns; d += kLanes) {
      const int width = static_cast<int>(smaller(kLanes, columns - d));
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
      for (int c = 0; c < width; ++c) store(out + (d + c) * kPanelColumns, block[c]);
    }
  }
}

/// As they lie: panel n holds columns n*kPanelColumns .., so panel[row][column] is contiguous in
/// columns. `depth` rows are written, those past rows.count as zeros.
inline void pack_rows(const RowRange& rows, int64_t columns, int64_t depth, float* panels,
                      float* staging) {
  for (int64_t at = 0; at < depth; at += kLanes) {
    const int count = static_cast<int>(larger(0, smaller(kLanes, rows.count - at)));
    const int written = static_cast<int>(smaller(kLanes, depth - at));
    const float* row[kLanes];
    rows_as_f32(rows, at, count, columns, staging, row);
    for (int64_t d = 0; d < columns; d += kPanelColumns) {
      float* out = panels + d * depth + at * kPanelColumns;
      for (int r = 0; r < written; ++r, out += kPanelColumns) {
        const int64_t left = r < count ? columns - d : 0;
        for (int n = 0; n < 2; ++n) {
          const int64_t width = left - n * kLanes;
          store(out + n * kLanes, width >= kLanes ? load(row[r] + d + n * kLanes)
                                  : width > 0
                                      ? load_first(row[r] + d + n * kLanes, static_cast<int>(width))
                                      : zero());
        }
      }
    }
  }
}

/// As they lie, in one piece with a fixed pitch (columns rounded up to kPanelColumns and a cache
/// line more, so that rows do not fall into the same cache sets); rows past the count are zeros.
inline void copy_rows(const RowRange& rows, int64_t columns, int64_t depth, float* out,
                      int64_t pitch) {
  for (int64_t r = 0; r < depth; ++r, out += pitch) {
    int64_t filled = 0;
    if (r < rows.count) {
      const View& v = *rows.view;
      read_row(v.element, row_address(v, rows.b, rows.h, rows.first + r), v.stride[3],
               v.element_bytes, columns, out);
      filled = columns;
    }
    fill(out + filled, round_up(columns, kPanelColumns) - filled, 0);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
