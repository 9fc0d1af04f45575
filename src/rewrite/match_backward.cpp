// The gradient of attention, by its meaning alone. With P the probabilities, D = keep * (dO V^T)
// and f the scores' function of the dot, whatever the program calls dS must be a multiple of
//   f' * P * (D - sum_keys P * D),
// and each result a contraction of it: dQ = dS K, dK = dS^T Q, dV = (keep * P)^T dO, dBias a sum;
// and dSink that of -P_sink * sum_keys P * D, as the sink's column has no value. Where P is
// multiplied by factors after the softmax, keep stands for what dropout keeps times these, and the
// gradient of one is the sum of P * D over it. Of a part of the keys, whose weights are
// exp(score - number) with a number of whole rows, the row's sum of P * D is a number that the
// program has.
#include <algorithm>
#include <map>
#include <set>

#include "rewrite/match.h"
#include "rewrite/rng_dropout_mask.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::Instruction;

namespace {

/// Whether a softmax weight occurs in `atom`, also inside sums.
bool weighs(const Algebra& algebra, AtomId id) {
  const Atom& atom = algebra.at(id);
  if (atom.kind == AtomKind::weight) return true;
  return atom.kind == AtomKind::sum &&
         std::any_of(atom.product.begin(), atom.product.end(),
                     [&](const Power& p) { return weighs(algebra, p.atom); });
}

std::vector<Var> without(std::vector<Var> from, const std::vector<Var>& what) {
  std::erase_if(from, [&](Var v) { return std::find(what.begin(), what.end(), v) != what.end(); });
  return from;
}

/// Whether two factors are the same but for how they were rounded to f32.
bool are_close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

// Each further bias takes a call of its own, which computes the scores and their gradient again.
constexpr size_t kMaxBiases = 4;

// Products of products: a power and a constant or two.
constexpr int kMaxLevels = 8;

/// The axes of what a gradient is of, its depth left out.
struct GradientAxes {
  std::vector<Var> q, k, v, all;  // these and dO's

  const std::vector<Var>& of(Role role) const {
    return role == Role::d_q ? q : role == Role::d_k ? k : v;
  }
};

/// The gradient of the scores, as proved.
struct Core {
  std::optional<Element> d_o;  // none: 1 everywhere
  Element v;
  std::vector<Var> value_depth;  // bound, of D
  std::vector<int64_t> value_sizes;
  std::optional<Keep> keep;
  WeightFactors factors;
  bool masked_again = false;  // the weights, after the softmax
  Poly kept;                  // 1 where dropout and such a mask keep a weight, times the factors
  Poly weighted;              // P * D
  Poly mean;                  // sum P * D
  Poly by_score;              // P * (D - sum P * D): the gradient of the score
  Poly by_product;            // the same where nothing but the product is hidden
  Poly by_dot;                // f' times that
  GradientAxes axes;
  std::optional<OfWholeRows> whole_rows;  // whose mean is given, and no sum over these keys
};

class Backward {
 public:
  Backward(Algebra& algebra, Elements& elements, Region& region, const Softmax& softmax,
           const Match* forward)
      : algebra_(algebra),
        elements_(elements),
        region_(region),
        softmax_(softmax),
        forward_(forward) {}

  /// Of several numbers that the scores hold each that has a gradient has a match of its own: the
  /// first has all other gradients too.
  Result<std::vector<Match>> matches() {
    std::string reason = kNoGradient;
    std::optional<Core> core;
    std::set<const Instruction*> tried;
    for (const Member* reader : region_.members(region_.home())) {
      const Instruction* x = reader->place.x;
      for (const Instruction* operand : x->operands()) {
        const Member* member = region_.find(region_.home(), operand);
        if (core || !member || member->kind != Kind::matrix ||
            !(multiplies_out(elements_, operand, x) || multiplies_gradient(*reader)) ||
            !tried.insert(operand).second)
          continue;
        const Poly value = region_.value(member->place);
        core = softmax_.number ? core_by_number(value) : core_of(value, operand, reason);
      }
    }
    if (!core) {
      if (reason == kNoGradient && !softmax_.number)
        if (auto match = by_values_alone()) return std::vector<Match>{std::move(*match)};
      return Status(Code::graph_not_supported, reason);
    }
    Match match;
    match.backward = true;
    match.home = region_.home();
    match.anchor = region_.anchor();
    match.score = softmax_.score;
    match.v = core->v;
    match.d_o = core->d_o;
    match.fully_masked_rows_are_zero = core->masked_again;
    match.sink = softmax_.sink;
    match.factors = core->factors;
    match.whole_rows = core->whole_rows;
    const std::vector<Output> gradients = gradients_by(*core);
    if (biases_.size() > kMaxBiases)
      return error(
          Code::graph_not_supported,
          "the scores have gradients by {} numbers (by %{} for one); calls give those of up to {}",
          biases_.size(), biases_.back().element.x->name(), kMaxBiases);
    if (gradients.empty())
      return error(Code::graph_not_supported,
                   "the gradient of the scores is there, but no dQ, dK or dV made of it");
    // A constant factor may be taken up by a multiplication after the product: the place that has
    // it is taken.
    const double factor = core->keep ? shared_factor(gradients) : 1;
    if (core->keep)
      match.dropout = Dropout{*core->keep, dropout_scale(*core->keep).value_or(factor)};
    free_bound(elements_, softmax_.score.depth, depth_sizes(), match.score.q, match.score.k,
               &match.score.depth);
    Element ones;
    free_bound(elements_, core->value_depth, core->value_sizes, match.v,
               match.d_o ? *match.d_o : ones);
    std::vector<Match> matches(std::max<size_t>(biases_.size(), 1), match);
    for (size_t i = 0; i < biases_.size(); ++i) matches[i].score.bias = biases_[i];
    for (const Output& output : gradients)
      add_output(matches[output.role == Role::d_bias ? output.of : 0], output, factor);
    return matches;
  }

