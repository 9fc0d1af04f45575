// Plans that executions ask for: of another device than the graph was planned for, or of sizes
// beyond those it was planned with.
#pragma once

#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "heddle/frontend/error.h"

namespace heddle::frontend::graph {

using Plan = std::shared_ptr<heddle_plan>;

/// The last of them, by what they were asked for. Any thread may ask.
class Late_plans {
 public:
  /// `make` is a function of the plan to be made, called without the lock.
  template <class Make>
  error_t find_or_make(const std::string& asked, const Make& make, Plan& plan) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = recent_.begin(); it != recent_.end(); ++it) {
        if (it->first != asked) continue;
        recent_.splice(recent_.begin(), recent_, it);
        plan = it->second;
        return {};
      }
    }
    if (error_t error = make(plan); error.is_bad()) return error;
    const std::lock_guard<std::mutex> lock(mutex_);
    recent_.emplace_front(asked, plan);
    // As many as a plan of the library keeps for smaller sizes.
    constexpr size_t kKept = 16;
    if (recent_.size() > kKept) recent_.pop_back();
    return {};
  }

  /// Bytes of workspace that the program was told to have, `least` at least.
  int64_t told(int64_t least) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return told_ > least ? told_ : least;
  }
  void tell(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > told_) told_ = bytes;
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<std::string, Plan>> recent_;
  int64_t told_ = 0;
};

}  // namespace heddle::frontend::graph
