// Sums of products over elements, in one normal form, so that two ways of writing the same
// mathematics give the same polynomial. A polynomial is a sum of monomials: a coefficient times
// powers of atoms. An atom is an element of a tensor, an indicator (1 where a predicate holds),
// a function of a polynomial, a softmax weight exp(z), or a sum of a product over bound variables.
// Sums are flat (a sum inside a sum over its variables joins it) and connected (what does not
// depend on a bound variable stands outside), so the order in which a program contracts does not
// matter: sum_v dO * (sum_k P * V) and sum_k P * (sum_v dO * V) are one atom.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rewrite/element.h"
#include "rewrite/key.h"

namespace heddle::rewrite {

using AtomId = int32_t;
using PolyId = int32_t;

struct Power {
  AtomId atom = 0;
  int exponent = 1;
  friend auto operator<=>(const Power&, const Power&) = default;
};
using Product = std::vector<Power>;  // by ascending atom

struct Monomial {
  double coefficient = 1;
  Product factors;
};
/// By ascending factors; no coefficient is 0. Of equal factors only where coefficients are of
/// different size (a mask's fill and a number beside it), by descending size.
using Poly = std::vector<Monomial>;

enum class AtomKind : uint8_t { element, indicator, function, weight, sum };

struct Atom {
  AtomKind kind = AtomKind::element;
  Element element{};                            // element, indicator
  hlo::Opcode function = hlo::Opcode::unknown;  // function; divide stands for the reciprocal
  PolyId argument = 0;                          // function, weight
  std::vector<Var> bound{};                     // sum
  std::vector<int64_t> sizes{};                 // sum: of the bound variables
  Product product{};                            // sum
};

/// Stands for minus infinity: larger in size than any float that is kept, and yet differences of
/// fills cancel; a number that no program writes, about -1e300.
inline constexpr double kMinusInfinity = -0x1.7e43c8800759dp996;
/// Floats of f64 that come near it are kept at so much of their size, where no program has others:
/// as_written() is what they were. What two of them add up to is beyond all floats again.
inline constexpr double kShareKept = 0x1p-30;
inline constexpr double kLargestKept = std::numeric_limits<double>::max() * kShareKept;
constexpr double as_written(double kept) {
  const bool is_share = kept > kMinusInfinity && kept < -kLargestKept * kShareKept;
  return is_share ? kept / kShareKept : kept;
}
/// What the text adds and data take away again, as (1 - m) * -1000 does, is rounded at this size.
inline constexpr double kCancelling = 16;

class Algebra {
 public:
  /// Of a program that computes in a type: in the same its constants were folded.
  Algebra(Elements& elements, hlo::ElementType type)
      : elements_(elements), folded_(type == hlo::ElementType::f64 ? 4e-14 : 1e-6) {}

  static Poly constant(double value);
  static bool is_number(const Poly& poly);
  /// Of a polynomial that is one.
  static double number(const Poly& poly);
  Poly element(const Element& e) { return atom(intern(AtomKind::element, e)); }
  Poly indicator(const Element& e) { return atom(intern(AtomKind::indicator, e)); }
  /// f(argument); exp, log and the reciprocal (divide) are simplified where they can be. Of a sum
  /// the common factor is taken out, and a square becomes the square of a reciprocal, so that equal
  /// quotients are equal however they are written.
  Poly function(hlo::Opcode f, const Poly& argument);
  /// Whether `other` is `m` times elements or indicators, and large enough to take most of it away.
  bool holds_multiple(const Monomial& other, const Monomial& m) const;
  /// exp(argument): the part that depends on one of `keys` is a softmax weight, with the row-wise
  /// terms that `belongs` says yes to, or that others of them take away; the rest is row-wise and
  /// leaves it.
  Poly exponential(const Poly& argument, const std::vector<Var>& keys,
                   const std::function<bool(const Monomial&)>& belongs);
  /// exp(z) as a softmax weight, whatever z depends on.
  Poly weight(PolyId z);

  Poly add(const Poly& a, const Poly& b) const;
  Poly scale(const Poly& a, double factor) const;
  Poly multiply(const Poly& a, const Poly& b);
  /// `a` with the terms that are together m * t / t, of a sum t, replaced by m: probabilities of
  /// all keys and of a sink add up to 1.
  Poly cancel(Poly a);
  /// Nothing if `a` is a sum or 0, or holds an indicator, by which there is no dividing where it is
  /// 0 (use function(divide, a) then).
  std::optional<Poly> reciprocal(const Poly& a) const;
  Poly sum(const std::vector<Var>& over, const Poly& a);

