#include "rewrite/rotation.h"

#include <fmt/format.h>

#include <algorithm>

#include "rewrite/column_terms.h"
#include "rewrite/same_number.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Values before y that it may be a rotation of, the nearest first: views, parts and types of one.
constexpr size_t kMaxCandidates = 12;
constexpr int kMaxSearched = 64;

/// An element at a run of columns as one of the whole: where its columns are, and in which order.
struct Whole {
  Element element;
  Run at;
};

class Reader {
 public:
  Reader(Elements& elements, const Element& y, const Index& columns, std::string* why_not)
      : elements_(elements),
        y_(y),
        columns_(columns),
        depth_(elements.size(columns)),
        why_not_(why_not) {}

  /// Values that y may be a rotation of.
  std::vector<const Instruction*> candidates() {
    std::vector<const Instruction*> found;
    Runs runs(elements_, 1);
    const auto start = runs.at(y_, columns_, {0, 0});
    if (!start) return found;
    std::vector<Element> left{*start};
    for (int n = 0; !left.empty() && n < kMaxSearched; ++n) {
      Element e = left.front();
      left.erase(left.begin());
      for (;;) {
        e.x = elements_.representative(e.x);
        if (found.size() < kMaxCandidates && is_candidate(runs, e) &&
            std::find(found.begin(), found.end(), e.x) == found.end())
          found.push_back(e.x);
        if (!runs.look_through(e, true) && !runs.look_into_parts(e)) break;
      }
      switch (e.x->opcode()) {
        case Opcode::add:
        case Opcode::subtract:
        case Opcode::multiply:
        case Opcode::negate:
        case Opcode::real:
        case Opcode::imag:
        case Opcode::complex:
          for (const Instruction* operand : e.x->operands())
            left.push_back({e.frame, operand, e.at});
          break;
        default:
          break;
      }
    }
    return found;
  }

  std::optional<Rotation> rotation_of(const Instruction* x) {
    const auto low = column(x, 0), high = column(x, depth_ - 1);
    if (!low || !high || (!low->turns && !high->turns)) return std::nullopt;
    Rotation r;
    // Turned columns are the first or the last ones, or all.
    const auto first = low->turns ? std::optional<int64_t>(0) : boundary(x, false);
    const auto end = high->turns ? std::optional<int64_t>(depth_) : boundary(x, true);
    if (!first || !end) return std::nullopt;
    r.first = *first;
    r.count = *end - *first;
    const int64_t pairs = r.count / 2;
    const auto partner = column(x, r.first);
    if (r.count % 2 != 0 || !partner || !partner->turns) return std::nullopt;
    r.neighbours = pairs > 1 && partner->other == r.first + 1;
    if (!r.neighbours && partner->other != r.first + pairs)
      return no(fmt::format("columns {} and {} are a pair", r.first, partner->other));
    const Run lows = r.neighbours ? Run{r.first, 2} : Run{r.first, 1};
    const Run highs = r.neighbours ? Run{r.first + 1, 2} : Run{r.first + pairs, 1};
    Runs runs(elements_, pairs);
    const auto a = side(runs, x, lows, highs), b = side(runs, x, highs, lows);
    if (!a || !b || a->x != b->x || a->sign != -b->sign) return no("its pairs do not turn alike");
    if (!same_number(elements_, runs, a->own, b->own) ||
        !same_number(elements_, runs, a->other, b->other))
      return no("the two columns of a pair are not known to turn by one angle");
    if (!own_elsewhere(x, a->x, 0, r.first) || !own_elsewhere(x, a->x, r.first + r.count, depth_))
      return std::nullopt;
    if (pairs > 1) r.pair = {elements_.fresh(pairs)};
    const auto cosines = first_of(table(runs, a->own, r.pair), table(runs, b->own, r.pair));
    const auto sines = first_of(table(runs, a->other, r.pair), table(runs, b->other, r.pair));
    if (!cosines || !sines) return no("its angles do not vary along the columns as tables do");
    r.y = y_;
    r.columns = columns_;
    r.x = a->x;
    r.cosines = *cosines;
    r.sines = *sines;
    r.inverse = a->sign > 0;
    return r;
  }

 private:
  std::nullopt_t no(std::string why) {
    if (why_not_ && why_not_->empty()) *why_not_ = std::move(why);
    return std::nullopt;
  }

