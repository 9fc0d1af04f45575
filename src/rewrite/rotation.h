// Rotary position embedding (Su et al., 2021) in whatever words: halves joined or stacked, x times
// cosines plus its halves exchanged times sines, neighbours by strides or by a dimension of two,
// products of complex numbers, a part of the columns left as it is; and its gradient, which turns
// back. Each column's value is read as a sum of products, and the whole is proved to be a rotation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rewrite/runs.h"

namespace heddle::rewrite {

/// Cosines or sines of each pair of columns.
struct AngleTable {
  enum class Part : uint8_t { whole, real, imaginary };
  Element place;  // its columns, once cut, are labelled by the rotation's `pair`
  Part part = Part::whole;
  /// Columns first, first + step, ... of dimension `dim`, if these are not all it has.
  int dim = 0;
  Run columns;
  bool is_cut = false;
};

/// y is x with columns turned by the angles whose cosines and sines two tables hold; by their
/// negatives if `inverse`.
struct Rotation {
  Element y, x;   // in the same labels
  Index columns;  // of both
  Index pair;
  AngleTable cosines, sines;
  bool neighbours = false;       // pairs are neighbours, else halves of the turned columns
  int64_t first = 0, count = 0;  // of the turned columns; the others are x's own
  bool inverse = false;
};

/// Reads `y` along its digits `columns`, as a rotation of `x`, or if that is null of the first
/// value before it of which it is one. Where y turns columns and is none, `why_not` says what is
/// in the way.
std::optional<Rotation> rotation_of(Elements& elements, const Element& y, const Index& columns,
                                    const hlo::Instruction* x, std::string* why_not = nullptr);

/// The same rotation with y's labels replaced by `at`.
std::optional<Rotation> relabelled(const Elements& elements, const Rotation& rotation,
                                   const std::vector<Index>& at);

/// Whether both hold the same numbers by rows, whatever their digits are called.
bool same_table(const AngleTable& a, const AngleTable& b);

}  // namespace heddle::rewrite
