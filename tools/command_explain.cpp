// heddle explain: what Heddle would do with a module or a graph, for people.
#include <fmt/format.h>

#include <string>

#include "api/executable.h"
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

Status explain_graph(const std::string& path, const std::string& text) {
  HEDDLE_ASSIGN(const graph::Graph graph, graph_of(text, path));
  if (const std::optional<rewrite::Fusion> fusion = describe(graph))
    fmt::print("{}", fusions_table({*fusion}));
  for (const engine::Device device : {engine::Device::cpu, engine::Device::cuda}) {
    const auto executable = api::Executable::build(graph, engine::engines(device));
    if (executable) {
      fmt::print("\n{}: runs it, with {} bytes of workspace\n{}", (*executable)->engine(),
                 (*executable)->workspace_bytes(), (*executable)->description());
    } else {
      fmt::print("\n{}: {}\n", device == engine::Device::cpu ? "cpu" : "cuda",
                 wrap(executable.status().message(), kWidth, 2));
    }
  }
  return Status();
}

Status explain(const std::string& path, engine::Device device) {
  HEDDLE_ASSIGN(const std::string text, read_text_file(path, kMostModuleBytes));
  if (is_json(text)) return explain_graph(path, text);
  HEDDLE_ASSIGN(const FusedModule rewritten, fuse_text(text, path, device));
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
                                         "  heddle explain graph.json");
  auto path = std::make_shared<std::string>();
  command
      ->add_option(
          "file", *path,
          text_file_help("An HLO text module, or a graph's text form (JSON)", kMostModuleBytes))
      ->required();
  auto device = std::make_shared<engine::Device>(engine::Device::cpu);
  add_device(*command, *device);
  command->callback([path, device, &status] {
    const Status ended = explain(*path, *device);
    status = ended.is_ok() ? kDone : complain(ended);
  });
}

}  // namespace heddle::tools
