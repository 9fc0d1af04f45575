// Makes a plan step by step: what a forward and a backward call share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rewrite/index_term.h"
#include "rewrite/plan.h"
#include "rewrite/rotation.h"
#include "rewrite/score_graph.h"

namespace heddle::rewrite {

/// The graph's type for elements that calls take; nothing for others.
std::optional<DataType> data_type(hlo::ElementType type);
/// Whether `type` is a float of 16 bits.
bool is_half(hlo::ElementType type);
/// `element` with its labels replaced.
Element renamed(Element element, const Renaming& names);

class Planner {
 public:
  Planner(Elements& elements, const Match& match, const Surroundings& surroundings)
      : elements_(elements), match_(match), surroundings_(surroundings) {}

  /// `forward`: of a backward, the forward call that it reads.
  Status begin(const Plan* forward = nullptr);

  /// A bound tensor of the graph for an operand of the program.
  Result<graph::TensorId> operand(std::string name, const Element& leaf, const Axes& axes);

  /// Queries, keys, values or what belongs to each of them, in the type that the call computes in.
  Result<graph::TensorId> vectors(std::string name, const Element& leaf, const Axes& axes);

  /// The values, or where nothing reads them any others, times the numbers of each key.
  Result<graph::TensorId> values();
  /// dO times the numbers of each row.
  Result<graph::TensorId> output_gradient();

  /// `value` everywhere, as such vectors are.
  graph::TensorId filled(std::string name, const Axes& axes, double value);

  /// Of a part of the keys: less the mean of the weights' gradients that the program has of whole
  /// rows, times the share of these keys.
  Result<graph::TensorId> given_mean();

  /// What the last result, O or dV, lacks of the program's value by `factors`.
  Status multiply_result(const std::vector<WeightFactor>& factors);

  /// The gradient of a factor, of operands number `d_o`, `o` and `v`, and dV if it is a key's.
  Status add_factor_gradient(const Output& output, size_t d_o, size_t o, size_t v,
                             std::optional<size_t> d_v);

  /// Queries or keys: if they are a rotation of something, the call rotates.
  Result<graph::TensorId> rotated_operand(const char* name, const Element& leaf, const Axes& axes);

  graph::TensorId tensor(std::string name, DataType type, const Dims& dims, const Dims& strides);

  Axes q_axes() const;
  Axes k_axes() const;
  Axes v_axes() const;
  Axes o_axes() const;

  Status set_attributes(graph::AttentionAttributes& a);

  /// If rows may see no key: what the last result, O or dV, lacks of them is added to it, from
  /// operand number `operand`, V or dO.
  Status add_fully_masked_rows(size_t operand);
  /// The same without a result.
  Status find_fully_masked_rows(size_t operand);

  /// A result: the farthest instruction that only rearranges or rounds the output, as it can be
  /// written in place; else a canonical array.
  Result<graph::TensorId> result(std::string name, const Output& output, const Axes& axes);
  /// A result that calls give in f32 only; it is rounded to the output's type.
  Result<graph::TensorId> wide_result(std::string name, const Output& output, const Axes& axes);

  /// dQ or dK: if the operand was rotated by the call and the program turns its gradient back by
  /// the same tables, the call does that too.
  Result<graph::TensorId> derotated_result(const char* name, const char* operand,
                                           const Output& output, const Axes& axes);

  /// Nodes that follow the attention's own.
  void finish();

  /// A result that only a backward call reads: canonical, of the operands' type.
  graph::TensorId inner_result(std::string name, const Axes& axes);

  Dims dims_of(const Axes& axes) const;
  /// Of a dense array in the order of copies.
  TensorView canonical_view(const Axes& axes) const;

  /// Whether a log-sum-exp in f32 might not hold the sum of a row's weights as well as the
  /// program's own gradient does: beside scores of a mask's fill it holds none of it, beside those
  /// of 1000 it is f32's rounding of them off. Then maximum and sum are kept apart.
  bool needs_sum_apart() const;

  /// A statistic of each row, which only a backward call reads.
  graph::TensorId statistic(const char* name);
  /// One that the program reads.
  Result<graph::TensorId> statistic(const char* name, const Output& output);

  /// O as the forward call, which stands in the body that home reads back, leaves it in a stack
  /// that home reads; nothing if no stack holds it.
  std::optional<Element> stacked_result(const CallResult& result, const Renaming& names);

  bool carries() const { return carries_; }
  Plan take() { return std::move(plan_); }
  Plan& plan() { return plan_; }

 private:
  /// What a result of the call stands for: the last link of a chain.
  struct Replaced {
    hlo::ElementType type;  // of the result
    double factor;
    std::vector<Element> chain;
  };
  /// The number of each row, as home has it.
  Result<Element> number_of_rows(const Element& number);

  /// `id`, the operand added last, times `factors`.
  Status multiply_operand(graph::TensorId id, const std::vector<WeightFactor>& factors);

  /// `factors` as the home computation has them, each varying along `axes` alone.
  Result<std::vector<WeightFactor>> local_factors(std::vector<WeightFactor> factors,
                                                  const Axes& axes);

  graph::TensorId add_result(std::string name, Replaced replaced, const Axes& axes);

  /// The type that the call computes in: its operands' own, but f32 where they differ, and where
  /// the program computes in f32 from narrow operands and keeps all it gained by that.
  hlo::ElementType type_of_call(const Plan* forward);

