// What HEDDLE_GQA_DEBUG=1, or ONNX Runtime's own variable for it, prints: which path serves a
// node's attention, and why.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "core/status.h"
#include "onnxruntime/abi.h"

namespace heddle::onnxruntime {

/// Every variable of the environment that is 1 and switches a path of attention off, so that plans
/// made beside others are told from these. Fails if one of them is neither 0 nor 1.
Result<std::string> switched_off();

/// Of one node. Prints a line of standard error for every choice that it has not seen: a prompt's
/// and a step's, say.
class PathReport {
 public:
  /// Null if neither variable is 1.
  static Result<std::unique_ptr<const PathReport>> make_if_wanted(const char* op,
                                                                  const abi::Api& api,
                                                                  const abi::KernelInfo* info);

  /// By many threads at once.
  void print(const std::string& attention_paths) const;

 private:
  std::string node_;  ///< operator and name
  mutable std::mutex mutex_;
  mutable std::set<std::string> seen_;  ///< paths, without the numbers of their reasons
};

}  // namespace heddle::onnxruntime
