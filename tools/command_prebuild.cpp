// heddle prebuild: compiles CUDA kernels before anything needs them, into the cache or an archive.
#include <fmt/format.h>

#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/kernel_archive.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/run_concurrently.h"
#include "fusion/schedule.h"
#include "tools/command.h"
#include "tools/common_graphs.h"
#include "tools/graph_file.h"
#include "tools/input_file.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using engine::cuda::ArchivedKernel;
using engine::cuda::Cubin;
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

/// Of files, or those that most programs ask for.
Result<std::vector<CommonGraph>> graphs_of(const std::vector<std::string>& paths) {
  if (paths.empty()) return common_graphs();
  std::vector<CommonGraph> all;
  for (const std::string& path : paths) {
    HEDDLE_ASSIGN(graph::Graph graph, read_graph_file(path));
    all.push_back({path, std::move(graph)});
  }
  return all;
}

/// What the graphs' steps compile, each once; every step must have a kernel.
Result<std::vector<KernelUnit>> units_of(const std::vector<CommonGraph>& graphs,
                                         const Target& target) {
  std::vector<KernelUnit> all;
  std::set<std::string> sources;
  for (const CommonGraph& one : graphs) {
    const auto named = [&one](const Status& failure) {
      return error(failure.code(), "{}: {}", one.name, failure.message());
    };
    const Result<fusion::Schedule> schedule = fusion::fuse(one.graph);
    if (!schedule) return named(schedule.status());
    for (const fusion::Step& step : schedule->steps) {
      const Result<Lowering> lowering = engine::cuda::lower(step.problem, target);
      if (!lowering) return named(lowering.status());
      std::copy_if(lowering->units.begin(), lowering->units.end(), std::back_inserter(all),
                   [&](const KernelUnit& unit) { return sources.insert(unit.source).second; });
    }
  }
  return all;
}

struct Compiled {
  std::vector<Cubin> cubins;  ///< of the units
  size_t added = 0;           ///< that the cache did not hold, if there is one
};

/// On every core. The first failure ends it.
Result<Compiled> compile_all(const std::vector<KernelUnit>& units, const std::string& architecture,
                             const KernelCache* cache) {
  HEDDLE_ASSIGN(const engine::cuda::CompilerVersion version, engine::cuda::compiler_version());
  const Progress progress(units.size());
  std::mutex mutex;
  size_t done = 0;
  Compiled all{.cubins = std::vector<Cubin>(units.size())};
  HEDDLE_TRY(engine::cuda::run_concurrently(units.size(), [&](size_t n) -> Status {
    const KernelUnit& unit = units[n];
    const auto key = engine::cuda::kernel_key(unit.source, architecture, version);
    const bool found = cache && cache->find(key).is_ok();
    HEDDLE_ASSIGN(all.cubins[n], engine::cuda::compiled_here(unit, architecture));
    // The library goes on without a cache; here it is all that is wanted.
    if (cache && !cache->find(key).is_ok())
      HEDDLE_TRY(cache->store(key, unit.name, all.cubins[n], unit.made_for));
    const std::lock_guard lock(mutex);
    all.added += found ? 0 : 1;
    progress.show(++done, unit.name);
    return {};
  }));
  return all;
}

Status fill_cache(const Target& target, const std::vector<CommonGraph>& graphs) {
  const std::filesystem::path root = KernelCache::default_root();
  if (root.empty()) {
    return error(Code::io_failed,
                 "There is no kernel cache to fill: HEDDLE_CACHE_DIR is set to nothing, or no home "
                 "is known.");
  }
  HEDDLE_ASSIGN(const std::vector<KernelUnit> units, units_of(graphs, target));
  const KernelCache cache(root);
  HEDDLE_ASSIGN(const Compiled compiled, compile_all(units, target.architecture, &cache));
  fmt::print("{}: {} for {}, {} of them new\n", root.string(), counted(units.size(), "kernel"),
             target.architecture, compiled.added);
  return {};
}

Status make_archive(const std::string& path, const std::vector<Target>& targets,
                    const std::vector<CommonGraph>& graphs) {
  std::vector<ArchivedKernel> kernels;
  for (const Target& target : targets) {
    HEDDLE_ASSIGN(const std::vector<KernelUnit> units, units_of(graphs, target));
    HEDDLE_ASSIGN(Compiled compiled, compile_all(units, target.architecture, nullptr));
    for (size_t n = 0; n < units.size(); ++n)
      kernels.push_back({units[n], target.architecture, std::move(compiled.cubins[n])});
  }
  HEDDLE_ASSIGN(const engine::cuda::CompilerVersion version, engine::cuda::compiler_version());
  HEDDLE_TRY(engine::cuda::write_archive(path, kernels, version));
  std::error_code ignored;
  fmt::print("{}: {} of {}, {:.1f} MiB, by NVRTC {}.{}\n", path, counted(kernels.size(), "kernel"),
             counted(graphs.size(), "graph"),
             static_cast<double>(std::filesystem::file_size(path, ignored)) / (1 << 20),
             version.major, version.minor);
  return {};
}

Status prebuild(std::vector<std::string> architectures, const std::string& archive,
                const std::vector<std::string>& paths) {
  if (architectures.empty()) architectures.emplace_back();
  std::vector<Target> targets;
  for (const std::string& name : architectures) {
    HEDDLE_ASSIGN(Target target, target_for(name));
    targets.push_back(std::move(target));
  }
  HEDDLE_ASSIGN(const std::vector<CommonGraph> graphs, graphs_of(paths));
  if (!archive.empty()) return make_archive(archive, targets, graphs);
  for (const Target& target : targets) HEDDLE_TRY(fill_cache(target, graphs));
  return {};
}

}  // namespace

void add_prebuild(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "prebuild",
      "Compiles CUDA kernels into the cache, so that their first use does not wait: those of the\n"
      "graphs given, else those that most programs ask for (attention of bf16 and f16, forward\n"
      "and backward, head dims 64, 128, 256 and 192/128, full and causal, grouped, with lengths,\n"
      "rotated; a token behind a cache; RMSNorm and LayerNorm). Needs NVRTC, but no GPU if an\n"
      "architecture is named. --archive makes a file of them in place of that, as a package\n"
      "carries one: programs read it where HEDDLE_KERNELS names it.\n\n"
      "  heddle prebuild\n"
      "  heddle prebuild --arch sm_90a graph.json\n"
      "  heddle prebuild --arch sm_80 --arch sm_90a --archive kernels");
  auto architectures = std::make_shared<std::vector<std::string>>();
  auto archive = std::make_shared<std::string>();
  auto graphs = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("--arch", *architectures,
                   "sm_80, sm_90a, ...; else that of the GPU here. Several times: of each")
      ->allow_extra_args(false);
  add_file(*command, "--archive", *archive, "A file to write them to, anew");
  command->add_option("graphs", *graphs,
                      text_file_help("Graphs in their text form (JSON), each", kMostGraphBytes));
  command->callback([architectures, archive, graphs, &status] {
    const Status ended = prebuild(*architectures, *archive, *graphs);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
