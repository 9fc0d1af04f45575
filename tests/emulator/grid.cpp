#include <algorithm>
#include <atomic>
#include <barrier>
#include <mutex>
#include <thread>

#include "emulator/block.h"

namespace heddle::emulator {
namespace {

u64 mixed(u64 seed, u64 number) {
  u64 x = (seed + 1) * 0x9e3779b97f4a7c15u ^ (number + 1) * 0xd1342543de82ef95u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ x >> 32;
}

/// Clusters, taken in their order by teams of as many threads as they have blocks.
class Grid {
 public:
  explicit Grid(const Launch& launch) : launch_(launch) {}

  u64 clusters() const {
    return u64{launch_.grid.x} * launch_.grid.y * launch_.grid.z / launch_.cluster;
  }

  void run(u64 teams) {
    std::vector<std::thread> threads;
    std::deque<Team> all;
    for (u64 n = 0; n < teams; ++n) {
      Team& team = all.emplace_back(launch_.cluster);
      for (u32 rank = 0; rank < launch_.cluster; ++rank)
        threads.emplace_back([this, &team, rank] { serve(team, rank); });
    }
    for (std::thread& thread : threads) thread.join();
    if (failure_) throw *failure_;
  }

 private:
  struct Team {
    explicit Team(u32 size) : together(size) { cluster.blocks.resize(size); }
    std::barrier<> together;
    Cluster cluster;
    u64 number = 0;  ///< of the cluster at work
  };

  void serve(Team& team, u32 rank) {
    while (true) {
      if (rank == 0) team.number = next_++;
      team.together.arrive_and_wait();
      if (team.number >= clusters()) return;
      try {
        const u64 number = team.number * launch_.cluster + rank;
        const Index grid = launch_.grid;
        Block block(launch_,
                    {static_cast<u32>(number % grid.x), static_cast<u32>(number / grid.x % grid.y),
                     static_cast<u32>(number / grid.x / grid.y)},
                    rank, team.cluster, mixed(launch_.seed, number));
        team.cluster.blocks[rank] = &block;
        team.together.arrive_and_wait();
        try {
          block.run(abandoned_);
        } catch (const Failure& failure) {
          abandon(failure);
        }
        // Another of the cluster may still reach into its memory.
        team.together.arrive_and_wait();
      } catch (const Failure& failure) {
        abandon(failure);
        team.together.arrive_and_drop();
        return;
      }
      if (__atomic_load_n(&abandoned_, __ATOMIC_RELAXED)) {
        team.together.arrive_and_drop();
        return;
      }
    }
  }

  void abandon(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    __atomic_store_n(&abandoned_, true, __ATOMIC_RELAXED);
  }

  const Launch& launch_;
  std::atomic<u64> next_ = 0;
  std::mutex mutex_;
  std::optional<Failure> failure_;  ///< the first
  bool abandoned_ = false;
};

}  // namespace

void run_grid(const Launch& launch, int processors, bool cooperative) {
  Grid grid(launch);
  const u64 at_once = std::max<u64>(1, static_cast<u64>(processors) / launch.cluster);
  if (cooperative && grid.clusters() > at_once)
    throw Failure("a cooperative launch has more blocks than run at a time");
  grid.run(std::min(grid.clusters(), at_once));
}

}  // namespace heddle::emulator