 private:
  const std::vector<int64_t>& depth_sizes() const { return algebra_.at(softmax_.score.dot).sizes; }

  /// dV where no other gradient is wanted: sum_rows P * keep * dO, which no gradient of the scores
  /// comes before.
  std::optional<Match> by_values_alone() {
    // Of key heads that query heads share the sum over these, as K's axes are.
    const std::vector<Var> axes = without(flat(softmax_.score.k.at), softmax_.score.depth);
    std::optional<Match> found;
    for (const Member* member : region_.members(region_.home())) {
      if (member->kind != Kind::derived) continue;
      const bool as_keys = without(axes, flat(member->place.at)).empty() &&
                           without(flat(region_.anchor().at), axes).size() ==
                               without(flat(region_.anchor().at), flat(member->place.at)).size();
      const Poly value = region_.value(member->place);
      // All weights less those that dropout takes away are two terms.
      if (value.empty() || value.size() > 2 || (found && !as_keys)) continue;
      for (const Monomial& m : value)
        for (const Power& p : m.factors)
          if (auto match = of_values(member->place, value, p)) {
            if (as_keys) return match;
            found = std::move(match);
          }
    }
    return found;
  }

  /// The same where `place`, of this value, is dV, `sum` its sum.
  std::optional<Match> of_values(const Element& place, const Poly& value, const Power& sum) {
    if (sum.exponent != 1 || algebra_.at(sum.atom).kind != AtomKind::sum) return std::nullopt;
    const std::vector<Var> labels = flat(place.at), axes = flat(region_.anchor().at);
    const std::vector<Var> rows = without(axes, labels), depth = without(labels, axes);
    const auto renaming = name_rows(algebra_, softmax_, rows, sum.atom);
    if (!renaming || depth.empty()) return std::nullopt;
    const auto& of_mask = softmax_.score.mask.indicators;
    std::optional<Element> d_o;
    std::optional<Keep> keep;
    for (const Power& p : Product(algebra_.at(sum.atom).product)) {
      const AtomId id = algebra_.rename(p.atom, *renaming);
      const Atom& atom = algebra_.at(id);
      if (atom.kind == AtomKind::element && p.exponent == 1 && !d_o) {
        d_o = atom.element;
      } else if (atom.kind == AtomKind::indicator && !keep &&
                 std::find(of_mask.begin(), of_mask.end(), id) == of_mask.end()) {
        keep = Keep{atom.element, value.size() > 1};
      }
    }
    if (!d_o || !varies(*d_o, depth) || varies(*d_o, softmax_.score.keys)) return std::nullopt;
    const Poly everywhere = Algebra::constant(1);
    for (const Poly& again : {everywhere, visible_cells(algebra_, softmax_.score.mask)}) {
      Poly product =
          algebra_.multiply(algebra_.multiply(softmax_.probability, again), algebra_.element(*d_o));
      if (keep) product = algebra_.multiply(product, kept(algebra_, *keep));
      const auto factor = algebra_.ratio(value, algebra_.sum(rows, product));
      if (!factor || !region_.holds_without_keys(place)) continue;
      Match match;
      match.backward = true;
      match.home = region_.home();
      match.anchor = region_.anchor();
      match.score = softmax_.score;
      match.sink = softmax_.sink;
      match.d_o = d_o;
      match.v_is_unread = !forward_;
      const auto v = forward_ ? values_at(*forward_, depth) : place;
      if (!v) return std::nullopt;
      match.v = *v;
      match.fully_masked_rows_are_zero = algebra_.ratio(again, everywhere) != 1.0;
      if (keep) match.dropout = Dropout{*keep, dropout_scale(*keep).value_or(*factor)};
      match.outputs.push_back({Role::d_v, place, *factor / (keep ? match.dropout->scale : 1)});
      free_bound(elements_, softmax_.score.depth, depth_sizes(), match.score.q, match.score.k,
                 &match.score.depth);
      return match;
    }
    return std::nullopt;
  }

