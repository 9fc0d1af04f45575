#include "rewrite/rewrite.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <set>
#include <unordered_map>

#include "graph/text.h"
#include "graph/validate.h"
#include "rewrite/canonical.h"
#include "rewrite/commit.h"
#include "rewrite/liveness.h"
#include "rewrite/weights_use.h"

namespace heddle::rewrite {

using hlo::Instruction;

namespace {

class Rewriter {
 public:
  Rewriter(hlo::Module& module, const Options& options)
      : module_(module), options_(options), elements_(module), reads_(elements_) {}

  Result<Report> run() {
    const Findings findings = find_attention(elements_);
    report_.has_softmax = findings.has_softmax;
    report_.without_values = findings.without_values;
    // Whether a rotation's result is needed outside the calls shows only once all are planned.
    do {
      replan_ = false;
      plans_.clear();
      matches_.clear();
      forwards_.clear();
      surroundings_.results.clear();
      report_.refusals = findings.refusals;
      for (const Match& match : findings.matches)
        if (!match.backward) plan_forward_of(match);
      for (const Match& match : findings.matches)
        if (match.backward) plan_backward_of(match);
      keep_what_is_needed();
      if (replan_) continue;
      drop_what_saves_nothing();
      drop_what_is_given_again();
      keep_what_is_needed();
    } while (replan_);
    for (auto& plan : plans_) {
      if (!plan) continue;
      plan->text = graph::write_text(plan->graph, graph::TextLayout::line);
      report_.fusions.push_back(described(*plan));
    }
    if (report_.fusions.empty()) return std::move(report_);
    HEDDLE_TRY(commit(module_, elements_, plans_));
    HEDDLE_TRY(remove_dead_state(module_, reads_));
    return std::move(report_);
  }

 private:
  /// One reason a softmax: a second one follows from the first.
  void refuse(const Match& match, const Status& why) {
    if (std::any_of(report_.refusals.begin(), report_.refusals.end(), [&](const Refusal& known) {
          return known.instruction == match.anchor.x->name();
        }))
      return;
    Refusal refused = refusal(*match.anchor.x, why.message());
    refused.computation = elements_.frames()[match.home].computation->name();
    report_.refusals.push_back(std::move(refused));
  }

  /// The plan with its graph validated and its workspace known.
  Status admit(Plan& plan) {
    HEDDLE_TRY(graph::validate(plan.graph));
    auto bytes = options_.workspace_bytes(plan.graph);
    if (bytes) {
      plan.workspace_bytes = *bytes;
    } else if (!plan.absorbed.empty()) {
      keep(plan);  // perhaps the engine takes the attention without its rotations
    }
    return bytes.status();
  }

  void keep(const Plan& plan) {
    for (const Instruction* x : plan.absorbed)
      replan_ = surroundings_.kept.insert(x).second || replan_;
  }

  /// Rotations whose results are computed anyway are not done again inside a call.
  void keep_what_is_needed() {
    const Liveness::Replaced cut = replaced();
    const Liveness liveness(module_, elements_.callers(), reads_, cut);
    for (const auto& plan : plans_) {
      if (!plan) continue;
      for (const Instruction* x : plan->absorbed)
        if (liveness.is_live(x)) replan_ = surroundings_.kept.insert(x).second || replan_;
    }
  }

  /// One more plan. Later ones take what its call gives from there.
  void add(Plan plan, const Match& match) {
    if (!plan.backward) forwards_[match.anchor.x].push_back(plans_.size());
    plans_.push_back(std::move(plan));
    matches_.push_back(&match);
    offer(plans_.size() - 1);
  }

  void replace(size_t number, Plan plan) {
    for (const CallResult& result : plans_[number]->results)
      for (const Element& link : result.chain)
        std::erase_if(surroundings_.results[link.x], [&](const Surroundings::Met& met) {
          return met.plan == static_cast<int>(number);
        });
    plans_[number] = std::move(plan);
    offer(number);
  }

  void offer(size_t number) {
    for (const CallResult& result : plans_[number]->results) {
      if (!result.target) continue;
      for (const Element& link : result.chain) {
        auto& met = surroundings_.results[link.x];
        const auto at = std::find_if(met.begin(), met.end(), [&](const Surroundings::Met& other) {
          return other.plan > static_cast<int>(number);
        });
        met.insert(at, {static_cast<int>(number), &result, &link});
      }
    }
  }

  void plan_forward_of(const Match& match) {
    auto plan = plan_forward(elements_, match, false, surroundings_);
    Status status = plan ? admit(*plan) : plan.status();
    if (!status.is_ok()) return refuse(match, status);
    add(std::move(*plan), match);
  }

