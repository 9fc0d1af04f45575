#include "rewrite/words.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

namespace heddle::rewrite {

WordId Words::intern(Word word) {
  const auto [entry, added] = ids_.try_emplace(word, static_cast<WordId>(words_.size()));
  if (added) words_.push_back(std::move(word));
  return entry->second;
}

WordId Words::linear(Linear linear) {
  std::erase_if(linear.weights, [](const auto& term) { return term.second == 0; });
  if (linear.weights.empty()) return constant(static_cast<uint64_t>(linear.constant));
  return intern({WordKind::linear, 0, {}, std::move(linear)});
}

std::map<WordId, uint32_t> Words::terms(WordId word) const {
  if (words_[word].kind != WordKind::sum) return {{word, 1}};
  std::map<WordId, uint32_t> terms;
  for (size_t i = 0; i < words_[word].parts.size(); ++i)
    terms.emplace(words_[word].parts[i], static_cast<uint32_t>(words_[word].key[i]));
  return terms;
}

WordId Words::sum_of(const std::map<WordId, uint32_t>& terms) {
  uint32_t folded = 0;
  std::map<WordId, uint32_t> counted;
  for (const auto& [term, count] : terms) {
    if (words_[term].kind == WordKind::constant)
      folded += count * static_cast<uint32_t>(words_[term].value);
    else if (count != 0)
      counted.emplace(term, count);
  }
  if (folded != 0 || counted.empty()) counted.emplace(constant(folded), 1);
  if (counted.size() == 1 && counted.begin()->second == 1) return counted.begin()->first;
  Word sum{WordKind::sum};
  for (const auto& [term, count] : counted) {
    sum.parts.push_back(term);
    sum.key.push_back(count);
  }
  return intern(std::move(sum));
}

WordId Words::sum(WordId a, WordId b) {
  std::map<WordId, uint32_t> all = terms(a);
  for (const auto& [term, count] : terms(b)) all[term] += count;
  return sum_of(all);
}

WordId Words::exclusive_or(WordId a, WordId b) {
  std::set<WordId> odd;  // x ^ x = 0
  uint32_t folded = 0;
  const auto add = [&](WordId id) {
    if (words_[id].kind == WordKind::constant)
      folded ^= static_cast<uint32_t>(words_[id].value);
    else if (!odd.insert(id).second)
      odd.erase(id);
  };
  for (WordId id : {a, b}) {
    if (words_[id].kind != WordKind::exclusive_or) {
      add(id);
    } else {
      for (WordId part : words_[id].parts) add(part);
    }
  }
  if (folded != 0 || odd.empty()) odd.insert(constant(folded));
  if (odd.size() == 1) return *odd.begin();
  return intern({WordKind::exclusive_or, 0, {odd.begin(), odd.end()}});
}

WordId Words::either(WordId a, WordId b) {
  if (words_[a].kind == WordKind::shifted_right) std::swap(a, b);
  const Word &x = words_[a], &y = words_[b];
  if (x.kind == WordKind::shifted_left && y.kind == WordKind::shifted_right && x.parts == y.parts &&
      x.value + y.value == 32)
    return rotated(x.parts[0], static_cast<uint32_t>(x.value));
  if (x.kind == WordKind::constant && y.kind == WordKind::constant)
    return constant(x.value | y.value);
  return intern({WordKind::either, 0, {std::min(a, b), std::max(a, b)}});
}

WordId Words::rotated(WordId a, uint32_t by) {
  if (words_[a].kind == WordKind::constant)
    return constant(std::rotl(static_cast<uint32_t>(words_[a].value), static_cast<int>(by)));
  return intern({WordKind::rotated, by, {a}});
}

WordId Words::shifted_left(WordId a, uint32_t by) {
  if (by >= 32) return constant(0);
  if (words_[a].kind == WordKind::constant)
    return constant(static_cast<uint32_t>(words_[a].value) << by);
  return intern({WordKind::shifted_left, by, {a}});
}

WordId Words::shifted_right(WordId a, uint32_t by) {
  if (by >= 32) return constant(0);
  if (words_[a].kind == WordKind::constant)
    return constant(static_cast<uint32_t>(words_[a].value) >> by);
  return intern({WordKind::shifted_right, by, {a}});
}

std::vector<WordId> Words::within(WordId root) const {
  std::set<WordId> seen{root};
  std::vector<WordId> all{root};
  for (size_t i = 0; i < all.size(); ++i)
    for (WordId part : words_[all[i]].parts)
      if (seen.insert(part).second) all.push_back(part);
  return all;
}

WordId threefry_bits(Words& words, WordId high, WordId low, WordId key_0, WordId key_1) {
  constexpr std::array<std::array<uint32_t, 4>, 2> rotations{{{13, 15, 26, 6}, {17, 29, 16, 24}}};
  const WordId parity = words.constant(0x1BD11BDA);
  const std::array<WordId, 3> schedule{
      key_0, key_1, words.exclusive_or(words.exclusive_or(key_0, key_1), parity)};
  WordId x = words.sum(high, schedule[0]);
  WordId y = words.sum(low, schedule[1]);
  for (uint32_t group = 0; group < 5; ++group) {
    for (uint32_t rotation : rotations[group % 2]) {
      x = words.sum(x, y);
      y = words.exclusive_or(words.rotated(y, rotation), x);
    }
    x = words.sum(x, schedule[(group + 1) % 3]);
    y = words.sum(words.sum(y, schedule[(group + 2) % 3]), words.constant(group + 1));
  }
  return words.exclusive_or(x, y);
}

}  // namespace heddle::rewrite
