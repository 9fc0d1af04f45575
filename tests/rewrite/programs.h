// Programs for the rewriter's tests: read from files or text, rewritten, and compared by meaning.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hlo/interpreter/random_arguments.h"
#include "hlo/module.h"
#include "hlo/write.h"
#include "rewrite/rewrite.h"

namespace heddle::testing {

/// The text of tests/data/hlo/NAME.hlo.
std::string program_text(const std::string& name);
/// The same program at other sizes: every whole number in `text` that equals a key of `sizes`
/// becomes its value.
std::string resized(const std::string& text,
                    const std::vector<std::pair<std::string, std::string>>& sizes);
/// The recorded attention programs at length 24 and head_dim 8, so that they evaluate in no time.
std::string small_program(const std::string& name);
/// `text` with each occurrence of `from` replaced; the test fails if there is none.
std::string replaced(std::string text, const std::string& from, const std::string& to);

std::unique_ptr<hlo::Module> parsed(const std::string& text);

struct Rewritten {
  std::unique_ptr<hlo::Module> original, fused;
  rewrite::Report report;

  int forwards() const { return count("attention_forward"); }
  int backwards() const { return count("attention_backward"); }
  int count(const std::string& kind) const;
  /// All refusals' reasons, for messages.
  std::string reasons() const;
};

/// Rewrites with an engine that takes every valid graph.
Rewritten rewritten(const std::string& text);

/// The inputs on which a recorded program and its calls mean the same. Of a row hidden whole by a
/// huge finite bias a call gives no gradients; exponentials of scores of 1e3 overflow where no
/// maximum is taken from them, or a number that is drawn, vanish where that of keys is which a mask
/// hides later, and leave a single row, and rows of four keys, the gradients of one key that takes
/// all: of a sum, rounding's.
std::vector<hlo::Draw> draws_of(const std::string& name);

/// Evaluates both modules in f64, fused calls by their definition, on the same inputs and compares
/// every row of every output to a relative `tolerance`. NaN in the original's output is nobody's
/// meaning and is passed over, but an output of nothing else on all draws is a failure. `adjust`
/// may change the inputs.
::testing::AssertionResult same_meaning(
    const Rewritten& programs, double tolerance = 1e-9, uint64_t seed = 1,
    const std::vector<hlo::Draw>& draws = {hlo::Draw::ordinary},
    const std::function<void(std::vector<hlo::Literal>&)>& adjust = nullptr);

}  // namespace heddle::testing