  /// The forward's values in this region's labels, their depth labelled so; nothing if it is
  /// another.
  std::optional<Element> values_at(const Match& forward, const std::vector<Var>& depth) {
    // The forward may have been found in a region of its own, around the same exponential.
    const auto names = elements_.renaming(forward.anchor.at, region_.anchor().at);
    if (!names) return std::nullopt;
    const std::vector<Var> own = without(flat(forward.v.at), flat(forward.anchor.at));
    if (own.size() != depth.size()) return std::nullopt;
    Renaming all = *names;
    for (size_t i = 0; i < own.size(); ++i) {
      if (elements_.size(own[i]) != elements_.size(depth[i])) return std::nullopt;
      all[own[i]] = depth[i];
    }
    return algebra_.at(algebra_.rename(algebra_.element(forward.v), all)[0].factors[0].atom)
        .element;
  }

  /// `output`, or where there is one of its role already the one that has taken up `factor`, unless
  /// it is made of the other, which something else reads too.
  static void add_output(Match& match, Output output, double factor) {
    const bool took_up = are_close(output.factor, factor);
    if (match.dropout) output.factor /= match.dropout->scale;
    const auto known =
        std::find_if(match.outputs.begin(), match.outputs.end(),
                     [&](const Output& o) { return o.role == output.role && o.of == output.of; });
    if (known == match.outputs.end()) {
      match.outputs.push_back(output);
    } else if (took_up && !is_read_beside(known->place.x, output.place.x) &&
               !are_close(known->factor * (match.dropout ? match.dropout->scale : 1), factor)) {
      *known = output;
    }
  }

  /// Whether `result` is made of `x` step by step, and not all that reads `x` is on this way.
  static bool is_read_beside(const Instruction* x, const Instruction* result) {
    bool is_read = false;
    for (int step = 0; step < kMaxLevels && result != x; ++step) {
      if (result->operand_count() == 0) return false;
      result = result->operand(0);
      is_read = is_read || result->users().size() > 1 || result->is_root();
    }
    return result == x && is_read;
  }

  /// Whether a gradient of the scores may be multiplied here, for that of a part of a product.
  bool multiplies_gradient(const Member& product) const {
    const auto& biases = softmax_.score.biases;
    return std::any_of(biases.begin(), biases.end(), [](const auto& b) { return !b.is_term; }) &&
           product.kind == Kind::matrix && product.place.x->is(hlo::Opcode::multiply);
  }

  /// What dropout multiplies what it keeps by, as its forward or what draws it says. Gradients
  /// alone do not tell it from a multiple of dO.
  std::optional<double> dropout_scale(const Keep& keep) const {
    if (forward_) return forward_->dropout ? std::optional(forward_->dropout->scale) : std::nullopt;
    const auto drawn = rng_dropout_mask(elements_, keep.predicate, keep.is_negated);
    return drawn ? std::optional(1 / drawn->keep_probability) : std::nullopt;
  }

  /// Every place of the region that is a multiple of a gradient, in the program's order.
  std::vector<Output> gradients_by(const Core& core) {
    std::vector<Output> outputs;
    std::set<std::pair<Role, size_t>> exact;
    for (const Member* member : region_.members(region_.home())) {
      if (!member->place.x->shape().is_array()) continue;
      if (member->kind == Kind::matrix && softmax_.score.biases.empty()) continue;
      for (Role role : {Role::d_q, Role::d_k, Role::d_v, Role::d_bias, Role::d_sink}) {
        if (role != Role::d_bias && exact.contains({role, 0})) continue;
        const auto factor = role == Role::d_bias ? factor_by_bias(core, member->place)
                                                 : factor_of(core, role, member->place);
        if (!factor) continue;
        const size_t of = role == Role::d_bias ? of_bias_.at(member->place.x) : 0;
        if (exact.contains({role, of})) continue;
        outputs.push_back({role, member->place, *factor, of});
        if (!core.keep && are_close(*factor, 1)) exact.insert({role, of});
        break;
      }
      for (size_t i = 0; i < core.factors.size(); ++i)
        if (const auto factor = factor_by_factor(core, member->place, i))
          outputs.push_back({Role::d_factor, member->place, *factor, i});
    }
    return outputs;
  }