  const Atom& at(AtomId id) const { return atoms_[id]; }
  const Poly& at_poly(PolyId id) const { return polys_[id]; }
  PolyId intern(const Poly& poly);
  /// Free variables, ascending.
  const std::vector<Var>& support(AtomId id) const { return supports_[id]; }
  std::vector<Var> support(const Product& product) const;
  std::vector<Var> support(const Poly& poly) const;

  AtomId rename(AtomId id, const Renaming& renaming);
  Poly rename(const Poly& poly, const Renaming& renaming);

  /// How many functions and sums stand within one another at most.
  int nesting(const Poly& poly) const;

  /// Whether `poly` is made of weights, exponentials and indicators alone, with no minus sign.
  bool is_nonnegative(const Poly& poly) const;

  /// `factor` such that a = factor * b, but for what folding leaves of coefficients; nothing if
  /// there is none.
  std::optional<double> ratio(const Poly& a, const Poly& b) const;

  /// What a weight exp(z) says of the indicators in z: where it is not 0, each has this value.
  /// Set by whoever knows masks; products with the weight then need not repeat them.
  using Implied = std::vector<std::pair<AtomId, bool>>;
  std::function<Implied(PolyId z)> implied_by_weight;
  /// Whether the program's text alone decides a predicate. Set by whoever evaluates them.
  std::function<bool(const Element& predicate)> is_fixed;
  /// How large an element can be, as far as the text says it; infinity for most. Set likewise.
  std::function<double(const Element& element)> reach;
  /// The same of one that scores are multiplied by.
  std::function<double(const Element& element)> reach_of_factor;
  /// Whether the text may make an infinity, or no number, of finite numbers there. Set likewise.
  std::function<bool(const Element& element)> may_be_infinite;

  /// Whether work has grown beyond what attention needs; results are then incomplete.
  bool exhausted() const { return atoms_.size() > kMaxAtoms; }

 private:
  static constexpr size_t kMaxAtoms = 200000;

  static Poly atom(AtomId id) { return {{1, {{id, 1}}}}; }
  /// `e`, with other variables in the stead of its own.
  AtomId intern(AtomKind kind, const Element& e, const Renaming& renaming = {});
  /// A function or a weight.
  AtomId intern(AtomKind kind, hlo::Opcode function, PolyId argument);
  AtomId intern_sum(std::vector<Var> bound, std::vector<int64_t> sizes, Product product);
  /// The atom known by `key_`, which is made if it is new.
  template <class Make>
  AtomId intern_by_key(const Make& make);
  /// Keeps a new atom and what is known of it.
  void describe(Atom a);
  /// rename() of an atom that has one of the variables.
  AtomId renamed(AtomId id, const Renaming& renaming);
  Product renamed(const Product& product, const Renaming& renaming);
  Poly reciprocal_of_sum(const Poly& sum);
  /// cancel() of the one sum whose reciprocal is a factor `p` of term `i`; nothing if not all of
  /// its terms are there.
  std::optional<Poly> cancelled(const Poly& a, size_t i, Power p);
  /// The product of two factor lists; false if it is identically 0.
  bool join(Product& into, const Product& other);
  static Product merged(const Product& first, const Product& second);
  bool simplify(Product& product);
  Poly sum_of_product(std::vector<Var> over, Product product, double coefficient);
  AtomId connected_sum(const std::vector<Var>& bound, const std::vector<int64_t>& sizes,
                       const Product& product);
  int height(const Product& product) const;
  void normalise(Poly& poly) const;

  Elements& elements_;
  double folded_;  ///< what products of constants are off by at most, a relative number
  std::vector<Atom> atoms_;
  std::vector<std::vector<Var>> supports_;
  std::vector<int> heights_;  // of nested sums
  std::vector<int> nesting_;  // of nested atoms of any kind
  Key key_;                   // of the atom or polynomial that is being interned
  ByKey<AtomId> atom_ids_;
  ByKey<AtomId> renamed_;  // by the atom and those of its variables that others stand for
  std::vector<Poly> polys_;
  ByKey<PolyId> poly_ids_;
  std::vector<int> poly_heights_;
  std::map<PolyId, Implied> implied_;
};

}  // namespace heddle::rewrite
