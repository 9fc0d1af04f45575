// Reads a program's integer arithmetic, element by element, as terms (words.h): through views,
// slices at known places, and small counted loops, which are run in terms.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "rewrite/element.h"
#include "rewrite/words.h"

namespace heddle::rewrite {

class WordReader {
 public:
  WordReader(Elements& elements, Words& words) : elements_(elements), words_(words) {}

  /// The integer `element`; nothing if it is not made of what terms say.
  std::optional<WordId> read(const Element& element);

  /// Where the single number that `word` stands for is found; nothing if no instruction outside the
  /// loops that were run holds it alone.
  std::optional<Element> source(WordId word) const;

 private:
  /// The place along a dimension: `offset` plus its digits.
  struct Position {
    Index digits;
    int64_t offset = 0;
    friend auto operator<=>(const Position&, const Position&) = default;
  };
  /// An iteration of a loop that is being run; -1 for none.
  struct Iteration {
    const hlo::Instruction* loop = nullptr;
    int64_t number = 0;
    int outer = -1;
  };
  struct Place {
    int frame = 0;
    const hlo::Instruction* x = nullptr;
    std::vector<Position> at;
    int iteration = -1;
  };

  std::optional<WordId> value(Place place);
  std::optional<WordId> evaluate(const Place& place);
  /// A 32-bit word of which only the place is known.
  std::optional<WordId> opaque(const Place& place);
  std::optional<WordId> operation(const Place& place);
  std::optional<WordId> wide_operation(const Place& place);
  std::optional<WordId> state(const Place& place, const hlo::Instruction* loop, int64_t iterations,
                              int outer);
  std::optional<WordId> literal(const Place& place);
  std::optional<WordId> position(const Position& position);
  bool view(Place& place);
  bool reshape(Place& place);
  int iteration(const hlo::Instruction* loop, int64_t number, int outer);
  /// The largest value of a constant or a linear term; nothing for other terms.
  std::optional<int64_t> largest(WordId word) const;
  std::optional<WordId> narrowed(WordId word);

  Elements& elements_;
  Words& words_;
  std::vector<Iteration> iterations_;
  std::map<std::tuple<int, int, int64_t, std::vector<Position>>, std::optional<WordId>> known_;
  std::map<WordId, Element> sources_;
  int depth_ = 0;  // of operands being read
};

}  // namespace heddle::rewrite
