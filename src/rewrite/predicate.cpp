#include "rewrite/predicate.h"

#include <algorithm>
#include <functional>
#include <set>

#include "rewrite/cells.h"
#include "rewrite/piecewise.h"

namespace heddle::rewrite {

namespace {

// Cells evaluated at a time: a mask is read in blocks of rows.
constexpr int64_t kBlock = 1 << 20;
constexpr int64_t kMaxCells = int64_t{1} << 28;
// Operations on cells: seconds.
constexpr double kMaxWork = 2e9;

Index within(const Index& rows, const Index& keys) { return flat({rows, keys}); }

/// The bounds that every visible key obeys.
struct Bounds {
  // Max of j - i and of i - j + 1 over visible cells; far below any, yet safe to subtract, if none
  // is.
  static constexpr int64_t kNothingSeen = INT64_MIN / 4;
  int64_t right = kNothingSeen, left = kNothingSeen;

  bool see_nothing() const { return right == kNothingSeen; }
};

Band band_within(const Bounds& bounds, int64_t rows, int64_t keys) {
  const auto [right, left] = bounds;
  Band band;
  if (right < keys - 1) band.right = right;
  if (left < rows) band.left = left;
  // Above the band's first key, and below its last.
  const int64_t before = std::clamp<int64_t>(-right, 0, rows);
  const int64_t after = std::clamp<int64_t>(rows - 1 - (keys + left - 2), 0, rows);
  band.empty_rows = before + after;
  return band;
}

Status nothing_seen() {
  return error(Code::graph_not_supported, "the mask hides every key of every row");
}

Status no_band(int64_t row, int64_t key) {
  return error(Code::graph_not_supported,
               "the mask is not a band around a diagonal (row {} does not see key {}, which lies "
               "between keys that are seen)",
               row, key);
}

class Decision {
 public:
  Decision(Elements& elements, const Mask& mask, std::vector<std::vector<Step>> steps,
           const Index& rows, const Index& keys)
      : elements_(elements),
        mask_(mask),
        steps_(std::move(steps)),
        rows_(rows),
        keys_(keys),
        q_(elements.size(rows)),
        k_(elements.size(keys)) {}

  Result<Band> band() {
    if (q_ == 0 || k_ == 0) return Band{};
    if (const auto pieces = visible_pieces()) return of_pieces(*pieces);
    return of_cells();
  }

  Result<int64_t> fully_masked_rows() {
    int64_t count = 0;
    if (q_ == 0 || k_ == 0) return count;
    HEDDLE_TRY(visit_rows([&](const uint8_t* bits) -> Status {
      count += std::none_of(bits, bits + k_, [&](uint8_t cell) { return mask_.visible[cell]; });
      return {};
    }));
    return count;
  }

 private:
  /// By assignment of the indicators.
  std::optional<Pieces> visible_pieces() {
    Pieces bits{{whole_zone(q_, k_), {}}};
    for (size_t i = 0; i < steps_.size(); ++i) {
      const auto holds = pieces_of(elements_, steps_[i], rows_, keys_);
      const auto sum = holds ? plus(bits, *holds, int64_t{1} << i) : std::nullopt;
      if (!sum) return std::nullopt;
      bits = *sum;
    }
    return bits;
  }

  Result<Band> of_pieces(const Pieces& pieces) const {
    Bounds bounds;
    for (const Piece& piece : pieces) {
      if (!mask_.visible[piece.value.constant]) continue;
      bounds.right = std::max(bounds.right, -piece.zone.ahead.first);
      bounds.left = std::max(bounds.left, piece.zone.ahead.last + 1);
    }
    if (bounds.see_nothing()) return nothing_seen();
    Zone within = whole_zone(q_, k_);
    within.ahead = {-bounds.right, bounds.left - 1};
    for (const Piece& piece : pieces) {
      if (mask_.visible[piece.value.constant]) continue;
      if (const auto hidden = meet(piece.zone, within))
        return no_band(hidden->row.first,
                       std::max(hidden->key.first, hidden->row.first - hidden->ahead.last));
    }
    return band_within(bounds, q_, k_);
  }