  /// The same of factor `i` of the weights.
  std::optional<double> factor_by_factor(const Core& core, const Element& place, size_t i) {
    const WeightFactor& by = core.factors[i];
    if (by.place.x->shape().type() == hlo::ElementType::pred) return std::nullopt;
    const Index labels = flat(place.at), own = flat(by.place.at);
    if (labels.size() != own.size() || !without(labels, own).empty()) return std::nullopt;
    const std::vector<Var> summed = without(flat(region_.anchor().at), own);
    const Poly of_one = algebra_.multiply(core.weighted, {{1, {{element_atom(by.place), -1}}}});
    const auto factor = ratio_apart(region_.value(place), algebra_.sum(summed, of_one));
    return factor && region_.holds_without_keys(place) ? factor : std::nullopt;
  }

  AtomId element_atom(const Element& element) {
    return algebra_.element(element)[0].factors[0].atom;
  }

  /// What `place` is the gradient of `role` times; nothing if it is no multiple of it.
  std::optional<double> factor_of(const Core& core, Role role, const Element& place,
                                  const Score::Bias* bias = nullptr) {
    const auto expected = gradient(core, role, place, bias);
    if (!expected) return std::nullopt;
    const Poly value = region_.value(place);
    const auto factor =
        bias && !bias->is_term ? ratio_apart(value, *expected) : algebra_.ratio(value, *expected);
    return factor && region_.holds_without_keys(place) ? factor : std::nullopt;
  }

  /// Algebra::ratio() of what may hold numbers that the program computes of others, as a divisor's
  /// square.
  std::optional<double> ratio_apart(const Poly& a, const Poly& b) {
    const auto factor = algebra_.ratio(a, b);
    return factor ? factor : algebra_.ratio(apart(a), apart(b));
  }

  /// `poly` with the products and quotients that the program computes outside of the region taken
  /// apart.
  Poly apart(const Poly& poly, int levels = kMaxLevels) {
    Poly result;
    for (const Monomial& m : poly) {
      Poly product = Algebra::constant(m.coefficient);
      for (const Power& p : m.factors) {
        Poly base = {{1, {{p.atom, 1}}}};
        if (const Atom atom = algebra_.at(p.atom); atom.kind == AtomKind::element && levels > 0)
          base = made_of(atom.element, levels).value_or(base);
        if (p.exponent < 0) base = algebra_.function(hlo::Opcode::divide, base);
        for (int i = 0; i < std::abs(p.exponent); ++i) product = algebra_.multiply(product, base);
      }
      result = algebra_.add(result, product);
    }
    return result;
  }

  /// The product or quotient that `e` is; nothing if it is neither.
  std::optional<Poly> made_of(const Element& e, int levels) {
    if (!(e.x->is(hlo::Opcode::multiply) || e.x->is(hlo::Opcode::divide)) ||
        !is_wide_floating(e.x->shape().type()))
      return std::nullopt;
    const auto operand = [&](int i) {
      return apart(region_.value(operand_of(elements_, e, i)), levels - 1);
    };
    const Poly by = operand(1);
    return algebra_.multiply(
        operand(0), e.x->is(hlo::Opcode::divide) ? algebra_.function(hlo::Opcode::divide, by) : by);
  }

  /// The same of a bias that the program computes a gradient of, which is noted.
  std::optional<double> factor_by_bias(const Core& core, const Element& place) {
    for (size_t i = 0; i < biases_.size(); ++i)
      if (const auto factor = factor_of(core, Role::d_bias, place, &biases_[i])) {
        of_bias_[place.x] = i;
        return factor;
      }
    for (const Score::Bias& bias : softmax_.score.biases) {
      const bool is_noted = std::any_of(biases_.begin(), biases_.end(), [&](const Score::Bias& b) {
        return b.element == bias.element;
      });
      const auto factor = is_noted ? std::nullopt : factor_of(core, Role::d_bias, place, &bias);
      if (!factor || (!biases_.empty() && follows(place.x))) continue;
      of_bias_[place.x] = biases_.size();
      biases_.push_back(bias);
      return factor;
    }
    return std::nullopt;
  }

