// heddle bench gqa: ONNX Runtime's GroupQueryAttention by Heddle, on this CPU or on a GPU.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/chart.h"
#include "tools/command.h"
#include "tools/gqa_machine.h"
#include "tools/machine_peak.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

struct Options {
  GqaOptions gqa;
  std::vector<std::string> modes = {"prompt", "decode"}, caches;
  std::vector<int64_t> keys = {1024, 4096};
  std::string json, plot;
};

std::vector<GqaCell> cells(const Options& options, engine::Device device) {
  std::vector<std::string> caches = options.caches;
  if (caches.empty()) {
    caches = gqa_cache_names();
    // A GPU's kernels for f32 are those that hold any shape, not those that serve models.
    if (device == engine::Device::cuda) std::erase(caches, "f32");
  }
  std::vector<GqaCell> all;
  for (const std::string& mode : options.modes) {
    for (const std::string& cache : caches) {
      for (const int64_t keys : options.keys) {
        GqaCell cell = options.gqa.cell();
        cell.cache = on(device, gqa_cache(cache));
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

/// What a run does at a rate: a prompt is bound by its products, a step by the cache it reads.
struct Rates {
  double cache = 0, gflops = 0;

  Rates(const GqaCell& cell, const GqaTimes& times)
      : cache(static_cast<double>(cell.cache_bytes()) / times.median / 1e9),
        gflops(cell.flops() / times.median / 1e9) {}
};

/// `peak`: 0 where it is not measured.
std::string table_of(const std::vector<GqaCell>& all, const std::vector<GqaTimes>& times,
                     const GqaMachine& machine, double peak) {
  std::vector<std::vector<std::string>> rows = {
      {"mode", "cache", "keys", "path", "ms", "least", "cache GB/s",
       machine.is_gpu() ? "of copy rate" : "of read rate", "GFLOP/s"}};
  if (peak > 0) rows[0].emplace_back("of f32 peak");
  for (size_t n = 0; n < all.size(); ++n) {
    const GqaCell& cell = all[n];
    const Rates rates(cell, times[n]);
    rows.push_back(
        {mode_of(cell), std::string(cell.cache.name), fmt::format("{}", cell.keys),
         path_word(times[n].path), fmt::format("{:.3f}", times[n].median * 1e3),
         fmt::format("{:.3f}", times[n].least * 1e3),
         cell.is_prompt() ? "-" : fmt::format("{:.1f}", rates.cache),
         cell.is_prompt() ? "-" : fmt::format("{:.2f}", rates.cache / machine.memory_rate),
         fmt::format("{:.1f}", rates.gflops)});
    if (peak > 0) rows.back().push_back(fmt::format("{:.2f}", rates.gflops / peak));
  }
  return table(rows);
}

nlohmann::ordered_json json_of(const std::vector<GqaCell>& all, const std::vector<GqaTimes>& times,
                               const GqaMachine& machine, double peak) {
  nlohmann::ordered_json of_machine = {{"instruction_set", machine.instruction_set}};
  if (machine.is_gpu()) {
    of_machine["gpu"] = machine.name, of_machine["copy_gb_s"] = machine.memory_rate;
  } else {
    of_machine["cpu"] = machine.name, of_machine["threads"] = machine.threads;
    of_machine["read_gb_s"] = machine.memory_rate, of_machine["f32_gflops"] = peak;
  }
  nlohmann::ordered_json json = {{"machine", of_machine},
                                 {"cells", nlohmann::ordered_json::array()}};
  for (size_t n = 0; n < all.size(); ++n) {
    const GqaCell& cell = all[n];
    const Rates rates(cell, times[n]);
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
                             {"cache_gb_s", rates.cache},
                             {"gflops", rates.gflops}});
  }
  return json;
}

Status bench(const Options& options) {
  HEDDLE_ASSIGN(const GqaMachine machine, find_machine(options.gqa));
  const double peak = machine.is_gpu() ? 0 : measure_machine_peak(machine.threads).f32_gflops;
  const std::vector<GqaCell> all = cells(options, machine.device);
  std::vector<GqaTimes> times;
  {
    const Progress progress(all.size());
    for (size_t n = 0; n < all.size(); ++n) {
      progress.show(n, fmt::format("{} {} {}", mode_of(all[n]), all[n].cache.name, all[n].keys));
      HEDDLE_ASSIGN(GqaTimes measured, measure(all[n], machine.device));
      times.push_back(std::move(measured));
    }
  }
  const std::string title =
      fmt::format("GroupQueryAttention, batch {}, {} heads on {} of {}, {}", options.gqa.batch,
                  options.gqa.heads, options.gqa.kv_heads, options.gqa.head_size, machine.words());
  if (!options.json.empty())
    HEDDLE_TRY(write_text(json_of(all, times, machine, peak).dump(1) + "\n", options.json));
  if (!options.plot.empty()) HEDDLE_TRY(write_text(plot_of(all, times, title), options.plot));
  if (options.json == "-") return Status();
  const std::string at_most =
      machine.is_gpu()
          ? fmt::format("memory copied at {:.0f} GB/s, read and written", machine.memory_rate)
          : fmt::format("memory read at {:.1f} GB/s, f32 multiply-add peak {:.0f} GFLOP/s",
                        machine.memory_rate, peak);
  fmt::print(
      "{}, {}; {}\nrotation and append included, caches are written in place; medians{}\n\n{}",
      title, machine.instruction_set, at_most,
      machine.is_gpu() ? " of the GPU's own time, its cache cold" : "",
      table_of(all, times, machine, peak));
  return Status();
}

}  // namespace

void add_bench_gqa(CLI::App& bench_command, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* gqa = bench_command.add_subcommand(
      "gqa",
      "ONNX Runtime's GroupQueryAttention on this CPU, or on a GPU: prompts and steps of decoding, "
      "beside the rate at which\nmemory is read or copied. bench/gqa.py measures onnxruntime's own "
      "kernel in turns with it.");
  gqa->add_option("--mode", options->modes, "prompt: as many rows as keys; decode: one row")
      ->check(CLI::IsMember({"prompt", "decode"}));
  gqa->add_option("--cache", options->caches,
                  "f32, bf16, f16; int8, int4, f8e4m3 beside f32, on a GPU beside bf16")
      ->check(CLI::IsMember(gqa_cache_names()));
  gqa->add_option("--keys", options->keys, "1024, 4096")->check(CLI::Range(1, 1 << 24));
  add_gqa_options(*gqa, options->gqa);
  add_file(*gqa, "--json", options->json,
           "Also write the figures as JSON to this file; - for standard output alone");
  add_file(*gqa, "--plot", options->plot, "Also draw milliseconds by keys, as SVG to this file");
  gqa->callback([options, &status] {
    const Status ended = bench(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
