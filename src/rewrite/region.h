// The part of a program around one softmax: the [rows x keys] values that are elementwise connected
// with its exponential, and what is derived from them by sums over an axis. Everything in a region
// has its dimensions labelled with the same variables, and a normal form in the algebra.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "rewrite/algebra.h"
#include "rewrite/element.h"
#include "rewrite/mask_value.h"

namespace heddle::rewrite {

enum class Kind : uint8_t {
  outside,
  matrix,   // rows x keys
  derived,  // sums and products of matrices: row vectors, outputs, gradients
};

struct Member {
  Element place;  // the instruction with its labels
  Kind kind = Kind::outside;
};

/// What is added to the scores and is no mask: made of the elements that the program computes it
/// from, or one number that is the program's own, as it rounds it; in the last case fills that data
/// decide, too.
enum class Terms : uint8_t { taken_apart, whole, whole_with_fills };

/// Bits of the floats that the program holds its scores, and what it makes of them, in.
struct ScoreBits {
  int64_t fewest = 64, most = 0;
  int64_t product = 0;  // of queries and keys
};

/// What the softmax's keys are told by: the sum that divides its exponentials, or, where these are
/// exp(scores - number) of a number that the program has of each row, the axes that it lacks.
enum class Normalised : uint8_t { by_sum, by_number };

/// A number of each row, and the largest of its scores: that number itself, or one of those that it
/// is the maximum of.
struct TakenOff {
  Element number, maximum;
};

class Region {
 public:
  /// Around `exponential` of `frame` (a forward iteration when a loop reads it back: then `home`,
  /// the reading frame, belongs to the region too). Values in `opaque` count as outside.
  Region(Elements& elements, Algebra& algebra, int frame, const hlo::Instruction* exponential,
         int home, Terms terms, std::set<const hlo::Instruction*> opaque = {},
         Normalised normalised = Normalised::by_sum);

  /// The labels of the axes that the softmax normalises over; empty if nothing sums the
  /// exponential.
  const std::vector<Var>& keys() const { return keys_; }
  int home() const { return home_; }
  const Element& anchor() const { return anchor_; }
  /// Null for what stands outside.
  const Member* find(int frame, const hlo::Instruction* x) const;
  /// What belongs to the region in `frame`, operands before users.
  std::vector<const Member*> members(int frame) const;

  /// Whether a value computed so far is a row's number and the logarithm of another added up, as a
  /// log-sum-exp is: beside a number as large as a mask's fill nothing of the logarithm is left.
  bool rounds_logarithm() const { return rounds_logarithm_; }

  /// Whether a value computed so far adds what varies along the keys to scores that a row's number,
  /// made of them, is taken off already: of a row at a mask's fill nothing is left but what is
  /// added.
  bool adds_to_shifted() const { return adds_to_shifted_; }

  /// Whether the value of `place` holds for rows that see no key too: where what guards a sum of
  /// weights against 0 was looked behind, all that such a row gives to it has to be 0.
  bool holds_without_keys(const Element& place);

  /// What keeps the sum of a row's weights from being small and may change it; null if nothing
  /// does.
  const hlo::Instruction* guard_of_sum();

  /// Whether the largest exponential of each row that sees a key is 1, as its maximum is taken off.
  bool sees_largest_weight();

  /// What the program takes off each row's scores, and the maximum of these, all of them and as
  /// they are, which is no larger; nothing if it takes off something else.
  std::optional<TakenOff> taken_off();

  /// The scores and the number of each row that the exponential's operand is the difference of;
  /// nothing if it is none, or the number is made of these scores.
  struct Difference {
    Element scores, number;
  };
  std::optional<Difference> less_number();

  /// Whether the program adds a mask's fill to scores in 16 bits: of a row that it hides whole
  /// others are left than in f32.
  bool adds_fills_in_half();

  /// In which floats the program itself holds scores, weights or their gradients: a call that does
  /// so too loses nothing that the program keeps, and keeps nothing that it loses.
  ScoreBits bits_of_scores();

  /// The normal form of an element.
  Poly value(const Element& element);

  /// Whether a number of the region, rows x keys, goes into `element`.
  bool depends_on_scores(const Element& element);

  /// The products that the scores are made of element by element, those over more batch axes first.
  std::vector<const hlo::Instruction*> products_in_scores() const;

  /// Whether weights, or their gradients, reach a product at all.
  bool feeds_products() const;

 private:
  void walk(int frame);
  /// What reads `x` may belong to the region too.
  void expect_users(const hlo::Instruction* x);
  void enter(const Member& member);
  void add_upstream(const Element& element);
  bool add_matrix(const Element& here);
  void add_operands(const Element& here, std::vector<Element>& to) const;
  void classify(int frame, const hlo::Instruction* x);
  void classify_elementwise(int frame, const hlo::Instruction* x);
  void classify_dot(int frame, const hlo::Instruction* x);
  void classify_slice(int frame, const hlo::Instruction* x);
  /// The labels of `here`, behind whose views lies `behind`, an element of `member`; nothing if it
  /// varies along what that lacks, or counts in other digits.
  std::optional<std::vector<Index>> labelled_as(const Member& member, const Element& here,
                                                const Element& behind) const;
  /// Whether a place varies along some of the matrix' axes, and no others.
  bool is_of_rows(const Element& place) const;
  /// Whether a member varies along an axis that the matrix lacks, as outputs and gradients do.
  bool is_of_vectors(const Element& place) const;
  bool is_of_matrix(Var v) const;
  void find_keys();
  void find_keys_by_number();
  Member* lookup(int frame, const hlo::Instruction* x);