  /// Whether the output is f32 and nothing rounds it.
  bool is_kept_wide(const Output& output);

  bool direct(const Element& place, const Axes& axes) const;

  struct Tables {
    Rotation rotation;
    graph::Rope rope;  // its kind, tables and positions
  };

  graph::TensorId virtual_tensor(std::string name, DataType type, const Dims& dims);

  /// The operand added last, made of `leaf`: of 16 bits it is widened.
  graph::TensorId as_f32(graph::TensorId last, const Element& leaf);

  /// How a call is told of a rotation.
  graph::Rope rope_of(const Rotation& rotation);

  /// Cosines or sines, which calls take in f32.
  Result<graph::TensorId> table(std::string name, const AngleTable& table, const Axes& axes);

  /// Where home has the array of which `leaf` has columns, arranged alike.
  Result<Element> whole_place(const Element& leaf, const std::string& name);

  Result<std::optional<graph::TensorId>> try_rotated(const char* name, const Element& leaf,
                                                     const Axes& axes);

  /// Where each batch entry's rows begin in tables that hold those of all.
  graph::TensorId table_starts(const char* name, const Axes& axes);

  /// `place` and what only moves or rounds it.
  std::vector<Element> links_of(const Element& place);

  /// The program's inverse rotation of `link`, whose columns are labelled so, by these tables.
  std::optional<Rotation> turned_back(const Element& link, const Index& columns,
                                      const Tables& tables);

  /// The only user of `place`, if it moves or rounds elements and nothing else.
  std::optional<Element> rearranged(const Element& place);

  /// `place`, or the earlier call's result that holds the same elements in the same type.
  Element as_result(const Element& place) const;

  Status set_mask(graph::AttentionAttributes& a, ScoreGraph& score);
  /// Whether of a score that it hides the call keeps what bf16 keeps beside the fill.
  bool adds_fill_in_bf16() const;
  /// Where the band's diagonal is counted from: keys beyond rows, or 0 for the top left.
  int64_t corner() const;
  /// Whether the score compares indices with the band's bounds, as no attribute says them.
  bool bounds_by_score() const;

  /// Bounds and lengths as predicates of the score.
  Status add_bounds(const VisibleKeys& keys, ScoreGraph& score,
                    std::vector<graph::TensorId>& keeps);

  /// Lengths of each batch entry along an axis of `limit`; all of it if none are given.
  Result<graph::TensorId> lengths(const char* name, const std::optional<Lengths>& of,
                                  int64_t limit);

  /// A tensor over rows and keys that scores or a mask are made of, nowhere larger than it varies.
  Result<graph::TensorId> score_operand(const char* name, const Element& leaf, Made made);

  /// Where home has `leaf`, or where it can be carried from, with no labels but its own. `whose`
  /// part it is, for sentences.
  Result<Element> narrow_place(const Element& leaf, const char* whose);

  /// Axes for a tensor over rows and keys that may lack some of them; an axis that it has only in
  /// part is broadcast whole.
  Axes score_axes(const Element& element) const;

  /// What data multiply or divide the product of queries and keys by, as operands.
  Status set_factors(graph::AttentionAttributes& a, ScoreGraph& score);
  /// The soft cap, and what is added within it.
  Status set_cap(graph::AttentionAttributes& a, ScoreGraph& score);
  /// Whether it is the same for all keys.
  bool is_of_rows(const Monomial& m) const;
  /// Fails where the program loses scores beside what it adds to them and the call would not, or
  /// the other way round.
  Status check_leaves_scores(const Monomial& m) const;
  /// Whether it may: one of the two holds scores in f64, the other in f32.
  bool loses_other_scores() const;
  /// What is added to the scores: computed by the call where it is made of indices, else operands,
  /// none larger than it is.
  Status set_added(graph::AttentionAttributes& a, ScoreGraph& score);

  /// A term of the scores as the product of what the program has of it.
  Result<graph::TensorId> product(const Monomial& term, graph::AttentionAttributes& a,
                                  ScoreGraph& score);

  /// Whether the call is to give the gradient of `number`, which the scores hold.
  bool wants_gradient_of(const Element& number) const;
  /// The operand that `number`, a part of a product, is: the bias, if its gradient is wanted.
  Result<graph::TensorId> number_of_data(const char* name, const Element& number,
                                         graph::AttentionAttributes& a);

  /// `term` as the call is to compute it; nothing if an operand of it is out of reach.
  std::optional<IndexTerm> computable(const Monomial& term);
  Result<graph::TensorId> computed(const IndexTerm& term, ScoreGraph& score);

  Status set_sink(graph::AttentionAttributes& a);

  /// The stride of the bits' index along an axis; nothing if its digits do not step alike.
  std::optional<int64_t> stride_along(const Index& axis, const Linear& index, size_t& seen) const;

  /// Whether the call can draw the mask itself; then it is told how.
  bool set_drawn_dropout(graph::AttentionAttributes& a);

  Status set_dropout(graph::AttentionAttributes& a);

  Elements& elements_;
  const Match& match_;
  const Surroundings& surroundings_;
  Plan plan_;
  std::map<std::string, Tables> tables_;  // by operand
  std::vector<graph::Node> after_;
  int64_t last_uid_ = 0;
  graph::TensorId visible_ = graph::kNone;  ///< with adds_fill_in_bf16(): where the mask hides none
  bool carries_ = false;                    // from the body that home reads back
};

}  // namespace heddle::rewrite
