#include "tools/cpu_benchmark.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "api/executable.h"
#include "engine/cpu/engine.h"
#include "tools/npy.h"

namespace heddle::tools {
namespace {

constexpr double kSoftCap = 50;
constexpr double kSeconds = 0.5;  // of timed runs
constexpr size_t kFewest = 3, kMost = 50;

/// The uids of the graphs below; those of the backward's own tensors follow the forward's.
enum Uid : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kBias,
  kOutput,
  kStats,
  kOutputGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient
};

graph::Tensor tensor(Uid uid, DataType dtype, const Dims& dims) {
  graph::Tensor result;
  result.uid = uid;
  result.dtype = dtype;
  result.dims = dims;
  return result;
}

Dims query_dims(const BenchmarkCell& cell) { return {1, cell.heads, cell.queries, cell.head_dim}; }
Dims key_dims(const BenchmarkCell& cell) {
  return {1, cell.kv_heads, cell.sequence, cell.head_dim};
}
Dims bias_dims(const BenchmarkCell& cell) { return {1, 1, cell.queries, cell.sequence}; }

/// cap * tanh(score / cap)
graph::ScoreModifier soft_cap(graph::Graph& graph, const BenchmarkCell& cell) {
  const auto inner = [&] {
    graph::Tensor result;
    result.dtype = DataType::f32;
    result.dims = {1, cell.heads, cell.queries, cell.sequence};
    result.is_virtual = true;
    return graph.add(result);
  };
  graph::Tensor cap;
  cap.dtype = DataType::f32;
  cap.dims = {1, 1, 1, 1};
  cap.constant = kSoftCap;
  const graph::TensorId constant = graph.add(cap);
  const graph::TensorId score = inner(), divided = inner(), squashed = inner(), out = inner();
  return {score,
          out,
          {{graph::PointwiseMode::div, {score, constant}, divided, 0, ""},
           {graph::PointwiseMode::tanh_fwd, {divided}, squashed, 0, ""},
           {graph::PointwiseMode::mul, {squashed, constant}, out, 0, ""}}};
}

graph::AttentionAttributes attributes(graph::Graph& graph, const BenchmarkCell& cell) {
  graph::AttentionAttributes result;
  result.attn_scale = 1 / std::sqrt(static_cast<double>(cell.head_dim));
  result.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
  if (cell.causal) result.right_bound = 0;
  if (cell.score == BenchmarkScore::bias)
    result.bias = graph.add(tensor(kBias, DataType::f32, bias_dims(cell)));
  result.alibi_mask = cell.score == BenchmarkScore::alibi;
  if (cell.score == BenchmarkScore::soft_cap) result.score_mod = soft_cap(graph, cell);
  return result;
}

graph::Graph empty_graph(const BenchmarkCell& cell) {
  graph::Graph graph;
  graph.io_dtype = cell.dtype;
  graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  return graph;
}

graph::Graph forward_graph(const BenchmarkCell& cell) {
  graph::Graph graph = empty_graph(cell);
  graph::Sdpa op;
  op.q = graph.add(tensor(kQuery, cell.dtype, query_dims(cell)));
  op.k = graph.add(tensor(kKey, cell.dtype, key_dims(cell)));
  op.v = graph.add(tensor(kValue, cell.dtype, key_dims(cell)));
  op.o = graph.add(tensor(kOutput, cell.dtype, query_dims(cell)));
  if (cell.backward)
    op.stats = graph.add(tensor(kStats, DataType::f32, {1, cell.heads, cell.queries, 1}));
  op.attention = attributes(graph, cell);
  graph.nodes.push_back({"forward", op});
  return graph;
}

graph::Graph backward_graph(const BenchmarkCell& cell) {
  graph::Graph graph = empty_graph(cell);
  graph::SdpaBackward op;
  op.q = graph.add(tensor(kQuery, cell.dtype, query_dims(cell)));
  op.k = graph.add(tensor(kKey, cell.dtype, key_dims(cell)));
  op.v = graph.add(tensor(kValue, cell.dtype, key_dims(cell)));
  op.o = graph.add(tensor(kOutput, cell.dtype, query_dims(cell)));
  op.d_o = graph.add(tensor(kOutputGradient, cell.dtype, query_dims(cell)));
  op.stats = graph.add(tensor(kStats, DataType::f32, {1, cell.heads, cell.queries, 1}));
  op.d_q = graph.add(tensor(kQueryGradient, cell.dtype, query_dims(cell)));
  op.d_k = graph.add(tensor(kKeyGradient, cell.dtype, key_dims(cell)));
  op.d_v = graph.add(tensor(kValueGradient, cell.dtype, key_dims(cell)));
  op.whole_rows = true;
  op.attention = attributes(graph, cell);
  graph.nodes.push_back({"backward", op});
  return graph;
}

using Buffer = std::vector<std::byte>;

Buffer rounded(DataType dtype, const float* values, int64_t count) {
  Buffer buffer(static_cast<size_t>(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) store(dtype, buffer.data(), i, values[i]);
  return buffer;
}

Buffer random(DataType dtype, const Dims& dims, std::mt19937_64& generator) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(*element_count(dims)));
  for (float& value : values) value = normal(generator);
  return rounded(dtype, values.data(), static_cast<int64_t>(values.size()));
}

