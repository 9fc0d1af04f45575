// heddle doctor: what this machine has for Heddle.
#include <fmt/format.h>

#include <string>
#include <thread>

#include "core/environment.h"
#include "engine/cpu/isa.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel_archive.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/devices.h"
#include "tools/attention_paths.h"
#include "tools/command.h"
#include "tools/processors.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

constexpr size_t kWidth = 96, kIndent = 14;

void say(std::string_view what, const std::string& text) {
  fmt::print("{:<{}}{}\n", what, kIndent, wrap(text, kWidth, kIndent, kIndent));
}

std::string cuda_devices(const engine::cuda::Driver& driver) {
  int count = 0;
  if (const Status failed = driver.check(driver.device_get_count(&count), "cuDeviceGetCount");
      !failed.is_ok())
    return failed.message();
  std::string text =
      fmt::format("supports CUDA {}.{}; {}", driver.version / 1000, driver.version % 1000 / 10,
                  counted(static_cast<size_t>(count), "device"));
  for (int i = 0; i < count; ++i) {
    engine::cuda::CuDevice handle{};
    if (!driver.check(driver.device_get(&handle, i), "cuDeviceGet").is_ok()) continue;
    const auto device = engine::cuda::describe(driver, handle);
    if (!device.is_ok()) {
      text += fmt::format(", number {}: {}", i, device.status().message());
      continue;
    }
    text += fmt::format(", {} (sm_{}{})", device->name, device->compute_capability,
                        engine::cuda::is_supported(*device) ? "" : ": too old");
  }
  return text;
}

std::string kernel_cache() {
  const std::filesystem::path root = engine::cuda::KernelCache::default_root();
  if (root.empty()) return "none: HEDDLE_CACHE_DIR is set to nothing, or no home is known";
  const engine::cuda::KernelCache cache(root);
  const auto place = cache.look();
  if (place.is_ok() && *place == engine::cuda::KernelCache::Place::not_there_yet)
    return fmt::format("{} is not there; the first kernel that is compiled makes it",
                       root.string());
  int64_t bytes = 0;
  const auto entries = cache.list();
  for (const auto& entry : entries) bytes += entry.bytes;
  const Result<int64_t> limit = engine::cuda::cache_limit_bytes();
  std::string text =
      fmt::format("{}: {}, {:.1f} MiB of at most {} MiB", root.string(),
                  counted(entries.size(), "kernel"), static_cast<double>(bytes) / (1 << 20),
                  (limit.is_ok() ? *limit : engine::cuda::kDefaultCacheLimit) >> 20);
  if (!limit.is_ok()) text += "; " + limit.status().message();
  if (!place.is_ok())
    text += "; what is not in it is compiled in every process anew: " + place.status().message();
  return text;
}

std::string carried_kernels() {
  const auto& archive = engine::cuda::installed_archive();
  if (!archive) return archive.status().message();
  const auto entries = archive->list();
  size_t useless = 0;
  for (const auto& entry : entries) useless += entry.outdated || entry.name.empty() ? 1 : 0;
  return fmt::format("{}: {}, by NVRTC {}.{}{}", archive->path().string(),
                     counted(entries.size(), "kernel"), archive->made_by().major,
                     archive->made_by().minor,
                     useless == 0 ? "" : fmt::format("; {} of another version of Heddle", useless));
}

void doctor() {
  say("processor",
      fmt::format("{}, {} threads", processor_name(), std::thread::hardware_concurrency()));
  std::string levels;
  for (const engine::cpu::IsaReport& level : engine::cpu::isa_report())
    levels += fmt::format("{}{} ({})", levels.empty() ? "" : ", ", engine::cpu::name(level.isa),
                          level.available ? "yes" : "no: needs " + level.needs);
  const engine::cpu::IsaChoice choice = engine::cpu::active_isa();
  say("cpu engine", fmt::format("runs {}: {}", engine::cpu::name(choice.isa), choice.reason));
  say("", levels);

  const auto& driver = engine::cuda::driver();
  say("cuda driver", driver ? cuda_devices(*driver) : driver.status().message());
  const auto compiler = engine::cuda::compiler_version();
  say("nvrtc", compiler
                   ? fmt::format("{}.{} ({})", compiler->major, compiler->minor, compiler->library)
                   : compiler.status().message());
  std::string settings;
  for (const environment::Variable& variable : environment::variables()) {
    if (const char* const value = environment::value_of(variable.name))
      settings += fmt::format("{}{}={}", settings.empty() ? "" : ", ", variable.name, value);
  }
  for (const Status& read :
       {problem::AllowedPaths::of_environment().status(), engine::default_device().status(),
        engine::cuda::cache_limit_bytes().status(), environment::is_on("HEDDLE_GQA_DEBUG").status(),
        environment::is_on("ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO").status()})
    if (!read.is_ok()) settings += "; " + read.message();
  say("environment", settings.empty() ? "says nothing to Heddle" : settings);
  say("kernels", carried_kernels());
  say("kernel cache", kernel_cache());
}

Status print_paths() {
  HEDDLE_ASSIGN(const std::string tables, attention_path_tables());
  fmt::print("{}", tables);
  return {};
}

/// The variables that Heddle reads, for the end of the help.
std::string variables_help() {
  std::string text = "Variables of the environment:\n";
  for (const environment::Variable& variable : environment::variables())
    text += fmt::format("  {} ({})\n      {}\n", variable.name, variable.values, variable.meaning);
  return text;
}

}  // namespace

void add_doctor(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Says what this machine has: the engines and why one cannot run here, instruction sets, the\n"
      "CUDA driver and compiler that were found, the kernel cache, what the environment sets.");
  auto paths = std::make_shared<bool>(false);
  command->add_flag(
      "--paths", *paths,
      "In place of that: which path serves an attention where, as docs/gqa.md has it");
  command->footer(variables_help());
  command->callback([paths, &status] {
    if (*paths) {
      const Status ended = print_paths();
      status = ended.is_ok() ? kDone : complain(ended);
      return;
    }
    doctor();
    status = kDone;
  });
}

}  // namespace heddle::tools