  /// The value of what is nothing to expand, or known; null for the rest. Until the next one.
  const Poly* known_value(const Element& place);
  /// Of an element whose elementwise operands have known values.
  Poly expand(const Element& element);
  /// Whether a select replaces what is no number, or an infinity, and there is none but weights of
  /// rows without keys, which become 0 as in a call.
  bool guards_numbers(const Element& select);
  /// Whether a select makes zeros only where the weights that it shows are 0.
  bool shows_all_weights(const Element& select);
  /// Whether the softmax's exponentials go into it.
  bool is_made_of_weights(const Element& element) const;
  /// Whether it is the maximum over the keys of `scores`, all of them.
  bool is_largest_of(const Element& maximum, const Element& scores);
  /// That maximum where `number` is it, or the maximum of it and of others besides, perhaps with
  /// something in the place of the -inf of a row that sees no key.
  std::optional<Element> largest_in(const Element& number, const Element& scores, int levels);
  /// What stands where a maximum has, in rows that see no key, something in its stead.
  std::optional<Element> behind_stand_in(const Element& maximum);
  /// What a reduction over the keys, and all of them, reads, in the labels of the matrix.
  struct OverKeys {
    Element read;
    std::vector<Index> of_rows;  // the labels of the result
  };
  std::optional<OverKeys> reduced_over_keys(int frame, const hlo::Instruction* reduce);
  /// Whether `shown` is `scores`, or these with what they fill replaced by -inf.
  bool are_shown_of(const Element& shown, const Element& scores);
  /// The sum of a row's weights that `e` is in every row that sees a key.
  std::optional<Element> behind_guard(const Element& e);
  bool is_sum_of_weights(const Element& place);
  /// Whether it is a sum over the keys of the exponentials themselves.
  bool adds_up_weights(const Element& e);
  /// What a comparison of such a sum comes to there.
  std::optional<bool> truth_beside_keys(const Element& predicate);
  /// Whether the types in which the program holds its scores hold their fills: what is too large
  /// for one is an infinity, and a row hidden whole by such has no weights.
  bool holds_fills();
  bool is_known_zero(int frame, const hlo::Instruction* x);
  void find_zeros_without_keys();
  /// Whether its operands make it 0 for rows that see no key.
  bool vanishes(const Member& member);
  /// Operand `i` of a sum.
  Poly addend(const Element& sum, int i);
  /// Finds the scores that are a product of queries and keys with others, and terms beside them.
  void find_scores();
  /// The sum of two values, after a look at what it adds.
  Poly sum_of(const Poly& a, const Poly& b);
  bool is_of_keys(const Poly& poly) const;
  /// Whether `poly` varies along the keys and has a term beside that is a row's, made of members.
  bool is_shifted(const Poly& poly) const;
  /// The labels by which the region knows dimension `dim` of an operand that is summed along it: a
  /// value known by them need not be worked out by others. Nothing if some are `taken`.
  std::optional<Index> own_labels(int frame, const hlo::Instruction* operand, int64_t dim,
                                  const Index& taken) const;
  Poly dot(const Element& element);
  Poly reduce(const Element& element);
  Poly summand(const Element& element);
  /// Operand `i` of a multiplication.
  Poly factor(const Element& product, int i);
  Poly dot_operand(const Element& element);
  Poly stripped(const Element& element);
  /// A value of which no more is known than that it is this one, by one name where the program
  /// computes it again of what it kept of the iteration whose scores it reads back.
  Poly leaf(const Element& element);
  std::vector<Var> keys_of(const Element& element) const;

  Elements& elements_;
  Algebra& algebra_;
  int frame_, home_;
  Element anchor_;
  std::set<const hlo::Instruction*> opaque_;
  int64_t count_;  // elements of the matrix
  std::vector<Var> keys_;
  bool rounds_logarithm_ = false;
  bool adds_to_shifted_ = false;
  std::map<std::pair<int, const hlo::Instruction*>, Member> all_;
  Terms terms_;
  /// By frame, of its own instructions: depends_on_scores().
  std::map<int, std::set<const hlo::Instruction*>> made_of_scores_;
  std::map<const hlo::Instruction*, bool> scores_;  // upstream: whether they hold a product
  std::optional<int> kept_by_;                      // the iteration whose scores are read back
  int walked_ = 0;                                  // the frame that is being walked
  std::set<size_t> expected_;                       // positions in the frame that is being walked
  ByKey<Poly> values_;
  Poly unknown_;  // the value last asked for beyond what the algebra expands
  MaskValues mask_values_;
  bool looked_behind_guards_ = false;
  std::optional<bool> sees_largest_weight_;
  std::map<std::pair<int, const hlo::Instruction*>, bool> sums_of_weights_;
  int guards_ = 0;  // guards of guards, as they are being looked behind
  std::set<std::pair<int, const hlo::Instruction*>> zeros_without_keys_;
  int nested_ = 0;  // sums inside of sums, as they are being expanded
};

/// Whether a reduction adds up from 0 with nothing else in its body.
bool is_sum(Elements& elements, int frame, const hlo::Instruction* reduce);
/// Whether `user` reads the matrix `x` to multiply it with something that has axes more: a dot, or
/// what XLA makes of a dot of one row.
bool multiplies_out(const Elements& elements, const hlo::Instruction* x,
                    const hlo::Instruction* user);
/// The multiplication behind the views and roundings of `element`, if there is one.
std::optional<Element> product_behind(Elements& elements, const Element& element);
/// Whether `x` is a dot, or a sum over the results of a multiplication: XLA makes that of a dot of
/// one row.
bool is_contraction(Elements& elements, int frame, const hlo::Instruction* x);

}  // namespace heddle::rewrite