  Result<Band> of_cells() {
    Bounds bounds;
    std::vector<Span> seen;  // of each row
    HEDDLE_TRY(visit_rows([&](const uint8_t* bits) { return read_row(bits, bounds, seen); }));
    if (bounds.see_nothing()) return nothing_seen();
    for (int64_t i = 0; i < q_; ++i) {
      const int64_t first = std::max<int64_t>(0, i - bounds.left + 1);
      const int64_t last = std::min(k_ - 1, i + bounds.right);
      if (first > last) continue;
      if (seen[i].first != first) return no_band(i, first);
      if (seen[i].last != last) return no_band(i, last);
    }
    return band_within(bounds, q_, k_);
  }

  /// Gives every row's assignments of the indicators to `visit`, in order.
  Status visit_rows(const std::function<Status(const uint8_t*)>& visit) {
    std::vector<Extent> extents;
    for (Var v : within(rows_, keys_)) extents.push_back({v, 0, elements_.size(v)});
    double work = 0;
    for (const auto& steps : steps_) work += work_of(steps, extents);
    if (q_ > kMaxCells / k_ || work > kMaxWork)
      return error(Code::graph_not_supported, "a mask of {} x {} is more than is evaluated", q_,
                   k_);
    // Blocks of rows by the most significant digit (all digits but it run in full).
    const int64_t outer = rows_.empty() ? 1 : elements_.size(rows_[0]);
    const int64_t inner = q_ / outer;
    const int64_t step = std::max<int64_t>(1, kBlock / (inner * k_));
    for (int64_t begin = 0; begin < outer; begin += step) {
      if (!rows_.empty()) extents[0] = {rows_[0], begin, std::min(outer, begin + step)};
      const auto block = assignments(extents);
      if (!block)
        return error(Code::graph_not_supported,
                     "the mask (%{}) is made of floating numbers that are rounded on the way",
                     steps_[0].back().element.x->name());
      for (auto row = block->begin(); row != block->end(); row += k_) HEDDLE_TRY(visit(&*row));
    }
    return {};
  }

  /// Of every cell, row by row, which indicators hold.
  std::optional<std::vector<uint8_t>> assignments(const std::vector<Extent>& extents) {
    Cells cells(elements_);
    std::vector<int64_t> dims;
    int64_t count = 1;
    for (const Extent& extent : extents) {
      dims.push_back(extent.end - extent.begin);
      count *= dims.back();
    }
    std::vector<uint8_t> bits(count);
    for (size_t i = 0; i < steps_.size(); ++i) {
      const auto values = cells.evaluate(steps_[i], extents);
      const auto holds = values ? spread(*values, dims) : std::nullopt;
      if (!holds) return std::nullopt;
      for (int64_t cell = 0; cell < count; ++cell)
        bits[cell] = static_cast<uint8_t>(bits[cell] | (holds->as<uint8_t>()[cell] != 0) << i);
    }
    return bits;
  }

  Status read_row(const uint8_t* bits, Bounds& bounds, std::vector<Span>& seen) const {
    const auto i = static_cast<int64_t>(seen.size());
    Span span;
    int64_t count = 0;
    for (int64_t j = 0; j < k_; ++j) {
      if (!mask_.visible[bits[j]]) continue;
      if (count++ == 0) span.first = j;
      span.last = j;
    }
    seen.push_back(span);
    if (count == 0) return {};
    if (span.last - span.first + 1 != count)
      return error(Code::graph_not_supported, "the mask leaves keys in several pieces per row");
    bounds.right = std::max(bounds.right, span.last - i);
    bounds.left = std::max(bounds.left, i - span.first + 1);
    return {};
  }

