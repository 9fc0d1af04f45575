// The rewriter: finds attention in an HLO module, forward and backward, and lets fused calls
// compute it. What cannot be proved the same is left as it is, with the reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/graph.h"
#include "hlo/module.h"
#include "rewrite/find.h"

namespace heddle::rewrite {

struct Options {
  /// Bytes of workspace the engine needs for a validated graph; a failure is the engine's refusal,
  /// and becomes a record. Must be set.
  std::function<Result<int64_t>(const graph::Graph&)> workspace_bytes;
};

/// One fused call, in the words of the report.
struct Fusion {
  std::string kind;  // "attention_forward" or "attention_backward"
  std::string computation;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 0;
  std::string dtype;
  double scale = 1;
  std::string mask, bias, sink, dropout, score;  // "none", or what it is
  std::string graph;                             // the fused graph's text form
};

struct Report {
  std::string module;
  int instructions = 0;  // of the module as given
  std::vector<Fusion> fusions;
  std::vector<Refusal> refusals;
  bool has_softmax = true;  // as in Findings, also where the rewriter gave up
  int without_values = 0;   // as in Findings
  /// Why the rewriter gave up on the module as a whole, which is a fault of its own; one of the
  /// refusals says so too. Empty if it did not.
  std::string failure;
};

struct Rewritten {
  Report report;
  std::unique_ptr<hlo::Module> module;  // null where nothing is fused
};

/// What becomes of `module`, which has passed verify(), as what readers give has, and stays as it
/// is.
Rewritten rewritten(const hlo::Module& module, const Options& options);

/// Rewrites `module`, which has passed verify(), in place. Where nothing is fused the module is
/// exactly what it was, also where anything fails or throws on the way.
Report rewrite(std::unique_ptr<hlo::Module>& module, const Options& options);

/// Makes `report` say that nothing of `module` is fused after all, because of `why`.
void give_up(Report& report, const hlo::Module& module, const Status& why);

}  // namespace heddle::rewrite
