// Parts of the rows x keys plane between straight bounds, and whole numbers that are linear in row
// and key on each of a few such parts. Comparisons, unions and wrapped differences of indices stay
// of that kind, so that masks of any size are known without visiting a cell.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hlo/element_type.h"

namespace heddle::rewrite {

/// Whole numbers from first to last.
struct Span {
  int64_t first = 0, last = -1;
};

/// The cells whose row, key and row - key lie in these spans.
struct Zone {
  Span row, key, ahead;
};

/// All cells of `rows` x `keys`.
Zone whole_zone(int64_t rows, int64_t keys);
/// The cells of both, with every span as narrow as it can be; nothing if there are none.
std::optional<Zone> meet(const Zone& a, const Zone& b);

/// row * r + key * k + constant
struct Linear2 {
  int64_t row = 0, key = 0, constant = 0;
  bool is_constant() const { return row == 0 && key == 0; }
};

struct Piece {
  Zone zone;
  Linear2 value;
};
/// A value in every cell of a zone: the pieces share no cell.
using Pieces = std::vector<Piece>;

/// The same as numbers of `type`: nothing if it does not hold them all exactly.
std::optional<Pieces> held_in(hlo::ElementType type, const Pieces& pieces);
/// The same as numbers of an integral type, wrapped around where it does not hold them. Nothing if
/// that takes more pieces than masks are made of.
std::optional<Pieces> wrapped_in(hlo::ElementType type, const Pieces& pieces);

/// a + by * b, unrounded and unwrapped.
std::optional<Pieces> plus(const Pieces& a, const Pieces& b, int64_t by);
/// The same of products; one of the two must be a constant wherever both are.
std::optional<Pieces> times(const Pieces& a, const Pieces& b);
/// 1 where `a` stands to `b` as `direction` says (EQ, NE, LT, LE, GT, GE), else 0.
std::optional<Pieces> compared(const Pieces& a, const Pieces& b, std::string_view direction);
/// `on_true` where `truth` is 1, and `on_false` where it is 0.
std::optional<Pieces> selected(const Pieces& truth, const Pieces& on_true, const Pieces& on_false);

}  // namespace heddle::rewrite