  /// `e` with y's columns where it has digits of runs; nothing if it has not the whole of them.
  std::optional<Whole> whole(const Runs& runs, const Element& e) const {
    std::vector<int64_t> sizes;
    Index own;
    bool ended = false;
    for (const Index& index : e.at) {
      int64_t size = 1;
      for (const Var v : index) {
        if (!runs.is_of_run(v)) {
          ended = !own.empty();
          continue;
        }
        if (ended) return std::nullopt;
        own.push_back(v);
        size *= elements_.size(v);
      }
      sizes.push_back(size);
    }
    if (elements_.size(own) != depth_) return std::nullopt;
    const auto columns = elements_.regroup({columns_}, sizes);
    if (!columns) return std::nullopt;
    Whole result{e, *runs.run_of(own)};
    for (size_t i = 0; i < e.at.size(); ++i) {
      Index& index = result.element.at[i];
      const auto first =
          std::find_if(index.begin(), index.end(), [&](Var v) { return runs.is_of_run(v); });
      const auto place = first - index.begin();
      std::erase_if(index, [&](Var v) { return runs.is_of_run(v); });
      index.insert(index.begin() + place, (*columns)[i].begin(), (*columns)[i].end());
    }
    return result;
  }

  bool is_candidate(const Runs& runs, const Element& e) const {
    if (e.x == elements_.representative(y_.x) || !is_wide_floating(e.x->shape().type()))
      return false;
    const auto as_whole = whole(runs, e);
    if (!as_whole || as_whole->at.first != 0) return false;
    const Index own = flat(as_whole->element.at), all = flat(y_.at);
    return std::all_of(all.begin(), all.end(),
                       [&](Var v) { return std::find(own.begin(), own.end(), v) != own.end(); });
  }

  std::optional<std::vector<ColumnTerm>> terms(Runs& runs, const Instruction* x, const Run& run) {
    const auto start = runs.at(y_, columns_, run);
    if (!start) return std::nullopt;
    auto value = ColumnTerms(elements_, runs, x).of(*start);
    if (!value || !value->is_sum) return std::nullopt;
    return std::move(value->terms);
  }

  struct Column {
    bool turns = false;
    int64_t other = 0;
  };

  /// One column: x's own, or a sum of products with its own and another.
  std::optional<Column> column(const Instruction* x, int64_t d) {
    Runs runs(elements_, 1);
    const auto found = terms(runs, x, {d, 0});
    if (!found) return std::nullopt;
    std::vector<int64_t> at;
    for (const ColumnTerm& term : *found) {
      const auto as_whole = whole(runs, term.x);
      if (!as_whole) return std::nullopt;
      at.push_back(as_whole->at.first);
    }
    if (found->size() == 1 && at[0] == d && found->front().sign == 1 && !found->front().factor)
      return Column{false, d};
    if (found->size() != 2 || !(*found)[0].factor || !(*found)[1].factor || at[0] == at[1] ||
        (at[0] != d && at[1] != d))
      return std::nullopt;
    return Column{true, at[0] == d ? at[1] : at[0]};
  }

  /// Where turned columns begin, or if `at_end` where they end.
  std::optional<int64_t> boundary(const Instruction* x, bool at_end) {
    int64_t before = 0, behind = depth_ - 1;
    while (behind - before > 1) {
      const int64_t middle = (before + behind) / 2;
      const auto found = column(x, middle);
      if (!found) return std::nullopt;
      (found->turns == at_end ? before : behind) = middle;
    }
    return behind;
  }

  /// What one half of all pairs becomes: own * x's own + sign * other * x's other half.
  struct Side {
    Element x;
    double sign = 1;
    ColumnFactor own, other;
  };

  std::optional<Side> side(Runs& runs, const Instruction* x, const Run& own, const Run& other) {
    const auto found = terms(runs, x, own);
    if (!found || found->size() != 2) return std::nullopt;
    const auto first = whole(runs, (*found)[0].x), second = whole(runs, (*found)[1].x);
    if (!first || !second || first->element != second->element || !(*found)[0].factor ||
        !(*found)[1].factor)
      return std::nullopt;
    const auto is_at = [&](const Run& a, const Run& b) {
      return a.first == b.first && (a.step == b.step || runs.count() == 1);
    };
    const int i = is_at(first->at, own) ? 0 : 1;
    if (!is_at((i == 0 ? first : second)->at, own) ||
        !is_at((i == 0 ? second : first)->at, other) || (*found)[i].sign != 1)
      return std::nullopt;
    return Side{first->element, (*found)[1 - i].sign, *(*found)[i].factor, *(*found)[1 - i].factor};
  }

