// Graphs that break one rule each, and the sentence that validate gives for it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "graph/samples.h"
#include "graph/validate.h"

namespace heddle::graph {

using samples::tensor;

struct Broken {
  const char* what;
  Graph (*sample)();
  std::function<void(Graph&)> breaks;
  Code code;
  const char* sentence;
};

inline void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.what; }

class Rule : public testing::TestWithParam<Broken> {};

inline AttentionAttributes& attention(Graph& graph) {
  if (Sdpa* op = std::get_if<Sdpa>(&graph.nodes.back().op)) return op->attention;
  return samples::backward_of(graph).attention;
}
inline TensorId scalar(Graph& g, const char* name, DataType type) {
  return g.add(tensor(name, {1, 1, 1, 1}, type));
}
inline void give_lengths(Graph& g) {
  attention(g).seq_len_q = attention(g).seq_len_kv =
      g.add(tensor("lengths", {2, 1, 1, 1}, DataType::i32));
}
inline void give_dropout(Graph& g, double p) {
  attention(g).dropout.probability = p;
  attention(g).dropout.seed = scalar(g, "seed", DataType::i64);
  attention(g).dropout.offset = scalar(g, "offset", DataType::i64);
}

constexpr auto ANS = Code::attribute_not_set;
constexpr auto NS = Code::graph_not_supported;
constexpr auto IV = Code::invalid_value;
using samples::sdpa;
using samples::sdpa_backward;
using samples::sdpa_backward_of_pair;
using samples::sdpa_backward_of_stats;
#define SDPA samples::sdpa_of(g)
#define BACKWARD samples::backward_of(g)
#define ROPE samples::rope_of(g)
#define NORM std::get<RmsNorm>(g.nodes.back().op)
#define LAYER_NORM std::get<LayerNorm>(g.nodes.back().op)
#define INSTANCE_NORM std::get<InstanceNorm>(g.nodes.back().op)
#define BATCH_NORM std::get<BatchNorm>(g.nodes.back().op)
#define BATCH_NORM_BACKWARD std::get<BatchNormBackward>(g.nodes.back().op)
#define LAYER_NORM_BACKWARD std::get<LayerNormBackward>(g.nodes.back().op)
#define WHEN(...) [](Graph& g) { __VA_ARGS__; }

}  // namespace heddle::graph