  /// Whether `x` is made of the gradients of biases that were found, and of nothing else of rows
  /// and keys: then it is there without a call's giving it.
  bool follows(const Instruction* x) const {
    std::vector<const Instruction*> work{x};
    std::set<const Instruction*> seen{x};
    while (!work.empty()) {
      const Instruction* y = work.back();
      work.pop_back();
      const Member* member = region_.find(region_.home(), y);
      if (!member || member->kind == Kind::outside || of_bias_.contains(y)) continue;
      if (member->kind == Kind::matrix) return false;
      for (const Instruction* operand : y->operands())
        if (seen.insert(operand).second) work.push_back(operand);
    }
    return true;
  }

  /// What dropout multiplies what it keeps by. Of dS alone that cannot be told from a scale of the
  /// queries, whose gradient is scaled after the product; but all results have it in common.
  static double shared_factor(const std::vector<Output>& outputs) {
    size_t most = 0;
    double shared = 1;
    for (const Output& candidate : outputs) {
      std::set<Role> roles;
      for (const Output& output : outputs)
        if (are_close(output.factor, candidate.factor)) roles.insert(output.role);
      if (roles.size() <= most) continue;
      most = roles.size();
      shared = candidate.factor;
    }
    return shared;
  }

  std::optional<Core> core_of(const Poly& value, const Instruction* x, std::string& reason) {
    const auto inverse = algebra_.reciprocal(softmax_.probability);
    if (!inverse) return std::nullopt;
    Poly direct;  // the terms without the row sum, over P
    for (const Monomial& m : value) {
      Poly quotient = algebra_.multiply({m}, *inverse);
      if (quotient.size() != 1) continue;
      const bool has_sum = std::any_of(quotient[0].factors.begin(), quotient[0].factors.end(),
                                       [&](const Power& p) { return weighs(algebra_, p.atom); });
      if (!has_sum) direct = algebra_.add(direct, quotient);
    }
    if (direct.empty() || direct.size() == value.size()) return std::nullopt;
    std::optional<AtomId> d;
    const Product of_rows = row_indicators_of(algebra_, region_, softmax_.score, direct[0].factors);
    for (const Power& p : direct[0].factors) {
      const Atom& atom = algebra_.at(p.atom);
      if (atom.kind == AtomKind::sum && p.exponent == 1 && p.atom != softmax_.score.dot) d = p.atom;
    }
    const std::set<AtomId> predicates = predicates_beside_mask(direct, of_rows);
    const std::vector<WeighedGradient> weighed =
        d ? weighed_gradients(direct[0], *d) : std::vector<WeighedGradient>{};
    if (weighed.empty() || predicates.size() > 1) {
      const bool holds_product =
          d || std::any_of(direct[0].factors.begin(), direct[0].factors.end(), [&](const Power& p) {
            const Atom& atom = algebra_.at(p.atom);
            return atom.kind == AtomKind::element && region_.depends_on_scores(atom.element);
          });
      reason = holds_product ? kNoProductWithValues : kNoWeighedGradient;
      return std::nullopt;
    }
    const std::vector<std::optional<Keep>> keeps = keeps_by(predicates, direct.size() > 1);
    for (const WeighedGradient& by : with_factors(direct[0], weighed)) {
      Core core;
      core.factors = by.factors;
      core.d_o = by.d_o;
      core.v = by.v;
      core.value_depth = algebra_.at(*d).bound;
      core.value_sizes = algebra_.at(*d).sizes;
      core.axes = axes_of(core);
      for (const std::optional<Keep>& keep : keeps) {
        core.keep = keep;
        const Poly kept = keep ? rewrite::kept(algebra_, *keep) : Algebra::constant(1);
        if (fits(core, value, algebra_.multiply(kept, {{1, by.beside}}), by.product)) return core;
      }
    }
    const Instruction* more = beside_product(direct, *d);
    reason = more
                 ? fmt::format(
                       "the gradient of these weights is not of one product of dO and V alone, "
                       "but of %{} too: something else reads the weights",
                       more->name())
                 : fmt::format(
                       "%{} is not the gradient P * (dP - rowsum(P * dP)) of this softmax's scores",
                       x->name());
    return std::nullopt;
  }

