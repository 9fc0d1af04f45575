// heddle run: a graph on random or given inputs, compared with its definition, timed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "api/executable.h"
#include "engine/cpu/engine.h"
#include "graph/ports.h"
#include "reference/evaluate.h"
#include "tools/command.h"
#include "tools/graph_file.h"
#include "tools/graph_memory.h"
#include "tools/input_file.h"
#include "tools/npy.h"
#include "tools/relative_error.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using graph::Graph;
using graph::TensorId;

struct RunOptions {
  std::string path;
  std::vector<std::string> inputs;   // NAME=FILE.npy
  std::vector<std::string> outputs;  // NAME=FILE.npy
  uint64_t seed = 0;
  int runs = 5;
  bool no_compare = false;
};

using Assignment = std::pair<TensorId, std::string>;

/// "q=file.npy": the tensor of that name or uid among `allowed`, and the file.
Result<Assignment> assignment(const Graph& graph, const std::string& text,
                              const std::vector<TensorId>& allowed) {
  const size_t equals = text.find('=');
  const std::string wanted = text.substr(0, equals);
  std::string known;
  for (const TensorId id : allowed) {
    const graph::Tensor& tensor = graph[id];
    const std::string uid = fmt::format("{}", tensor.uid);
    if (equals != std::string::npos && (wanted == tensor.name || wanted == uid))
      return std::pair(id, text.substr(equals + 1));
    known += (known.empty() ? "" : ", ") + (tensor.name.empty() ? uid : tensor.name);
  }
  return error(Code::invalid_value,
               "'{}' names none of this graph's tensors; NAME=FILE.npy with one of {} is allowed",
               text, known);
}

Result<std::vector<Assignment>> assignments(const Graph& graph,
                                            const std::vector<std::string>& texts,
                                            const std::vector<TensorId>& allowed) {
  std::vector<Assignment> found;
  for (const std::string& text : texts) {
    HEDDLE_ASSIGN(Assignment one, assignment(graph, text, allowed));
    for (const auto& [other, file] : found)
      if (other == one.first)
        return error(Code::invalid_value, "'{}' names a tensor a second time; once is allowed",
                     text);
    found.push_back(std::move(one));
  }
  return found;
}

bool is_raw(DataType type) {
  return type == DataType::bf16 || type == DataType::f8e4m3 || type == DataType::f8e5m2;
}

/// The error of a result in memory, over what the contract writes.
double distance(const Graph& graph, TensorId id, const reference::Values& truth, const void* data) {
  const reference::Array& expected = truth.result(id);
  RelativeError error;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const int64_t at = truth.offset_of(id, static_cast<int64_t>(i));
    if (expected.written[i]) error.add(load(*graph[id].dtype, data, at), expected.values[i]);
  }
  return error.value();
}

/// The type the naive computation is made in: that of the first floating input.
DataType naive_type(const Graph& graph) {
  for (const TensorId id : graph::bound_inputs(graph))
    if (is_floating(*graph[id].dtype)) return *graph[id].dtype;
  return DataType::f32;
}

// In f64 the naive computation is the definition itself, and its sums are no more exact than ours:
// what two orders of a sum of thousands of terms leave apart.
constexpr double kOrderOfSums = 0x1p-43;

/// Our results against the definition in f64, beside those of the naive computation in the graph's
/// own type; false if one of ours is farther away than allowed.
Result<bool> compare(const Graph& graph, GraphMemory& memory) {
  const reference::Buffers buffers = memory.addresses();
  HEDDLE_ASSIGN(const reference::Values truth, reference::evaluate(graph, buffers));
  const DataType type = naive_type(graph);
  HEDDLE_ASSIGN(const reference::Values naive, reference::evaluate(graph, buffers, {type}));
  HEDDLE_ASSIGN(GraphMemory naive_memory, GraphMemory::allocate(graph));
  reference::store_results(naive, naive_memory.addresses());

  std::vector<std::vector<std::string>> rows = {
      {"output", "dims", "dtype", "error", "naive error", "allowed", ""}};
  bool all = true;
  for (const TensorId id : graph::bound_outputs(graph)) {
    const graph::Tensor& tensor = graph[id];
    const double ours = distance(graph, id, truth, memory.data(tensor.uid));
    const double theirs = distance(graph, id, truth, naive_memory.data(tensor.uid));
    const double allowed = 2 * theirs + rounding_step(name(*tensor.dtype)) +
                           (type == DataType::f64 ? kOrderOfSums : 0);
    const bool ok = ours <= allowed;
    all = all && ok;
    rows.push_back({tensor.name.empty() ? fmt::format("{}", tensor.uid) : tensor.name,
                    to_string(tensor.dims), std::string(name(*tensor.dtype)),
                    fmt::format("{:.2e}", ours), fmt::format("{:.2e}", theirs),
                    fmt::format("{:.2e}", allowed), ok ? "ok" : "WRONG"});
  }
  fmt::print("{}", table(rows));
  return all;
}

