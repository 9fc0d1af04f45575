// A match as a fused call: the graph it carries, what it is called with, what its results replace.
// Making a plan changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "rewrite/layout.h"
#include "rewrite/match.h"
#include "rewrite/rng_dropout_mask.h"
#include "rewrite/visible_keys.h"

namespace heddle::rewrite {

/// What is made of an operand's place before the call gets it.
enum class Made : uint8_t {
  as_is,
  key,           // nothing of a place: the two words of an RNG dropout mask's key
  lengths,       // the place plus `plus`, between 0 and `limit`
  full_lengths,  // nothing of a place: `limit` for every batch entry
  low_half,      // the lower 16 bits of an integer, which f32 holds exactly
  high_half,     // and the upper 16
  as_f32,        // the place converted
  negated,       // of a predicate: where it does not hold
  logits,        // nothing of a place: `value` for every query head
  filled,        // nothing of a place, whose labels it has: `value` everywhere
  table_starts,  // nothing of a place: `limit` times the number of the batch entry
  real_part,     // of a complex place
  imaginary_part,
};

/// Columns first, first + step, ..., `count` of them, along dimension `dim` of an array.
struct CutColumns {
  int dim = 0;
  int64_t first = 0, step = 1, count = 0;
};

/// An operand of the call: made of `place`, in the home computation or carried to it (carry.h), or
/// another plan's result.
struct Operand {
  Element place;
  Axes axes;
  bool direct = true;  // else a canonical copy is made of it
  /// Set instead of `place`: the result number of the forward that belongs to this backward.
  std::optional<int> of_forward;
  Made made = Made::as_is;
  /// Of what is taken as it is: the type of the program's value. Where home has it only widened,
  /// that is undone, which loses nothing. Of sinks the type in which the call has them.
  std::optional<hlo::ElementType> type;
  int64_t plus = 0, limit = 0;      // of lengths
  double value = 0;                 // of logits, and of what is filled
  std::optional<CutColumns> cut;    // of tables
  std::vector<WeightFactor> times;  // what it is multiplied by then
  /// Set of what a gradient of a part of the keys reads: `value` times the share that these keys
  /// have of a row, which exponentials less this number are of. Their softmax alone is the call's,
  /// whose forward, that of this backward, gives maximum and sum.
  std::optional<Element> share_by;
  std::array<RngDropoutMask::KeyWord, 2> key{};  // all of frame `place.frame`

  /// The program's instructions that it is made of.
  std::vector<const hlo::Instruction*> sources() const;
  /// The labels of what is made of the place, before it is brought into the order of a copy.
  Index labels() const { return times.empty() && !share_by ? flat(place.at) : axes.canonical(); }
};

/// What a call of operands of `type` has its statistics and sums in: f64 beside f64, else f32.
inline hlo::ElementType at_least_f32(hlo::ElementType type) {
  return type == hlo::ElementType::f64 ? type : hlo::ElementType::f32;
}

/// A result of the call and the instruction it replaces; none if only a backward reads it.
struct CallResult {
  hlo::ElementType type = hlo::ElementType::f32;
  std::vector<int64_t> dims;  // of the array the call returns
  const hlo::Instruction* target = nullptr;
  Element place;  // the target with its labels
  Axes axes;
  bool direct = true;               // else a canonical array, rearranged for the target
  double factor = 1;                // what the target is a multiple by
  std::vector<WeightFactor> times;  // and by these, before it is summed
  Index summed;                     // labels along which the target is the sum of the call's result
  /// From the output as found to the target: the same elements, moved or rounded.
  std::vector<Element> chain;
  /// Of a sum of exponentials: what these have taken off where that is not the maximum that the
  /// result before it is.
  std::optional<Element> taken_off;
  /// Of O and dV: a row that sees no key, to the call without weights, weighs all keys alike.
  bool adds_fully_masked_rows = false;
};

/// The gradient of a factor of the weights: what the call gives of rows, O, times dO, or of keys,
/// dV, times V, both without the factors, summed along all axes that the factor lacks.
struct FactorGradient {
  const hlo::Instruction* target = nullptr;
  Element place;  // the target with its labels
  double factor = 1;
  size_t vectors = 0;               // operand number of dO or V
  std::optional<size_t> result;     // number of dV; none: of O, an operand
  size_t o = 0, v = 0;              // operand number of O
  std::vector<WeightFactor> times;  // the other factors
};

/// The rows that see no key: those for which the truth table over predicates holds nowhere.
struct FullyMaskedRows {
  std::vector<Element> predicates;  // to be carried home where they are not
  std::vector<bool> visible;
  size_t operand = 0;  // V, or the backward's dO
};

struct Plan {
  bool backward = false;
  int home = 0;
  Element anchor;
  graph::Graph graph;
  std::string text;                 // of the graph, written once all is planned
  std::vector<Operand> operands;    // by ascending uid
  std::vector<CallResult> results;  // by ascending uid; a forward's are O, then statistics
  int64_t workspace_bytes = 0;
  int forward = -1;  // of a backward: the plan whose O and statistics it reads, carried if that has
                     // another home
  std::vector<FactorGradient> factor_gradients;
  std::optional<FullyMaskedRows> fully_masked_rows;
  /// Rotated queries and keys (or gradients before they are rotated back) that the call has inside.
  std::vector<const hlo::Instruction*> absorbed;
  // For the report.
  std::vector<std::string> rope_outside;  // rotations that the call has not, and why
  Roles roles;
  VisibleKeys keys;
  std::string mask, bias, sink, dropout, score;
  double scale = 1;
  hlo::ElementType dtype = hlo::ElementType::f32;
};

/// What plans made before decide for the next ones.
struct Surroundings {
  /// A result of an earlier call, and the place of its chain where it is met.
  struct Met {
    int plan = 0;
    const CallResult* result = nullptr;
    const Element* link = nullptr;
  };
  /// By instruction, in the order of the plans: an operand that such a call gives is taken from
  /// there.
  std::unordered_map<const hlo::Instruction*, std::vector<Met>> results;
  /// Values that something outside the calls needs, so that absorbing their rotation saves nothing.
  std::set<const hlo::Instruction*> kept;
};

/// The forward call of a match; with `stats` it also returns what a
/// backward must know of each row. `match.outputs` may
/// hold no O: then the call's results serve a backward alone.
Result<Plan> plan_forward(Elements& elements, const Match& match, bool stats,
                          const Surroundings& surroundings);
/// The forward call that gives a backward its O and statistics.
struct ForwardCall {
  const Plan& plan;
  int number = 0;  // among the plans
  Renaming names;  // from the labels of its match to those of the backward's
};

/// How the labels of `forward` are called in `backward`, if both are of one attention: of the same
/// softmax (perhaps that of the iteration that a loop reads back), values and dropout.
std::optional<Renaming> same_attention(const Match& forward, const Match& backward,
                                       const Elements& elements);

/// The backward call, reading O and statistics of `forward`.
Result<Plan> plan_backward(Elements& elements, const Match& match, const ForwardCall& forward,
                           const Surroundings& surroundings);

}  // namespace heddle::rewrite
