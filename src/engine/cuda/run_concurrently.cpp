#include "engine/cuda/run_concurrently.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

namespace heddle::engine::cuda {

Status run_concurrently(size_t count, const std::function<Status(size_t)>& run) {
  std::atomic<size_t> next = 0;
  const auto work = [&]() -> Status {
    for (size_t n = next++; n < count; n = next++) {
      if (Status status = run(n); !status.is_ok()) {
        next = count;
        return status;
      }
    }
    return {};
  };
  const size_t workers = std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::future<Status>> others;
  try {
    while (others.size() + 1 < workers) others.push_back(std::async(std::launch::async, work));
  } catch (const std::system_error&) {
    // Where no more threads can be had, fewer do it.
  }
  Status status = work();
  for (std::future<Status>& other : others) {
    Status ended = other.get();
    if (status.is_ok()) status = std::move(ended);
  }
  return status;
}

}  // namespace heddle::engine::cuda
