// heddle explain: what Heddle would do with a module or a graph, for people.
#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>

#include "api/executable.h"
#include "engine/cuda/target_engine.h"
#include "engine/devices.h"
#include "tools/command.h"
#include "tools/fused_module.h"
#include "tools/graph_file.h"
#include "tools/input_file.h"
#include "tools/report.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

constexpr size_t kWidth = 100;

/// Whether the text is JSON: HLO text begins with a word.
bool is_json(const std::string& text) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  return start != std::string::npos && text[start] == '{';
}

using Engines = std::span<const engine::Engine* const>;

Status explain_graph(const std::string& path, const std::string& text, Engines cuda) {
  HEDDLE_ASSIGN(const graph::Graph graph, graph_of(text, path));
  if (const std::optional<rewrite::Fusion> fusion = describe(graph))
    fmt::print("{}", fusions_table({*fusion}));
  for (const auto& [device, engines] :
       {std::pair{"cpu", engine::engines(engine::Device::cpu)}, {"cuda", cuda}}) {
    const auto executable = api::Executable::build(graph, engines);
    if (executable) {
      fmt::print("\n{}: runs it, with {} bytes of workspace\n{}", (*executable)->engine(),
                 (*executable)->workspace_bytes(), (*executable)->description());
      if (const std::string& paths = (*executable)->attention_paths(); !paths.empty())
        fmt::print("served by {}\n", wrap(paths, kWidth, 2));
    } else {
      fmt::print("\n{}: {}\n", device, wrap(executable.status().message(), kWidth, 2));
    }
  }
  return Status();
}

struct Options {
  std::string path, architecture;
  engine::Device device = engine::Device::cpu;
};

Status explain(const Options& options) {
  if (!options.architecture.empty() && options.device != engine::Device::cuda)
    return error(Code::invalid_value, "--arch is given without --device cuda, which it is for");
  Engines cuda = engine::engines(engine::Device::cuda);
  std::unique_ptr<const engine::Engine> named;
  const engine::Engine* only = nullptr;
  if (!options.architecture.empty()) {
    HEDDLE_ASSIGN(engine::cuda::Target target, engine::cuda::target_named(options.architecture));
    HEDDLE_ASSIGN(target.paths, problem::AllowedPaths::of_environment());
    named = engine::cuda::target_engine(std::move(target));
    only = named.get();
    cuda = {&only, 1};
  }
  HEDDLE_ASSIGN(const std::string text, read_text_file(options.path, kMostModuleBytes));
  if (is_json(text)) return explain_graph(options.path, text, cuda);
  HEDDLE_ASSIGN(
      const FusedModule rewritten,
      fuse_text(text, options.path,
                options.device == engine::Device::cuda ? cuda : engine::engines(options.device)));
  fmt::print("{}", to_people(rewritten.report));
  return Status();
}

}  // namespace

void add_explain(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("explain",
                                         "Says what Heddle finds in an HLO module and would fuse, "
                                         "and why it leaves the rest; or, for a\n"
                                         "graph, what it is and which engines run it.\n\n"
                                         "  heddle explain model.hlo\n"
                                         "  heddle explain graph.json\n"
                                         "  heddle explain graph.json --device cuda --arch sm_90a");
  auto options = std::make_shared<Options>();
  command
      ->add_option(
          "file", options->path,
          text_file_help("An HLO text module, or a graph's text form (JSON)", kMostModuleBytes))
      ->required();
  add_device(*command, options->device);
  command->add_option("--arch", options->architecture,
                      "With --device cuda: sm_80, sm_90a, ..., of a GPU that need not be here, and "
                      "its kernels");
  command->callback([options, &status] {
    const Status ended = explain(*options);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
