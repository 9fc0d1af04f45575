// A grid as this machine runs it: a block is an operating system's thread, whose fibers are the
// block's threads. A fiber runs until it waits for another one, so a warp may be far ahead of its
// neighbours, and which is differs from launch to launch (EMULATOR_SEED, else 0). Asynchronous
// copies land at once in some blocks, and as late as they may in the others.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "emulator/device.h"

namespace heddle::emulator {

/// What ends a launch: its sentence.
struct Failure : std::exception {
  explicit Failure(std::string said) : sentence(std::move(said)) {}
  const char* what() const noexcept override { return sentence.c_str(); }
  std::string sentence;
};

class Block;

/// Work of one thread or warp that is under way, in groups: the last is open.
class Groups {
 public:
  void add(std::function<void()> work) { groups_.back().push_back(std::move(work)); }
  void commit() { groups_.emplace_back(); }
  /// Does the oldest until at most `pending` closed ones are left.
  void finish(int pending);
  void finish_all();
  /// All that was given, and leaves none.
  std::vector<std::function<void()>> take_all();

 private:
  std::deque<std::vector<std::function<void()>>> groups_{1};
};

/// Lanes that wait for each other.
struct Meeting {
  u32 mask = 0, arrived = 0;
  u64 number = 0;  ///< of those that have ended
  void* operands[32];
  u64 values[2][32];
};

struct Warp {
  std::deque<Meeting> meetings;  ///< one of each mask
  Groups products;
  u64 committed = 0;  ///< groups of products, finished or not
  Meeting& meeting(u32 mask);
};

struct Thread {
  Place place;
  Block* block = nullptr;
  Warp* warp = nullptr;
  boost::context::fiber fiber;
  const u64* waits_for = nullptr;  ///< until it is no longer `seen`
  u64 seen = 0;
  bool polls = false;  ///< what it waits for, another block may bring
  bool has_ended = false;
  Groups copies, stores;
};

struct HardwareBarrier {
  u32 arrived = 0, threads = 0, gave_true = 0;
  u64 number = 0;
  u32 count[2] = {};  ///< of those that gave true, of the last two that ended
};

struct Launch {
  void (*kernel)(void** parameters);
  u8* (*static_memory)();  ///< the calling thread's, of the kernel's module: any place in it
  void** parameters;
  Index grid, threads;
  u32 cluster;  ///< blocks of it
  u32 shared_bytes;
  u64 seed;
};

/// Blocks that reach into each other's memory.
struct Cluster {
  std::vector<Block*> blocks;  ///< by rank, once all are there
  // Threads that wait for all the others (cluster_sync), and how often all have been there.
  u64 arrived = 0, synchronised = 0;
};

class Block {
 public:
  Block(const Launch& launch, Index index, u32 rank, Cluster& cluster, u64 seed);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// All threads, to their ends. `abandoned`: another block of the launch has failed.
  void run(const bool& abandoned);

  const Launch& launch;
  const Index index;
  const u32 rank;
  Cluster& cluster;
  /// Whether asynchronous copies land as late as they may.
  const bool late;
  std::vector<Thread> threads;
  std::deque<Warp> warps;
  HardwareBarrier barriers[16];
  /// What has no thread that waits for it: done when nothing else goes on, in any order.
  std::deque<std::function<void()>> in_flight;

  /// An address of this block's window.
  u8* at(u32 address, u32 bytes, u32 alignment);
  u32 address_of(const void* pointer) const;
  u8* dynamic_shared() const { return dynamic_; }

 private:
  bool may_go_on(const Thread& thread) const;
  /// Where threads that do not go on are.
  std::string waits() const;
  void resume(Thread& thread);

  u64 random_;
  u8 *dynamic_ = nullptr, *static_ = nullptr;
  size_t static_bytes_ = 0;
  u32 dynamic_at_ = 0;              ///< in the window
  std::optional<Failure> failure_;  ///< of a thread
};

/// The calling fiber's.
Thread& current();
/// Leaves the calling fiber until `word`, if there is one, has changed.
void leave(const u64* word, bool polls);

/// Of an allocation that is there: whether so many bytes lie in one.
bool is_allocated(const void* from, u64 bytes);

/// Runs all blocks, `processors` at a time (of a cooperative launch all); throws Failure.
void run_grid(const Launch& launch, int processors, bool cooperative);

}  // namespace heddle::emulator
