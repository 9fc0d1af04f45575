#include "rewrite/region.h"

#include <algorithm>

#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

bool contains(std::span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

/// The operand that `summed` is, rounded or, where a mask hides it, 0; nothing of other values.
std::optional<int> passed_on(Elements& elements, const Element& summed) {
  if (is_rounding(summed.x)) return 0;
  if (!summed.x->is(Opcode::select)) return std::nullopt;
  for (int hidden : {1, 2})
    if (elements.splat(summed.frame, summed.x->operand(hidden)) == 0.0) return 3 - hidden;
  return std::nullopt;
}

bool is_additive(const Instruction* x) { return x->is(Opcode::add) || x->is(Opcode::subtract); }

}  // namespace

bool is_sum(Elements& elements, int frame, const Instruction* reduce) {
  if (!reduce->is(Opcode::reduce) || reduce->operand_count() != 2) return false;
  const Instruction* root = reduce->to_apply()->root();
  return root->is(Opcode::add) && root->operand(0)->is(Opcode::parameter) &&
         root->operand(1)->is(Opcode::parameter) && root->operand(0) != root->operand(1) &&
         elements.splat(frame, reduce->operand(1)) == 0.0;
}

bool multiplies_out(const Elements& elements, const Instruction* x, const Instruction* user) {
  if (user->is(Opcode::dot)) return true;
  if (!user->is(Opcode::broadcast) || user->shape().element_count() <= x->shape().element_count())
    return false;
  const std::vector<const Instruction*> readers = elements.users(user);
  return std::any_of(readers.begin(), readers.end(), [](const Instruction* reader) {
    return reader->is(Opcode::multiply) || is_rounding(reader);
  });
}

std::optional<Element> product_behind(Elements& elements, const Element& element) {
  Element product = elements.resolve(element);
  while (is_rounding(product.x))
    product = elements.resolve({product.frame, product.x->operand(0), product.at});
  return product.x->is(Opcode::multiply) ? std::optional(product) : std::nullopt;
}

bool is_contraction(Elements& elements, int frame, const Instruction* x) {
  return x->is(Opcode::dot) ||
         (is_sum(elements, frame, x) &&
          product_behind(elements, elements.fresh(frame, x->operand(0))).has_value());
}

Region::Region(Elements& elements, Algebra& algebra, int frame, const Instruction* exponential,
               int home, Terms terms, std::set<const Instruction*> opaque, Normalised normalised)
    : elements_(elements),
      algebra_(algebra),
      frame_(frame),
      home_(home),
      anchor_(elements.fresh(frame, elements.representative(exponential))),
      opaque_(std::move(opaque)),
      count_(exponential->shape().element_count()),
      terms_(terms),
      mask_values_(elements, algebra,
                   [this](const Element& predicate) { return truth_beside_keys(predicate); }) {
  enter({anchor_, Kind::matrix});
  for (const Instruction* operand : anchor_.x->operands())
    add_upstream({frame, operand, anchor_.at});
  walk(frame);
  normalised == Normalised::by_sum ? find_keys() : find_keys_by_number();
  if (terms != Terms::taken_apart) find_scores();
  if (home != frame) {
    for (const ReadBack& read : elements.reads(frame)) {
      const Element row = elements_.fresh(frame, read.kept);
      const Element written = elements_.resolve(row);
      const Member* member = find(frame, written.x);
      if (!member || opaque_.contains(written.x)) continue;
      if (auto at = labelled_as(*member, row, written))
        enter({{home, read.read, std::move(*at)}, member->kind});
    }
    walk(home);
  }
  for (const auto& [key, member] : all_)
    if (key.first != home) kept_by_ = key.first;
}

Member* Region::lookup(int frame, const Instruction* x) {
  const auto found = all_.find({frame, elements_.representative(x)});
  return found == all_.end() ? nullptr : &found->second;
}

const Member* Region::find(int frame, const Instruction* x) const {
  const auto found = all_.find({frame, elements_.representative(x)});
  return found == all_.end() ? nullptr : &found->second;
}

