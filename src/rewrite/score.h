// What a softmax weight's exponent is made of: one product of queries and keys, scaled, perhaps
// soft-capped, plus other terms (a bias), where a mask lets it through, and a fill elsewhere.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "rewrite/algebra.h"

namespace heddle::rewrite {

/// A fill at or below this is a mask: float exp() of its distance to any score a program can mean
/// is exactly 0. Fills nearer to zero are weights the softmax does see.
inline constexpr double kLargestFill = -1e7;

/// Masks of more predicates are not taken apart.
inline constexpr size_t kMaxIndicators = 8;

/// What an invisible score is made of.
enum class Hiding : uint8_t {
  replaces,          // the fill alone
  replaces_product,  // the fill in the place of the product of queries and keys, and what is added
  adds,              // the score itself and the fill
  mixes,             // none of these everywhere, or several fills
};

/// Whether a term of the scores may be as low as a mask's fill wherever the data please. Multiples
/// of indices, as ALiBi's, are not unless the factor itself varies along those axes.
bool is_free(const Algebra& algebra, const Monomial& m);

/// Whether f32 holds little of the scores that the row-wise term `m` is added to.
bool swallows_scores(const Algebra& algebra, const Monomial& m);

/// Whether the text may make an infinity, or no number, of finite ones among the elements that
/// `product` and its sums are made of: queries divided by what may be 0, for one.
bool may_be_infinite(const Algebra& algebra, const Product& product);

/// A mask as a truth table over indicators.
struct Mask {
  std::vector<AtomId> indicators;
  /// By assignment (bit i: indicator i holds): whether the score is visible there.
  std::vector<bool> visible;
  /// Likewise whether its weight is 0 whatever else the row holds, as beside a fill of -inf.
  std::vector<bool> never_weighs;
  Poly visible_score;
  /// A number added to every visible score beside `visible_score`: all the same to the keys.
  double shift = 0;
  /// The largest fill of an invisible score, less `shift`; kMinusInfinity if there is none.
  double fill = kMinusInfinity;
  Hiding hiding = Hiding::replaces;
  /// Whether the program's text alone decides what is visible.
  bool is_fixed = true;
  /// Whether numbers that only the data know are added to the scores, and not merely as factors of
  /// indices: they may be fills themselves.
  bool has_free_terms = false;
  /// Whether they, or what numbers of data make of the product of queries and keys, may be as low
  /// as the mask's, so that no visible score need lie above it.
  bool terms_reach_fill = false;
  /// Whether the product of queries and keys may be: then the fill is a score among others.
  bool scores_reach_fill = false;

  bool hides_anything() const;
  /// Whether a row that sees no key can have weights: then a nonzero weight says nothing of the
  /// indicators. (Of fixed masks of bounded scores it is known whether there is such a row.)
  bool may_mask_whole_rows() const {
    return (!is_fixed || terms_reach_fill || scores_reach_fill) && fill > kMinusInfinity;
  }
  /// Whether such a row weighs some of its keys by their fills, which a call knows one of.
  bool weighs_by_fills() const { return hiding == Hiding::mixes && may_mask_whole_rows(); }
};

/// 1 where the mask lets the score through, else 0.
Poly visible_cells(Algebra& algebra, const Mask& mask);
/// 1 where the score may have a weight, in rows that see no key too, else 0.
Poly weighed_cells(Algebra& algebra, const Mask& mask);
/// What of the visible cells a weight does not say already.
Poly visibility(Algebra& algebra, const Mask& mask);

/// Whether numbers of the size `largest` at most hold every fill of `scores`, and nothing makes an
/// infinity of one that is none in the text: a row that it hides whole is another row then.
bool holds_fills(const Algebra& algebra, const Poly& scores, double largest);

/// What stands beside a mask's fill in `scores`, wherever one is added to something.
std::vector<Poly> beside_fills(const Algebra& algebra, const Poly& scores);

/// Why such a mask is left alone.
std::string weighed_by_fills(const Algebra& algebra, const Mask& mask);

/// Fails with a reason if some assignment gives neither the score nor a fill that no score reaches.
Result<Mask> mask_of(Algebra& algebra, PolyId z);
/// What a nonzero weight says of the mask's indicators.
Algebra::Implied implied(const Mask& mask);

struct SoftCap {
  double cap = 0;  // of cap * tanh(inner * dot + added)
  double inner = 0;
  Poly added;  // products of elements
};

struct Score {
  PolyId z = 0;
  std::vector<Var> keys;
  /// Whether something of the row, its maximum mostly, is taken off the scores. Else the weights of
  /// scores at a fill are 0, and those of a row that sees no key NaN.
  bool is_shifted = true;
  Mask mask;
  double scale = 1;  // of the dot, if it is not soft-capped
  std::optional<SoftCap> soft_cap;
  AtomId dot = 0;
  Element q, k;            // the dot's operands, in z's variables
  std::vector<Var> depth;  // summed by the dot; bound
  Product factors;         // numbers of data that multiply or divide the dot, beside the scale
  Poly added;              // the terms besides: products of elements
  /// A number of data that the scores hold. A gradient may be wanted of each; a call gives one.
  struct Bias {
    Element element;
    bool is_term = false;  // added as it is, and nowhere else in the scores
  };
  /// The terms, those with most axes first, then what is multiplied, or within the soft cap.
  std::vector<Bias> biases;
  /// The first of them, or the one that the program computes a gradient of.
  std::optional<Bias> bias;
};

/// Fails with a reason if z is not of that form.
Result<Score> score_of(Algebra& algebra, PolyId z, const std::vector<Var>& keys);
/// d(visible score) / d(dot).
Poly derivative(Algebra& algebra, const Score& score);
/// The same by one of its biases: what of it comes from the product of queries and keys, capped
/// with what is added to it there, and what from the terms that are added to that.
struct Slope {
  Poly of_product, of_added;
};
Slope derivative_by(Algebra& algebra, const Score& score, const Score::Bias& bias);

/// A sum over products of exactly two elements: the one without a variable of `keys`, and the one
/// with.
struct Contraction {
  Element row, key;
  std::vector<Var> bound;
  std::vector<int64_t> sizes;  // of the bound variables
};
std::optional<Contraction> contraction(const Algebra& algebra, AtomId atom,
                                       const std::vector<Var>& keys);

/// What a sum adds up, if that is one element with a variable of `keys`, and nothing beside it.
std::optional<Element> summed_element(const Algebra& algebra, AtomId atom,
                                      const std::vector<Var>& keys);

}  // namespace heddle::rewrite
