// heddle profile gqa: what a step of decoding, or a prompt, spends its time on.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/chart.h"
#include "tools/command.h"
#include "tools/gqa_machine.h"

namespace heddle::tools {
namespace {

constexpr size_t kColumns = 72;

struct Options {
  GqaOptions gqa;
  std::string cache, json, picture;
  int64_t rows = 1, keys = 8192;
};

/// A stage of the step, with its share of the whole.
struct Stage {
  std::string name, words;
  double seconds = 0;
};

/// The executable's steps, and what is none of them: on a CPU checks, and the calls themselves.
std::vector<Stage> stages_of(const GqaTimes& times, const GqaMachine& machine) {
  std::vector<Stage> stages;
  double rest = times.median;
  for (size_t n = 0; n < times.steps.size(); ++n) {
    const std::string& line = times.step_names[n];
    const size_t split = line.find(": ");
    stages.push_back({line.substr(0, split),
                      split == std::string::npos ? "" : line.substr(split + 2), times.steps[n]});
    rest -= times.steps[n];
  }
  if (!machine.is_gpu())
    stages.push_back(
        {"host", "checks of the call, and what is between stages", std::max(rest, 0.)});
  return stages;
}

Status profile(const Options& options) {
  if (options.rows > options.keys)
    return error(Code::invalid_value, "--rows is {}, expected at most the {} of --keys",
                 options.rows, options.keys);
  HEDDLE_ASSIGN(const GqaMachine machine, find_machine(options.gqa));
  GqaCell cell = options.gqa.cell();
  const std::string cache = !options.cache.empty() ? options.cache
                            : machine.is_gpu()     ? "bf16"
                                                   : "f32";
  cell.cache = on(machine.device, gqa_cache(cache));
  cell.rows = options.rows, cell.keys = options.keys;
  HEDDLE_ASSIGN(const GqaTimes times, measure(cell, machine.device));
  const std::vector<Stage> stages = stages_of(times, machine);

  const std::string title = fmt::format(
      "GroupQueryAttention, {} cache, batch {}, {} rows against {} keys, {} heads on {} of {}: "
      "{:.3f} ms",
      cell.cache.name, cell.batch, cell.rows, cell.keys, cell.heads, cell.kv_heads, cell.head_size,
      times.median * 1e3);
  std::vector<Bar> bars;
  nlohmann::ordered_json json = {
      {"seconds", times.median}, {"path", times.path}, {"cache_bytes", cell.cache_bytes()}};
  if (machine.is_gpu())
    json["gpu"] = machine.name, json["copy_gb_s"] = machine.memory_rate;
  else
    json["threads"] = machine.threads, json["read_gb_s"] = machine.memory_rate;
  json["stages"] = nlohmann::ordered_json::array();
  for (const Stage& stage : stages) {
    const double share = stage.seconds / times.median;
    bars.push_back(
        {stage.name,
         fmt::format("{:.3f} ms, {:.1f} %   {}", stage.seconds * 1e3, share * 100, stage.words),
         stage.seconds});
    json["stages"].push_back({{"name", stage.name},
                              {"description", stage.words},
                              {"seconds", stage.seconds},
                              {"share", share}});
  }
  if (!options.json.empty()) HEDDLE_TRY(write_text(json.dump(1) + "\n", options.json));
  if (!options.picture.empty()) HEDDLE_TRY(write_text(bar_chart(title, bars), options.picture));
  if (options.json == "-") return Status();
  const double rate = static_cast<double>(cell.cache_bytes()) / times.median / 1e9;
  fmt::print(
      "{}\n{}; the cache is read at {:.1f} GB/s, memory alone is {} at {:.1f}\n"
      "served by {}\n\n{}",
      title, machine.words(), rate, machine.is_gpu() ? "copied" : "read", machine.memory_rate,
      times.path, bars_as_text(bars, kColumns));
  return Status();
}

}  // namespace

void add_profile(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "Says what a program spends its time on, stage by stage, on this CPU or on a GPU.\n\n"
      "  heddle profile gqa\n"
      "  heddle profile gqa --cache int8 --rows 64 --keys 4096 --picture gqa.svg\n"
      "  heddle profile gqa --device cuda --batch 8");
  command->require_subcommand(1);
  auto options = std::make_shared<Options>();
  CLI::App* gqa = command->add_subcommand("gqa", "A node of ONNX Runtime's GroupQueryAttention");
  gqa->add_option(
         "--cache", options->cache,
         "f32, bf16, f16; int8, int4, f8e4m3 beside f32, on a GPU beside bf16 (default: f32, "
         "on a GPU bf16)")
      ->check(CLI::IsMember(gqa_cache_names()));
  gqa->add_option("--rows", options->rows, "New rows of each sequence (default: 1)")
      ->check(CLI::Range(1, 1 << 24));
  gqa->add_option("--keys", options->keys, "Keys with the new ones (default: 8192)")
      ->check(CLI::Range(1, 1 << 24));
  add_gqa_options(*gqa, options->gqa);
  add_file(*gqa, "--json", options->json,
           "Also write the figures as JSON to this file; - for standard output alone");
  add_file(*gqa, "--picture", options->picture, "Also draw the stages, as SVG to this file");
  gqa->callback([options, &status] {
    const Status ended = profile(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
