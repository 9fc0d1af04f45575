// Work shared by all cores: tasks are taken in order by whoever is free.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/cpu/machine.h"

namespace heddle::engine::cpu {

/// How many workers a plan made now should expect.
inline int worker_count() {
  return std::min(tbb::this_task_arena::max_concurrency(), kMostWorkers);
}

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
  // Workers round and treat subnormal numbers as the caller's thread does. By itself the scheduler
  // has them do so for good as the thread did that first called it, one of XLA's maybe.
  tbb::task_group_context as_the_caller(
      tbb::task_group_context::bound,
      tbb::task_group_context::default_traits | tbb::task_group_context::fp_settings);
  tbb::parallel_for(0, workers, 1, work, tbb::simple_partitioner(), as_the_caller);
  done.load(std::memory_order_acquire);
}

/// The workers of a plan, and the memory that they share out among themselves.
struct Workers {
  int count;
  char* memory;
  int64_t bytes;
};

/// Calls body(task, scratch) as above, each worker with `scratch` bytes of the memory as its own.
/// No more of them work than there is memory for.
template <class Body>
void for_each_task(int64_t tasks, const Workers& workers, int64_t scratch, const Body& body) {
  const int64_t room = workers.bytes / scratch;
  for_each_task(tasks, static_cast<int>(std::min<int64_t>(workers.count, room)),
                [&](int64_t task, int worker) { body(task, workers.memory + worker * scratch); });
}

}  // namespace heddle::engine::cpu