  /// The same of weights of a part of the keys: P * (dO V^T - mean), of a mean that the program
  /// has.
  std::optional<Core> core_by_number(const Poly& value) {
    const auto inverse = algebra_.reciprocal(softmax_.probability);
    if (!inverse || value.size() != 2) return std::nullopt;
    for (const size_t i : {0, 1}) {
      const Poly direct = algebra_.multiply({value[i]}, *inverse);
      const Poly rest = algebra_.multiply({value[1 - i]}, *inverse);
      if (direct.size() != 1 || rest.size() != 1) continue;
      for (const Power& p : direct[0].factors) {
        const auto product =
            p.exponent == 1 ? contraction(algebra_, p.atom, softmax_.score.keys) : std::nullopt;
        if (!product || p.atom == softmax_.score.dot) continue;
        Core core;
        core.d_o = product->row;
        core.v = product->key;
        core.value_depth = product->bound;
        core.value_sizes = product->sizes;
        core.axes = axes_of(core);
        core.whole_rows = mean_beside(direct[0], p, rest[0]);
        if (core.whole_rows && fits(core, value, Algebra::constant(1), {{1, {p}}})) return core;
      }
    }
    return std::nullopt;
  }

  /// Whether `value` is the gradient of the scores by a `core` whose dO V^T is `product`, and whose
  /// weights are multiplied by `kept`.
  bool fits(Core& core, const Poly& value, const Poly& kept, const Poly& product) {
    // Where a weight is 0 in every hidden cell, the program may hide its gradient or not.
    const Poly everywhere = Algebra::constant(1);
    const Poly cells = visible_cells(algebra_, softmax_.score.mask);
    for (const Poly& again : {everywhere, cells})
      for (const Poly& shown : {visibility(algebra_, softmax_.score.mask), cells}) {
        core.masked_again = algebra_.ratio(again, everywhere) != 1.0;
        core.kept = algebra_.multiply(kept, again);
        fill_in(core, algebra_.multiply(core.kept, product), shown);
        // A constant derivative may be applied after the product instead.
        if (algebra_.ratio(value, core.by_dot) || algebra_.ratio(value, core.by_product))
          return true;
      }
    return false;
  }

  /// What `rest` has in the place that the product `p` has in `direct`, if that is a number of each
  /// row that is there before these scores are.
  std::optional<OfWholeRows> mean_beside(const Monomial& direct, const Power& p,
                                         const Monomial& rest) {
    for (const Power& other : rest.factors) {
      const Atom& atom = algebra_.at(other.atom);
      if (other.exponent != 1 || atom.kind != AtomKind::element ||
          varies(atom.element, softmax_.score.keys) || region_.depends_on_scores(atom.element))
        continue;
      const Poly of_product = algebra_.multiply({{1, direct.factors}}, {{1, {other}}});
      const Poly of_mean = algebra_.multiply({{1, rest.factors}}, {{1, {p}}});
      if (algebra_.ratio(of_product, of_mean) == 1.0)
        return OfWholeRows{*softmax_.number, atom.element, -rest.coefficient / direct.coefficient};
    }
    return std::nullopt;
  }

  /// The indicators in `gradient` that are neither of the mask nor of rows.
  std::set<AtomId> predicates_beside_mask(const Poly& gradient, const Product& of_rows) const {
    const auto& of_mask = softmax_.score.mask.indicators;
    std::set<AtomId> predicates;
    for (const Monomial& m : gradient)
      for (const Power& p : m.factors)
        if (algebra_.at(p.atom).kind == AtomKind::indicator &&
            std::find(of_mask.begin(), of_mask.end(), p.atom) == of_mask.end() &&
            std::find(of_rows.begin(), of_rows.end(), p) == of_rows.end())
          predicates.insert(p.atom);
    return predicates;
  }

  /// What dropout may keep by such predicates, one at most: in a sum it may be all others.
  std::vector<std::optional<Keep>> keeps_by(const std::set<AtomId>& predicates, bool is_sum) const {
    if (predicates.empty()) return {std::nullopt};
    const Element& predicate = algebra_.at(*predicates.begin()).element;
    std::vector<std::optional<Keep>> keeps{Keep{predicate}};
    if (is_sum) keeps.push_back(Keep{predicate, true});
    return keeps;
  }

  /// What a term of the weights' gradient is made of that is no multiple of `product`; null if
  /// there is no such term, or nothing of it is the program's.
  const Instruction* beside_product(const Poly& gradient, AtomId product) const {
    const auto& of_mask = softmax_.score.mask.indicators;
    for (const Monomial& m : gradient) {
      if (std::any_of(m.factors.begin(), m.factors.end(),
                      [&](const Power& p) { return p.atom == product; }))
        continue;
      for (const Power& p : m.factors) {
        const Atom& atom = algebra_.at(p.atom);
        if ((atom.kind == AtomKind::element || atom.kind == AtomKind::indicator) &&
            std::find(of_mask.begin(), of_mask.end(), p.atom) == of_mask.end())
          return atom.element.x;
      }
    }
    return nullptr;
  }

