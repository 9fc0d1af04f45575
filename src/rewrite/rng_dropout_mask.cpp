#include "rewrite/rng_dropout_mask.h"

#include <algorithm>

#include "rewrite/arithmetic.h"
#include "rewrite/read_words.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr uint32_t kOne = 0x3F800000;  // the bits of 1.0f
constexpr int kMaxLevels = 16;         // of scaling and clipping

/// The number that is made of constants alone, as the program computes it.
std::optional<double> folded(Elements& elements, const Element& element) {
  const auto steps =
      steps_of(elements, element, [](const Element& e) { return Arithmetic::knows(e.x); });
  if (!steps) return std::nullopt;
  Arithmetic arithmetic;
  std::vector<hlo::Literal> values;
  for (const Step& step : *steps) {
    if (step.operands.empty()) {
      const hlo::Literal* literal = step.element.x->literal();
      if (!literal || literal->is_elided() || literal->element_count() == 0 ||
          !is_computed_in(literal->shape().type()) || !literal->is_splat())
        return std::nullopt;
      values.push_back(hlo::scalar_at(*literal, 0));
      continue;
    }
    std::vector<hlo::Literal> operands;
    for (int number : step.operands) operands.push_back(values[number]);
    auto value = arithmetic.apply(step.element.x, std::move(operands));
    if (!value) return std::nullopt;
    values.push_back(std::move(*value));
  }
  return values.back().get(0);
}

/// The u32 value whose upper 23 bits are the fraction of `element`, a number u in [0, 1): through
/// what scales it to [0, 1) and clips it there.
std::optional<Element> bits_of_uniform(Elements& elements, const Element& element,
                                       int levels = kMaxLevels) {
  const Element e = elements.resolve(element);
  const Instruction* x = e.x;
  const auto operand = [&](int i) { return Element{e.frame, x->operand(i), e.at}; };
  if (levels == 0 || x->operand_count() != 2 || x->shape().type() != ElementType::f32)
    return std::nullopt;
  const auto neutral = [&](double value) -> std::optional<Element> {
    for (int i = 0; i < 2; ++i)
      if (folded(elements, operand(i)) == value)
        return bits_of_uniform(elements, operand(1 - i), levels - 1);
    return std::nullopt;
  };
  switch (x->opcode()) {
    case Opcode::maximum:
    case Opcode::add:
      // A sum that takes the 1 away again.
      if (x->is(Opcode::maximum) || folded(elements, operand(1)) != -1.0) return neutral(0);
      break;
    case Opcode::multiply:
      return neutral(1);
    case Opcode::subtract:
      if (folded(elements, operand(1)) == 0.0)
        return bits_of_uniform(elements, operand(0), levels - 1);
      if (folded(elements, operand(1)) != 1.0) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  const Element number = elements.resolve(operand(0));
  if (!number.x->is(Opcode::bitcast_convert)) return std::nullopt;
  const Element bits = elements.resolve({number.frame, number.x->operand(0), number.at});
  if (bits.x->shape().type() != ElementType::u32) return std::nullopt;
  return bits;
}

/// Keys under which `bits` may be Threefry of `low` (and `high`): what the cipher adds to them
/// first.
std::vector<std::pair<WordId, WordId>> possible_keys(Words& words, WordId bits, WordId high,
                                                     WordId low) {
  using Terms = std::map<WordId, uint32_t>;
  const auto less = [&](Terms from, const Terms& terms) -> std::optional<WordId> {
    for (const auto& [term, count] : terms) {
      if (words.at(term).kind == WordKind::constant) {
        // Numbers among the terms of one sum are added up.
        from[words.constant(-static_cast<uint32_t>(words.at(term).value))] += count;
        continue;
      }
      const auto found = from.find(term);
      if (found == from.end() || found->second < count) return std::nullopt;
      found->second -= count;
    }
    return words.sum_of(from);
  };
  // low + key[1] is what is rotated first; high + key[0] + low + key[1] what it is mixed with.
  std::vector<std::pair<WordId, WordId>> keys;
  const std::vector<WordId> all = words.within(bits);
  for (WordId rotated : all) {
    if (words.at(rotated).kind != WordKind::rotated || words.at(rotated).value != 13) continue;
    const Terms first = words.terms(words.at(rotated).parts[0]);
    const auto key_1 = less(first, {{low, 1}});
    if (!key_1) continue;
    for (WordId mixed : all) {
      if (words.at(mixed).kind != WordKind::exclusive_or) continue;
      const std::vector<WordId> pair = words.at(mixed).parts;
      if (pair.size() != 2 || std::find(pair.begin(), pair.end(), rotated) == pair.end()) continue;
      const WordId sum = pair[0] == rotated ? pair[1] : pair[0];
      const auto without_first = less(words.terms(sum), first);
      if (!without_first) continue;
      if (const auto key_0 = less(words.terms(*without_first), {{high, 1}}))
        keys.emplace_back(*key_0, *key_1);
    }
  }
  return keys;
}

}  // namespace

std::optional<RngDropoutMask> rng_dropout_mask(Elements& elements, const Element& predicate,
                                               bool is_negated) {
  const Element e = elements.resolve(predicate);
  if (!e.x->is(Opcode::compare)) return std::nullopt;
  // Kept is what is below the threshold; a uniform number is never NaN, so that all others are not.
  const bool less = e.x->direction() == (is_negated ? "GE" : "LT");
  if (!less && e.x->direction() != (is_negated ? "LE" : "GT")) return std::nullopt;
  const Element uniform{e.frame, e.x->operand(less ? 0 : 1), e.at};
  const auto threshold = folded(elements, {e.frame, e.x->operand(less ? 1 : 0), e.at});
  if (!threshold || !(*threshold > 0 && *threshold <= 1)) return std::nullopt;
  const auto number = bits_of_uniform(elements, uniform);
  if (!number) return std::nullopt;

  Words words;
  WordReader reader(elements, words);
  const auto read = reader.read(*number);
  if (!read || words.at(*read).kind != WordKind::either) return std::nullopt;
  // (bits >> 9) | the exponent of 1
  std::vector<WordId> halves = words.at(*read).parts;
  const WordId one = words.constant(kOne);
  if (halves[0] == one) std::swap(halves[0], halves[1]);
  const Word shifted = words.at(halves[0]);
  if (halves[1] != one || shifted.kind != WordKind::shifted_right || shifted.value != 9)
    return std::nullopt;
  const WordId bits = shifted.parts[0];

  for (WordId low : words.within(bits)) {
    const WordKind kind = words.at(low).kind;
    if (kind != WordKind::linear && kind != WordKind::low) continue;
    const WordId index = kind == WordKind::low ? words.at(low).parts[0] : low;
    const WordId high = kind == WordKind::low ? words.high(index) : words.constant(0);
    if (words.at(index).linear.constant != 0) continue;
    for (const auto& [key_0, key_1] : possible_keys(words, bits, high, low)) {
      if (threefry_bits(words, high, low, key_0, key_1) != bits) continue;
      RngDropoutMask mask;
      mask.keep_probability = *threshold;
      mask.index = words.at(index).linear;
      for (int i = 0; i < 2; ++i) {
        const WordId word = i == 0 ? key_0 : key_1;
        mask.key[i].place = reader.source(word);
        if (words.at(word).kind == WordKind::constant) {
          mask.key[i] = {std::nullopt, static_cast<uint32_t>(words.at(word).value)};
        } else if (!mask.key[i].place) {
          return std::nullopt;
        }
      }
      return mask;
    }
  }
  return std::nullopt;
}

}  // namespace heddle::rewrite
