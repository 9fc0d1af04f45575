#include "emulator/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "emulator/module_memory.h"

namespace heddle::emulator {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = size_t{512} << 10;
constexpr u32 kMostShared = 227 << 10;
/// Where a window's static memory begins; the dynamic one follows. No address in it is 0, and the
/// lower bits, by which tiles are swizzled, are those of the memory itself. All ends at 256 KiB, as
/// far as matrix descriptors reach.
constexpr u32 kStaticAt = 1 << 10, kReached = 256 << 10, kWindowEnd = 1 << 24;
/// How long a launch may wait for another block.
constexpr auto kPatience = std::chrono::seconds(120);

thread_local Thread* running = nullptr;
thread_local context::fiber* scheduler = nullptr;

u64 next_random(u64& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

u64 word_at(const u64* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/// Memory with a page after it that nobody may touch.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    void* const begin = ::mmap(nullptr, bytes_ + kPage, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) throw Failure("there is no memory for a block");
    begin_ = static_cast<u8*>(begin);
    ::mprotect(end(), kPage, PROT_NONE);
  }
  ~Guarded() { ::munmap(begin_, bytes_ + kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  u8* end() const { return begin_ + bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  size_t bytes_;
  u8* begin_;
};

/// This thread's: blocks have them one after another.
const Guarded& shared_pages() {
  thread_local const Guarded pages(kMostShared + 1024);
  return pages;
}
const Guarded& stack_of(size_t thread) {
  thread_local std::deque<Guarded> stacks;
  while (stacks.size() <= thread) stacks.emplace_back(kStackBytes);
  return stacks[thread];
}

/// Gives stacks to fibers from memory that stays.
struct GivenStack {
  context::stack_context given;
  context::stack_context allocate() const { return given; }
  void deallocate(context::stack_context&) const {}
};

}  // namespace

void Groups::finish(int pending) {
  while (static_cast<int>(groups_.size()) - 1 > pending) {
    for (const auto& work : groups_.front()) work();
    groups_.pop_front();
  }
}

void Groups::finish_all() {
  for (const auto& work : take_all()) work();
}

std::vector<std::function<void()>> Groups::take_all() {
  std::vector<std::function<void()>> all;
  for (auto& group : groups_) all.insert(all.end(), group.begin(), group.end());
  groups_.assign(1, {});
  return all;
}

Meeting& Warp::meeting(u32 mask) {
  for (Meeting& one : meetings)
    if (one.mask == mask) return one;
  meetings.emplace_back().mask = mask;
  return meetings.back();
}

Block::Block(const Launch& of, Index at, u32 rank_in, Cluster& with, u64 seed)
    : launch(of), index(at), rank(rank_in), cluster(with), late(seed % 2 == 0), random_(seed) {
  // At the end of its pages, as far as its alignment lets it: what is read beyond it shows.
  dynamic_ = shared_pages().end() - (launch.shared_bytes + 1023) / 1024 * 1024;
  const ModuleMemory memory = module_memory_of(launch.static_memory());
  static_ = memory.begin, static_bytes_ = memory.bytes;
  dynamic_at_ = (kStaticAt + static_cast<u32>(static_bytes_) + 1023) / 1024 * 1024;
  if (dynamic_at_ + launch.shared_bytes > kReached)
    throw Failure("static variables and dynamic memory are more than a block's shared memory");
  std::memset(dynamic_, 0xff, launch.shared_bytes);
  std::memset(static_, 0xff, static_bytes_);
  const u32 count = launch.threads.x * launch.threads.y * launch.threads.z;
  warps.resize((count + 31) / 32);
  threads.resize(count);
  for (u32 n = 0; n < count; ++n) {
    Thread& thread = threads[n];
    thread.block = this, thread.warp = &warps[n / 32];
    const Index t = launch.threads;
    thread.place = {{n % t.x, n / t.x % t.y, n / t.x / t.y}, index, t, launch.grid, rank};
    context::stack_context given;
    given.size = kStackBytes, given.sp = stack_of(n).end();
    thread.fiber =
        context::fiber(std::allocator_arg, context::preallocated(given.sp, given.size, given),
                       GivenStack{given}, [this, &thread](context::fiber&& back) {
                         *scheduler = std::move(back);
                         try {
                           launch.kernel(launch.parameters);
                           thread.copies.finish_all();
                           thread.stores.finish_all();
                         } catch (const Failure& failure) {
                           failure_ = failure;
                         }
                         thread.has_ended = true;
                         return std::move(*scheduler);
                       });
  }
}

Block::~Block() {
  // Those that have not ended are unwound, on their stacks.
  for (Thread& thread : threads) {
    running = &thread;
    thread.fiber = {};
  }
  running = nullptr;
}

bool Block::may_go_on(const Thread& thread) const {
  return !thread.has_ended && (!thread.waits_for || word_at(thread.waits_for) != thread.seen);
}

void Block::resume(Thread& thread) {
  running = &thread;
  thread.waits_for = nullptr;
  context::fiber self;
  scheduler = &self;
  thread.fiber = std::move(thread.fiber).resume();
  running = nullptr;
}

void Block::run(const bool& abandoned) {
  auto waited_since = std::chrono::steady_clock::now();
  while (true) {
    size_t ended = 0;
    bool went_on = false;
    const bool backwards = next_random(random_) % 2 != 0;
    const u64 held_back = next_random(random_);
    for (size_t n = 0; n < threads.size(); ++n) {
      Thread& thread = threads[backwards ? threads.size() - 1 - n : n];
      ended += thread.has_ended;
      if (!may_go_on(thread)) continue;
      const size_t warp = thread.place.thread.x / 32;
      if (went_on && (held_back >> warp % 31 & 1)) continue;
      // One that looks again though nothing has changed does not go on by that.
      went_on |= !thread.polls || thread.waits_for;
      resume(thread);
      if (failure_) throw *failure_;
      went_on |= thread.has_ended;  // the last one of all may have looked again
    }
    if (__atomic_load_n(&abandoned, __ATOMIC_RELAXED)) throw Failure("");
    if (ended == threads.size()) break;
    if (went_on) {
      waited_since = std::chrono::steady_clock::now();
      continue;
    }
    if (!in_flight.empty()) {
      // Copies end in any order.
      const auto one =
          in_flight.begin() + static_cast<long>(next_random(random_) % in_flight.size());
      const auto work = std::move(*one);
      in_flight.erase(one);
      work();
      continue;
    }
    // Those that wait for what another block may bring look again; and one that did so may have
    // let others go on.
    bool some_may_go_on = false;
    for (Thread& thread : threads) {
      some_may_go_on |= !thread.has_ended && (thread.polls || may_go_on(thread));
      if (thread.polls) thread.waits_for = nullptr;
    }
    if (!some_may_go_on) throw Failure(waits());
    if (std::chrono::steady_clock::now() - waited_since > kPatience)
      throw Failure("block " + std::to_string(index.x) + " waits for another one for minutes");
    std::this_thread::yield();
  }
  while (!in_flight.empty()) {
    const auto work = std::move(in_flight.front());
    in_flight.pop_front();
    work();
  }
}

std::string Block::waits() const {
  std::string all = "no thread of block " + std::to_string(index.x) + " can go on;";
  const auto say = [&all](const std::string& what) { all += " " + what; };
  for (int n = 0; n < 16; ++n)
    if (barriers[n].arrived > 0)
      say(std::to_string(barriers[n].arrived) + " of " +
          std::to_string(n == 0 ? threads.size() : barriers[n].threads) + " threads at barrier " +
          std::to_string(n));
  for (size_t n = 0; n < warps.size(); ++n)
    for (const Meeting& one : warps[n].meetings)
      if (one.arrived)
        say("of warp " + std::to_string(n) + " lanes " + std::to_string(one.arrived) + " of " +
            std::to_string(one.mask));
  say(std::to_string(std::count_if(threads.begin(), threads.end(),
                                   [](const Thread& thread) { return thread.has_ended; })) +
      " threads have ended");
  return all;
}

u8* Block::at(u32 address, u32 bytes, u32 alignment) {
  u8* found = nullptr;
  if (address >= dynamic_at_ && address - dynamic_at_ + u64{bytes} <= launch.shared_bytes)
    found = dynamic_ + (address - dynamic_at_);
  else if (address >= kStaticAt && address - kStaticAt + u64{bytes} <= static_bytes_)
    found = static_ + (address - kStaticAt);
  if (!found)
    throw Failure(std::to_string(bytes) + " bytes of shared memory at " +
                  std::to_string(static_cast<i32>(address - dynamic_at_)) +
                  " of a launch that has " + std::to_string(launch.shared_bytes));
  if (reinterpret_cast<u64>(found) % alignment != 0)
    throw Failure("shared memory at " + std::to_string(address - dynamic_at_) +
                  " is not aligned to " + std::to_string(alignment) + " bytes");
  return found;
}

u32 Block::address_of(const void* pointer) const {
  // As a GPU's are: those of a cluster's blocks have the block's rank above.
  const u32 window = launch.cluster > 1 ? (rank + 1) * kWindowEnd : 0;
  const auto* const byte = static_cast<const u8*>(pointer);
  if (byte >= dynamic_ && byte <= dynamic_ + launch.shared_bytes)
    return window + dynamic_at_ + static_cast<u32>(byte - dynamic_);
  if (byte >= static_ && byte <= static_ + static_bytes_)
    return window + kStaticAt + static_cast<u32>(byte - static_);
  throw Failure("a pointer that is none into shared memory is taken for one");
}

Thread& current() { return *running; }

void leave(const u64* word, bool polls) {
  Thread& thread = *running;
  thread.waits_for = word;
  thread.seen = word ? word_at(word) : 0;
  thread.polls = polls;
  *scheduler = std::move(*scheduler).resume();
  thread.polls = false;
}

const Place& here() { return running->place; }
void fail(const char* sentence) { throw Failure(sentence); }
void give_way() { leave(nullptr, true); }

u8* dynamic_shared() { return running->block->dynamic_shared(); }
u32 window_address(const void* pointer) { return running->block->address_of(pointer); }
u32 cluster_address(u32 address, u32 rank) {
  if (rank >= running->block->cluster.blocks.size()) fail("there is no such block in the cluster");
  return address % kWindowEnd + (rank + 1) * kWindowEnd;
}
u8* shared(u32 address, u32 bytes, u32 alignment) {
  Block* block = running->block;
  if (address >= kWindowEnd) block = block->cluster.blocks.at(address / kWindowEnd - 1);
  return block->at(address % kWindowEnd, bytes, alignment);
}
u8* global(const void* address, u64 bytes, u32 alignment) {
  if (reinterpret_cast<u64>(address) % alignment != 0)
    throw Failure("global memory is not aligned to " + std::to_string(alignment) + " bytes");
  if (!is_allocated(address, bytes))
    throw Failure(std::to_string(bytes) + " bytes of global memory at " +
                  std::to_string(reinterpret_cast<u64>(address)) + ", not all of them allocated");
  return static_cast<u8*>(const_cast<void*>(address));
}

}  // namespace heddle::emulator
