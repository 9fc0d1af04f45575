// Plans by operator, attributes and shapes, so that a node that is run again, and a model's layers,
// which are alike, are planned once.
#pragma once

#include <list>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

/// A recipe made ready.
struct Plan {
  PlanHandle plan;            ///< null: there is nothing to compute
  std::vector<int64_t> uids;  ///< to bind: inputs before outputs
  size_t workspace_bytes = 0;
  std::vector<size_t> prepared_bytes;
  std::vector<View> views;
  std::vector<Output> outputs;
  std::string attention_paths;  ///< that serve it, and why; empty: it has no attention
};

/// What plans are for.
struct Target {
  heddle_device device = HEDDLE_CPU;
  /// Of GPUs that need not be here, "sm_90a": such plans describe, and run nothing. Empty: the
  /// GPU's that the calling thread uses.
  std::string architecture;
};

/// On a GPU nothing of a recipe is done in the host's memory.
Result<std::shared_ptr<const Plan>> plan_of(Recipe recipe, const Target& target);

/// Thread-safe. Finding what is there allocates nothing.
class Plans {
 public:
  /// The plan of this key, which `make` makes if there is none.
  template <class Make>
  Result<std::shared_ptr<const Plan>> find_or_make(std::string_view key, Make&& make) {
    if (std::shared_ptr<const Plan> found = find(key)) return found;
    // Made without the lock: other nodes go on, and two first runs of one may both make it.
    HEDDLE_ASSIGN(std::shared_ptr<const Plan> made, make());
    keep(key, made);
    return made;
  }

  /// Of a generation whose caches grow every step has shapes of its own, which no later one has.
  static constexpr size_t kCapacity = 256;

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<const Plan> plan;
  };
  std::shared_ptr<const Plan> find(std::string_view key);
  void keep(std::string_view key, std::shared_ptr<const Plan> plan);

  std::mutex mutex_;
  std::list<Kept> recent_;  ///< last used first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> by_key_;
};

}  // namespace heddle::onnxruntime