std::vector<const Member*> Region::members(int frame) const {
  std::vector<const Member*> members;
  for (auto at = all_.lower_bound({frame, nullptr}); at != all_.end() && at->first.first == frame;
       ++at)
    members.push_back(&at->second);
  std::sort(members.begin(), members.end(), [&](const Member* a, const Member* b) {
    return elements_.position(a->place.x) < elements_.position(b->place.x);
  });
  return members;
}

void Region::enter(const Member& member) {
  if (opaque_.contains(member.place.x)) return;
  if (all_.try_emplace({member.place.frame, member.place.x}, member).second)
    expect_users(member.place.x);
}

void Region::expect_users(const Instruction* x) {
  // A member may be entered that lies in another computation, as a loop's state does: its users
  // have places there.
  const std::vector<const Instruction*>& order = elements_.order(walked_);
  for (const Instruction* user : elements_.users(x)) {
    const size_t at = elements_.position(user);
    if (elements_.representative(user) == user && at < order.size() && order[at] == user)
      expected_.insert(at);
  }
}

void Region::add_upstream(const Element& element) {
  // The first operands first; programs may be deep, so that no call stands for an operation.
  std::vector<Element> work{element};
  while (!work.empty()) {
    const Element at = std::move(work.back());
    work.pop_back();
    const Element here{at.frame, elements_.representative(at.x), at.at};
    if (!add_matrix(here)) continue;
    const size_t first = work.size();
    add_operands(here, work);
    std::reverse(work.begin() + static_cast<ptrdiff_t>(first), work.end());
  }
}

/// Whether `here` belongs to the matrix and was not known to.
bool Region::add_matrix(const Element& here) {
  const Instruction* x = here.x;
  if (!x->shape().is_array() || x->shape().element_count() != count_ || x->is(Opcode::constant) ||
      x->is(Opcode::iota) || x->is(Opcode::broadcast) ||  // of fewer: a row vector, a bias, ...
      opaque_.contains(x))
    return false;
  Member* known = lookup(here.frame, x);
  if (known && known->kind == Kind::matrix) return false;
  if (known) {
    *known = {here, Kind::matrix};
  } else {
    enter({here, Kind::matrix});
  }
  return true;
}

/// The operands of a value of the matrix that may belong to it too.
void Region::add_operands(const Element& here, std::vector<Element>& to) const {
  const Instruction* x = here.x;
  if (x->is(Opcode::transpose)) {
    std::vector<Index> at(here.at.size());
    for (size_t i = 0; i < at.size(); ++i) at[x->dimensions()[i]] = here.at[i];
    to.push_back({here.frame, x->operand(0), std::move(at)});
  } else if (x->is(Opcode::reshape)) {
    if (auto at = elements_.regroup(here.at, x->operand(0)->shape().dims()))
      to.push_back({here.frame, x->operand(0), std::move(*at)});
  } else if (hlo::is_elementwise(x->opcode()) || x->is(Opcode::copy)) {
    for (const Instruction* operand : x->operands())
      if (hlo::same_dims(operand->shape(), x->shape()))
        to.push_back({here.frame, operand, here.at});
  } else if (x->is(Opcode::dynamic_slice) || x->is(Opcode::get_tuple_element)) {
    // Scores that the loop or branch which is read back kept.
    Element kept = elements_.resolve(here);
    if (kept.frame != here.frame && is_contraction(elements_, kept.frame, kept.x))
      to.push_back(std::move(kept));
  }
}

void Region::walk(int frame) {
  // In one pass from operands to users, and only over what reads a member: programs are long.
  const std::vector<const Instruction*>& order = elements_.order(frame);
  walked_ = frame;
  expected_.clear();
  for (const Member* member : members(frame)) expect_users(member->place.x);
  if (frame != frame_)  // slices of what the other frame's body joined
    for (size_t i = 0; i < order.size(); ++i)
      if (order[i]->is(Opcode::slice)) expected_.insert(i);
  for (auto next = expected_.begin(); next != expected_.end();) {
    const size_t at = *next;
    const Instruction* x = order[at];
    if (elements_.representative(x) == x && x->shape().is_array() && !lookup(frame, x))
      classify(frame, x);
    next = expected_.upper_bound(at);
  }
}

