// Work shared by all cores: tasks are taken in order by whoever is free.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <cstdint>

namespace heddle::engine::cpu {

/// How many workers a plan made now should expect.
inline int worker_count() { return tbb::this_task_arena::max_concurrency(); }

/// Orders what a caller wrote before its tasks and what workers read in them, in a place that needs
/// no pointer to find: the scheduler does it too, but the thread sanitizer cannot see into it.
inline std::atomic<int64_t> tasks_published{0};

/// Calls body(task, worker) for every task in [0, tasks), each once; no two calls with the same
/// worker (in [0, workers)) overlap. Tasks start in order, so the longest belong first. Returns
/// when all are done.
template <class Body>
void for_each_task(int64_t tasks, int workers, const Body& body) {
  std::atomic<int64_t> next{0};
  std::atomic<int> done{0};
  const auto work = [&](int worker) {
    tasks_published.load(std::memory_order_acquire);
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_acq_rel)) < tasks;)
      body(task, worker);
    done.fetch_add(1, std::memory_order_release);
  };
  if (tasks <= 1 || workers <= 1) {
    work(0);
    return;
  }
  tasks_published.fetch_add(1, std::memory_order_acq_rel);
  tbb::parallel_for(0, workers, 1, work, tbb::simple_partitioner());
  done.load(std::memory_order_acquire);
}

}  // namespace heddle::engine::cpu
