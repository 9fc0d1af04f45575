// heddle bench: how fast this machine is.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/cpu/isa.h"
#include "tools/command.h"
#include "tools/cpu_benchmark.h"
#include "tools/machine_peak.h"
#include "tools/processors.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

struct BenchOptions {
  std::vector<std::string> dtypes = {"f32", "bf16", "f16"};
  std::vector<int64_t> head_dims = {64, 128}, sequences = {512, 2048, 4096};
  std::vector<std::string> masks = {"none", "causal"}, passes = {"forward", "both"};
  int64_t queries = 0, heads = 8, kv_heads = 0;
  std::string score = "plain";
  std::string tensors, json;
  int threads = 0;
  bool machine_only = false;
};

std::vector<BenchmarkCell> cells(const BenchOptions& options) {
  BenchmarkCell cell;
  cell.heads = options.heads;
  cell.kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  cell.score = static_cast<BenchmarkScore>(
      std::find(std::begin(kBenchmarkScores), std::end(kBenchmarkScores), options.score) -
      std::begin(kBenchmarkScores));
  std::vector<BenchmarkCell> result;
  for (const std::string& dtype : options.dtypes)
    for (const int64_t head_dim : options.head_dims)
      for (const int64_t sequence : options.sequences)
        for (const std::string& mask : options.masks)
          for (const std::string& pass : options.passes) {
            cell.dtype = *data_type_from_name(dtype);
            cell.head_dim = head_dim, cell.sequence = sequence;
            cell.queries = options.queries == 0 ? sequence : options.queries;
            cell.causal = mask == "causal", cell.backward = pass == "both";
            result.push_back(cell);
          }
  return result;
}

nlohmann::ordered_json machine_json(const MachinePeak& peak, int threads) {
  return {{"cpu", processor_name()},
          {"threads", threads},
          {"instruction_set", engine::cpu::name(engine::cpu::active_isa().isa)},
          {"f32_gflops", peak.f32_gflops},
          {"bf16_gflops", peak.bf16_gflops}};
}

Status bench(const BenchOptions& options) {
  const int threads = options.threads == 0 ? usable_processors() : options.threads;
  HEDDLE_TRY(keep_to(threads));
  const MachinePeak peak = measure_machine_peak(threads);
  nlohmann::ordered_json json = {{"machine", machine_json(peak, threads)},
                                 {"cells", nlohmann::ordered_json::array()}};
  std::vector<std::vector<std::string>> rows = {
      {"dtype", "d", "S", "mask", "pass", "ms", "GFLOP/s", "of f32 peak", "K, V GB/s", "peak MiB"}};
  const std::vector<BenchmarkCell> wanted =
      options.machine_only ? std::vector<BenchmarkCell>{} : cells(options);
  {
    const Progress progress(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const BenchmarkCell& cell = wanted[i];
      progress.show(i, cell.name());
      HEDDLE_ASSIGN(const BenchmarkResult result, measure(cell, options.tensors));
      const double gflops = cell.flops() / result.seconds / 1e9;
      const double kv_rate = static_cast<double>(cell.kv_bytes()) / result.seconds / 1e9;
      json["cells"].push_back({{"dtype", name(cell.dtype)},
                               {"head_dim", cell.head_dim},
                               {"sequence", cell.sequence},
                               {"queries", cell.queries},
                               {"heads", cell.heads},
                               {"kv_heads", cell.kv_heads},
                               {"causal", cell.causal},
                               {"score", options.score},
                               {"backward", cell.backward},
                               {"seconds", result.seconds},
                               {"gflops", gflops},
                               {"projection", result.projection},
                               {"peak_bytes", result.peak_bytes}});
      rows.push_back({std::string(name(cell.dtype)), fmt::format("{}", cell.head_dim),
                      fmt::format("{}", cell.sequence), cell.causal ? "causal" : "full",
                      cell.backward ? "fwd+bwd" : "fwd",
                      fmt::format("{:.2f}", result.seconds * 1e3), fmt::format("{:.1f}", gflops),
                      fmt::format("{:.2f}", gflops / peak.f32_gflops),
                      fmt::format("{:.1f}", kv_rate),
                      fmt::format("{:.1f}", static_cast<double>(result.peak_bytes) / (1 << 20))});
    }
  }
  if (!options.json.empty()) HEDDLE_TRY(write_text(json.dump(1) + "\n", options.json));
  if (options.json == "-") return Status();
  fmt::print(
      "{} threads, {}; f32 multiply-add peak {:.0f} GFLOP/s, bf16 product peak {:.0f} "
      "GFLOP/s\n",
      threads, engine::cpu::name(engine::cpu::active_isa().isa), peak.f32_gflops, peak.bf16_gflops);
  if (!wanted.empty())
    fmt::print("batch 1, {} heads over {} of keys and values, {} scores; medians\n\n{}",
               wanted[0].heads, wanted[0].kv_heads, options.score, table(rows));
  return Status();
}

}  // namespace

void add_bench(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measures Heddle on this machine. `make bench` also measures its peers on the same "
      "tensors.\n\n"
      "  heddle bench cpu\n"
      "  heddle bench cpu --dtype f32 --sequence 2048 --mask causal --pass forward\n"
      "  heddle bench cpu --sequence 4096 --queries 1 --heads 32 --kv-heads 8 --pass forward\n"
      "  heddle bench gqa --keys 2048 8192 --plot gqa.svg");
  command->require_subcommand(1);
  add_bench_gqa(*command, status);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* cpu =
      command->add_subcommand("cpu", "Attention on this CPU, and what the CPU could do at most");
  cpu->add_option("--dtype", options->dtypes, "f32, bf16, f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  cpu->add_option("--head-dim", options->head_dims, "64, 128")->check(CLI::Range(1, 1024));
  cpu->add_option("--sequence", options->sequences, "512, 2048, 4096")
      ->check(CLI::Range(1, 1 << 20));
  cpu->add_option("--mask", options->masks, "none, causal")
      ->check(CLI::IsMember({"none", "causal"}));
  cpu->add_option("--pass", options->passes, "forward; both: forward and backward together")
      ->check(CLI::IsMember({"forward", "both"}));
  cpu->add_option("--queries", options->queries,
                  "Query rows; causal: the last sees all keys (default: as many as keys)")
      ->check(CLI::Range(1, 1 << 20));
  cpu->add_option("--heads", options->heads, "Query heads (default: 8)")
      ->check(CLI::Range(1, 1024));
  cpu->add_option("--kv-heads", options->kv_heads,
                  "Heads of keys and values; must divide those of queries (default: as many)")
      ->check(CLI::Range(1, 1024));
  cpu->add_option(
         "--score", options->score,
         "plain, bias (one for all heads), alibi (needs --mask causal), soft_cap (default: plain)")
      ->check(CLI::IsMember({"plain", "bias", "alibi", "soft_cap"}));
  cpu->add_option("--threads", options->threads, "How many processors to use (default: all)")
      ->check(CLI::Range(1, 4096));
  cpu->add_option("--tensors", options->tensors,
                  "Folder of inputs that bench/cells.py wrote (default: random)");
  add_file(*cpu, "--json", options->json,
           "Also write the figures as JSON to this file; - for standard output alone");
  cpu->add_flag("--machine-only", options->machine_only, "Only what the machine could do");
  cpu->callback([options, &status] {
    const Status ended = bench(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
