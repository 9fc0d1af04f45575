// Attention as found in a program: what a fused call computes, and which instructions it replaces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rewrite/softmax.h"
#include "rewrite/weight_factors.h"

namespace heddle::rewrite {

enum class Role : uint8_t { o, max, sum_exp, d_q, d_k, d_v, d_bias, d_sink, d_factor };

/// The program's instruction whose value is `factor` times what the fused call gives for `role`.
struct Output {
  Role role = Role::o;
  Element place;  // the instruction with its labels
  double factor = 1;
  size_t of = 0;  // of dBias: which bias; of d_factor: which factor, those of rows first
};

/// Which weights dropout keeps: those where a predicate, with the labels of rows and keys, holds;
/// or, where the program draws or is given what it drops, those where it does not.
struct Keep {
  Element predicate;
  bool is_negated = false;
};

struct Dropout {
  Keep keep;
  double scale = 1;  // of what is kept
};

/// What a program has of each row of a softmax over more keys than a call's: the number that it
/// takes off the scores before exponentials, and what it takes off the gradients of the weights,
/// `factor` times `mean`: rowsum(dO * O), of O over all keys.
struct OfWholeRows {
  Element number, mean;
  double factor = 1;
};

struct Match {
  std::shared_ptr<Algebra> algebra;  // in which the score's atoms live
  bool backward = false;
  int home = 0;    // the frame whose instructions are replaced
  Element anchor;  // the softmax's exponential: at home, or in a loop that home reads back
  Score score;
  Element v;
  /// Set where nothing of the program reads V, as where its gradient alone is wanted: `v` then only
  /// says which axes it has.
  bool v_is_unread = false;
  std::optional<Element> d_o;  // of a backward; if none, dO is 1 everywhere
  std::optional<Dropout> dropout;
  /// What the weights are multiplied by beside.
  WeightFactors factors;
  std::optional<Sink> sink;
  /// Whether a row that sees no key gives 0 here, by a second masking of its weights.
  bool fully_masked_rows_are_zero = false;
  /// Whether the program takes its weights from a log-sum-exp, which holds no sum beside fills.
  bool by_log_sum_exp = false;
  /// Whether it adds numbers of the keys to scores that the row's maximum is taken off already.
  bool adds_to_shifted = false;
  /// Whether it adds the mask's fill to scores in 16 bits.
  bool adds_fills_in_half = false;
  ScoreBits bits;
  std::vector<Output> outputs;
  /// Of a part's gradient.
  std::optional<OfWholeRows> whole_rows;
  /// Of a part: what is taken off its scores where that is not their maximum, but no less.
  std::optional<Element> taken_off;

  bool holds_narrow_scores() const { return bits.fewest <= 16; }

  const Output* find(Role role) const {
    for (const Output& output : outputs)
      if (output.role == role) return &output;
    return nullptr;
  }
};

/// 1 where `keep` keeps a weight, else 0.
Poly kept(Algebra& algebra, const Keep& keep);

/// Gives the bound variables `bound` of two elements that a sum contracts fresh, free names.
void free_bound(Elements& elements, const std::vector<Var>& bound,
                const std::vector<int64_t>& sizes, Element& a, Element& b,
                std::vector<Var>* names = nullptr);

/// The first instruction of the region that is the softmax's probabilities (dropout included) times
/// values, up to a constant; or, if there is none, its exponentials times values, as of a part of
/// the keys, which the sum of the rows' exponentials is a factor of then: that sum and the maximum
/// that is taken off the scores are outputs, too. Fails with a reason if there is neither.
Result<Match> match_forward(Algebra& algebra, Elements& elements, Region& region,
                            const Softmax& softmax);

/// The reason when a region holds no product that could be a gradient at all.
inline constexpr const char* kNoGradient = "no gradient of these scores was found";
/// The reason when there is a gradient of the scores, but of nothing that the weights weigh.
inline constexpr const char* kNoWeighedGradient =
    "the gradient of these scores holds no product of dO and V";
/// The reason when it holds a product, but of other things.
inline constexpr const char* kNoProductWithValues =
    "the gradient of these weights is made of a product, but is not that of one dO and V";

/// Gradients of the softmax's attention: every product of the region that is dQ, dK, dV or dBias; a
/// match for each bias that has a gradient, of which the first has all but the others' dBias.
/// `forward`, if it was found, says what dropout multiplies by. Fails with a reason if the region
/// holds no gradient of its scores.
Result<std::vector<Match>> match_backward(Algebra& algebra, Elements& elements, Region& region,
                                          const Softmax& softmax, const Match* forward);

}  // namespace heddle::rewrite