  void plan_backward_of(const Match& match) {
    const Status status = try_backward(match);
    if (!status.is_ok()) refuse(match, status);
  }

  Status try_backward(const Match& match) {
    // The forward of the same softmax also gives O and Stats, best in the same body, else carried
    // from the loop that is read back; without one, a forward is added.
    const std::vector<size_t> forwards = forwards_[match.anchor.x];
    for (bool here : {true, false})
      for (size_t i : forwards) {
        if ((plans_[i]->home == match.home) != here) continue;
        const auto names = same_attention(*matches_[i], match, elements_);
        if (!names) continue;
        const Match scaled = dropped_alike(*matches_[i], match);
        Status status = plan_pair(*matches_[i], scaled, match, static_cast<int>(i), *names);
        if (status.is_ok() || here) return status;
      }
    Renaming same;
    return plan_pair(match, match, match, static_cast<int>(plans_.size()), same);
  }

  /// `backward` with what dropout keeps scaled as in `forward`, and its results by what is left:
  /// all of them are multiples of that scale, which gradients alone do not tell.
  static Match dropped_alike(const Match& forward, const Match& backward) {
    Match match = backward;
    if (!match.dropout || !forward.dropout) return match;
    const double more = match.dropout->scale / forward.dropout->scale;
    if (more == 1) return match;
    match.dropout->scale = forward.dropout->scale;
    for (Output& output : match.outputs) output.factor *= more;
    return match;
  }

  /// The forward as plan `number`, with statistics, and after it the backward, `match` as it is
  /// beside that forward, of `found`.
  Status plan_pair(const Match& forward_match, const Match& match, const Match& found, int number,
                   const Renaming& names) {
    HEDDLE_ASSIGN(Plan forward, plan_forward(elements_, forward_match, true, surroundings_));
    HEDDLE_TRY(admit(forward));
    HEDDLE_ASSIGN(Plan backward,
                  plan_backward(elements_, match, {forward, number, names}, surroundings_));
    HEDDLE_TRY(admit(backward));
    if (number < static_cast<int>(plans_.size())) {
      replace(number, std::move(forward));
    } else {
      add(std::move(forward), found);
    }
    add(std::move(backward), found);
    return {};
  }

  Liveness::Replaced replaced() const {
    Liveness::Replaced replaced;
    for (const auto& plan : plans_) {
      if (!plan) continue;
      std::vector<const Instruction*> needs;
      const auto add = [&](const Plan& p) {
        for (const Operand& operand : p.operands)
          for (const Instruction* x : operand.sources()) needs.push_back(x);
        if (p.fully_masked_rows)
          for (const Element& predicate : p.fully_masked_rows->predicates)
            needs.push_back(predicate.x);
      };
      add(*plan);
      if (plan->forward >= 0 && plans_[plan->forward]) add(*plans_[plan->forward]);
      for (const CallResult& result : plan->results) {
        for (const WeightFactor& factor : result.times) needs.push_back(factor.place.x);
        if (result.taken_off) needs.push_back(result.taken_off->x);
      }
      for (const FactorGradient& gradient : plan->factor_gradients)
        for (const WeightFactor& factor : gradient.times) needs.push_back(factor.place.x);
      for (const CallResult& result : plan->results)
        if (result.target) replaced[result.target] = needs;
      for (const FactorGradient& gradient : plan->factor_gradients)
        replaced[gradient.target] = needs;
    }
    return replaced;
  }

  /// A fused call whose softmax is computed anyway, because something else reads the probabilities
  /// or the scores, only adds work; and dropping one may keep another's alive.
  void drop_what_saves_nothing() {
    for (bool again = true; again;) {
      again = false;
      const Liveness::Replaced cut = replaced();
      const Liveness liveness(module_, elements_.callers(), reads_, cut);
      for (size_t i = 0; i < plans_.size(); ++i) {
        if (!plans_[i] || !liveness.is_live(plans_[i]->anchor.x)) continue;
        const bool inner = std::none_of(plans_[i]->results.begin(), plans_[i]->results.end(),
                                        [](const CallResult& r) { return r.target != nullptr; });
        if (!inner)
          refuse(*matches_[i],
                 error(Code::graph_not_supported,
                       "the softmax's weights are needed elsewhere too ({}), so fusing would save "
                       "nothing",
                       what_needs(*plans_[i]->anchor.x, liveness, cut)));
        plans_[i].reset();
        again = true;
      }
      drop_what_is_left_over();
    }
  }

