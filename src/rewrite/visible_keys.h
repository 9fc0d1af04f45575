// How a fused call is told which keys a row sees: by a band around the diagonal, by lengths of
// queries and keys in each batch entry, by two numbers that must be equal (packed sequences), and
// for the rest by the program's own predicates.
#pragma once

#include <optional>
#include <vector>

#include "core/status.h"
#include "rewrite/layout.h"
#include "rewrite/predicate.h"

namespace heddle::rewrite {

/// Visible where the index along an axis is less than `length` + `plus`.
struct Lengths {
  Element length;  // varies along the batch at most
  int64_t plus = 0;
};

/// Visible where two integers are equal, one of the row and one of the key.
struct Segments {
  Element row, key;
};

struct VisibleKeys {
  Band band;
  std::optional<Lengths> q_lengths, kv_lengths;
  std::vector<Segments> segments;
  /// Visible where the truth table says so (bit i: predicate i holds).
  std::vector<Element> predicates;
  std::vector<bool> visible;
  /// Whether a row may see no key and the program then gives all keys the same weight.
  bool may_be_fully_masked = false;
  /// Set where scores may be as low as the mask's fill, so that hidden keys may count: the number
  /// that the call gives them, instead of leaving them out.
  std::optional<double> fill;

  /// In the words of the report.
  std::string description(const Elements& elements, const Roles& roles) const;
};

/// What else of a match decides whether hidden keys may count.
struct Beside {
  bool dropout = false;
  bool sink_is_data = false;  // it may be as low as the fill
  bool masked_again = false;  // the weights of hidden keys are taken away
  bool statistics = false;    // the program reads a row's maximum and sum, of hidden keys too
};

/// Fails with a reason if the mask is none that a call can be told.
Result<VisibleKeys> visible_keys_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                                    const Roles& roles, const Beside& beside);

}  // namespace heddle::rewrite
