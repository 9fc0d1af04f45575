// A plan's launches as a CUDA graph of the driver's, in a few copies that keep their arguments. On
// an H200's host, driver 580, a launch takes 2.8 to 3.5 us, however small its arguments; a graph
// takes 1.3 to 2 us of however many, and as much on the device as its launches or less. Arguments
// that are new cost 0.2 us for each kernel and 0.4 to 0.8 for each KB of them. A copy takes
// about 110 KB of device memory and, when the plan is made, 30 us for each kernel.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/cuda/loaded_plan.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// One thread at a time.
class LaunchGraph {
 public:
  /// Whether the driver takes such graphs, from 12.3 on, and the calling thread has a context of
  /// the device.
  static bool possible(const Driver& driver, CuDevice device);
  /// Records an execution of `plan`, of a problem with these operands, in the calling thread's
  /// context. Null of no launch, and of a single one that overlaps its predecessor, which a graph's
  /// first does not.
  static Result<std::unique_ptr<LaunchGraph>> record(
      const Driver& driver, const LoadedPlan& plan,
      const std::vector<problem::OperandType>& operands);
  /// Called in another context than its own it leaves the graph to that context, which may be gone.
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  enum class Context { current, another, outlived };
  /// Whether its own is the calling thread's, or that one has its handle but is a later one.
  Context context() const;

  /// Executes the plan that was recorded, by a copy of the graph that had these arguments on this
  /// stream last, or by one whose arguments are set; nothing where all copies are at work on other
  /// streams. Launches of a copy wait for each other, whatever their streams; those under way keep
  /// the arguments they had.
  std::optional<Status> try_execute(const LoadedPlan& plan, std::span<void* const> buffers,
                                    void* workspace, CuStream stream);

 private:
  class Recorder;
  class Updater;
  struct HostScalar {
    size_t operand, bytes;
  };
  struct Copy {
    CuGraphExec executable = nullptr;
    CuStream stream = nullptr;
    std::vector<uint64_t> arguments;  ///< what they are made of, as note_given() says
    int64_t set = 0, executed;        ///< the numbers of the executions that last did it
  };

  explicit LaunchGraph(const Driver& driver) : driver_(driver) {}
  Status instantiate(size_t arguments);
  /// Fills given_.
  void note_given(std::span<void* const> buffers, void* workspace);
  /// The copy to execute given_ on the stream.
  Copy* choose(CuStream stream);

  const Driver& driver_;
  CuContext context_ = nullptr;
  unsigned long long context_id_ = 0;
  CuGraph graph_ = nullptr;
  std::vector<CuGraphNode> nodes_;  ///< in the order of the launches
  std::vector<HostScalar> scalars_;
  std::vector<Copy> copies_;
  /// All that arguments are made of, addresses and what is passed by value.
  std::vector<uint64_t> given_;
  int64_t executions_ = 0;
};

}  // namespace heddle::engine::cuda
