#include "tools/gqa_benchmark.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <sstream>
#include <utility>

#include "engine/marks.h"
#include "engine/memory.h"
#include "gqa/operator.h"

namespace heddle::tools {
namespace {

constexpr double kSeconds = 0.5;  // of timed runs
constexpr size_t kFewest = 3, kMost = 50;
constexpr size_t kOtherBytes = size_t{256} << 20;  ///< more than a GPU's second cache holds

gqa::Operator operator_of(const GqaCell& cell) {
  gqa::Operator op;
  op.num_heads = cell.heads, op.kv_num_heads = cell.kv_heads, op.total_length = cell.keys;
  op.do_rotary = 1;
  const int64_t columns = cell.cache.bits == 4 ? cell.head_size / 2 : cell.head_size;
  const Dims fresh{cell.batch, cell.rows, cell.kv_heads * cell.head_size},
      past{cell.batch, cell.kv_heads, cell.keys, columns}, table{cell.keys, cell.head_size / 2};
  op.inputs[gqa::query] = {cell.cache.io, {cell.batch, cell.rows, cell.heads * cell.head_size}};
  op.inputs[gqa::key] = op.inputs[gqa::value] = {cell.cache.io, fresh};
  op.inputs[gqa::past_key] = op.inputs[gqa::past_value] = {cell.cache.cache, past};
  op.inputs[gqa::seqlens_k] = {DataType::i32, {cell.batch}};
  op.inputs[gqa::total_sequence_length] = {DataType::i32, {1}};
  op.inputs[gqa::cos_cache] = op.inputs[gqa::sin_cache] = {cell.cache.io, table};
  if (cell.cache.bits == 0) return op;
  op.k_quant_type = op.v_quant_type = "PER_CHANNEL", op.kv_cache_bit_width = cell.cache.bits;
  op.inputs[gqa::k_scale] =
      op.inputs[gqa::v_scale] = {DataType::f32, {1, cell.kv_heads, 1, cell.head_size}};
  return op;
}

/// Numbers near 0; codes of every kind but NaN, and such scales that they stand for numbers near 0.
void fill(void* memory, DataType type, int64_t count, std::mt19937_64& generator) {
  if (is_floating(type) && size_of(type) > 1) {
    std::normal_distribution<float> normal;
    for (int64_t n = 0; n < count; ++n) store(type, memory, n, normal(generator));
    return;
  }
  for (int64_t n = 0; n < count; ++n)
    static_cast<uint8_t*>(memory)[n] =
        static_cast<uint8_t>(generator() % 127 | (generator() & 128));
}

/// One over the root of the mean square of such codes.
double scale_of(DataType cache) {
  if (cache == DataType::i8) return 1 / 73.8;
  return cache == DataType::f8e4m3 ? 1 / 100.1 : 1 / 4.6;  // two of 4 bits
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

double GqaCell::flops() const {
  // Row i of a prompt or a chunk sees the keys before it, and its own.
  const double seen = static_cast<double>(rows) * static_cast<double>(keys) -
                      static_cast<double>(rows) * static_cast<double>(rows - 1) / 2;
  return 4.0 * static_cast<double>(batch * heads * head_size) * seen;
}

int64_t GqaCell::cache_bytes() const {
  const int64_t columns = cache.bits == 4 ? head_size / 2 : head_size;
  return 2 * batch * kv_heads * keys * columns * size_of(cache.cache);
}

Result<GqaNode> GqaNode::make(const GqaCell& cell, engine::Device device) {
  GqaNode node;
  HEDDLE_ASSIGN(graph::Graph graph, gqa::graph_of(operator_of(cell)));
  HEDDLE_ASSIGN(node.executable_,
                api::Executable::build(std::move(graph), engine::engines(device)));
  const graph::Graph& made = node.executable_->graph();
  const auto room = [&](engine::Device where, int64_t bytes) -> Result<void*> {
    HEDDLE_ASSIGN(DeviceBuffer buffer, DeviceBuffer::make(where, static_cast<size_t>(bytes)));
    node.buffers_.push_back(std::move(buffer));
    return node.buffers_.back().data();
  };
  std::mt19937_64 generator(1);
  for (const auto& port : node.executable_->inputs()) {
    const graph::Tensor& tensor = made[port.tensor];
    const int64_t count = *element_count(tensor.dims), bytes = count * size_of(*tensor.dtype);
    const engine::Device where = tensor.pass_by_value ? engine::Device::cpu : device;
    std::vector<std::byte> values(static_cast<size_t>(bytes));
    if (port.uid == gqa::uid_of(gqa::seqlens_k)) {
      for (int64_t n = 0; n < count; ++n)
        store(DataType::i32, values.data(), n, static_cast<double>(cell.keys - 1));
    } else if (port.uid == gqa::uid_of(gqa::k_scale) || port.uid == gqa::uid_of(gqa::v_scale)) {
      for (int64_t n = 0; n < count; ++n)
        store(DataType::f32, values.data(), n, scale_of(cell.cache.cache));
    } else {
      fill(values.data(), *tensor.dtype, count, generator);
    }
    HEDDLE_ASSIGN(void* const memory, room(where, bytes));
    HEDDLE_TRY(engine::copy_in(where, memory, values.data(), values.size(), nullptr));
    node.bindings_.push_back({port.uid, memory});
  }
  const auto address_of = [&](int64_t uid) -> void* {
    for (const api::Binding& binding : node.bindings_)
      if (binding.uid == uid) return binding.pointer;
    return nullptr;
  };
  for (const auto& port : node.executable_->outputs()) {
    void* memory =
        port.uid == gqa::uid_of(gqa::present_key)     ? address_of(gqa::uid_of(gqa::past_key))
        : port.uid == gqa::uid_of(gqa::present_value) ? address_of(gqa::uid_of(gqa::past_value))
                                                      : nullptr;
    if (!memory) {
      const graph::Tensor& tensor = made[port.tensor];
      HEDDLE_ASSIGN(memory, room(device, *element_count(tensor.dims) * size_of(*tensor.dtype)));
    }
    node.bindings_.push_back({port.uid, memory});
  }
  HEDDLE_ASSIGN(
      DeviceBuffer workspace,
      DeviceBuffer::make(device, static_cast<size_t>(node.executable_->workspace_bytes())));
  node.workspace_.emplace(std::move(workspace));
  return node;
}

Result<GqaTimes> measure(const GqaCell& cell, engine::Device device) {
  const bool is_gpu = device == engine::Device::cuda;
  HEDDLE_ASSIGN(const GqaNode node, GqaNode::make(cell, device));
  HEDDLE_ASSIGN(const DeviceBuffer other, DeviceBuffer::make(device, is_gpu ? kOtherBytes : 0));
  const size_t count = node.executable().step_count();
  HEDDLE_ASSIGN(engine::Marks marks, engine::Marks::make(device, count + 1));
  std::vector<double> whole;
  std::vector<std::vector<double>> steps(count);
  double total = 0;
  bool is_first = true;  // memory is there, threads are awake, kernels loaded
  while (whole.size() < kFewest || (total < kSeconds && whole.size() < kMost)) {
    if (is_gpu) HEDDLE_TRY(engine::clear(device, other.data(), kOtherBytes, nullptr));
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(node.run(marks));
    // A CPU's run has the host's part in it: the checks of the call.
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (is_gpu) {
      HEDDLE_ASSIGN(seconds, marks.seconds(0, count));
    }
    if (std::exchange(is_first, false)) continue;
    total += seconds;
    whole.push_back(seconds);
    for (size_t n = 0; n < count; ++n) {
      HEDDLE_ASSIGN(const double step, marks.seconds(n, n + 1));
      steps[n].push_back(step);
    }
  }
  GqaTimes times;
  times.median = median(whole);
  times.least = *std::min_element(whole.begin(), whole.end());
  for (const std::vector<double>& step : steps) times.steps.push_back(median(step));
  times.step_names = lines_of(node.executable().description());
  times.path = node.executable().attention_paths();
  return times;
}

}  // namespace heddle::tools
