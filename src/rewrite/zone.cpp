#include "rewrite/zone.h"

#include <algorithm>
#include <cstdlib>

#include "rewrite/arithmetic.h"

namespace heddle::rewrite {

using hlo::ElementType;

namespace {

constexpr size_t kMaxPieces = 256;
// Far from overflow whatever is added up or multiplied by a position.
constexpr int64_t kMaxCoefficient = int64_t{1} << 40;
constexpr int64_t kMaxConstant = int64_t{1} << 60;

__extension__ using Wide = __int128;

struct WideSpan {
  Wide first, last;
};

bool narrow(Span& span, int64_t first, int64_t last) {
  span.first = std::max(span.first, first);
  span.last = std::min(span.last, last);
  return span.first <= span.last;
}

WideSpan times_span(int64_t factor, const Span& span) {
  const Wide a = Wide{factor} * span.first, b = Wide{factor} * span.last;
  return {std::min(a, b), std::max(a, b)};
}

/// No value of `v` in the zone lies outside.
WideSpan range(const Linear2& v, const Zone& zone) {
  // As much of it as can be along the diagonal, the rest along rows and keys.
  int64_t ahead = 0;
  if (v.row > 0 && v.key < 0) ahead = std::min(v.row, -v.key);
  if (v.row < 0 && v.key > 0) ahead = std::max(v.row, -v.key);
  WideSpan sum{v.constant, v.constant};
  for (const WideSpan& part : {times_span(ahead, zone.ahead), times_span(v.row - ahead, zone.row),
                               times_span(v.key + ahead, zone.key)}) {
    sum.first += part.first;
    sum.last += part.last;
  }
  return sum;
}

Wide floor_divided(Wide a, Wide b) {
  const Wide q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t clamped(Wide x) {
  constexpr Wide kFar = int64_t{1} << 61;
  return static_cast<int64_t>(std::clamp(x, -kFar, kFar));
}

/// The cells of the zone where first <= v <= last, if these are a zone: nothing if v runs neither
/// along rows, nor keys, nor the diagonal alone. `is_empty` tells that there are none.
struct Part {
  bool is_known = true;
  std::optional<Zone> zone;
};

Part part_between(const Zone& zone, const Linear2& v, Wide first, Wide last) {
  const WideSpan all = range(v, zone);
  if (all.last < first || all.first > last) return {true, std::nullopt};
  if (all.first >= first && all.last <= last) return {true, zone};
  Zone cut = zone;
  Span* span = v.key == 0 ? &cut.row : v.row == 0 ? &cut.key : &cut.ahead;
  if (v.row != 0 && v.key != 0 && v.row != -v.key) return {false, std::nullopt};
  const int64_t factor = v.row != 0 ? v.row : v.key;
  Wide low = first - v.constant, high = last - v.constant;
  if (factor < 0) std::swap(low, high);
  const Wide from = -floor_divided(-low, factor), to = floor_divided(high, factor);
  if (!narrow(*span, clamped(from), clamped(to))) return {true, std::nullopt};
  return {true, meet(cut, cut)};
}

bool is_small(const Linear2& v) {
  return std::abs(v.row) <= kMaxCoefficient && std::abs(v.key) <= kMaxCoefficient &&
         std::abs(v.constant) <= kMaxConstant;
}

/// `make` of the two values in every zone of both; it adds pieces and says whether it could.
template <class Make>
std::optional<Pieces> of_both(const Pieces& a, const Pieces& b, Make make) {
  Pieces result;
  for (const Piece& x : a)
    for (const Piece& y : b) {
      const auto zone = meet(x.zone, y.zone);
      if (!zone) continue;
      if (!make(*zone, x.value, y.value, result) || result.size() > kMaxPieces) return std::nullopt;
    }
  return result;
}

bool add(Pieces& to, const Zone& zone, const Linear2& value) {
  to.push_back({zone, value});
  return is_small(value);
}

std::optional<Linear2> sum_of(const Linear2& a, const Linear2& b, int64_t by) {
  if (std::abs(by) > kMaxCoefficient) return std::nullopt;
  const Wide row = a.row + Wide{by} * b.row, key = a.key + Wide{by} * b.key,
             constant = a.constant + Wide{by} * b.constant;
  const Linear2 sum{clamped(row), clamped(key), clamped(constant)};
  return is_small(sum) ? std::optional(sum) : std::nullopt;
}

/// The whole numbers that a type holds one by one.
WideSpan held_by(ElementType type) {
  if (const int64_t most = largest_exact(type)) return {-most, most};
  if (type == ElementType::pred) return {0, 1};
  const int bits = static_cast<int>(8 * hlo::size_of(type));
  if (hlo::is_unsigned_integral(type)) return {0, (Wide{1} << bits) - 1};
  return {-(Wide{1} << (bits - 1)), (Wide{1} << (bits - 1)) - 1};
}

bool is_within(const WideSpan& inner, const WideSpan& outer) {
  return inner.first >= outer.first && inner.last <= outer.last;
}

}  // namespace

Zone whole_zone(int64_t rows, int64_t keys) {
  return {{0, rows - 1}, {0, keys - 1}, {1 - keys, rows - 1}};
}

std::optional<Zone> meet(const Zone& a, const Zone& b) {
  Zone zone = a;
  // Twice: what the diagonal says of rows it says of keys by way of them.
  for (int i = 0; i < 2; ++i)
    if (!narrow(zone.row, b.row.first, b.row.last) || !narrow(zone.key, b.key.first, b.key.last) ||
        !narrow(zone.ahead, b.ahead.first, b.ahead.last) ||
        !narrow(zone.ahead, zone.row.first - zone.key.last, zone.row.last - zone.key.first) ||
        !narrow(zone.row, zone.key.first + zone.ahead.first, zone.key.last + zone.ahead.last) ||
        !narrow(zone.key, zone.row.first - zone.ahead.last, zone.row.last - zone.ahead.first))
      return std::nullopt;
  return zone;
}

std::optional<Pieces> held_in(ElementType type, const Pieces& pieces) {
  const WideSpan held = held_by(type);
  for (const Piece& piece : pieces)
    if (!is_within(range(piece.value, piece.zone), held)) return std::nullopt;
  return pieces;
}

std::optional<Pieces> wrapped_in(ElementType type, const Pieces& pieces) {
  const WideSpan held = held_by(type);
  const Wide period = held.last - held.first + 1;
  Pieces result;
  for (const Piece& piece : pieces) {
    const WideSpan all = range(piece.value, piece.zone);
    const Wide from = floor_divided(all.first - held.first, period);
    const Wide to = floor_divided(all.last - held.first, period);
    if (to - from > static_cast<Wide>(kMaxPieces)) return std::nullopt;
    for (Wide n = from; n <= to; ++n) {
      const Part part =
          part_between(piece.zone, piece.value, held.first + n * period, held.last + n * period);
      if (!part.is_known) return std::nullopt;
      if (!part.zone) continue;
      const Wide constant = piece.value.constant - n * period;
      const Linear2 value{piece.value.row, piece.value.key, clamped(constant)};
      if (!add(result, *part.zone, value) || result.size() > kMaxPieces) return std::nullopt;
    }
  }
  return result;
}

std::optional<Pieces> plus(const Pieces& a, const Pieces& b, int64_t by) {
  return of_both(a, b, [&](const Zone& zone, const Linear2& x, const Linear2& y, Pieces& to) {
    const auto sum = sum_of(x, y, by);
    return sum && add(to, zone, *sum);
  });
}

std::optional<Pieces> times(const Pieces& a, const Pieces& b) {
  return of_both(a, b, [](const Zone& zone, const Linear2& x, const Linear2& y, Pieces& to) {
    if (!x.is_constant() && !y.is_constant()) return false;
    const auto product = x.is_constant() ? sum_of({}, y, x.constant) : sum_of({}, x, y.constant);
    return product && add(to, zone, *product);
  });
}

std::optional<Pieces> compared(const Pieces& a, const Pieces& b, std::string_view direction) {
  const bool if_less = direction == "LT" || direction == "LE" || direction == "NE";
  const bool if_equal = direction == "EQ" || direction == "LE" || direction == "GE";
  const bool if_greater = direction == "GT" || direction == "GE" || direction == "NE";
  return of_both(a, b, [&](const Zone& zone, const Linear2& x, const Linear2& y, Pieces& to) {
    const auto difference = sum_of(x, y, -1);
    if (!difference) return false;
    constexpr Wide kEnd = Wide{1} << 120;  // beyond any difference
    const auto put = [&](Wide first, Wide last, bool truth) {
      const Part part = part_between(zone, *difference, first, last);
      if (part.zone) add(to, *part.zone, {0, 0, truth});
      return part.is_known;
    };
    // Neighbours that say the same stay one piece.
    if (if_less == if_equal) return put(-kEnd, 0, if_less) && put(1, kEnd, if_greater);
    if (if_equal == if_greater) return put(-kEnd, -1, if_less) && put(0, kEnd, if_equal);
    return put(-kEnd, -1, if_less) && put(0, 0, if_equal) && put(1, kEnd, if_greater);
  });
}

std::optional<Pieces> selected(const Pieces& truth, const Pieces& on_true, const Pieces& on_false) {
  Pieces result;
  for (const Piece& p : truth) {
    if (!p.value.is_constant()) return std::nullopt;
    for (const Piece& piece : p.value.constant != 0 ? on_true : on_false)
      if (const auto zone = meet(p.zone, piece.zone)) result.push_back({*zone, piece.value});
    if (result.size() > kMaxPieces) return std::nullopt;
  }
  return result;
}

}  // namespace heddle::rewrite
