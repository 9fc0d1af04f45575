// heddle prebuild: compiles CUDA kernels into the cache before anything needs them.
#include <fmt/format.h>

#include <mutex>
#include <string>

#include "engine/cuda/common_kernels.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/run_concurrently.h"
#include "fusion/schedule.h"
#include "tools/command.h"
#include "tools/graph_file.h"
#include "tools/input_file.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using engine::cuda::KernelCache;
using engine::cuda::KernelUnit;
using engine::cuda::Lowering;
using engine::cuda::Target;

/// The architecture that was named, else that of the GPU here.
Result<Target> machine_for(const std::string& named) {
  if (!named.empty()) return engine::cuda::target_named(named);
  const auto& driver = engine::cuda::driver();
  if (!driver) {
    return error(Code::invalid_value,
                 "There is no GPU to build for ({}); name an architecture, as in --arch sm_90a.",
                 driver.status().message());
  }
  HEDDLE_ASSIGN(const engine::cuda::Device device, engine::cuda::current_device(*driver));
  return engine::cuda::target_of(device);
}

/// The same with the attention paths that the environment leaves.
Result<Target> target_for(const std::string& named) {
  HEDDLE_ASSIGN(Target target, machine_for(named));
  HEDDLE_ASSIGN(target.paths, problem::AllowedPaths::of_environment());
  return target;
}

/// What the graphs' steps compile; every step must have a kernel.
Result<std::vector<KernelUnit>> units_of_graphs(const std::vector<std::string>& paths,
                                                const Target& target) {
  std::vector<KernelUnit> all;
  for (const std::string& path : paths) {
    HEDDLE_ASSIGN(const graph::Graph graph, read_graph_file(path));
    const auto named = [&path](const Status& failure) {
      return error(failure.code(), "{}: {}", path, failure.message());
    };
    const Result<fusion::Schedule> schedule = fusion::fuse(graph);
    if (!schedule) return named(schedule.status());
    for (const fusion::Step& step : schedule->steps) {
      const Result<Lowering> lowering = engine::cuda::lower(step.problem, target);
      if (!lowering) return named(lowering.status());
      all.insert(all.end(), lowering->units.begin(), lowering->units.end());
    }
  }
  return all;
}

struct Outcome {
  size_t added = 0, found = 0;
};

/// Compiles what the cache does not hold, on every core. The first failure ends it.
Result<Outcome> compile_all(const std::vector<KernelUnit>& units, const std::string& architecture,
                            const KernelCache& cache) {
  HEDDLE_ASSIGN(const engine::cuda::CompilerVersion version, engine::cuda::compiler_version());
  const Progress progress(units.size());
  std::mutex mutex;
  Outcome outcome;
  HEDDLE_TRY(engine::cuda::run_concurrently(units.size(), [&](size_t n) -> Status {
    const KernelUnit& unit = units[n];
    const auto key = engine::cuda::kernel_key(unit.source, architecture, version);
    const bool found = cache.find(key).is_ok();
    if (!found) {
      HEDDLE_ASSIGN(const auto cubin, engine::cuda::compiled_kernel(unit, architecture));
      // The library goes on without a cache; here it is all that is wanted.
      if (!cache.find(key).is_ok()) HEDDLE_TRY(cache.store(key, unit.name, *cubin, unit.made_for));
    }
    const std::lock_guard lock(mutex);
    ++(found ? outcome.found : outcome.added);
    progress.show(outcome.found + outcome.added, unit.name);
    return {};
  }));
  return outcome;
}

Status prebuild(const std::string& architecture_name, const std::vector<std::string>& graphs) {
  const std::filesystem::path root = KernelCache::default_root();
  if (root.empty()) {
    return error(Code::io_failed,
                 "There is no kernel cache to fill: HEDDLE_CACHE_DIR is set to nothing, or no home "
                 "is known.");
  }
  HEDDLE_ASSIGN(const Target target, target_for(architecture_name));
  std::vector<KernelUnit> units = engine::cuda::common_kernel_units(target);
  if (!graphs.empty()) {
    HEDDLE_ASSIGN(units, units_of_graphs(graphs, target));
  }
  HEDDLE_ASSIGN(const Outcome outcome, compile_all(units, target.architecture, KernelCache(root)));
  fmt::print("{}: {} for {}, {} of them new\n", root.string(), counted(units.size(), "kernel"),
             target.architecture, outcome.added);
  return {};
}

}  // namespace

void add_prebuild(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "prebuild",
      "Compiles CUDA kernels into the cache, so that their first use does not wait: those of the\n"
      "graphs given, else those of common attentions (bf16 and f16; head dims 64, 128 and 256;\n"
      "full and causal; forward and backward). Needs NVRTC, but no GPU if an architecture is "
      "named.\n\n"
      "  heddle prebuild\n"
      "  heddle prebuild --arch sm_90a graph.json");
  auto architecture = std::make_shared<std::string>();
  auto graphs = std::make_shared<std::vector<std::string>>();
  command->add_option("--arch", *architecture, "sm_80, sm_90a, ...; else that of the GPU here");
  command->add_option("graphs", *graphs,
                      text_file_help("Graphs in their text form (JSON), each", kMostGraphBytes));
  command->callback([architecture, graphs, &status] {
    const Status ended = prebuild(*architecture, *graphs);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
