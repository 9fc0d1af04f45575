// Attention and its gradient through Heddle's C++ builder, which has the names of cuDNN's frontend.
//
//   cmake -S . -B build && cmake --build build && build/gradient
//   c++ -std=c++17 gradient.cpp -o gradient $(pkg-config --cflags --libs heddle) && ./gradient
//
// The gradient of sum(O * dO) is held against a difference quotient along a random direction; the
// program ends with 1 if they differ.
#include <heddle/frontend.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <unordered_map>
#include <vector>

namespace fe = heddle::frontend;
using fe::graph::Tensor;
using Values = std::vector<float>;

constexpr int64_t B = 2, H = 4, S = 64, D = 32;
constexpr size_t kCount = B * H * S * D;
enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

void check(const fe::error_t& error) {
  if (error.is_good()) return;
  std::fprintf(stderr, "%s\n", error.get_message().c_str());
  std::exit(1);
}

struct Attention {
  fe::graph::Graph graph;
  fe::Handle cpu;

  Attention() {
    graph.set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  Tensor input(const char* name, Uid uid, std::vector<int64_t> dim = {B, H, S, D}) {
    return graph.tensor(fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(dim));
  }
  void run(const std::unordered_map<int64_t, void*>& pack) {
    std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
    check(graph.execute(cpu, pack, workspace.data()));
  }
};

struct Forward : Attention {
  Forward() {
    const auto [o, stats] =
        graph.sdpa(input("q", kQ), input("k", kK), input("v", kV),
                   fe::graph::SDPA_attributes().set_causal_mask(true).set_generate_stats(true));
    o->set_output(true).set_uid(kO);
    stats->set_output(true).set_uid(kStats);
    check(graph.build(cpu, {fe::HeurMode_t::A}));
  }
};

struct Backward : Attention {
  Backward() {
    const auto [dq, dk, dv] =
        graph.sdpa_backward(input("q", kQ), input("k", kK), input("v", kV), input("o", kO),
                            input("do", kDO), input("stats", kStats, {B, H, S, 1}),
                            fe::graph::SDPA_backward_attributes().set_causal_mask(true));
    dq->set_output(true).set_uid(kDQ);
    dk->set_output(true).set_uid(kDK);
    dv->set_output(true).set_uid(kDV);
    check(graph.build(cpu, {fe::HeurMode_t::A}));
  }
};

Values random_values(std::mt19937& generator) {
  std::normal_distribution<float> normal;
  Values values(kCount);
  for (float& value : values) value = normal(generator);
  return values;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * b[i];
  return sum;
}

int main() {
  std::mt19937 generator(7);
  Values q = random_values(generator), k = random_values(generator), v = random_values(generator);
  Values d_o = random_values(generator), direction = random_values(generator);
  Values o(kCount), stats(B * H * S), dq(kCount), dk(kCount), dv(kCount);

  Forward forward;
  Backward backward;
  forward.run(
      {{kQ, q.data()}, {kK, k.data()}, {kV, v.data()}, {kO, o.data()}, {kStats, stats.data()}});
  backward.run({{kQ, q.data()},
                {kK, k.data()},
                {kV, v.data()},
                {kO, o.data()},
                {kDO, d_o.data()},
                {kStats, stats.data()},
                {kDQ, dq.data()},
                {kDK, dk.data()},
                {kDV, dv.data()}});

  // Along `direction`, sum(O * dO) of moved queries.
  const auto loss = [&](float step) {
    Values moved = q, result(kCount);
    for (size_t i = 0; i < kCount; ++i) moved[i] += step * direction[i];
    forward.run({{kQ, moved.data()},
                 {kK, k.data()},
                 {kV, v.data()},
                 {kO, result.data()},
                 {kStats, stats.data()}});
    return dot(result, d_o);
  };
  constexpr float kStep = 3e-3f;
  const double quotient = (loss(kStep) - loss(-kStep)) / (2 * kStep), slope = dot(dq, direction);
  std::printf("Heddle %s: slope %.5f, difference quotient %.5f\n", heddle_version(), slope,
              quotient);
  return std::abs(slope - quotient) < 1e-3 * std::abs(slope) ? 0 : 1;
}
