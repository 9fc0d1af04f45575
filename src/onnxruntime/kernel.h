// A node of a session: made when the session is, run at each of its runs.
#pragma once

#include "onnxruntime/debug.h"
#include "onnxruntime/host.h"
#include "onnxruntime/node.h"
#include "onnxruntime/plans.h"

namespace heddle::onnxruntime {

class Kernel {
 public:
  static Result<std::unique_ptr<Kernel>> make(const Operator& op, Target target,
                                              const abi::Api& api, const abi::KernelInfo* info);

  /// Before a GPU's kernel is run: the memory of its session that it works in.
  Status take_allocator(const abi::KernelInfo* info);

  /// Many threads may run it at once. Nothing is written unless all is right.
  Status run(abi::KernelContext* context) const;

  /// What computes the node at its inputs' types and dims; addresses matter of numbers on the host
  /// alone.
  Result<std::shared_ptr<const Plan>> plan_for(Inputs inputs) const;

  const abi::Api& api() const { return api_; }

 private:
  Kernel(const Operator& op, Target target, const abi::Api& api)
      : op_(op), target_(std::move(target)), api_(api) {}

  Result<const abi::Value*> read_inputs(const abi::KernelContext* context,
                                        std::span<Value> inputs) const;
  Status make_outputs(abi::KernelContext* context, const Plan& plan,
                      std::span<Value> outputs) const;

  const Operator& op_;
  const Target target_;
  const abi::Api& api_;
  AllocatorHandle allocator_{nullptr, {nullptr}};  ///< a GPU's
  int gpu_ = 0;                                    ///< the host's number of it
  std::unique_ptr<Node> node_;
  Wanted wanted_;
  std::string words_;                         ///< operator, attributes and switches of paths
  std::unique_ptr<const PathReport> report_;  ///< if it was asked for
};

/// Runs of nodes that this library has done since it was loaded.
uint64_t calls();

}  // namespace heddle::onnxruntime