  /// A backward goes with its forward, and an added forward with its backward.
  void drop_what_is_left_over() {
    for (size_t i = 0; i < plans_.size(); ++i)
      if (plans_[i] && plans_[i]->backward && !plans_[plans_[i]->forward]) plans_[i].reset();
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (!plans_[i] || plans_[i]->backward || plans_[i]->results[0].target) continue;
      if (std::none_of(plans_.begin(), plans_.end(),
                       [&](const auto& p) { return p && p->forward == static_cast<int>(i); }))
        plans_[i].reset();
    }
  }

  /// Scores that a loop reads back are weighed there again: the one backward is found by its own
  /// softmax and by that of the iteration read back, the later of which has the forward's O.
  void drop_what_is_given_again() {
    std::set<const Instruction*> given;
    for (size_t i = plans_.size(); i-- > 0;) {
      if (!plans_[i] || !plans_[i]->backward) continue;
      bool is_new = false;
      for (const CallResult& result : plans_[i]->results)
        is_new = given.insert(result.target).second || is_new;
      for (const FactorGradient& gradient : plans_[i]->factor_gradients)
        is_new = given.insert(gradient.target).second || is_new;
      if (!is_new) plans_[i].reset();
    }
    drop_what_is_left_over();
  }

  Fusion described(const Plan& plan) const {
    Fusion fusion;
    fusion.kind = plan.backward ? "attention_backward" : "attention_forward";
    fusion.computation = elements_.frames()[plan.home].computation->name();
    const Roles& r = plan.roles;
    fusion.batch = elements_.size(r.batch);
    fusion.q_heads = elements_.size(r.query_heads());
    fusion.kv_heads = elements_.size(r.group);
    fusion.q_len = elements_.size(r.rows);
    fusion.kv_len = elements_.size(r.keys);
    fusion.head_dim = elements_.size(r.depth);
    fusion.dtype = hlo::name(plan.dtype);
    fusion.scale = plan.scale;
    fusion.mask = plan.mask;
    fusion.bias = plan.bias;
    fusion.sink = plan.sink;
    fusion.dropout = plan.dropout;
    fusion.score = plan.score;
    fusion.graph = plan.text;
    return fusion;
  }

  hlo::Module& module_;
  const Options& options_;
  Elements elements_;
  BranchReads reads_;
  std::vector<std::optional<Plan>> plans_;
  std::vector<const Match*> matches_;
  std::unordered_map<const Instruction*, std::vector<size_t>> forwards_;  // plans by softmax
  Surroundings surroundings_;
  bool replan_ = false;
  Report report_;
};

}  // namespace

namespace {

/// What is fused in `copy`, which becomes a copy of `module`.
Result<Report> fuse(const hlo::Module& module, const Options& options,
                    std::unique_ptr<hlo::Module>& copy) {
  copy = module.copy();
  HEDDLE_TRY(canonicalise(*copy));
  HEDDLE_ASSIGN(Report report, Rewriter(*copy, options).run());
  if (report.fusions.empty()) return report;
  // An operand of a call that depends on its result, for one, shows here.
  HEDDLE_TRY(copy->verify());
  return report;
}

/// The same, whatever is thrown on the way: a fault of the rewriter is not the program's.
Result<Report> fuse_safely(const hlo::Module& module, const Options& options,
                           std::unique_ptr<hlo::Module>& copy) {
  try {
    return fuse(module, options, copy);
  } catch (const std::bad_alloc&) {
    return error(Code::out_of_memory, "there is not enough memory to rewrite it");
  } catch (const std::exception& exception) {
    return error(Code::graph_not_supported, "the rewriter failed: {}", exception.what());
  }
}

}  // namespace

Rewritten rewritten(const hlo::Module& module, const Options& options) {
  Rewritten result;
  Result<Report> fused = fuse_safely(module, options, result.module);
  if (fused) result.report = std::move(*fused);
  result.report.module = module.name();
  result.report.instructions = module.instruction_count();
  if (!fused) give_up(result.report, module, fused.status());
  if (result.report.fusions.empty()) result.module = nullptr;
  return result;
}

Report rewrite(std::unique_ptr<hlo::Module>& module, const Options& options) {
  Rewritten result = rewritten(*module, options);
  if (result.module) module = std::move(result.module);
  return std::move(result.report);
}

void give_up(Report& report, const hlo::Module& module, const Status& why) {
  report.failure = why.message();
  report.fusions.clear();
  report.refusals.push_back(
      refusal(*module.entry()->root(), "nothing of the module is fused: " + report.failure));
}

}  // namespace heddle::rewrite
