// Numbers as caches of K and V hold them: as they are, or as codes times scales.
#pragma once

#include "reference/values.h"

namespace heddle::reference {

/// A cache of K or V, and where its rows lie.
struct Cache {
  graph::TensorId tensor = graph::kNone, table = graph::kNone, scale = graph::kNone;
  bool ring = false;
};

/// Where row `row` of batch entry b lies in a cache; `exists` is false if its page does not.
struct CacheRow {
  int64_t i0, i2;
  bool exists;
};
CacheRow row_of(const Cache& cache, int64_t b, int64_t row, const Values& values);

/// The first `count` rows of (b, h), as numbers: zeros on pages that do not exist, and where a ring
/// holds a later row.
Matrix rows_of(const Cache& cache, int64_t b, int64_t h, int64_t count, const Values& values);

/// The code of a number: integers to nearest even within range, f8e4m3 rounded within +-448. Of a
/// scale of 0 and of a NaN that of 0; where the quotient alone is NaN f8e4m3's is, an integer's 0.
double code_of(DataType type, double number, double scale);

/// Writes numbers as a row of head h, those of u8 two to an element.
void write_row(const Cache& cache, const CacheRow& at, int64_t h, const std::vector<double>& row,
               Values& values);

}  // namespace heddle::reference
