// heddle profile gqa: what a step of decoding, or a prompt, spends its time on.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/chart.h"
#include "tools/command.h"
#include "tools/gqa_options.h"
#include "tools/machine_peak.h"
#include "tools/processors.h"

namespace heddle::tools {
namespace {

constexpr size_t kColumns = 72;

struct Options {
  GqaOptions gqa;
  std::string cache = "f32", json, picture;
  int64_t rows = 1, keys = 8192;
};

/// A stage of the step, with its share of the whole.
struct Stage {
  std::string name, words;
  double seconds = 0;
};

/// The executable's steps, and what is none of them: checks, and the calls themselves.
std::vector<Stage> stages_of(const GqaTimes& times) {
  std::vector<Stage> stages;
  double rest = times.median;
  for (size_t n = 0; n < times.steps.size(); ++n) {
    const std::string& line = times.step_names[n];
    const size_t split = line.find(": ");
    stages.push_back({line.substr(0, split),
                      split == std::string::npos ? "" : line.substr(split + 2), times.steps[n]});
    rest -= times.steps[n];
  }
  stages.push_back({"host", "checks of the call, and what is between stages", std::max(rest, 0.)});
  return stages;
}

Status profile(const Options& options) {
  if (options.rows > options.keys)
    return error(Code::invalid_value, "--rows is {}, expected at most the {} of --keys",
                 options.rows, options.keys);
  const int threads = options.gqa.threads == 0 ? usable_processors() : options.gqa.threads;
  HEDDLE_TRY(keep_to(threads));
  GqaCell cell = options.gqa.cell();
  cell.cache = gqa_cache(options.cache), cell.rows = options.rows, cell.keys = options.keys;
  const double read_rate = measure_read_rate(threads);
  HEDDLE_ASSIGN(const GqaTimes times, measure(cell));
  const std::vector<Stage> stages = stages_of(times);

  const std::string title = fmt::format(
      "GroupQueryAttention, {} cache, batch {}, {} rows against {} keys, {} heads on {} of {}: "
      "{:.3f} ms",
      cell.cache.name, cell.batch, cell.rows, cell.keys, cell.heads, cell.kv_heads, cell.head_size,
      times.median * 1e3);
  std::vector<Bar> bars;
  nlohmann::ordered_json json = {
      {"threads", threads},     {"seconds", times.median},
      {"path", times.path},     {"cache_bytes", cell.cache_bytes()},
      {"read_gb_s", read_rate}, {"stages", nlohmann::ordered_json::array()}};
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
      "{}\n{} threads; the cache is read at {:.1f} GB/s, memory alone at {:.1f}\n"
      "served by {}\n\n{}",
      title, threads, rate, read_rate, times.path, bars_as_text(bars, kColumns));
  return Status();
}

}  // namespace

void add_profile(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "Says what a program spends its time on, stage by stage, on this CPU.\n\n"
      "  heddle profile gqa\n"
      "  heddle profile gqa --cache int8 --rows 64 --keys 4096 --picture gqa.svg");
  command->require_subcommand(1);
  auto options = std::make_shared<Options>();
  CLI::App* gqa = command->add_subcommand("gqa", "A node of ONNX Runtime's GroupQueryAttention");
  gqa->add_option("--cache", options->cache,
                  "f32, bf16, f16; int8, int4, f8e4m3 beside f32 (default: f32)")
      ->check(CLI::IsMember(gqa_cache_names()));
  gqa->add_option("--rows", options->rows, "New rows of each sequence (default: 1)")
      ->check(CLI::Range(1, 1 << 24));
  gqa->add_option("--keys", options->keys, "Keys with the new ones (default: 8192)")
      ->check(CLI::Range(1, 1 << 24));
  add_gqa_options(*gqa, options->gqa);
  gqa->add_option("--json", options->json,
                  "Also write the figures as JSON to this file; - for standard output alone");
  gqa->add_option("--picture", options->picture, "Also draw the stages, as SVG to this file");
  gqa->callback([options, &status] {
    const Status ended = profile(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
