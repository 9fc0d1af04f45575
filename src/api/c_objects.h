// What the C interface's handles are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/executable.h"
#include "api/late_sizes.h"
#include "graph/graph.h"
#include "heddle/heddle.h"

struct heddle_graph {
  heddle::graph::Graph graph;
  std::string text;  ///< as last asked for
};

struct heddle_plan {
  std::unique_ptr<const heddle::engine::Engine> engine;  ///< its own, if made without a device
  std::shared_ptr<const heddle::api::Executable> executable;
  std::vector<int64_t> input_uids, output_uids;
  mutable heddle::api::LateSizes late_sizes;
};

namespace heddle::api {

/// The tensor of a uid.
Result<graph::TensorId> find_tensor(const graph::Graph& graph, int64_t uid);
/// Describes the tensor `uid`; names and ragged offsets are those of the graph.
Status describe_tensor(const graph::Graph& graph, int64_t uid, heddle_tensor& out);

}  // namespace heddle::api
