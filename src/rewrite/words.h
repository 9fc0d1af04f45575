// Integers as programs make random bits of them: terms over 32-bit words in one normal form, so
// that two ways of writing the same bits give the same term. Sums and exclusive ors are flat and
// sorted with their constants folded, and a pair of opposite shifts is a rotation. A sum says how
// often it has each term: where keys are drawn with keys that were drawn themselves, each has those
// before it several times, and terms one by one would be a power of the depth.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "rewrite/element.h"

namespace heddle::rewrite {

using WordId = int32_t;

/// A whole number that is a weighted sum of index digits, plus a constant; nothing negative.
struct Linear {
  std::map<Var, int64_t> weights;
  int64_t constant = 0;
  friend auto operator<=>(const Linear&, const Linear&) = default;
};

enum class WordKind : uint8_t {
  constant,
  linear,  // of fewer than 64 bits; in a 32-bit operation of fewer than 32
  opaque,  // anything else: the same key, the same value
  sum,     // modulo 2^32, as are all below
  exclusive_or,
  either,   // a | b
  rotated,  // left, by `value`
  shifted_left,
  shifted_right,
  low,   // the lower 32 bits of a linear one
  high,  // and the upper 32
};

struct Word {
  WordKind kind = WordKind::constant;
  uint64_t value = 0;
  std::vector<WordId> parts;  // ascending where the order does not matter
  Linear linear;
  std::vector<int64_t> key;  // opaque; of a sum how often each part
  friend auto operator<=>(const Word&, const Word&) = default;
};

class Words {
 public:
  const Word& at(WordId id) const { return words_[id]; }
  WordId constant(uint64_t value) { return intern({WordKind::constant, value}); }
  WordId opaque(std::vector<int64_t> key) {
    return intern({WordKind::opaque, 0, {}, {}, std::move(key)});
  }
  WordId linear(Linear linear);
  /// The halves of a linear term of 2^32 or more.
  WordId low(WordId linear) { return intern({WordKind::low, 0, {linear}}); }
  WordId high(WordId linear) { return intern({WordKind::high, 0, {linear}}); }

  // On 32-bit words.
  WordId sum(WordId a, WordId b);
  WordId exclusive_or(WordId a, WordId b);
  WordId either(WordId a, WordId b);
  WordId rotated(WordId a, uint32_t by);
  WordId shifted_left(WordId a, uint32_t by);
  WordId shifted_right(WordId a, uint32_t by);

  /// What a word is the sum of, and how often each: itself, where it is none.
  std::map<WordId, uint32_t> terms(WordId word) const;
  WordId sum_of(const std::map<WordId, uint32_t>& terms);

  /// All terms that `root` is made of, itself included.
  std::vector<WordId> within(WordId root) const;
  int64_t count() const { return static_cast<int64_t>(words_.size()); }

 private:
  WordId intern(Word word);
  std::vector<Word> words_;
  std::map<Word, WordId> ids_;
};

/// The two words that Threefry 2x32 with 20 rounds makes of a counter and a key
/// (core/threefry.h), combined by exclusive or: JAX's random bits.
WordId threefry_bits(Words& words, WordId high, WordId low, WordId key_0, WordId key_1);

}  // namespace heddle::rewrite