  /// dO V^T, the gradient of a weight but for what it is multiplied by after the softmax.
  struct WeighedGradient {
    std::optional<Element> d_o;  // none: 1 everywhere
    Element v;
    Poly product;
    Product beside{};  // of the factors
    WeightFactors factors{};
  };

  /// Each of `weighed` with the factors that `term`, in which it is one, may hold: none; all
  /// numbers beside it but those by which the derivative of the scores multiplies; or these too,
  /// where the program does that later.
  std::vector<WeighedGradient> with_factors(const Monomial& term,
                                            const std::vector<WeighedGradient>& weighed) {
    std::vector<WeighedGradient> all;
    const Poly of_rows = {{1, row_indicators_of(algebra_, region_, softmax_.score, term.factors)}};
    for (const WeighedGradient& by : weighed) {
      const auto add = [&](const Product& numbers) {
        const Product beside = algebra_.multiply({{1, numbers}}, of_rows)[0].factors;
        const auto factors =
            weight_factors(algebra_, beside, flat(region_.anchor().at), softmax_.score.keys);
        if (!factors) return;
        all.push_back(by);
        all.back().beside = beside;
        all.back().factors = *factors;
      };
      add({});
      const Poly rest =
          algebra_.multiply({{1, elements_of(algebra_, term.factors)}},
                            {{1, inverse_of(elements_of(algebra_, by.product[0].factors))}});
      const Poly derivative = rewrite::derivative(algebra_, softmax_.score);
      std::set<Product> tried{{}};
      for (const Poly& later : {derivative, Algebra::constant(1)}) {
        if (later.size() != 1) continue;
        const Poly left =
            algebra_.multiply(rest, {{1, inverse_of(elements_of(algebra_, later[0].factors))}});
        if (tried.insert(left[0].factors).second) add(left[0].factors);
      }
    }
    return all;
  }

  static Product inverse_of(Product product) {
    for (Power& p : product) p.exponent = -p.exponent;
    return product;
  }

  /// What it may be in `term`, whose sum is `d`: one that sums products of dO and V; or, as of a dO
  /// that is the same along the depth, one of V alone, and dO 1 or any number of data beside it.
  std::vector<WeighedGradient> weighed_gradients(const Monomial& term, AtomId d) {
    const std::vector<Var>& keys = softmax_.score.keys;
    const Poly sum = {{1, {{d, 1}}}};
    if (const auto product = contraction(algebra_, d, keys))
      return {{product->row, product->key, sum}};
    const auto v = summed_element(algebra_, d, keys);
    if (!v) return {};
    std::vector<WeighedGradient> found{{std::nullopt, *v, sum}};
    for (const Power& p : term.factors) {
      const Atom& atom = algebra_.at(p.atom);
      if (atom.kind == AtomKind::element && p.exponent == 1 && !varies(atom.element, keys))
        found.push_back({atom.element, *v, algebra_.multiply({{1, {p}}}, sum)});
    }
    return found;
  }

  /// Those of `core`, whose dO and V are known.
  GradientAxes axes_of(const Core& core) const {
    const auto axes = [](const Element& e, const std::vector<Var>& bound) {
      return without(flat(e.at), bound);
    };
    GradientAxes result{axes(softmax_.score.q, softmax_.score.depth),
                        axes(softmax_.score.k, softmax_.score.depth),
                        axes(core.v, core.value_depth),
                        {}};
    result.all = result.q;
    const auto add = [&](const std::vector<Var>& more) {
      const std::vector<Var> added = without(more, result.all);
      result.all.insert(result.all.end(), added.begin(), added.end());
    };
    add(result.k);
    add(result.v);
    if (core.d_o) add(axes(*core.d_o, core.value_depth));
    return result;
  }

  /// What follows for the scores of `dp`, the gradient of the weights.
  void fill_in(Core& core, const Poly& dp, const Poly& shown) {
    core.weighted = algebra_.multiply(softmax_.probability, dp);
    core.mean =
        core.whole_rows
            ? algebra_.scale(algebra_.multiply(core.kept, algebra_.element(core.whole_rows->mean)),
                             core.whole_rows->factor)
            : algebra_.sum(softmax_.score.keys, core.weighted);
    core.by_score = algebra_.add(
        core.weighted, algebra_.scale(algebra_.multiply(softmax_.probability, core.mean), -1));
    // What hides the product alone hides no gradient of what is added to it, and a fill that is
    // added none at all.
    const Hiding hiding = softmax_.score.mask.hiding;
    core.by_product =
        hiding == Hiding::adds ? core.by_score : algebra_.multiply(core.by_score, shown);
    if (hiding == Hiding::replaces) core.by_score = core.by_product;
    core.by_dot = algebra_.multiply(core.by_product, derivative(algebra_, softmax_.score));
  }

