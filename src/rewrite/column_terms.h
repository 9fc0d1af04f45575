// What a program computes for a run of columns, as a sum of x's own columns, each perhaps times a
// number that x has no part in.
#pragma once

#include <optional>
#include <vector>

#include "rewrite/runs.h"

namespace heddle::rewrite {

/// A number that x has no part in; of a complex one its real or its imaginary part.
struct ColumnFactor {
  enum class Part : uint8_t { whole, real, imaginary };
  Element place;
  Part part = Part::whole;
};

struct ColumnTerm {
  double sign = 1;
  Element x;
  std::optional<ColumnFactor> factor;
};

/// A sum of terms if x has a part in it, or if it is 0; else a factor.
struct ColumnValue {
  bool is_sum = false;
  std::vector<ColumnTerm> terms;
  ColumnFactor factor;
};

class ColumnTerms {
 public:
  ColumnTerms(Elements& elements, Runs& runs, const hlo::Instruction* x)
      : elements_(elements), runs_(runs), x_(x) {}

  /// Nothing if it is no such sum, or one of more operations than rotations take.
  std::optional<ColumnValue> of(Element element);

 private:
  struct Complex {
    ColumnValue real, imaginary;
  };
  std::optional<Complex> complex_of(Element element);
  /// Behind views, and in the part that the run lies in; whether that is x.
  bool settle(Element& element);
  static std::optional<ColumnValue> sum(const std::optional<ColumnValue>& a,
                                        std::optional<ColumnValue> b, double sign,
                                        const Element& whole);
  std::optional<ColumnValue> product(const std::optional<ColumnValue>& a,
                                     const std::optional<ColumnValue>& b, const Element& whole);
  static ColumnValue negated(ColumnValue value, const Element& whole);

  Elements& elements_;
  Runs& runs_;
  const hlo::Instruction* x_;
  // Complex products of joined parts, through every view, take about a hundred.
  int budget_ = 512;
};

}  // namespace heddle::rewrite
