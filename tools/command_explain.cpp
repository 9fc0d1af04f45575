// heddle explain: what Heddle would do with a module or a graph, for people.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/executable.h"
#include "engine/cuda/target_engine.h"
#include "engine/devices.h"
#include "tools/command.h"
#include "tools/fused_module.h"
#include "tools/graph_file.h"
#include "tools/input_file.h"
#include "tools/onnx_attentions.h"
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
  std::string path;
  std::optional<std::string> architecture;
  std::vector<std::string> dims;
  engine::Device device = engine::Device::cpu;
};

/// Whether all of it is a number that is not negative.
bool is_whole(const char* first, const char* end, int64_t& number) {
  const auto [stop, failure] = std::from_chars(first, end, number);
  return failure == std::errc() && stop == end && number >= 0;
}

/// NAME=NUMBER each.
Result<onnx::DimValues> dims_of(const std::vector<std::string>& given) {
  onnx::DimValues dims;
  for (const std::string& one : given) {
    const size_t split = one.rfind('=');
    int64_t number = 0;
    const char *const first = one.data() + split + 1, *const end = one.data() + one.size();
    if (split == std::string::npos || split == 0 || first == end || !is_whole(first, end, number))
      return error(Code::invalid_value, "--dim is given '{}', expected NAME=NUMBER", one);
    dims[one.substr(0, split)] = number;
  }
  return dims;
}

Status explain_model(const Options& options, const std::string& bytes) {
  HEDDLE_ASSIGN(const onnx::DimValues dims, dims_of(options.dims));
  const Result<onnx::Model> model = onnx::read_model(bytes);
  if (!model.is_ok())
    return error(model.status().code(), "{}: {}", options.path, model.status().message());
  const onnxruntime::Target target{
      options.device == engine::Device::cuda ? HEDDLE_CUDA : HEDDLE_CPU,
      options.architecture.value_or("")};
  fmt::print("{}", to_people(attentions_of(*model, dims, target)));
  return Status();
}

Status explain(const Options& options) {
  if (options.architecture && options.device != engine::Device::cuda)
    return error(Code::invalid_value, "--arch is given without --device cuda, which it is for");
  Engines cuda = engine::engines(engine::Device::cuda);
  std::unique_ptr<const engine::Engine> named;
  const engine::Engine* only = nullptr;
  if (options.architecture) {
    HEDDLE_ASSIGN(engine::cuda::Target target, engine::cuda::target_named(*options.architecture));
    HEDDLE_ASSIGN(target.paths, problem::AllowedPaths::of_environment());
    named = engine::cuda::target_engine(std::move(target));
    only = named.get();
    cuda = {&only, 1};
  }
  HEDDLE_ASSIGN(const std::string text, read_text_file(options.path, kMostModuleBytes));
  if (onnx::is_model(options.path, text)) return explain_model(options, text);
  if (!options.dims.empty())
    return error(Code::invalid_value, "--dim is given, but {} is no ONNX model", options.path);
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
  CLI::App* command =
      app.add_subcommand("explain",
                         "Says what Heddle finds in an HLO module and would fuse, "
                         "and why it leaves the rest; for a\n"
                         "graph, what it is and which engines run it; for an ONNX "
                         "model, which path of\nHeddle's libraries for ONNX Runtime "
                         "serves each attention, or why none does.\n\n"
                         "  heddle explain model.hlo\n"
                         "  heddle explain model.onnx --dim batch_size=1 --dim "
                         "sequence_length=1\n"
                         "  heddle explain model.onnx --device cuda --arch sm_90a\n"
                         "  heddle explain graph.json\n"
                         "  heddle explain graph.json --device cuda --arch sm_90a");
  auto options = std::make_shared<Options>();
  command
      ->add_option(
          "file", options->path,
          text_file_help("An HLO text module, a graph's text form (JSON), or an ONNX model (.onnx)",
                         kMostModuleBytes))
      ->required();
  command->add_option("--dim", options->dims,
                      "Of an ONNX model: NAME=NUMBER, for a dim that it has a name for");
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