  /// Whether y has x's own numbers from column `begin` to before `end`.
  bool own_elsewhere(const Instruction* x, const Element& expected, int64_t begin, int64_t end) {
    if (begin == end) return true;
    Runs runs(elements_, end - begin);
    const auto found = terms(runs, x, {begin, 1});
    if (!found || found->size() != 1 || found->front().factor || found->front().sign != 1)
      return false;
    const auto as_whole = whole(runs, found->front().x);
    return as_whole && as_whole->element == expected && as_whole->at.first == begin &&
           (as_whole->at.step == 1 || end - begin == 1);
  }

  /// Of two places of equal numbers the one that stands first in an array, whichever way it turns:
  /// a rotation and its inverse then have the same table.
  static std::optional<AngleTable> first_of(std::optional<AngleTable> a,
                                            std::optional<AngleTable> b) {
    const bool second = a && b && b->columns.first < a->columns.first;
    return second ? b : a;
  }

  /// Where the program has the numbers of all pairs: where they vary along no more than they must,
  /// best as all columns of an array.
  std::optional<AngleTable> table(Runs& runs, const ColumnFactor& number, const Index& pair) {
    std::optional<AngleTable> best;
    size_t fewest = 0;
    Element e = number.place;
    do {
      std::optional<int> dim;
      size_t others = 0;
      bool apart = true;
      for (size_t i = 0; i < e.at.size(); ++i) {
        const auto of_run =
            std::count_if(e.at[i].begin(), e.at[i].end(), [&](Var v) { return runs.is_of_run(v); });
        others += e.at[i].size() - of_run;
        if (of_run == 0) continue;
        apart = apart && !dim && of_run == static_cast<std::ptrdiff_t>(e.at[i].size());
        dim = static_cast<int>(i);
      }
      if (!dim || !apart) continue;
      const Run run = *runs.run_of(e.at[*dim]);
      if (run.step < 1 && runs.count() > 1) continue;
      AngleTable found;
      found.part = static_cast<AngleTable::Part>(number.part);
      found.dim = *dim;
      found.columns = run;
      found.is_cut = run.first != 0 || runs.last(run) != e.x->shape().dim(*dim) - 1 ||
                     (runs.count() > 1 && run.step != 1);
      if (best && (others > fewest || (others == fewest && found.is_cut && !best->is_cut)))
        continue;
      fewest = others;
      found.place = e;
      found.place.at[*dim] = pair;
      best = std::move(found);
    } while (runs.look_through(e, false) || runs.look_into_parts(e));
    return best;
  }

  Elements& elements_;
  const Element& y_;
  const Index& columns_;
  const int64_t depth_;
  std::string* why_not_;
};

}  // namespace

std::optional<Rotation> rotation_of(Elements& elements, const Element& y, const Index& columns,
                                    const Instruction* x, std::string* why_not) {
  if (elements.size(columns) < 2 || elements.size(columns) % 2 != 0 ||
      !is_wide_floating(y.x->shape().type()))
    return std::nullopt;
  Reader reader(elements, y, columns, why_not);
  if (x) return reader.rotation_of(elements.representative(x));
  for (const Instruction* candidate : reader.candidates())
    if (auto found = reader.rotation_of(candidate)) {
      found->x = elements.resolve(std::move(found->x));
      return found;
    }
  return std::nullopt;
}

std::optional<Rotation> relabelled(const Elements& elements, const Rotation& rotation,
                                   const std::vector<Index>& at) {
  const auto renaming = elements.renaming(rotation.y.at, at);
  if (!renaming) return std::nullopt;
  Rotation result = rotation;
  const auto rename = [&](Index& index) {
    for (Var& v : index) v = renaming->of(v);
  };
  rename(result.columns);
  for (Element* e : {&result.y, &result.x, &result.cosines.place, &result.sines.place})
    for (Index& index : e->at) rename(index);
  return result;
}

bool same_table(const AngleTable& a, const AngleTable& b) {
  if (a.part != b.part || a.dim != b.dim || a.is_cut != b.is_cut || a.columns != b.columns ||
      a.place.frame != b.place.frame || a.place.x != b.place.x)
    return false;
  for (size_t i = 0; i < a.place.at.size(); ++i)
    if (static_cast<int>(i) != a.dim && a.place.at[i] != b.place.at[i]) return false;
  return true;
}

}  // namespace heddle::rewrite
