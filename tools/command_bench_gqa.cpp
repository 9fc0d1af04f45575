// heddle bench gqa: ONNX Runtime's GroupQueryAttention by Heddle on this CPU.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cpu/isa.h"
#include "tools/chart.h"
#include "tools/command.h"
#include "tools/gqa_options.h"
#include "tools/machine_peak.h"
#include "tools/processors.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

struct Options {
  GqaOptions gqa;
  std::vector<std::string> modes = {"prompt", "decode"}, caches = gqa_cache_names();
  std::vector<int64_t> keys = {1024, 4096};
  std::string json, plot;
};

std::vector<GqaCell> cells(const Options& options) {
  std::vector<GqaCell> all;
  for (const std::string& mode : options.modes) {
    for (const std::string& cache : options.caches) {
      for (const int64_t keys : options.keys) {
        GqaCell cell = options.gqa.cell();
        cell.cache = gqa_cache(cache);
        cell.keys = keys, cell.rows = mode == "prompt" ? keys : 1;
        all.push_back(cell);
      }
    }
  }
  return all;
}

const char* mode_of(const GqaCell& cell) { return cell.is_prompt() ? "prompt" : "decode"; }

/// A line for each mode and cache.
std::string plot_of(const std::vector<GqaCell>& all, const std::vector<GqaTimes>& times,
                    const std::string& title) {
  std::vector<Series> lines;
  for (size_t n = 0; n < all.size(); ++n) {
    const std::string name = fmt::format("{} {}", mode_of(all[n]), all[n].cache.name);
    if (lines.empty() || lines.back().name != name) lines.push_back({name, {}});
    lines.back().points.emplace_back(static_cast<double>(all[n].keys), times[n].median * 1e3);
  }
  return line_chart(title, "keys", "ms", lines);
}

Status bench(const Options& options) {
  const int threads = options.gqa.threads == 0 ? usable_processors() : options.gqa.threads;
  HEDDLE_TRY(keep_to(threads));
  const double read_rate = measure_read_rate(threads);
  const MachinePeak peak = measure_machine_peak(threads);
  const std::vector<GqaCell> all = cells(options);
  std::vector<GqaTimes> times;
  {
    const Progress progress(all.size());
    for (size_t n = 0; n < all.size(); ++n) {
      progress.show(n, fmt::format("{} {} {}", mode_of(all[n]), all[n].cache.name, all[n].keys));
      HEDDLE_ASSIGN(GqaTimes measured, measure(all[n]));
      times.push_back(std::move(measured));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"mode", "cache", "keys", "path", "ms", "least",
                                                 "cache GB/s", "of read rate", "GFLOP/s",
                                                 "of f32 peak"}};
  nlohmann::ordered_json json = {
      {"machine",
       {{"cpu", processor_name()},
        {"threads", threads},
        {"instruction_set", engine::cpu::name(engine::cpu::active_isa().isa)},
        {"read_gb_s", read_rate},
        {"f32_gflops", peak.f32_gflops}}},
      {"cells", nlohmann::ordered_json::array()}};
  for (size_t n = 0; n < all.size(); ++n) {
    const GqaCell& cell = all[n];
    const double rate = static_cast<double>(cell.cache_bytes()) / times[n].median / 1e9,
                 gflops = cell.flops() / times[n].median / 1e9;
    // A prompt is bound by its products, a step by the cache it reads.
    rows.push_back({mode_of(cell), std::string(cell.cache.name), fmt::format("{}", cell.keys),
                    path_word(times[n].path), fmt::format("{:.3f}", times[n].median * 1e3),
                    fmt::format("{:.3f}", times[n].least * 1e3),
                    cell.is_prompt() ? "-" : fmt::format("{:.1f}", rate),
                    cell.is_prompt() ? "-" : fmt::format("{:.2f}", rate / read_rate),
                    fmt::format("{:.1f}", gflops),
                    fmt::format("{:.2f}", gflops / peak.f32_gflops)});
    json["cells"].push_back({{"mode", mode_of(cell)},
                             {"cache", cell.cache.name},
                             {"batch", cell.batch},
                             {"heads", cell.heads},
                             {"kv_heads", cell.kv_heads},
                             {"head_size", cell.head_size},
                             {"keys", cell.keys},
                             {"path", path_word(times[n].path)},
                             {"seconds", times[n].median},
                             {"least_seconds", times[n].least},
                             {"cache_gb_s", rate},
                             {"gflops", gflops}});
  }
  const std::string title = fmt::format(
      "GroupQueryAttention, batch {}, {} heads on {} of {}, {} threads", options.gqa.batch,
      options.gqa.heads, options.gqa.kv_heads, options.gqa.head_size, threads);
  if (!options.json.empty()) HEDDLE_TRY(write_text(json.dump(1) + "\n", options.json));
  if (!options.plot.empty()) HEDDLE_TRY(write_text(plot_of(all, times, title), options.plot));
  if (options.json == "-") return Status();
  fmt::print(
      "{}, {}; memory read at {:.1f} GB/s, f32 multiply-add peak {:.0f} GFLOP/s\n"
      "rotation and append included, caches are written in place; medians\n\n{}",
      title, engine::cpu::name(engine::cpu::active_isa().isa), read_rate, peak.f32_gflops,
      table(rows));
  return Status();
}

}  // namespace

void add_bench_gqa(CLI::App& bench_command, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* gqa = bench_command.add_subcommand(
      "gqa",
      "ONNX Runtime's GroupQueryAttention on this CPU: prompts and steps of decoding, beside the "
      "rate at which memory is\nread. bench/gqa.py measures onnxruntime's own kernel in turns with "
      "it.");
  gqa->add_option("--mode", options->modes, "prompt: as many rows as keys; decode: one row")
      ->check(CLI::IsMember({"prompt", "decode"}));
  gqa->add_option("--cache", options->caches, "f32, bf16, f16; int8, int4, f8e4m3 beside f32")
      ->check(CLI::IsMember(gqa_cache_names()));
  gqa->add_option("--keys", options->keys, "1024, 4096")->check(CLI::Range(1, 1 << 24));
  add_gqa_options(*gqa, options->gqa);
  gqa->add_option("--json", options->json,
                  "Also write the figures as JSON to this file; - for standard output alone");
  gqa->add_option("--plot", options->plot, "Also draw milliseconds by keys, as SVG to this file");
  gqa->callback([options, &status] {
    const Status ended = bench(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
