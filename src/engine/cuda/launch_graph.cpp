#include "engine/cuda/launch_graph.h"

#include <array>
#include <cstring>
#include <utility>

#include "engine/cuda/kernel.h"
#include "engine/cuda/relaxed_capture.h"

namespace heddle::engine::cuda {
namespace {

KernelNode node_of(const Kernel& kernel, const Launch& launch, std::span<void*> parameters,
                   CuContext context) {
  return {.grid_x = launch.grid_x,
          .grid_y = launch.grid_y,
          .grid_z = launch.grid_z,
          .block_x = launch.threads,
          .block_y = 1,
          .block_z = 1,
          .shared_bytes = launch.shared_bytes,
          .parameters = parameters.data(),
          .kernel = kernel.handle(),
          .context = context};
}

CuContext current_context(const Driver& driver) {
  CuContext context = nullptr;
  return driver.context_get_current(&context) == kCudaSuccess ? context : nullptr;
}

}  // namespace

/// Makes a node of each launch.
class LaunchGraph::Recorder final : public Queue {
 public:
  explicit Recorder(LaunchGraph& graph) : graph_(graph) {}

  Status launch(const Kernel& kernel, const Launch& launch, std::span<void*> parameters) override {
    const Driver& driver = graph_.driver_;
    const KernelNode made = node_of(kernel, launch, parameters, graph_.context_);
    CuGraphNode node = nullptr;
    HEDDLE_TRY(driver.check(driver.graph_add_kernel_node(&node, graph_.graph_, nullptr, 0, &made),
                            "cuGraphAddKernelNode"));
    if (!graph_.nodes_.empty()) {
      const GraphEdge edge = launch.overlaps_predecessor ? kProgrammaticEdge : GraphEdge{};
      HEDDLE_TRY(driver.check(
          driver.graph_add_dependencies(graph_.graph_, &graph_.nodes_.back(), &node, &edge, 1),
          "cuGraphAddDependencies"));
    }
    graph_.nodes_.push_back(node);
    return {};
  }
  Status fill_word(void*, unsigned) override {
    return error(Code::graph_not_supported, "cuda: a graph of launches fills no memory");
  }

 private:
  LaunchGraph& graph_;
};

/// Gives each node its launch's arguments.
class LaunchGraph::Updater final : public Queue {
 public:
  explicit Updater(LaunchGraph& graph) : graph_(graph) {}

  Status launch(const Kernel& kernel, const Launch& launch, std::span<void*> parameters) override {
    const KernelNode made = node_of(kernel, launch, parameters, graph_.context_);
    return graph_.driver_.check(
        graph_.driver_.graph_set_kernel_node(graph_.executable_, graph_.nodes_[next_++], &made),
        kernel.name().c_str());
  }
  Status fill_word(void*, unsigned) override {
    return error(Code::graph_not_supported, "cuda: a graph of launches fills no memory");
  }

 private:
  LaunchGraph& graph_;
  size_t next_ = 0;
};

bool LaunchGraph::possible(const Driver& driver) {
  return driver.graph_add_dependencies && current_context(driver);
}

Result<std::unique_ptr<LaunchGraph>> LaunchGraph::record(
    const Driver& driver, const QueuedPlan& plan,
    const std::vector<problem::OperandType>& operands) {
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<LaunchGraph> graph(new LaunchGraph(driver));
  graph->context_ = current_context(driver);
  HEDDLE_TRY(
      driver.check(driver.context_get_id(graph->context_, &graph->context_id_), "cuCtxGetId"));
  HEDDLE_TRY(driver.check(driver.graph_create(&graph->graph_, 0), "cuGraphCreate"));
  // Addresses that are replaced before anything runs; scalars in host memory are read.
  alignas(256) static const std::array<char, 256> memory{};
  void* const some = const_cast<char*>(memory.data());
  const std::vector<void*> buffers(operands.size(), some);
  Recorder recorder(*graph);
  HEDDLE_TRY(plan.execute(buffers, some, recorder));
  if (graph->nodes_.size() < 2) return std::unique_ptr<LaunchGraph>();
  HEDDLE_TRY(driver.check(driver.graph_instantiate(&graph->executable_, graph->graph_, 0),
                          "cuGraphInstantiate"));
  for (size_t n = 0; n < operands.size(); ++n) {
    if (operands[n].on_host)
      graph->scalars_.push_back({n, static_cast<size_t>(size_of(operands[n].dtype))});
  }
  // Neither grows when the plan is executed.
  graph->set_.reserve(operands.size() + 1 + graph->scalars_.size());
  graph->given_.reserve(graph->set_.capacity());
  return graph;
}

LaunchGraph::~LaunchGraph() {
  if (!in_current_context()) return;
  if (executable_) (void)driver_.graph_executable_destroy(executable_);
  if (graph_) (void)driver_.graph_destroy(graph_);
}

bool LaunchGraph::in_current_context() const {
  unsigned long long id = 0;
  return current_context(driver_) == context_ &&
         driver_.context_get_id(context_, &id) == kCudaSuccess && id == context_id_;
}

bool LaunchGraph::outlived_context() const {
  return current_context(driver_) == context_ && !in_current_context();
}

void LaunchGraph::note_given(std::span<void* const> buffers, void* workspace) {
  given_.clear();
  for (void* buffer : buffers) given_.push_back(reinterpret_cast<uintptr_t>(buffer));
  given_.push_back(reinterpret_cast<uintptr_t>(workspace));
  for (const auto& [operand, bytes] : scalars_) {
    uint64_t value = 0;
    if (buffers[operand]) std::memcpy(&value, buffers[operand], bytes);
    given_.push_back(value);
  }
}

Status LaunchGraph::execute(const QueuedPlan& plan, std::span<void* const> buffers, void* workspace,
                            CuStream stream) {
  note_given(buffers, workspace);
  if (given_ != set_) {
    set_.clear();
    Updater updater(*this);
    HEDDLE_TRY(plan.execute(buffers, workspace, updater));
    std::swap(set_, given_);
  }
  return driver_.check(driver_.graph_launch(executable_, stream), "cuGraphLaunch");
}

}  // namespace heddle::engine::cuda
