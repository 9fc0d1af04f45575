// Which kernels run a problem: the ways there are, as one table in the order of choice.
#include "engine/cuda/attention_backward_fp8_sm90.h"
#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_decode.h"
#include "engine/cuda/attention_forward_fp8_sm90.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/cache_append.h"
#include "engine/cuda/channel_norm.h"
#include "engine/cuda/fp8_stages.h"
#include "engine/cuda/host_values.h"
#include "engine/cuda/legal_stages.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/norm.h"
#include "engine/cuda/norm_backward.h"
#include "engine/cuda/pointwise.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/rope_stages.h"
#include "engine/cuda/sequence.h"
#include "problem/check.h"

namespace heddle::engine::cuda {
namespace {

using problem::AllowedPaths;
using problem::AttentionPath;
using problem::ChosenPath;

/// What a way says of a problem: nothing of one that is none of its kind; how it runs it; or why it
/// does not. Then the next is asked, unless this one alone could.
struct Answer {
  std::optional<Result<Lowering>> lowered;
  bool is_last = true;
};

struct Way {
  const char* name;
  Answer (*ask)(const Problem&, const Target&);
  /// By which an attention's forward is served so; nothing: what the way is made of says it.
  std::optional<AttentionPath> path = {};
  const char* why = "";  ///< it is this path
};

template <class Kind>
using Lower = Result<Lowering> (*)(const Kind&, const Target&);

/// Kernels that take the problem as it is. What they refuse as not supported others may take.
template <class Kind, Lower<Kind> kLower>
Answer by(const Problem& problem, const Target& target) {
  const Kind* const one = std::get_if<Kind>(&problem);
  if (!one) return {};
  Result<Lowering> lowered = kLower(*one, target);
  const bool others_may = lowered.status().code() == Code::graph_not_supported;
  return {std::move(lowered), !others_may};
}

/// The problem in steps, if it asks for any: no other way takes it then.
template <class Kind, std::optional<Stages> (*kStages)(const Kind&)>
Answer in(const Problem& problem, const Target& target) {
  const Kind* const one = std::get_if<Kind>(&problem);
  const std::optional<Stages> stages = one ? kStages(*one) : std::nullopt;
  if (!stages) return {};
  return {lower_stages(*stages, target, lower)};
}

Answer after_host_values(const Problem& problem, const Target& target) {
  return {lower_host_values(problem, target)};
}

using Forward = problem::AttentionProblem;
using Backward = problem::AttentionBackwardProblem;

/// In f32 Hopper multiplies pairs of f16, which hold most values. The device finds out whether they
/// hold these; else the general kernels compute. Those of the other kind leave at once.
Lowering beside_general(Lowering pairs, Lowering general) {
  return in_sequence({std::move(pairs), std::move(general)}, {}, "; of values beyond pairs ");
}
Result<Lowering> forward_on_hopper(const Forward& problem, const Target& target) {
  HEDDLE_ASSIGN(Lowering hopper, lower_forward_sm90(problem, target));
  if (!is_f32(problem.structure)) return hopper;
  HEDDLE_ASSIGN(Lowering general, lower_forward_sm80_after_pairs(problem, target));
  return beside_general(std::move(hopper), std::move(general));
}
Result<Lowering> backward_on_hopper(const Backward& problem, const Target& target) {
  HEDDLE_ASSIGN(Lowering hopper, lower_backward_sm90(problem, target));
  if (!is_f32(problem.structure.forward)) return hopper;
  HEDDLE_ASSIGN(Lowering general, lower_backward_sm80_after_pairs(problem, target));
  return beside_general(std::move(hopper), std::move(general));
}

/// Where gradients of what the score reads (dBias) are wanted beside others that Hopper's kernels
/// give.
Result<Lowering> load_gradients_apart(const Backward& problem, const Target& target) {
  if (problem.structure.load_gradients.empty())
    return error(Code::graph_not_supported, "cuda: no gradient of what the score reads is wanted");
  Backward others = problem, loads = problem;
  others.structure.load_gradients.clear();
  problem::AttentionBackwardStructure& s = loads.structure;
  s.d_q = s.d_k = s.d_v = s.d_sink = problem::kAbsent;
  HEDDLE_ASSIGN(Lowering by_hopper, backward_on_hopper(others, target));
  HEDDLE_ASSIGN(Lowering rest, lower(loads, target));
  return in_sequence({std::move(by_hopper), std::move(rest)});
}

/// Asked where rows are few and keys many alone: nobody else's plan need say that it is not.
Answer decode(const Problem& problem, const Target& target) {
  const Forward* const forward = std::get_if<Forward>(&problem);
  if (!forward || !has_few_rows_and_many_keys(*forward)) return {};
  return by<Forward, lower_decode>(problem, target);
}

/// A problem that is an attention or its backward, after copies of what its kernels do not take.
std::optional<Stages> legal_stages(const Problem& problem, Rows rows) {
  return std::visit(
      [&]<class Kind>(const Kind& one) -> std::optional<Stages> {
        if constexpr (std::is_same_v<Kind, Forward> || std::is_same_v<Kind, Backward>)
          return cuda::legal_stages(one, rows);
        else
          return {};
      },
      problem);
}
Answer after_copies(const Problem& problem, const Target& target, Rows rows,
                    Result<Lowering> (*lower_attention)(const Problem&, const Target&),
                    bool is_last) {
  const std::optional<Stages> stages = legal_stages(problem, rows);
  if (!stages) return {};
  return {lower_stages(*stages, target, lower_attention), is_last};
}

Answer decode_after_copies(const Problem& problem, const Target& target) {
  const Forward* const forward = std::get_if<Forward>(&problem);
  if (!forward || !has_few_rows_and_many_keys(*forward)) return {};
  return after_copies(
      problem, target, Rows::on_16_bytes,
      [](const Problem& legal, const Target& target) {
        return lower_decode(std::get<Forward>(legal), target);
      },
      false);
}

Answer hopper_after_copies(const Problem& problem, const Target& target) {
  if (!target.is_hopper()) return {};
  return after_copies(
      problem, target, Rows::for_copy_engine,
      [](const Problem& legal, const Target& target) -> Result<Lowering> {
        if (const Forward* const forward = std::get_if<Forward>(&legal))
          return forward_on_hopper(*forward, target);
        const Backward& backward = std::get<Backward>(legal);
        Result<Lowering> hopper = backward_on_hopper(backward, target);
        return hopper.is_ok() || backward.structure.load_gradients.empty()
                   ? std::move(hopper)
                   : load_gradients_apart(backward, target);
      },
      false);
}

Answer general_after_copies(const Problem& problem, const Target& target) {
  return after_copies(
      problem, target, Rows::on_16_bytes,
      [](const Problem& legal, const Target& target) {
        if (const Forward* const forward = std::get_if<Forward>(&legal))
          return lower_forward_sm80(*forward, target);
        return lower_backward_sm80(std::get<Backward>(legal), target);
      },
      true);
}

constexpr const char *kDecodes = "few rows see many keys, which all processors share",
                     *kHopper = "Hopper's matrix instructions and copy engine take it",
                     *kGeneral = "kernels of every architecture take it";

constexpr Way kWays[] = {
    {"numbers passed by value written to memory first", after_host_values},
    {"decode", decode, AttentionPath::decode, kDecodes},
    {"Hopper forward", by<Forward, forward_on_hopper>, AttentionPath::flash, kHopper},
    {"Hopper backward", by<Backward, backward_on_hopper>},
    {"Hopper backward, gradients of what the score reads apart",
     by<Backward, load_gradients_apart>},
    {"rotations by kernels of their own", in<Forward, rope_stages>},
    {"rotations by kernels of their own", in<Backward, rope_stages>},
    {"decode, after copies", decode_after_copies, AttentionPath::decode, kDecodes},
    {"Hopper's kernels, after copies", hopper_after_copies, AttentionPath::flash, kHopper},
    {"general kernels, after copies", general_after_copies, AttentionPath::memory_efficient,
     kGeneral},
    {"general forward", by<Forward, lower_forward_sm80>, AttentionPath::memory_efficient, kGeneral},
    {"general backward", by<Backward, lower_backward_sm80>},
    {"Hopper forward of fp8", by<problem::Fp8AttentionProblem, lower_forward_fp8_sm90>},
    {"fp8 by 16 bits", by<problem::Fp8AttentionProblem, lower_fp8_by_16_bits>},
    {"Hopper backward of fp8", by<problem::Fp8AttentionBackwardProblem, lower_backward_fp8_sm90>},
    {"fp8 by 16 bits", by<problem::Fp8AttentionBackwardProblem, lower_fp8_by_16_bits>},
    {"norm", by<problem::NormProblem, lower_norm>},
    {"norm backward", by<problem::NormBackwardProblem, lower_norm_backward>},
    {"channel norm", by<problem::ChannelNormProblem, lower_channel_norm>},
    {"channel norm backward", by<problem::ChannelNormBackwardProblem, lower_channel_norm_backward>},
    {"rope", by<problem::RopeProblem, lower_rope>},
    {"cache_append", by<problem::CacheAppendProblem, lower_cache_append>},
    {"pointwise", by<problem::PointwiseProblem, lower_pointwise>},
};

/// The variable that switches the way off for the problem, null if none does.
const char* off_by(const Way& way, const Problem& problem, const Target& target) {
  const bool may_be = way.path && std::holds_alternative<Forward>(problem);
  return may_be ? target.paths.off_by(*way.path) : nullptr;
}

ChosenPath chosen(const Way& way, const std::vector<PassedOver>& passed_over) {
  std::string reason = way.why;
  for (const PassedOver& other : passed_over)
    reason += fmt::format("; not {}: {}", other.name, other.reason);
  return {*way.path, std::move(reason)};
}

/// Why no way takes a problem some of whose ways are switched off.
Status refusal_beside(const AllowedPaths& paths, const std::vector<PassedOver>& passed_over) {
  std::string reasons;
  for (const PassedOver& other : passed_over)
    reasons += fmt::format("; {}: {}", other.name, other.reason);
  return error(Code::graph_not_supported,
               "cuda: no path serves the attention, as some are switched off: {}{}", paths.words(),
               reasons);
}

}  // namespace

Result<Lowering> lower(const Problem& problem, const Target& target) {
  HEDDLE_TRY(problem::check(problem));
  std::vector<PassedOver> passed_over;
  Status refusal;
  bool any_is_off = false;
  for (const Way& way : kWays) {
    if (const char* const variable = off_by(way, problem, target)) {
      passed_over.push_back({way.name, fmt::format("switched off by {}=1", variable)});
      any_is_off = true;
      continue;
    }
    Answer answer = way.ask(problem, target);
    if (!answer.lowered) continue;
    if (answer.lowered->is_ok()) {
      Lowering& lowering = **answer.lowered;
      if (way.path && std::holds_alternative<Forward>(problem))
        lowering.attention_path = chosen(way, passed_over);
      lowering.passed_over.insert(lowering.passed_over.begin(), passed_over.begin(),
                                  passed_over.end());
      return std::move(*answer.lowered);
    }
    refusal = answer.lowered->status();
    if (answer.is_last && !any_is_off) return refusal;
    passed_over.push_back({way.name, refusal.message()});
    if (answer.is_last) break;
  }
  return any_is_off ? refusal_beside(target.paths, passed_over) : refusal;
}

}  // namespace heddle::engine::cuda
