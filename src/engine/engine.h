// What an engine is: it answers a problem with a plan or with a refusal that names the op, the
// attribute and the limit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "problem/attention_path.h"
#include "problem/problem.h"

namespace heddle::engine {

using problem::Problem;

/// A problem made executable. Immutable after it is made, so that many threads may execute it at
/// once, each with its own workspace.
class Plan {
 public:
  virtual ~Plan() = default;
  /// Bytes of scratch memory execute needs, 64-byte aligned (256 on a GPU); may be 0. Linear in
  /// sequence length; a function of the problem alone, and on a GPU of the architecture, as a
  /// program may run on another machine than the one its workspace was measured on.
  virtual int64_t workspace_bytes() const = 0;
  /// Runs on `buffers`, one per operand of the problem (null where an operand is empty), in order.
  /// `stream` is the engine's own kind of queue (CUstream; ignored by the CPU engine). Allocates
  /// nothing.
  virtual Status execute(std::span<void* const> buffers, void* workspace, void* stream) const = 0;
  /// One line for people: kernel, instruction set, tile sizes.
  virtual std::string description() const = 0;
  /// Of an attention's forward: the path that serves it. Null of all else.
  virtual const problem::ChosenPath* attention_path() const { return nullptr; }
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const = 0;
  virtual Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const = 0;
  /// What `plan`, one of this engine's, is of its problem at other sizes: of what
  /// problem::at_late_sizes makes of both. Compiles nothing; sizes that take kernels which the plan
  /// lacks are refused.
  virtual Result<std::shared_ptr<const Plan>> resized(const Plan& plan,
                                                      const Problem& problem) const {
    static_cast<void>(plan), static_cast<void>(problem);
    return error(Code::graph_not_supported, "{}: sizes are those of the plan, no later ones",
                 name());
  }
  /// Makes ready, side by side, what takes long of planning each of `problems`. Planning them then
  /// takes less time; it need not come before. Its failures are those of plan.
  virtual Status prepare(std::span<const Problem* const> problems) const {
    static_cast<void>(problems);
    return {};
  }
};

}  // namespace heddle::engine