Result<ExitStatus> run(const RunOptions& options) {
  HEDDLE_ASSIGN(const Graph graph, read_graph_file(options.path));
  HEDDLE_ASSIGN(const auto inputs, assignments(graph, options.inputs, graph::bound_inputs(graph)));
  HEDDLE_ASSIGN(const auto outputs,
                assignments(graph, options.outputs, graph::bound_outputs(graph)));
  HEDDLE_ASSIGN(GraphMemory memory, GraphMemory::allocate(graph));
  HEDDLE_TRY(fill_random(graph, memory, options.seed));
  for (const auto& [id, file] : inputs) {
    const DataType dtype = *graph[id].dtype;
    HEDDLE_ASSIGN(const Array array, read_npy(file, is_raw(dtype) ? dtype : DataType::bf16));
    HEDDLE_TRY(put(graph, id, array, memory));
  }

  const engine::Engine* engines[] = {&engine::cpu_engine()};
  HEDDLE_ASSIGN(const auto executable, api::Executable::build(graph, engines));
  std::vector<api::Binding> bindings;
  for (const auto& [uid, address] : memory.addresses()) bindings.push_back({uid, address});
  std::vector<std::byte> workspace(static_cast<size_t>(executable->workspace_bytes()));
  std::vector<double> seconds;
  for (int i = 0; i <= options.runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(executable->execute(bindings, workspace.data(), nullptr));
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  if (seconds.size() > 1) seconds.erase(seconds.begin());  // the first run warms up
  std::nth_element(seconds.begin(),
                   seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  fmt::print("{}\nworkspace {} bytes, median of {} runs {:.3f} ms\n\n", executable->description(),
             executable->workspace_bytes(), seconds.size(), seconds[seconds.size() / 2] * 1e3);

  for (const auto& [id, file] : outputs) HEDDLE_TRY(write_npy(take(graph, id, memory), file));
  if (options.no_compare) return kDone;
  HEDDLE_ASSIGN(const bool ok, compare(graph, memory));
  return ok ? kDone : kVerificationFailed;
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Executes a graph (JSON) on the CPU engine with random or given inputs, times it, and "
      "compares\n"
      "every output with its definition in f64: the error may be at most twice that of the naive\n"
      "computation in the graph's own type.\n\n"
      "  heddle run graph.json\n"
      "  heddle run graph.json --input q=q.npy --input k=k.npy --output o=o.npy --no-compare");
  command
      ->add_option("graph", options->path, text_file_help("The graph's text form", kMostGraphBytes))
      ->required();
  command->add_option("--input", options->inputs,
                      fmt::format("NAME=FILE.npy, of at most {} GiB: an input by its name or uid; "
                                  "the others are random",
                                  kMostArrayBytes >> 30));
  command->add_option("--output", options->outputs, "NAME=FILE.npy: where to leave an output");
  add_seed(*command, options->seed, "Seed of the random inputs (0)");
  command->add_option("--runs", options->runs, "Timed runs after the first")
      ->check(CLI::Range(0, 1000000));
  command->add_flag("--no-compare", options->no_compare,
                    "Leave the comparison out: it takes time quadratic in length");
  command->callback([options, &status] {
    const Result<ExitStatus> ended = run(*options);
    status = ended ? *ended : complain(ended.status());
  });
}

}  // namespace heddle::tools