  Elements& elements_;
  const Mask& mask_;
  std::vector<std::vector<Step>> steps_;  // of each indicator
  const Index& rows_;
  const Index& keys_;
  int64_t q_, k_;
};

/// What numbers made by `all` steps differ along: the labels of their leaves.
Index variables_of(const std::vector<std::vector<Step>>& all) {
  Index variables;
  const auto add = [&](const Index& index) {
    for (Var v : index)
      if (std::find(variables.begin(), variables.end(), v) == variables.end())
        variables.push_back(v);
  };
  for (const std::vector<Step>& steps : all)
    for (const Step& step : steps) {
      if (!step.operands.empty()) continue;
      const Element& leaf = step.element;
      add(leaf.x->is(hlo::Opcode::iota) ? leaf.at[leaf.x->iota_dimension()] : flat(leaf.at));
    }
  return variables;
}

/// All that a band depends on, whatever the axes' digits are called.
std::vector<int64_t> key_of(const Elements& elements, const Algebra& algebra, const Mask& mask,
                            const Index& rows, const Index& keys) {
  std::vector<int64_t> key;
  for (const Index* axis : {&rows, &keys}) {
    for (Var v : *axis) key.push_back(elements.size(v));
    key.push_back(-1);
  }
  const Index all = within(rows, keys);
  for (AtomId id : mask.indicators) {
    const Element& e = algebra.at(id).element;
    key.insert(key.end(), {e.frame, e.x->id()});
    for (const Index& index : e.at) {
      for (Var v : index) key.push_back(std::find(all.begin(), all.end(), v) - all.begin());
      key.push_back(-1);
    }
  }
  key.insert(key.end(), mask.visible.begin(), mask.visible.end());
  return key;
}

/// The steps of each of the mask's predicates.
Result<std::vector<std::vector<Step>>> fixed_steps_of(Elements& elements, const Algebra& algebra,
                                                      const Mask& mask) {
  std::vector<std::vector<Step>> all;
  for (AtomId id : mask.indicators) {
    const Element& e = algebra.at(id).element;
    auto steps = fixed_steps_of(elements, e);
    if (!steps)
      return error(Code::graph_not_supported,
                   "the mask (%{}) depends on data that is known only when the program runs",
                   e.x->name());
    all.push_back(std::move(*steps));
  }
  return all;
}

Result<Band> decided(Elements& elements, const Algebra& algebra, const Mask& mask,
                     const Index& rows, const Index& keys) {
  HEDDLE_ASSIGN(auto all, fixed_steps_of(elements, algebra, mask));
  const Index known = within(rows, keys);
  for (Var v : variables_of(all))
    if (std::find(known.begin(), known.end(), v) == known.end())
      return error(Code::graph_not_supported,
                   "the mask differs between batch entries or heads; only masks of row and key "
                   "index become bounds");
  return Decision(elements, mask, std::move(all), rows, keys).band();
}

}  // namespace

std::vector<Var> support(const Algebra& algebra, const Mask& mask) {
  std::set<Var> all;
  for (AtomId id : mask.indicators)
    all.insert(algebra.support(id).begin(), algebra.support(id).end());
  return {all.begin(), all.end()};
}

bool is_fixed(Elements& elements, const Element& predicate) {
  return fixed_steps_of(elements, predicate).has_value();
}

std::optional<int64_t> offset_along(Elements& elements, const Element& element, const Index& axis) {
  const auto steps = fixed_steps_of(elements, element);
  const auto pieces = steps ? pieces_of(elements, *steps, axis, {}) : std::nullopt;
  if (!pieces || pieces->size() != 1 || (*pieces)[0].value.row != 1) return std::nullopt;
  return (*pieces)[0].value.constant;
}

Result<Band> band_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                     const Index& rows, const Index& keys) {
  if (!mask.hides_anything()) return Band{};
  const auto key = key_of(elements, algebra, mask, rows, keys);
  auto& bands = elements.decided_masks->bands;
  auto known = bands.find(key);
  if (known == bands.end())
    known = bands.emplace(key, decided(elements, algebra, mask, rows, keys)).first;
  return known->second;
}

Result<int64_t> fully_masked_rows_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                                     const Index& keys) {
  HEDDLE_ASSIGN(auto all, fixed_steps_of(elements, algebra, mask));
  Index rows = variables_of(all);
  std::erase_if(rows, [&](Var v) { return std::find(keys.begin(), keys.end(), v) != keys.end(); });
  // Cells are read in blocks of the first digit's.
  std::sort(rows.begin(), rows.end(),
            [&](Var a, Var b) { return elements.size(a) > elements.size(b); });
  const auto key = key_of(elements, algebra, mask, rows, keys);
  auto& counts = elements.decided_masks->fully_masked_rows;
  auto known = counts.find(key);
  if (known == counts.end())
    known =
        counts
            .emplace(key, Decision(elements, mask, std::move(all), rows, keys).fully_masked_rows())
            .first;
  return known->second;
}

}  // namespace heddle::rewrite
