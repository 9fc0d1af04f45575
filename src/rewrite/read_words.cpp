#include "rewrite/read_words.h"

#include <algorithm>

#include "rewrite/loop.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr int64_t kMaxTerms = 20000;
constexpr int64_t kMaxTrips = 64;
// Keys made of keys, one after the other: what lies deeper is a word that nothing is known of.
constexpr int kMaxDepth = 1500;
constexpr int64_t kTwo32 = int64_t{1} << 32;

bool is_32_bit(ElementType type) { return type == ElementType::u32 || type == ElementType::s32; }
bool is_64_bit(ElementType type) { return type == ElementType::u64 || type == ElementType::s64; }

}  // namespace

std::optional<WordId> WordReader::read(const Element& element) {
  Place place{element.frame, element.x, {}, -1};
  for (const Index& index : element.at) place.at.push_back({index, 0});
  return value(std::move(place));
}

std::optional<Element> WordReader::source(WordId word) const {
  const auto found = sources_.find(word);
  return found == sources_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<WordId> WordReader::value(Place place) {
  if (words_.count() > kMaxTerms) return std::nullopt;
  // The last of the views that hold this number alone.
  std::optional<Element> alone;
  do {
    if (place.iteration < 0 && place.x->shape().element_count() == 1)
      alone = {place.frame, place.x, std::vector<Index>(place.x->shape().rank())};
  } while (view(place));
  const auto key = std::tuple(place.frame, place.iteration, place.x->id(), place.at);
  auto known = known_.find(key);
  if (known == known_.end()) {
    ++depth_;
    const std::optional<WordId> word = depth_ > kMaxDepth ? opaque(place) : evaluate(place);
    --depth_;
    known = known_.emplace(key, word).first;
  }
  if (known->second && alone) sources_.try_emplace(*known->second, *alone);
  return known->second;
}

bool WordReader::view(Place& place) {
  const Instruction* x = elements_.representative(place.x);
  place.x = x;
  std::vector<Position> at;
  switch (x->opcode()) {
    case Opcode::transpose:
      at.resize(place.at.size());
      for (size_t i = 0; i < at.size(); ++i) at[x->dimensions()[i]] = place.at[i];
      break;
    case Opcode::broadcast:
      for (int64_t dim : x->dimensions()) at.push_back(place.at[dim]);
      break;
    case Opcode::reshape:
      return reshape(place);
    case Opcode::copy:
      at = place.at;
      break;
    case Opcode::slice: {
      const auto slices = x->slice();
      for (size_t i = 0; i < slices.size(); ++i) {
        if (slices[i].stride != 1) return false;
        at.push_back({place.at[i].digits, place.at[i].offset + slices[i].start});
      }
      break;
    }
    case Opcode::get_tuple_element: {
      const Instruction* from = x->operand(0);
      if (from->is(Opcode::tuple)) {
        place.x = from->operand(static_cast<int>(x->tuple_index()));
        return true;
      }
      if (place.iteration >= 0) return false;
      // State that a loop around leaves alone.
      const Element whole = elements_.fresh(place.frame, x);
      const Element behind = elements_.resolve(whole);
      if (behind.x == x || behind.at != whole.at) return false;
      place.x = behind.x;
      place.frame = behind.frame;
      return true;
    }
    default:
      return false;
  }
  place.x = x->operand(0);
  place.at = std::move(at);
  return true;
}

bool WordReader::reshape(Place& place) {
  const hlo::Shape& to = place.x->operand(0)->shape();
  const auto is_fixed = [](const Position& p) { return p.digits.empty(); };
  if (std::all_of(place.at.begin(), place.at.end(), is_fixed)) {
    int64_t flat = 0;
    for (size_t i = 0; i < place.at.size(); ++i)
      flat = flat * place.x->shape().dim(static_cast<int>(i)) + place.at[i].offset;
    std::vector<Position> at(to.rank());
    for (int i = to.rank(); i-- > 0;) {
      at[i].offset = flat % to.dim(i);
      flat /= to.dim(i);
    }
    place = {place.frame, place.x->operand(0), std::move(at), place.iteration};
    return true;
  }
  std::vector<Index> digits;
  for (const Position& p : place.at) {
    if (p.offset != 0) return false;
    digits.push_back(p.digits);
  }
  const auto dealt = elements_.regroup(digits, to.dims());
  if (!dealt) return false;
  std::vector<Position> at;
  for (const Index& index : *dealt) at.push_back({index, 0});
  place = {place.frame, place.x->operand(0), std::move(at), place.iteration};
  return true;
}

std::optional<WordId> WordReader::evaluate(const Place& place) {
  const Instruction* x = place.x;
  if (!x->shape().is_array()) return std::nullopt;
  const ElementType type = x->shape().type();
  if (x->literal()) return literal(place);
  if (x->is(Opcode::iota)) return position(place.at[x->iota_dimension()]);
  if (x->is(Opcode::get_tuple_element)) {
    const Instruction* from = x->operand(0);
    if (from->is(Opcode::while_)) {
      const auto count = counted(from);
      if (count && count->trips >= 0 && count->trips <= kMaxTrips)
        if (const auto word = state(place, from, count->trips, place.iteration)) return word;
    } else if (place.iteration >= 0) {
      const Iteration at = iterations_[place.iteration];
      if (from != at.loop->body()->parameter(0)) return std::nullopt;
      return state(place, at.loop, at.number, at.outer);
    }
  } else if (is_64_bit(type)) {
    if (const auto word = wide_operation(place)) return word;
  } else if (is_32_bit(type)) {
    if (const auto word = operation(place)) return word;
  }
  return opaque(place);
}

std::optional<WordId> WordReader::opaque(const Place& place) {
  const Instruction* x = place.x;
  // Inside a loop being run it may be another value each time.
  if (place.iteration >= 0 || !is_32_bit(x->shape().type())) return std::nullopt;
  std::vector<int64_t> key{place.frame, x->id()};
  for (const Position& p : place.at) {
    key.push_back(p.offset);
    key.push_back(INT64_MIN);
    key.insert(key.end(), p.digits.begin(), p.digits.end());
  }
  return words_.opaque(std::move(key));
}

std::optional<WordId> WordReader::state(const Place& place, const Instruction* loop,
                                        int64_t iterations, int outer) {
  const int index = static_cast<int>(place.x->tuple_index());
  Place next{place.frame, nullptr, place.at, outer};
  const Instruction* root = iterations == 0 ? loop->operand(0) : loop->body()->root();
  if (!root->is(Opcode::tuple)) return std::nullopt;
  next.x = root->operand(index);
  if (iterations > 0) next.iteration = iteration(loop, iterations - 1, outer);
  return value(std::move(next));
}

int WordReader::iteration(const Instruction* loop, int64_t number, int outer) {
  for (size_t i = 0; i < iterations_.size(); ++i)
    if (iterations_[i].loop == loop && iterations_[i].number == number &&
        iterations_[i].outer == outer)
      return static_cast<int>(i);
  iterations_.push_back({loop, number, outer});
  return static_cast<int>(iterations_.size()) - 1;
}

std::optional<WordId> WordReader::literal(const Place& place) {
  const hlo::Literal& literal = *place.x->literal();
  const ElementType type = place.x->shape().type();
  if (literal.is_elided() || literal.element_count() == 0 || !hlo::is_integral(type))
    return std::nullopt;
  int64_t flat = 0;
  for (size_t i = 0; i < place.at.size(); ++i) {
    if (!place.at[i].digits.empty() && !literal.is_splat()) return std::nullopt;
    flat = flat * place.x->shape().dim(static_cast<int>(i)) + place.at[i].offset;
  }
  if (literal.is_splat()) flat = 0;
  if (flat >= literal.element_count()) return std::nullopt;
  const int64_t value = literal.get_integer(flat);
  return words_.constant(is_32_bit(type) ? static_cast<uint32_t>(value)
                                         : static_cast<uint64_t>(value));
}

std::optional<WordId> WordReader::position(const Position& position) {
  Linear linear{{}, position.offset};
  int64_t weight = 1;
  for (auto digit = position.digits.rbegin(); digit != position.digits.rend(); ++digit) {
    linear.weights[*digit] = weight;
    weight *= elements_.size(*digit);
  }
  const WordId word = words_.linear(std::move(linear));
  return largest(word) < kTwo32 ? std::optional(word) : std::nullopt;
}

std::optional<int64_t> WordReader::largest(WordId id) const {
  const Word& word = words_.at(id);
  if (word.kind == WordKind::constant) {
    if (word.value > INT64_MAX) return std::nullopt;
    return static_cast<int64_t>(word.value);
  }
  if (word.kind != WordKind::linear) return std::nullopt;
  int64_t sum = word.linear.constant;
  for (const auto& [digit, weight] : word.linear.weights) {
    int64_t most = 0;
    if (__builtin_mul_overflow(elements_.size(digit) - 1, weight, &most) ||
        __builtin_add_overflow(sum, most, &sum))
      return std::nullopt;
  }
  return sum;
}

std::optional<WordId> WordReader::narrowed(WordId word) {
  const auto most = largest(word);
  if (!most) return std::nullopt;
  return *most < kTwo32 ? word : words_.low(word);
}

std::optional<WordId> WordReader::wide_operation(const Place& place) {
  const Instruction* x = place.x;
  const auto operand = [&](int i) {
    return value({place.frame, x->operand(i), place.at, place.iteration});
  };
  if (x->is(Opcode::convert)) {
    const ElementType from = x->operand(0)->shape().type();
    const auto word = is_32_bit(from) || is_64_bit(from) ? operand(0) : std::nullopt;
    const auto most = word ? largest(*word) : std::nullopt;
    if (!most || (from == ElementType::s32 && *most > INT32_MAX)) return std::nullopt;
    return word;
  }
  if (x->operand_count() != 2) return std::nullopt;
  const auto a = operand(0), b = a ? operand(1) : std::nullopt;
  if (!a || !b || !largest(*a) || !largest(*b)) return std::nullopt;
  const auto linear_of = [&](WordId id) {
    const Word& word = words_.at(id);
    return word.kind == WordKind::linear ? word.linear
                                         : Linear{{}, static_cast<int64_t>(word.value)};
  };
  Linear l = linear_of(*a), r = linear_of(*b);
  switch (x->opcode()) {
    case Opcode::add: {
      int64_t most = 0;
      if (__builtin_add_overflow(*largest(*a), *largest(*b), &most)) return std::nullopt;
      for (const auto& [digit, weight] : r.weights) l.weights[digit] += weight;
      l.constant += r.constant;
      break;
    }
    case Opcode::multiply: {
      if (!l.weights.empty()) std::swap(l, r);
      if (!l.weights.empty()) return std::nullopt;
      const int64_t factor = l.constant;
      // The product must not wrap; then none of its terms does.
      int64_t most = 0;
      if (__builtin_mul_overflow(*largest(words_.linear(r)), factor, &most)) return std::nullopt;
      l = std::move(r);
      for (auto& [digit, weight] : l.weights) weight *= factor;
      l.constant *= factor;
      break;
    }
    case Opcode::shift_right_logical: {
      if (!r.weights.empty() || r.constant != 32) return std::nullopt;
      return *largest(*a) < kTwo32 ? words_.constant(0) : words_.high(*a);
    }
    default:
      return std::nullopt;
  }
  const WordId word = words_.linear(std::move(l));
  return largest(word) ? std::optional(word) : std::nullopt;
}

std::optional<WordId> WordReader::operation(const Place& place) {
  const Instruction* x = place.x;
  const auto operand = [&](int i) {
    return value({place.frame, x->operand(i), place.at, place.iteration});
  };
  if (x->is(Opcode::convert)) {
    const ElementType from = x->operand(0)->shape().type();
    if (is_32_bit(from)) return operand(0);
    if (!is_64_bit(from)) return std::nullopt;
    const auto word = operand(0);
    if (!word) return std::nullopt;
    return words_.at(*word).kind == WordKind::high ? word : narrowed(*word);
  }
  if (x->operand_count() != 2) return std::nullopt;
  const auto a = operand(0), b = a ? operand(1) : std::nullopt;
  if (!a || !b) return std::nullopt;
  const auto by = [&]() -> std::optional<uint32_t> {
    if (words_.at(*b).kind != WordKind::constant) return std::nullopt;
    return static_cast<uint32_t>(words_.at(*b).value);
  };
  switch (x->opcode()) {
    case Opcode::add: {
      // Parts of an index in 32 bits, as long as they do not wrap.
      if (words_.at(*a).kind == WordKind::linear && words_.at(*b).kind == WordKind::linear) {
        Linear sum = words_.at(*a).linear;
        for (const auto& [digit, weight] : words_.at(*b).linear.weights)
          sum.weights[digit] += weight;
        sum.constant += words_.at(*b).linear.constant;
        const WordId word = words_.linear(std::move(sum));
        if (largest(word).value_or(kTwo32) < kTwo32) return word;
      }
      return words_.sum(*a, *b);
    }
    case Opcode::subtract:
      if (words_.at(*a).kind != WordKind::constant || !by()) return std::nullopt;
      return words_.constant(static_cast<uint32_t>(words_.at(*a).value) - *by());
    case Opcode::multiply: {
      const auto factor = by();
      if (words_.at(*a).kind != WordKind::linear || !factor) return std::nullopt;
      Linear product = words_.at(*a).linear;
      int64_t most = 0;
      if (__builtin_mul_overflow(largest(*a).value_or(kTwo32), int64_t{*factor}, &most) ||
          most >= kTwo32)
        return std::nullopt;
      for (auto& [digit, weight] : product.weights) weight *= *factor;
      product.constant *= *factor;
      return words_.linear(std::move(product));
    }
    case Opcode::xor_:
      return words_.exclusive_or(*a, *b);
    case Opcode::or_:
      return words_.either(*a, *b);
    case Opcode::shift_left:
      return by() ? std::optional(words_.shifted_left(*a, *by())) : std::nullopt;
    case Opcode::shift_right_logical:
      return by() ? std::optional(words_.shifted_right(*a, *by())) : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace heddle::rewrite
