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

constexpr int64_t kHeads = 8;
constexpr double kSeconds = 0.5;  // of timed runs
constexpr size_t kFewest = 3, kMost = 50;

/// The uids of the graphs below; those of the backward's own tensors follow the forward's.
enum Uid : int64_t {
  kQuery = 1,
  kKey,
  kValue,
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

graph::AttentionAttributes attributes(const BenchmarkCell& cell) {
  graph::AttentionAttributes result;
  result.attn_scale = 1 / std::sqrt(static_cast<double>(cell.head_dim));
  if (cell.causal) result.right_bound = 0;
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
  const Dims dims{1, kHeads, cell.sequence, cell.head_dim};
  graph::Sdpa op;
  op.q = graph.add(tensor(kQuery, cell.dtype, dims));
  op.k = graph.add(tensor(kKey, cell.dtype, dims));
  op.v = graph.add(tensor(kValue, cell.dtype, dims));
  op.o = graph.add(tensor(kOutput, cell.dtype, dims));
  if (cell.backward)
    op.stats = graph.add(tensor(kStats, DataType::f32, {1, kHeads, cell.sequence, 1}));
  op.attention = attributes(cell);
  graph.nodes.push_back({"forward", op});
  return graph;
}

graph::Graph backward_graph(const BenchmarkCell& cell) {
  graph::Graph graph = empty_graph(cell);
  const Dims dims{1, kHeads, cell.sequence, cell.head_dim};
  graph::SdpaBackward op;
  op.q = graph.add(tensor(kQuery, cell.dtype, dims));
  op.k = graph.add(tensor(kKey, cell.dtype, dims));
  op.v = graph.add(tensor(kValue, cell.dtype, dims));
  op.o = graph.add(tensor(kOutput, cell.dtype, dims));
  op.d_o = graph.add(tensor(kOutputGradient, cell.dtype, dims));
  op.stats = graph.add(tensor(kStats, DataType::f32, {1, kHeads, cell.sequence, 1}));
  op.d_q = graph.add(tensor(kQueryGradient, cell.dtype, dims));
  op.d_k = graph.add(tensor(kKeyGradient, cell.dtype, dims));
  op.d_v = graph.add(tensor(kValueGradient, cell.dtype, dims));
  op.attention = attributes(cell);
  graph.nodes.push_back({"backward", op});
  return graph;
}

using Buffer = std::vector<std::byte>;

Buffer rounded(DataType dtype, const float* values, int64_t count) {
  Buffer buffer(static_cast<size_t>(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) store(dtype, buffer.data(), i, values[i]);
  return buffer;
}

Result<Buffer> read_input(const BenchmarkCell& cell, const std::string& tensors,
                          const std::string& name, std::mt19937_64& generator) {
  const int64_t count = kHeads * cell.sequence * cell.head_dim;
  if (tensors.empty()) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(generator);
    return rounded(cell.dtype, values.data(), count);
  }
  const std::string path =
      fmt::format("{}/{}_d{}_s{}.npy", tensors, name, cell.head_dim, cell.sequence);
  HEDDLE_ASSIGN(const Array array, read_npy(path));
  if (array.dtype != DataType::f32 ||
      !(array.dims == Dims{1, kHeads, cell.sequence, cell.head_dim}))
    return error(Code::invalid_value, "{} holds {} {}; f32 [1, {}, {}, {}] is needed", path,
                 heddle::name(array.dtype), to_string(array.dims), kHeads, cell.sequence,
                 cell.head_dim);
  return rounded(cell.dtype, reinterpret_cast<const float*>(array.data.data()), count);
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
  const auto s = static_cast<double>(sequence), d = static_cast<double>(head_dim);
  return 4.0 * kHeads * s * s * d * (causal ? 0.5 : 1) * (backward ? 3.5 : 1);
}

std::string BenchmarkCell::name() const {
  return fmt::format("{} d{} S{} {} {}", heddle::name(dtype), head_dim, sequence,
                     causal ? "causal" : "full", backward ? "forward+backward" : "forward");
}

Result<BenchmarkResult> measure(const BenchmarkCell& cell, const std::string& tensors) {
  std::mt19937_64 generator(1);
  Buffer inputs[4];
  const char* names[] = {"query", "key", "value", "output_gradient"};
  for (int i = 0; i < 4; ++i) {
    HEDDLE_ASSIGN(inputs[i], read_input(cell, tensors, names[i], generator));
  }
  mallopt(M_MMAP_THRESHOLD, 1 << 16);  // so that freed buffers of earlier cells are really gone
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the high-water mark of resident memory
  const int64_t resident = resident_bytes("VmRSS:");

  const engine::Engine* engines[] = {&engine::cpu_engine()};
  HEDDLE_ASSIGN(const auto forward, api::Executable::build(forward_graph(cell), engines));
  Buffer output(inputs[0].size()),
      forward_workspace(static_cast<size_t>(forward->workspace_bytes()));
  Buffer stats(cell.backward ? static_cast<size_t>(kHeads * cell.sequence) * sizeof(float) : 0);
  std::vector<api::Binding> bindings = {{kQuery, inputs[0].data()},
                                        {kKey, inputs[1].data()},
                                        {kValue, inputs[2].data()},
                                        {kOutput, output.data()}};
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
