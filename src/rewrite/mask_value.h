// Numbers that a program makes of predicates and constants alone: 1 where a mask lets through and
// 0 elsewhere, a fill where it does not. They are computed for every assignment of truth to the
// predicates, each step in the program's own type, and are polynomials of the indicators then.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "rewrite/algebra.h"
#include "rewrite/arithmetic.h"

namespace heddle::rewrite {

class MaskValues {
 public:
  /// `truth` says of a predicate that it holds, or does not, wherever values are asked for.
  using Truth = std::function<std::optional<bool>(const Element& predicate)>;
  MaskValues(Elements& elements, Algebra& algebra, Truth truth)
      : elements_(elements), algebra_(algebra), truth_(std::move(truth)) {}

  /// Nothing for what is made of anything else, or is NaN or plus infinity somewhere. A predicate
  /// is one indicator where it is not made of a few others.
  std::optional<Poly> value(const Element& element);

 private:
  /// Values by assignment (bit i: indicator i holds).
  struct Table {
    std::vector<AtomId> indicators;  // ascending
    hlo::Literal values;
  };
  const std::optional<Table>& table(const Element& resolved);
  std::optional<Table> leaf(const Element& e);
  static Table constant(bool truth);
  Table indicator(const Element& e);
  /// The operation on operands that are all tables; nothing if it makes no table.
  std::optional<Table> combined(const Element& e, const std::vector<const Table*>& operands);
  std::optional<Poly> polynomial(const Table& table) const;

  Elements& elements_;
  Algebra& algebra_;
  Truth truth_;
  Arithmetic arithmetic_;
  ByKey<std::optional<Table>> tables_;
};

}  // namespace heddle::rewrite