/// The tensor `name` of bench/cells.py; it must have the dims.
Result<Buffer> read_input(const BenchmarkCell& cell, const std::string& tensors,
                          const std::string& name, const Dims& dims) {
  const std::string path =
      fmt::format("{}/{}_d{}_s{}.npy", tensors, name, cell.head_dim, cell.sequence);
  HEDDLE_ASSIGN(const Array array, read_npy(path));
  if (array.dtype != DataType::f32 || !(array.dims == dims))
    return error(Code::invalid_value, "{} holds {} {}; f32 {} is needed", path,
                 heddle::name(array.dtype), to_string(array.dims), to_string(dims));
  return rounded(cell.dtype, reinterpret_cast<const float*>(array.data.data()),
                 *element_count(dims));
}

/// A line of /proc/self/status in bytes; 0 where there is no such file.
int64_t resident_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

double projection(DataType dtype, const Buffer& output, const Buffer& direction) {
  double product = 0, norm = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(output.size()) / size_of(dtype); ++i) {
    const double along = load(dtype, direction.data(), i);
    product += load(dtype, output.data(), i) * along;
    norm += along * along;
  }
  return product / std::sqrt(norm);
}

}  // namespace

double BenchmarkCell::flops() const {
  const bool halved = causal && queries == sequence;
  return 4.0 * static_cast<double>(heads) * static_cast<double>(queries) *
         static_cast<double>(sequence) * static_cast<double>(head_dim) * (halved ? 0.5 : 1) *
         (backward ? 3.5 : 1);
}

int64_t BenchmarkCell::kv_bytes() const {
  return 2 * kv_heads * sequence * head_dim * size_of(dtype);
}

std::string BenchmarkCell::name() const {
  return fmt::format("{} d{} S{}{} {}{} {}", heddle::name(dtype), head_dim, sequence,
                     queries == sequence ? "" : fmt::format(" of {} queries", queries),
                     causal ? "causal" : "full",
                     score == BenchmarkScore::plain
                         ? ""
                         : fmt::format(" {}", kBenchmarkScores[static_cast<int>(score)]),
                     backward ? "forward+backward" : "forward");
}

Result<BenchmarkResult> measure(const BenchmarkCell& cell, const std::string& tensors) {
  std::mt19937_64 generator(1);
  Buffer inputs[4];
  const std::pair<const char*, Dims> wanted[] = {{"query", query_dims(cell)},
                                                 {"key", key_dims(cell)},
                                                 {"value", key_dims(cell)},
                                                 {"output_gradient", query_dims(cell)}};
  for (int i = 0; i < 4; ++i) {
    const auto& [name, dims] = wanted[i];
    if (tensors.empty()) {
      inputs[i] = random(cell.dtype, dims, generator);
    } else {
      HEDDLE_ASSIGN(inputs[i], read_input(cell, tensors, name, dims));
    }
  }
  Buffer bias;
  if (cell.score == BenchmarkScore::bias) bias = random(DataType::f32, bias_dims(cell), generator);
  mallopt(M_MMAP_THRESHOLD, 1 << 16);  // so that freed buffers of earlier cells are really gone
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the high-water mark of resident memory
  const int64_t resident = resident_bytes("VmRSS:");

  const engine::Engine* engines[] = {&engine::cpu_engine()};
  HEDDLE_ASSIGN(const auto forward, api::Executable::build(forward_graph(cell), engines));
  Buffer output(inputs[0].size()),
      forward_workspace(static_cast<size_t>(forward->workspace_bytes()));
  Buffer stats(cell.backward ? static_cast<size_t>(cell.heads * cell.queries) * sizeof(float) : 0);
  std::vector<api::Binding> bindings = {{kQuery, inputs[0].data()},
                                        {kKey, inputs[1].data()},
                                        {kValue, inputs[2].data()},
                                        {kOutput, output.data()}};
  if (!bias.empty()) bindings.push_back({kBias, bias.data()});
  std::shared_ptr<const api::Executable> backward;
  Buffer gradients[3], backward_workspace;
  if (cell.backward) {
    HEDDLE_ASSIGN(backward, api::Executable::build(backward_graph(cell), engines));
    backward_workspace.resize(static_cast<size_t>(backward->workspace_bytes()));
    bindings.push_back({kStats, stats.data()});
    bindings.push_back({kOutputGradient, inputs[3].data()});
    for (int i = 0; i < 3; ++i) {
      gradients[i].resize(inputs[i].size());
      bindings.push_back({kQueryGradient + i, gradients[i].data()});
    }
  }
  const auto run = [&]() -> Status {
    HEDDLE_TRY(forward->execute(bindings, forward_workspace.data(), nullptr));
    return backward ? backward->execute(bindings, backward_workspace.data(), nullptr) : Status();
  };

  BenchmarkResult result;
  HEDDLE_TRY(run());
  result.peak_bytes = resident_bytes("VmHWM:") - resident;
  std::vector<double> times;
  double total = 0;
  while (times.size() < kFewest || (total < kSeconds && times.size() < kMost)) {
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(run());
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  result.seconds = times[times.size() / 2];
  result.projection = projection(cell.dtype, output, inputs[3]);
  return result;
}

}  // namespace heddle::tools
