// A program for NVIDIA's cudnn_frontend.h, but for its include: gradient descent on Q, K and V
// until attention gives a target. On a GPU its buffers would be the GPU's; it asks for a CPU.
//
//   g++ -std=c++17 -Iinclude examples/cudnn/fit_attention.cpp -Lbuild/lib -lheddle -o build/fit
//   HEDDLE_DEVICE=cpu LD_LIBRARY_PATH=build/lib build/fit
#include <heddle/cudnn_frontend.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace fe = cudnn_frontend;

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kLength = 64, kDepth = 32;
constexpr size_t kSize = kBatch * kHeads * kLength * kDepth;
const float kScale = 1 / std::sqrt(static_cast<float>(kDepth));
const std::vector<int64_t> kDims{kBatch, kHeads, kLength, kDepth};
// In memory [batch, length, heads, depth].
const std::vector<int64_t> kStrides{kLength * kHeads * kDepth, kDepth, kHeads* kDepth, 1};

// Uids of all tensors.
enum Uid : int64_t { kQ, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

void check(const fe::error_t& error) {
  if (error.is_good()) return;
  std::fprintf(stderr, "%s\n", error.get_message().c_str());
  std::exit(1);
}

fe::graph::Graph float_graph() {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::shared_ptr<fe::graph::Tensor_attributes> tensor(fe::graph::Graph& graph, int64_t uid) {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_uid(uid).set_dim(kDims).set_stride(kStrides));
}

fe::graph::Graph forward() {
  fe::graph::Graph graph = float_graph();
  auto [o, stats] = graph.sdpa(tensor(graph, kQ), tensor(graph, kK), tensor(graph, kV),
                               fe::graph::SDPA_attributes()
                                   .set_name("attention")
                                   .set_generate_stats(true)
                                   .set_attn_scale(kScale)
                                   .set_causal_mask(true));
  o->set_output(true).set_uid(kO).set_dim(kDims).set_stride(kStrides);
  stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
  return graph;
}

fe::graph::Graph backward() {
  fe::graph::Graph graph = float_graph();
  auto stats = graph.tensor(fe::graph::Tensor_attributes()
                                .set_uid(kStats)
                                .set_dim({kBatch, kHeads, kLength, 1})
                                .set_stride({kHeads * kLength, kLength, 1, 1}));
  const auto gradients =
      graph.sdpa_backward(tensor(graph, kQ), tensor(graph, kK), tensor(graph, kV),
                          tensor(graph, kO), tensor(graph, kDO), stats,
                          fe::graph::SDPA_backward_attributes()
                              .set_name("gradients")
                              .set_attn_scale(kScale)
                              .set_causal_mask(true));
  int64_t uid = kDQ;
  for (const auto& gradient : gradients)
    gradient->set_output(true).set_uid(uid++).set_dim(kDims).set_stride(kStrides);
  return graph;
}

std::vector<float> drawn(std::mt19937& generator, float size) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(kSize);
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace

int main() {
  cudnnHandle_t handle;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return 1;
  fe::graph::Graph attention = forward(), gradients = backward();
  for (fe::graph::Graph* graph : {&attention, &gradients})
    check(graph->build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
  std::vector<char> workspace(static_cast<size_t>(
      std::max(attention.get_workspace_size(), gradients.get_workspace_size())));

  std::mt19937 generator(0);
  std::array<std::vector<float>, 3> inputs;
  for (std::vector<float>& input : inputs) input = drawn(generator, 1);
  const std::vector<float> target = drawn(generator, 0.3f);
  std::vector<float> o(kSize), d_o(kSize), stats(kBatch * kHeads * kLength);
  std::array<std::vector<float>, 3> slopes;
  slopes.fill(std::vector<float>(kSize));
  std::unordered_map<int64_t, void*> pack{
      {kQ, inputs[0].data()},  {kK, inputs[1].data()},  {kV, inputs[2].data()},
      {kO, o.data()},          {kStats, stats.data()},  {kDO, d_o.data()},
      {kDQ, slopes[0].data()}, {kDK, slopes[1].data()}, {kDV, slopes[2].data()}};

  double first = 0, loss = 0;
  for (int step = 0; step <= 200; ++step) {
    check(attention.execute(handle, pack, workspace.data()));
    loss = 0;
    for (size_t i = 0; i < kSize; ++i) {
      d_o[i] = o[i] - target[i];
      loss += 0.5 * d_o[i] * d_o[i] / kSize;
    }
    if (step == 0) first = loss;
    if (step % 40 == 0) std::printf("step %4d   loss %.5f\n", step, loss);
    check(gradients.execute(handle, pack, workspace.data()));
    for (size_t n = 0; n < inputs.size(); ++n)
      for (size_t i = 0; i < kSize; ++i) inputs[n][i] -= 0.3f * slopes[n][i];
  }
  cudnnDestroy(handle);
  return loss < 0.5 * first ? 0 : 1;
}