void Region::classify(int frame, const Instruction* x) {
  if (x->operand_count() == 0) return;
  const Member* from = lookup(frame, x->operand(0));
  switch (x->opcode()) {
    case Opcode::transpose: {
      if (!from) return;
      std::vector<Index> at;
      for (int64_t dim : x->dimensions()) at.push_back(from->place.at[dim]);
      return enter({{frame, x, std::move(at)}, from->kind});
    }
    case Opcode::reshape: {
      if (!from) return;
      if (auto at = elements_.regroup(from->place.at, x->shape().dims()))
        enter({{frame, x, std::move(*at)}, from->kind});
      return;
    }
    case Opcode::broadcast: {
      if (!from) return;
      std::vector<Index> at(x->shape().rank());
      for (int i = 0; i < x->shape().rank(); ++i)
        if (!contains(x->dimensions(), i)) at[i] = elements_.fresh(x, i);
      for (size_t i = 0; i < x->dimensions().size(); ++i)
        at[x->dimensions()[i]] = from->place.at[i];
      const bool same = x->shape().element_count() == x->operand(0)->shape().element_count();
      return enter({{frame, x, std::move(at)}, same ? from->kind : Kind::derived});
    }
    case Opcode::reduce: {
      if (!from || x->operand_count() != 2) return;
      std::vector<Index> at;
      for (int i = 0; i < x->operand(0)->shape().rank(); ++i)
        if (!contains(x->dimensions(), i)) at.push_back(from->place.at[i]);
      return enter({{frame, x, std::move(at)}, Kind::derived});
    }
    case Opcode::slice:
      return classify_slice(frame, x);
    case Opcode::dot:
      return classify_dot(frame, x);
    case Opcode::copy:
      if (from) enter({{frame, x, from->place.at}, from->kind});
      return;
    default:
      if (hlo::is_elementwise(x->opcode())) classify_elementwise(frame, x);
  }
}

void Region::classify_slice(int frame, const Instruction* x) {
  // Of what another frame's body joined: the very part that is a member there.
  const Element here = elements_.fresh(frame, x);
  const Element behind = elements_.resolve(here);
  const Member* member = behind.frame == frame ? nullptr : find(behind.frame, behind.x);
  if (!member) return;
  if (auto at = labelled_as(*member, here, behind))
    enter({{frame, x, std::move(*at)}, member->kind});
}

std::optional<std::vector<Index>> Region::labelled_as(const Member& member, const Element& here,
                                                      const Element& behind) const {
  Renaming names;
  for (size_t i = 0; i < behind.at.size(); ++i) {
    if (behind.at[i].size() != member.place.at[i].size()) return std::nullopt;
    for (size_t j = 0; j < behind.at[i].size(); ++j) names[behind.at[i][j]] = member.place.at[i][j];
  }
  std::vector<Index> at = here.at;
  for (Index& index : at)
    for (Var& v : index) {
      const auto name = names.find(v);
      if (name == names.end() || elements_.size(name->second) != elements_.size(v))
        return std::nullopt;
      v = name->second;
    }
  return at;
}

void Region::classify_elementwise(int frame, const Instruction* x) {
  const Member* matrix = nullptr;
  const Member* derived = nullptr;
  bool all_derived = true;  // or constant, or a product of matrices
  for (const Instruction* operand : x->operands()) {
    if (!hlo::same_dims(operand->shape(), x->shape())) continue;
    const Member* member = lookup(frame, operand);
    if (member && member->kind == Kind::matrix && !matrix) matrix = member;
    if (member && member->kind == Kind::derived && !derived) derived = member;
    if (!member && !elements_.splat(frame, operand)) {
      const Element behind = elements_.resolve(elements_.fresh(frame, operand));
      all_derived = all_derived && is_contraction(elements_, behind.frame, behind.x);
    }
  }
  if (matrix) {
    const Element place{frame, x, matrix->place.at};
    for (const Instruction* operand : x->operands())
      if (hlo::same_dims(operand->shape(), x->shape())) add_upstream({frame, operand, place.at});
    return enter({place, Kind::matrix});
  }
  // A sum with what is not of the region leads out of it, except that of row vectors.
  if (!derived || (is_additive(x) && !all_derived && !is_of_rows(derived->place))) return;
  enter({{frame, x, derived->place.at}, Kind::derived});
}