  /// `element`, or 1, with the bound digits `bound` of a contraction, of sizes `sizes`, replaced by
  /// `by` in the order in which they stand in `whole`; nothing if these are not as many, or of
  /// other sizes.
  std::optional<Poly> at_depth(const Element& whole, const std::vector<Var>& bound,
                               const std::vector<int64_t>& sizes, const std::vector<Var>& by,
                               const std::optional<Element>& element) {
    Renaming renaming;
    size_t next = 0;
    for (Var v : flat(whole.at)) {
      const auto found = std::find(bound.begin(), bound.end(), v);
      if (found == bound.end()) continue;
      if (next == by.size() || elements_.size(by[next]) != sizes[found - bound.begin()])
        return std::nullopt;
      renaming[v] = by[next++];
    }
    if (next != by.size()) return std::nullopt;
    return element ? algebra_.rename(algebra_.element(*element), renaming) : Algebra::constant(1);
  }

  /// What `role` is in the labels of `place`; nothing if the labels cannot be its.
  std::optional<Poly> gradient(const Core& core, Role role, const Element& place,
                               const Score::Bias* bias) {
    const bool is_added = role == Role::d_bias || role == Role::d_sink;
    if (is_added && !bias && (!softmax_.sink || !softmax_.sink->place)) return std::nullopt;
    const std::vector<Var> own =
        is_added ? flat((bias ? bias->element : *softmax_.sink->place).at) : core.axes.of(role);
    const std::vector<Var> labels = flat(place.at), depth = without(labels, core.axes.all);
    // The labels must be exactly the operand's axes, and its depth.
    if (labels.size() - depth.size() != own.size() || (is_added && !depth.empty()) ||
        !without(without(labels, depth), own).empty())
      return std::nullopt;
    // Of other labels only the depth's may differ, and places on the way to one result share these.
    const AtomId of_bias = bias ? element_atom(bias->element) : -1;
    const auto [known, is_new] = gradients_.try_emplace({role, of_bias, depth});
    if (is_new) {
      const std::vector<Var> summed = without(core.axes.all, own);
      known->second =
          is_added ? sum_added(core, summed, bias) : contracted(core, role, summed, depth);
    }
    return known->second;
  }

  /// The gradient of `bias`, or of the sink, summed over the axes that it lacks.
  Poly sum_added(const Core& core, const std::vector<Var>& summed, const Score::Bias* bias) {
    if (!bias)
      return algebra_.scale(algebra_.sum(without(summed, softmax_.score.keys),
                                         algebra_.multiply(softmax_.sink_probability, core.mean)),
                            -1);
    const Slope slope = derivative_by(algebra_, softmax_.score, *bias);
    return algebra_.sum(summed, algebra_.add(algebra_.multiply(core.by_product, slope.of_product),
                                             algebra_.multiply(core.by_score, slope.of_added)));
  }

  /// dQ, dK or dV, whose depth is labelled so; nothing if the depth is another.
  std::optional<Poly> contracted(const Core& core, Role role, const std::vector<Var>& summed,
                                 const std::vector<Var>& depth) {
    const Score& score = softmax_.score;
    const Element& other = role == Role::d_q ? score.k : score.q;
    const auto by = role == Role::d_v
                        ? at_depth(core.v, core.value_depth, core.value_sizes, depth, core.d_o)
                        : at_depth(other, score.depth, depth_sizes(), depth, other);
    if (!by) return std::nullopt;
    const Poly factor =
        role == Role::d_v ? algebra_.multiply(softmax_.probability, core.kept) : core.by_dot;
    return algebra_.sum(summed, algebra_.multiply(factor, *by));
  }

  Algebra& algebra_;
  Elements& elements_;
  Region& region_;
  const Softmax& softmax_;
  const Match* forward_;
  /// gradient() of the one core by its role, its bias and the labels of its depth.
  std::map<std::tuple<Role, AtomId, std::vector<Var>>, std::optional<Poly>> gradients_;
  std::vector<Score::Bias> biases_;               // that the program computes gradients of
  std::map<const Instruction*, size_t> of_bias_;  // these gradients, by the bias
};

}  // namespace

Result<std::vector<Match>> match_backward(Algebra& algebra, Elements& elements, Region& region,
                                          const Softmax& softmax, const Match* forward) {
  return Backward(algebra, elements, region, softmax, forward).matches();
}

}  // namespace heddle::rewrite
