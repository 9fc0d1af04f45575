// What `heddle fuse` and `heddle explain` say of a module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/graph.h"
#include "hlo/module.h"
#include "tools/verify.h"

namespace heddle::tools {

/// One fused call, described by its graph.
struct Fusion {
  std::string kind;  ///< attention_forward, attention_backward
  std::string computation;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 0;
  std::string dtype;
  std::optional<double> scale;  ///< nothing if it is a tensor
  std::string mask;             ///< none, causal, window ..., each with what else limits the keys
  std::string bias;             ///< none, or its shape
  std::string dropout;          ///< none, philox, threefry, mask
  std::string score;            ///< none, or the pointwise operations on the scores
  std::string rope;             ///< none, q, k, q and k
  std::string graph;            ///< the text form
};

/// What looked like attention and was left alone.
struct Refused {
  std::string computation;
  std::string instruction;
  std::string reason;
};

struct Report {
  std::string module;
  int64_t instructions = 0;
  std::vector<Fusion> fusions;
  std::vector<Refused> refusals;
  std::optional<Verification> verification;
};

/// Describes a graph with one attention op; nothing if it has none.
std::optional<Fusion> describe(const graph::Graph& graph);
/// The fusions of a rewritten module, in its order.
Result<std::vector<Fusion>> fusions_of(const hlo::Module& module);

/// The report as JSON, indented, with a newline at the end.
std::string to_json(const Report& report);
/// The report as tables and sentences, each refusal with the way out.
std::string to_people(const Report& report);

}  // namespace heddle::tools
