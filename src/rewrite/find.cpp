#include "rewrite/find.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>

#include "rewrite/predicate.h"
#include "rewrite/reach.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Scores that are a sum of more products are left alone: each is looked at as the call's own.
constexpr size_t kMaxProducts = 4;
constexpr const char* kGivenAway =
    "the branch of a conditional gives these weights to a backward outside of it";

std::shared_ptr<Algebra> make_algebra(Elements& elements, hlo::ElementType type) {
  auto algebra = std::make_shared<Algebra>(elements, type);
  algebra->implied_by_weight = [raw = algebra.get()](PolyId z) {
    const auto mask = mask_of(*raw, z);
    return mask ? implied(*mask) : Algebra::Implied{};
  };
  algebra->is_fixed = [&elements](const Element& predicate) {
    return rewrite::is_fixed(elements, predicate);
  };
  algebra->reach = [&elements](const Element& element) {
    return reach_of(elements, element.frame, element.x);
  };
  algebra->reach_of_factor = [&elements](const Element& element) {
    return reach_of_factor(elements, element.frame, element.x);
  };
  // Asked of the same queries and keys for every mask.
  std::map<std::pair<int, const Instruction*>, bool> known;
  algebra->may_be_infinite = [&elements, known](const Element& element) mutable {
    const auto [at, is_new] = known.try_emplace({element.frame, element.x}, false);
    if (is_new) at->second = may_be_infinite(elements, element.frame, element.x);
    return at->second;
  };
  return algebra;
}

/// Whether anything is reduced that is `exponential` in another order or type, or where a mask
/// shows it: what is not costs no region.
bool is_reduced(const Elements& elements, const Instruction* exponential) {
  std::vector<const Instruction*> work{exponential};
  std::set<const Instruction*> seen;
  while (!work.empty()) {
    const Instruction* x = work.back();
    work.pop_back();
    for (const Instruction* user : elements.users(x)) {
      if (user->is(Opcode::reduce)) return true;
      const bool passes_on = user->is(Opcode::transpose) || user->is(Opcode::reshape) ||
                             user->is(Opcode::broadcast) || user->is(Opcode::copy) ||
                             user->is(Opcode::convert) || user->is(Opcode::select);
      if (passes_on && seen.insert(user).second) work.push_back(elements.representative(user));
    }
  }
  return false;
}

/// Whether numbers made of `x` one by one, or laid out otherwise, are multiplied by a matrix.
bool reaches_product(const Elements& elements, const Instruction* x) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty()) {
    const Instruction* at = work.back();
    work.pop_back();
    for (const Instruction* user : elements.users(at)) {
      if (user->is(Opcode::dot)) return true;
      const bool passes_on = hlo::is_elementwise(user->opcode()) || user->is(Opcode::transpose) ||
                             user->is(Opcode::reshape) || user->is(Opcode::concatenate) ||
                             user->is(Opcode::slice);
      if (passes_on && seen.insert(user).second) work.push_back(user);
    }
  }
  return false;
}

/// Whether `exponential` is of a difference whose other side is broadcast, as numbers of rows are,
/// and goes into products as it is or elementwise.
bool takes_numbers_off(const Elements& elements, const Instruction* exponential) {
  const Instruction* x = exponential->operand(0);
  while (is_rounding(x)) x = x->operand(0);
  if (!x->is(Opcode::subtract)) return false;
  const Instruction* number = x->operand(1);
  while (is_rounding(number) || number->is(Opcode::reshape) || number->is(Opcode::transpose))
    number = number->operand(0);
  return number->is(Opcode::broadcast) && number->operand(0)->shape().rank() > 0 &&
         reaches_product(elements, exponential);
}

class Finder {
 public:
  explicit Finder(Elements& elements) : elements_(elements) {}