bool Region::is_of_rows(const Element& place) const {
  int64_t count = 1;
  for (Var v : flat(place.at)) {
    if (!is_of_matrix(v)) return false;
    count *= elements_.size(v);
  }
  return count < count_;
}

bool Region::is_of_vectors(const Element& place) const {
  const Member* member = find(place.frame, place.x);
  const Index labels = member ? flat(member->place.at) : Index{};
  return std::any_of(labels.begin(), labels.end(), [this](Var v) { return !is_of_matrix(v); });
}

bool Region::is_of_matrix(Var v) const {
  return std::any_of(anchor_.at.begin(), anchor_.at.end(), [v](const Index& at) {
    return std::find(at.begin(), at.end(), v) != at.end();
  });
}

void Region::classify_dot(int frame, const Instruction* x) {
  const Member* lhs = lookup(frame, x->operand(0));
  const Member* rhs = lookup(frame, x->operand(1));
  if (!lhs && !rhs) return;
  const bool of_matrix = (lhs && lhs->kind == Kind::matrix) || (rhs && rhs->kind == Kind::matrix);
  // A product of row vectors' kin (dO / l with V) may be a matrix: that shows, and its labels with
  // it, where it meets the weights.
  // And a product over all but batch axes is a row vector (rowsum(dO * O)).
  const bool is_row = x->shape().rank() == static_cast<int>(x->lhs_batch_dims().size());
  if (!of_matrix && !is_row && x->shape().element_count() != count_) return;
  std::vector<Index> at;
  const auto lb = x->lhs_batch_dims(), rb = x->rhs_batch_dims();
  for (size_t i = 0; i < lb.size(); ++i)
    at.push_back(lhs ? lhs->place.at[lb[i]] : rhs->place.at[rb[i]]);
  const auto add_free = [&](int side, const Member* member, auto batch, auto contracting) {
    const Instruction* operand = x->operand(side);
    for (int i = 0; i < operand->shape().rank(); ++i)
      if (!contains(batch, i) && !contains(contracting, i))
        at.push_back(member ? member->place.at[i] : elements_.fresh(operand, i));
  };
  add_free(0, lhs, lb, x->lhs_contracting_dims());
  add_free(1, rhs, rb, x->rhs_contracting_dims());
  enter({{frame, x, std::move(at)}, Kind::derived});
}

void Region::find_keys() {
  for (const Member* member : members(frame_)) {
    const Instruction* x = member->place.x;
    if (!is_sum(elements_, frame_, x)) continue;
    const Member* from = lookup(frame_, x->operand(0));
    if (!from || from->kind != Kind::matrix) continue;
    Element summed = elements_.resolve({frame_, x->operand(0), from->place.at});
    while (const auto operand = passed_on(elements_, summed))
      summed = elements_.resolve({summed.frame, summed.x->operand(*operand), summed.at});
    if (!(summed == anchor_)) continue;
    for (int64_t dim : x->dimensions())
      for (Var v : from->place.at[dim]) keys_.push_back(v);
    return;
  }
}

std::optional<Region::Difference> Region::less_number() {
  Element difference = operand_of(elements_, anchor_, 0);
  while (is_rounding(difference.x)) difference = operand_of(elements_, difference, 0);
  if (!difference.x->is(Opcode::subtract)) return std::nullopt;
  Element number = operand_of(elements_, difference, 1);
  if (!is_wide_floating(number.x->shape().type()) || !is_of_rows(number) ||
      flat(number.at).empty() || depends_on_scores(number))
    return std::nullopt;
  return Difference{operand_of(elements_, difference, 0), std::move(number)};
}

void Region::find_keys_by_number() {
  const auto difference = less_number();
  if (!difference) return;
  for (Var v : flat(anchor_.at))
    if (!varies(difference->number, {v})) keys_.push_back(v);
}

