#include "engine/cuda/launch_graph.h"

#include <array>
#include <cstring>
#include <utility>

#include "engine/cuda/kernel.h"
#include "engine/cuda/relaxed_capture.h"

namespace heddle::engine::cuda {
namespace {

/// Programs alternate between buffers, or run a plan's layers in turn.
constexpr int kCopies = 4;
/// A copy not used for so many executions may be given other arguments, or go to another stream.
/// Until then the last one set on the stream is set again: of more sets of buffers in turn than
/// there are copies, or of some that stay beside others that are ever new, most keep theirs.
constexpr int64_t kExecutionsToForget = 64;

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
    if (launch.cooperative)
      HEDDLE_TRY(set(node, LaunchAttributeId::cooperative, {.cooperative = 1}));
    if (launch.cluster > 1)
      HEDDLE_TRY(
          set(node, LaunchAttributeId::cluster_dimension, {.cluster = {launch.cluster, 1, 1}}));
    if (graph_.nodes_.empty()) {
      first_overlaps_ = launch.overlaps_predecessor;
    } else {
      const GraphEdge edge = launch.overlaps_predecessor ? kProgrammaticEdge : GraphEdge{};
      HEDDLE_TRY(driver.check(
          driver.graph_add_dependencies(graph_.graph_, &graph_.nodes_.back(), &node, &edge, 1),
          "cuGraphAddDependencies"));
    }
    graph_.nodes_.push_back(node);
    return {};
  }
  /// What comes before a graph ends before it begins.
  bool first_overlaps() const { return first_overlaps_; }

 private:
  Status set(CuGraphNode node, LaunchAttributeId id, const LaunchAttributeValue& value) const {
    const Driver& driver = graph_.driver_;
    return driver.check(driver.graph_set_node_attribute(node, id, &value),
                        "cuGraphKernelNodeSetAttribute");
  }

  LaunchGraph& graph_;
  bool first_overlaps_ = false;
};

/// Gives each node of a copy its launch's arguments.
class LaunchGraph::Updater final : public Queue {
 public:
  Updater(const LaunchGraph& graph, CuGraphExec executable)
      : graph_(graph), executable_(executable) {}

  Status launch(const Kernel& kernel, const Launch& launch, std::span<void*> parameters) override {
    const KernelNode made = node_of(kernel, launch, parameters, graph_.context_);
    return graph_.driver_.check(
        graph_.driver_.graph_set_kernel_node(executable_, graph_.nodes_[next_++], &made),
        kernel.name().c_str());
  }

 private:
  const LaunchGraph& graph_;
  CuGraphExec executable_;
  size_t next_ = 0;
};

bool LaunchGraph::possible(const Driver& driver, CuDevice device) {
  CuDevice current = 0;
  return driver.graph_add_dependencies && current_context(driver) &&
         driver.context_get_device(&current) == kCudaSuccess && current == device;
}

Result<std::unique_ptr<LaunchGraph>> LaunchGraph::record(
    const Driver& driver, const LoadedPlan& plan,
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
  if (graph->nodes_.empty() || (graph->nodes_.size() == 1 && recorder.first_overlaps()))
    return std::unique_ptr<LaunchGraph>();
  for (size_t n = 0; n < operands.size(); ++n) {
    if (operands[n].on_host)
      graph->scalars_.push_back({n, static_cast<size_t>(size_of(operands[n].dtype))});
  }
  HEDDLE_TRY(graph->instantiate(operands.size() + 1 + graph->scalars_.size()));
  return graph;
}

/// All at once: nothing is allocated when the plan is executed.
Status LaunchGraph::instantiate(size_t arguments) {
  given_.reserve(arguments);
  copies_.reserve(kCopies);
  for (int n = 0; n < kCopies; ++n) {
    Copy& copy = copies_.emplace_back();
    copy.executed = -kExecutionsToForget;
    copy.arguments.reserve(arguments);
    HEDDLE_TRY(driver_.check(driver_.graph_instantiate(&copy.executable, graph_, 0),
                             "cuGraphInstantiate"));
  }
  return {};
}

LaunchGraph::~LaunchGraph() {
  if (context() != Context::current) return;
  const RelaxedCapture relaxed(driver_);
  for (const Copy& copy : copies_) {
    if (copy.executable) (void)driver_.graph_executable_destroy(copy.executable);
  }
  if (graph_) (void)driver_.graph_destroy(graph_);
}

LaunchGraph::Context LaunchGraph::context() const {
  if (current_context(driver_) != context_) return Context::another;
  unsigned long long id = 0;
  const bool known = driver_.context_get_id(context_, &id) == kCudaSuccess;
  return known && id == context_id_ ? Context::current : Context::outlived;
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

LaunchGraph::Copy* LaunchGraph::choose(CuStream stream) {
  Copy* oldest = &copies_.front();
  Copy* newest = nullptr;
  for (Copy& copy : copies_) {
    if (copy.executed < oldest->executed) oldest = &copy;
    if (copy.stream != stream || copy.arguments.empty()) continue;
    if (copy.arguments == given_) return &copy;
    if (!newest || copy.set > newest->set) newest = &copy;
  }
  return executions_ - oldest->executed >= kExecutionsToForget ? oldest : newest;
}

std::optional<Status> LaunchGraph::try_execute(const LoadedPlan& plan,
                                               std::span<void* const> buffers, void* workspace,
                                               CuStream stream) {
  ++executions_;
  note_given(buffers, workspace);
  Copy* const copy = choose(stream);
  if (!copy) return std::nullopt;
  if (copy->arguments != given_) {
    copy->arguments.clear();
    Updater updater(*this, copy->executable);
    HEDDLE_TRY(plan.execute(buffers, workspace, updater));
    std::swap(copy->arguments, given_);
    copy->set = executions_;
  }
  copy->stream = stream;
  copy->executed = executions_;
  return driver_.check(driver_.graph_launch(copy->executable, stream), "cuGraphLaunch");
}

}  // namespace heddle::engine::cuda