  Findings find() {
    // Frames of loops that other loops read back come after those that read them.
    for (size_t frame = 0; frame < elements_.frames().size(); ++frame) {
      const Frame at = elements_.frames()[frame];
      for (const Instruction* x : elements_.order(static_cast<int>(frame)))
        if (x->is(Opcode::exponential) && x->shape().is_array() && x->shape().rank() > 0 &&
            elements_.representative(x) == x) {
          if (is_reduced(elements_, x)) {
            findings_.has_softmax = true;
            look_at(static_cast<int>(frame), x,
                    at.read_by >= 0 ? at.read_by : static_cast<int>(frame));
          } else if (at.read_by < 0 && takes_numbers_off(elements_, x)) {
            look_for_part(static_cast<int>(frame), x);
          }
        }
    }
    set_aside_what_is_read_back();
    set_aside_what_weighs_nothing();
    findings_.matches = std::move(forwards_);
    std::move(backwards_.begin(), backwards_.end(), std::back_inserter(findings_.matches));
    return std::move(findings_);
  }

 private:
  /// Weights that a branch gives away are no refusal where their backward is found.
  void set_aside_what_is_read_back() {
    std::erase_if(findings_.refusals, [&](const Refusal& r) {
      return r.reason == kGivenAway && has_match(backwards_, r);
    });
  }

  static bool has_match(const std::vector<Match>& matches, const Refusal& of) {
    return std::any_of(matches.begin(), matches.end(), [&](const Match& match) {
      const Instruction* x = match.anchor.x;
      return x->name() == of.instruction && x->computation()->name() == of.computation;
    });
  }

  /// No refusals, unless they are of an attention whose forward is there.
  void set_aside_what_weighs_nothing() {
    std::set<std::string> names;
    std::erase_if(findings_.refusals, [&](const Refusal& r) {
      if (r.reason != kNoWeighedGradient || has_match(forwards_, r)) return false;
      names.insert(r.instruction);
      return true;
    });
    findings_.without_values = static_cast<int>(names.size());
  }

  void look_at(int frame, const Instruction* exponential, int home) {
    const bool is_forward_iteration = frame != home;
    std::string reason;
    std::set<const Instruction*> forward_roots;
    if (attempt(frame, exponential, home, is_forward_iteration, {}, forward_roots, reason)) return;
    // dO may itself be made of O; then O is taken as given. (Of a part no gradient is found.)
    if (!forward_roots.empty() && !forwards_.back().find(Role::max) &&
        attempt(frame, exponential, home, true, forward_roots, forward_roots, reason))
      return;
    if (!reason.empty()) findings_.refusals.push_back(refusal(*exponential, reason));
  }

  /// The gradient of a part of the keys by numbers that the program has of whole rows. What is none
  /// is no refusal: exponentials of differences are many things.
  void look_for_part(int frame, const Instruction* exponential) {
    for (Terms terms : {Terms::taken_apart, Terms::whole}) {
      auto algebra = make_algebra(elements_, exponential->shape().type());
      Region region(elements_, *algebra, frame, exponential, frame, terms, {},
                    Normalised::by_number);
      const auto softmax = softmax_by_number(*algebra, region);
      if (!softmax) continue;
      auto backwards = match_backward(*algebra, elements_, region, *softmax, nullptr);
      if (!backwards || backwards->size() != 1) continue;
      findings_.has_softmax = true;
      add_backwards(std::move(*backwards), algebra, region);
      return;
    }
  }

  void add_backwards(std::vector<Match> backwards, const std::shared_ptr<Algebra>& algebra,
                     Region& region) {
    for (Match& backward : backwards) {
      backward.algebra = algebra;
      backward.by_log_sum_exp = region.rounds_logarithm();
      backward.adds_to_shifted = region.adds_to_shifted();
      backward.adds_fills_in_half = region.adds_fills_in_half();
      backward.bits = region.bits_of_scores();
      backwards_.push_back(std::move(backward));
    }
  }

