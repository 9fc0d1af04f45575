// A plan's launches as one CUDA graph of the driver's. On an H200's host, driver 580, a launch
// takes 2.5 to 3.5 us, however small its arguments; a graph takes 1.1 us of however many, and 0.2
// to 0.3 for each kernel whose arguments change; the device takes less time between them.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/queue.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// One thread at a time.
class LaunchGraph {
 public:
  /// Whether the driver takes such graphs, from 12.3 on, and the calling thread has a context.
  static bool possible(const Driver& driver);
  /// Records an execution of `plan`, of a problem with these operands, in the calling thread's
  /// context. Null of one launch or none.
  static Result<std::unique_ptr<LaunchGraph>> record(
      const Driver& driver, const QueuedPlan& plan,
      const std::vector<problem::OperandType>& operands);
  /// Called in another context than its own it leaves the graph to that context, which may be gone.
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// Whether it runs in the calling thread's context.
  bool in_current_context() const;
  /// Whether that context has its own one's handle, but is a later one.
  bool outlived_context() const;
  /// Executes the plan that was recorded. Launches of the graph that are under way keep the
  /// arguments they had; they end before this one begins.
  Status execute(const QueuedPlan& plan, std::span<void* const> buffers, void* workspace,
                 CuStream stream);

 private:
  class Recorder;
  class Updater;
  struct HostScalar {
    size_t operand, bytes;
  };

  explicit LaunchGraph(const Driver& driver) : driver_(driver) {}
  /// Fills given_.
  void note_given(std::span<void* const> buffers, void* workspace);

  const Driver& driver_;
  CuContext context_ = nullptr;
  unsigned long long context_id_ = 0;
  CuGraph graph_ = nullptr;
  CuGraphExec executable_ = nullptr;
  std::vector<CuGraphNode> nodes_;  ///< in the order of the launches
  std::vector<HostScalar> scalars_;
  /// All that arguments are made of, addresses and what is passed by value: of those that the nodes
  /// have, and of those of an execution.
  std::vector<uint64_t> set_, given_;
};

}  // namespace heddle::engine::cuda
