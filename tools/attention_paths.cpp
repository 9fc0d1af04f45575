#include "tools/attention_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "api/executable.h"
#include "engine/cpu/kernel_shape.h"
#include "engine/cuda/target_engine.h"
#include "engine/devices.h"
#include "gqa/operator.h"
#include "problem/attention_path.h"

namespace heddle::tools {
namespace {

using problem::AttentionPath;

/// How a path computes, where there is one.
struct Ways {
  std::string cpu, cuda;
};
Ways ways_of(AttentionPath path) {
  const auto [least, most] =
      std::minmax_element(std::begin(engine::cpu::kShapes), std::end(engine::cpu::kShapes),
                          [](const auto& a, const auto& b) { return a.few_rows < b.few_rows; });
  switch (path) {
    case AttentionPath::decode:
      return {fmt::format("at most {} rows share keys (AVX-512: {}), which stay where they lie",
                          least->few_rows, most->few_rows),
              "few rows see 256 keys or more, which all processors share"};
    case AttentionPath::flash:
      return {"tiles of many rows, for which keys are packed", "Hopper's (`wgmma`, TMA)"};
    case AttentionPath::memory_efficient:
      return {"tiles of as few rows as decode's: no memory for packed keys",
              "of every architecture from sm_80 on"};
  }
  return {};
}

/// A node of the operator with 32 heads on 8 of 128 columns, unless said otherwise.
struct Kind {
  const char* words;
  DataType type = DataType::bf16;
  int64_t rows = 1, keys = 8192;
  int64_t kv_heads = 8, head_size = 128;
  DataType cache = DataType::bf16;
  void (*change)(gqa::Operator& op) = [](gqa::Operator&) {};
};

constexpr DataType kF32 = DataType::f32, kBf16 = DataType::bf16;

const Kind kKinds[] = {
    {"prompt, f32", kF32, 2048, 2048, 8, 128, kF32},
    {"prompt, bf16", kBf16, 2048, 2048},
    {"prompt, bf16, a window", kBf16, 2048, 2048, 8, 128, kBf16,
     [](auto& op) { op.local_window_size = 512; }},
    {"prompt, bf16, soft cap and sinks", kBf16, 2048, 2048, 8, 128, kBf16,
     [](auto& op) {
       op.softcap = 50;
       op.inputs[gqa::head_sink] = {kBf16, {op.num_heads}};
     }},
    {"prompt, bf16, heads of 320", kBf16, 2048, 2048, 8, 320},
    {"prompt, f32, output_qk", kF32, 256, 256, 8, 128, kF32,
     [](auto& op) { op.qk_output = 1, op.wanted[gqa::output_qk] = true; }},
    {"512 rows behind a past, bf16", kBf16, 512},
    {"step, f32", kF32, 1, 8192, 8, 128, kF32},
    {"step, bf16", kBf16},
    {"step, bf16, a window and sinks", kBf16, 1, 8192, 8, 128, kBf16,
     [](auto& op) {
       op.local_window_size = 512;
       op.inputs[gqa::head_sink] = {kBf16, {op.num_heads}};
     }},
    {"step, bf16, one head of keys", kBf16, 1, 8192, 1},
    {"step, bf16, 128 keys", kBf16, 1, 128},
    {"step, bf16, a cache of int8", kBf16, 1, 8192, 8, 128, DataType::i8,
     [](auto& op) {
       op.k_quant_type = op.v_quant_type = "PER_TENSOR", op.kv_cache_bit_width = 8;
       op.inputs[gqa::k_scale] = op.inputs[gqa::v_scale] = {kF32, {1}};
     }},
    {"step, bf16, a cache as large as its window", kBf16, 1, 512, 8, 128, kBf16,
     [](auto& op) { op.local_window_size = 512, op.sliding_window_cache = 1; }},
    {"4 rows behind a past, bf16", kBf16, 4},
};

gqa::Operator operator_of(const Kind& kind) {
  constexpr int64_t kBatch = 8, kHeads = 32;
  gqa::Operator op;
  op.num_heads = kHeads, op.kv_num_heads = kind.kv_heads, op.total_length = kind.keys;
  const Dims cache{kBatch, kind.kv_heads, kind.keys, kind.head_size};
  op.inputs[gqa::query] = {kind.type, {kBatch, kind.rows, kHeads * kind.head_size}};
  op.inputs[gqa::key] =
      op.inputs[gqa::value] = {kind.type, {kBatch, kind.rows, kind.kv_heads * kind.head_size}};
  op.inputs[gqa::past_key] = op.inputs[gqa::past_value] = {kind.cache, cache};
  op.inputs[gqa::seqlens_k] = {DataType::i32, {kBatch}};
  op.inputs[gqa::total_sequence_length] = {DataType::i32, {1}};
  kind.change(op);
  return op;
}

/// Where a node may run.
struct Place {
  const char* name;
  std::unique_ptr<const engine::Engine> owned;
  const engine::Engine* engine;
};

Result<std::vector<Place>> places() {
  std::vector<Place> all;
  all.push_back({"CPU", nullptr, engine::engines(engine::Device::cpu).front()});
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    HEDDLE_ASSIGN(engine::cuda::Target target, engine::cuda::target_named(architecture));
    auto made = engine::cuda::target_engine(std::move(target));
    const engine::Engine* const engine = made.get();
    all.push_back({architecture, std::move(made), engine});
  }
  return all;
}

/// The reason without what every refusal begins with.
std::string reason_of(const Status& refusal) {
  constexpr std::string_view kBegin = "No execution plans support the graph. ";
  const std::string& message = refusal.message();
  return message.starts_with(kBegin) ? message.substr(kBegin.size()) : message;
}

std::string table_of_paths() {
  std::string out = "| path | on a CPU | on CUDA | switched off by any of |\n|---|---|---|---|\n";
  for (const AttentionPath path : problem::kAttentionPaths) {
    const Ways ways = ways_of(path);
    out += fmt::format("| {} | {} | {} | `{}` |\n", name(path), ways.cpu, ways.cuda,
                       fmt::join(problem::switches_of(path), "`, `"));
  }
  return out + "| math | none | none | |\n";
}

}  // namespace

Result<std::string> attention_path_tables() {
  HEDDLE_ASSIGN(const std::vector<Place> all, places());
  std::string header = "| node |", line = "|---|", rows;
  for (const Place& place : all) header += fmt::format(" {} |", place.name), line += "---|";
  std::vector<std::string> reasons;
  for (const Kind& kind : kKinds) {
    rows += fmt::format("| {} |", kind.words);
    HEDDLE_ASSIGN(const graph::Graph graph, gqa::graph_of(operator_of(kind)));
    for (const Place& place : all) {
      const auto executable = api::Executable::build(graph, {&place.engine, 1});
      if (executable) {
        const std::string& paths = (*executable)->attention_paths();
        rows += fmt::format(" {} |", paths.substr(0, paths.find(':')));
        continue;
      }
      const std::string reason = reason_of(executable.status());
      auto at = std::find(reasons.begin(), reasons.end(), reason);
      if (at == reasons.end()) at = reasons.insert(at, reason);
      rows += fmt::format(" none ({}) |", at - reasons.begin() + 1);
    }
    rows += "\n";
  }
  std::string out = table_of_paths() + "\n" + header + "\n" + line + "\n" + rows;
  for (size_t n = 0; n < reasons.size(); ++n)
    out += fmt::format("{}{}. {}\n", n == 0 ? "\n" : "", n + 1, reasons[n]);
  return out;
}

}  // namespace heddle::tools