  /// Whether weights that nothing multiplies are a branch's, of products that each batch entry or
  /// head has of its own: no loss's.
  bool gives_weights_away(const Region& region) const {
    const int home = region.home();
    if (elements_.frames()[home].branch < 0) return false;
    const std::vector<const Member*> members = region.members(home);
    return std::any_of(members.begin(), members.end(), [](const Member* member) {
      return member->kind == Kind::matrix && member->place.x->is(Opcode::dot) &&
             !member->place.x->lhs_batch_dims().empty();
    });
  }

  /// What cuts a part of the weights out, as some heads, or puts others beside them, as of keys
  /// that are no product, and is multiplied; null if nothing does.
  const Instruction* multiplied_otherwise(const Region& region) const {
    for (const Member* member : region.members(region.home())) {
      if (member->kind != Kind::matrix) continue;
      for (const Instruction* user : elements_.users(member->place.x))
        if ((user->is(Opcode::slice) || user->is(Opcode::concatenate)) &&
            reaches_product(elements_, user))
          return user;
    }
    return nullptr;
  }

  /// Whether fills tell hidden keys apart in a row of no others, and no call of this softmax could.
  static bool knows_too_few_fills(Algebra& algebra, Region& region, const Softmax& softmax) {
    // Of what has a sink, or no maximum taken off, such a row need not weigh them.
    return softmax.score.mask.weighs_by_fills() && softmax.score.is_shifted &&
           !with_sink(algebra, region, softmax);
  }

  /// Whether a backward was found; forwards are looked for unless `only_backward`.
  bool attempt(int frame, const Instruction* exponential, int home, bool only_backward,
               const std::set<const Instruction*>& opaque,
               std::set<const Instruction*>& forward_roots, std::string& reason) {
    std::string why;
    std::vector<const Instruction*> products;
    bool by_fills = false;
    for (Terms terms : {Terms::taken_apart, Terms::whole, Terms::whole_with_fills}) {
      if (terms == Terms::whole_with_fills && !by_fills) break;
      auto algebra = make_algebra(elements_, exponential->shape().type());
      Region region(elements_, *algebra, frame, exponential, home, terms, opaque);
      if (region.keys().empty()) return false;
      if (!region.feeds_products()) {
        if (gives_weights_away(region))
          reason = kGivenAway;
        else if (const Instruction* x = multiplied_otherwise(region))
          reason = fmt::format(
              "values are multiplied by {} (%{})",
              x->is(Opcode::slice) ? "parts of the weights" : "the weights and others beside them",
              x->name());
        return false;
      }
      const auto softmax = softmax_of(*algebra, region);
      const bool too_few = softmax && knows_too_few_fills(*algebra, region, *softmax);
      if (softmax && !too_few)
        return match_either(algebra, region, *softmax, only_backward, forward_roots, reason);
      if (why.empty())
        why =
            too_few ? weighed_by_fills(*algebra, softmax->score.mask) : softmax.status().message();
      // Fills added in 16 bits leave less of what stands beside them than numbers of a call would.
      if (too_few && region.adds_fills_in_half()) break;
      by_fills = by_fills || too_few;
      products = region.products_in_scores();
    }
    // Of several the call computes one. The others are terms, which the program computes.
    for (const Instruction* own : products) {
      if (products.size() == 1 || products.size() > kMaxProducts) break;
      std::set<const Instruction*> others = opaque;
      for (const Instruction* product : products)
        if (product != own) others.insert(product);
      const size_t forwards = forwards_.size();
      if (attempt(frame, exponential, home, only_backward, others, forward_roots, reason))
        return true;
      if (forwards_.size() > forwards) return false;
    }
    if (products.size() < 2 || forward_roots.empty()) reason = why;
    return false;
  }

  static bool has_no_columns(const Match& forward) {
    const Index scores = flat(forward.anchor.at), values = flat(forward.v.at);
    return std::all_of(values.begin(), values.end(), [&](Var v) {
      return std::find(scores.begin(), scores.end(), v) != scores.end();
    });
  }