void Region::find_scores() {
  const std::vector<const Member*> all = members(frame_);
  std::map<const Instruction*, bool> holds_product;
  const auto matrix_operands = [&](const Instruction* x) {
    std::vector<Element> elements;
    add_operands(find(frame_, x)->place, elements);
    std::vector<const Instruction*> operands;
    for (const Element& element : elements) {
      const Instruction* operand = elements_.representative(element.x);
      if (holds_product.contains(operand)) operands.push_back(operand);
    }
    return operands;
  };
  for (const Member* member : all) {
    const Instruction* x = member->place.x;
    bool holds = is_contraction(elements_, frame_, x);
    if (member->kind != Kind::matrix && !holds) continue;
    for (const Instruction* operand : matrix_operands(x)) holds = holds || holds_product[operand];
    holds_product[x] = holds;
  }
  if (const auto anchor = holds_product.find(anchor_.x); anchor != holds_product.end())
    scores_.insert(*anchor);
  for (size_t i = all.size(); i-- > 0;)
    if (const Instruction* x = all[i]->place.x; scores_.contains(x))
      for (const Instruction* operand : matrix_operands(x))
        scores_[operand] = holds_product[operand];
}

std::vector<Var> Region::keys_of(const Element& element) const {
  // Where the labels of this instruction are keys, the element's own digits are.
  std::vector<Var> keys;
  const Member* member = find(element.frame, element.x);
  if (!member) return keys;
  for (size_t i = 0; i < element.at.size(); ++i)
    for (size_t j = 0; j < element.at[i].size(); ++j)
      if (std::find(keys_.begin(), keys_.end(), member->place.at[i][j]) != keys_.end())
        keys.push_back(element.at[i][j]);
  return keys;
}

ScoreBits Region::bits_of_scores() {
  ScoreBits bits;
  for (const auto& [key, member] : all_) {
    const hlo::ElementType type = member.place.x->shape().type();
    if (member.kind != Kind::matrix || !hlo::is_floating(type) || !depends_on_scores(member.place))
      continue;
    bits.fewest = std::min(bits.fewest, hlo::bits_of(type));
    bits.most = std::max(bits.most, hlo::bits_of(type));
  }
  for (const Instruction* product : products_in_scores())
    bits.product = std::max(bits.product, hlo::bits_of(product->shape().type()));
  return bits;
}

std::vector<const Instruction*> Region::products_in_scores() const {
  std::vector<const Instruction*> products;
  std::set<const Instruction*> seen;
  std::vector<Element> work{anchor_};
  while (!work.empty()) {
    const Element at = std::move(work.back());
    work.pop_back();
    const Member* member = find(at.frame, at.x);
    if (!member || member->kind != Kind::matrix || !seen.insert(member->place.x).second) continue;
    if (is_contraction(elements_, at.frame, member->place.x))
      products.push_back(member->place.x);
    else
      add_operands(member->place, work);
  }
  std::stable_sort(products.begin(), products.end(), [](const auto* a, const auto* b) {
    return a->lhs_batch_dims().size() > b->lhs_batch_dims().size();
  });
  return products;
}

bool Region::feeds_products() const {
  for (const Member* member : members(home_)) {
    if (member->kind != Kind::matrix) continue;
    for (const Instruction* user : elements_.users(member->place.x))
      if (multiplies_out(elements_, member->place.x, user)) return true;
  }
  return false;
}

bool Region::depends_on_scores(const Element& element) {
  const auto [known, is_new] = made_of_scores_.try_emplace(element.frame);
  std::set<const Instruction*>& made = known->second;
  if (!is_new) return made.count(element.x) > 0;
  // All of a computation at once: of each value by itself a long row of operations takes long.
  for (const Instruction* x : elements_.order(element.frame)) {
    const bool are_scores = x->shape().is_array() && hlo::is_floating(x->shape().type()) &&
                            x->shape().element_count() == count_ && find(element.frame, x) &&
                            (x == anchor_.x || is_contraction(elements_, element.frame, x));
    if (are_scores ||
        std::any_of(x->operands().begin(), x->operands().end(),
                    [&](const Instruction* operand) { return made.count(operand) > 0; }))
      made.insert(x);
  }
  return made.count(element.x) > 0;
}

}  // namespace heddle::rewrite