  /// What adds a number, an epsilon say, to the sum of a row's weights; null if nothing does.
  const Instruction* sum_of_more(const Region& region) {
    const int frame = region.anchor().frame;
    for (const Member* member : region.members(frame)) {
      const Instruction* x = member->place.x;
      if (member->kind != Kind::derived || !x->is(Opcode::add)) continue;
      for (int i : {0, 1}) {
        const auto number = elements_.splat(frame, x->operand(i));
        if (!number || *number == 0) continue;
        const Element sum = elements_.resolve(elements_.fresh(frame, x->operand(1 - i)));
        if (!is_sum(elements_, sum.frame, sum.x)) continue;
        const Member* summed = region.find(sum.frame, sum.x->operand(0));
        if (summed && summed->kind == Kind::matrix) return x;
      }
    }
    return nullptr;
  }

  bool match_either(const std::shared_ptr<Algebra>& algebra, Region& region, const Softmax& softmax,
                    bool only_backward, std::set<const Instruction*>& forward_roots,
                    std::string& reason) {
    // With a sink if the sum of the weights has one anywhere, else, or if that fails, without.
    if (const auto sunk = with_sink(*algebra, region, softmax);
        sunk && match(algebra, region, *sunk, only_backward, forward_roots, reason))
      return true;
    if (!forward_roots.empty() && !only_backward) return false;
    return match(algebra, region, softmax, only_backward, forward_roots, reason);
  }

  bool match(const std::shared_ptr<Algebra>& algebra, Region& region, const Softmax& softmax,
             bool only_backward, std::set<const Instruction*>& forward_roots, std::string& reason) {
    if (!only_backward) {
      auto forward = match_forward(*algebra, elements_, region, softmax);
      // Weights times a mask, summed, are no output where that sum is what they are divided by.
      const Instruction* divisor =
          softmax.sink || (forward && !has_no_columns(*forward)) ? nullptr : sum_of_more(region);
      const Instruction* guard = forward || divisor ? nullptr : region.guard_of_sum();
      if (divisor)
        forward =
            error(Code::graph_not_supported,
                  "the weights are divided by %{}, their sum and a number more", divisor->name());
      if (guard)
        forward = error(Code::graph_not_supported,
                        "the weights are divided by %{}, which keeps their sum from being small: "
                        "{}",
                        guard->name(),
                        region.sees_largest_weight()
                            ? "it may change sums of 1 and more"
                            : "they are not known to add up to 1 or more, as with the largest "
                              "score that the row sees taken off all");
      if (forward) {
        forward->algebra = algebra;
        forward->by_log_sum_exp = region.rounds_logarithm();
        forward->adds_to_shifted = region.adds_to_shifted();
        forward->adds_fills_in_half = region.adds_fills_in_half();
        forward->bits = region.bits_of_scores();
        forward_roots.insert(forward->outputs[0].place.x);
        forwards_.push_back(std::move(*forward));
        reason.clear();  // it was of the same softmax with a sink
      } else {
        reason = forward.status().message();
      }
    }
    const Match* forward = forward_roots.empty() ? nullptr : &forwards_.back();
    auto backwards = match_backward(*algebra, elements_, region, softmax, forward);
    if (!backwards) {
      const bool has_other_reason =
          only_backward || forward || !(sum_of_more(region) || region.guard_of_sum());
      if (has_other_reason && backwards.status().message() != kNoGradient)
        reason = backwards.status().message();
      return false;
    }
    add_backwards(std::move(*backwards), algebra, region);
    return true;
  }

  Elements& elements_;
  std::vector<Match> forwards_, backwards_;
  Findings findings_;
};

}  // namespace

Refusal refusal(const Instruction& at, std::string reason) {
  return {at.computation()->name(), at.name(), std::move(reason), hlo::source_of(at)};
}

Findings find_attention(Elements& elements) { return Finder(elements).find(); }

}  // namespace heddle::rewrite
