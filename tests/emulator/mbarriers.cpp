#include "emulator/mbarriers.h"

#include "emulator/block.h"

namespace heddle::emulator {
namespace {

constexpr u32 kMostArrivals = (1 << 20) - 1;
constexpr i32 kMostBytes = (1 << 20) - 1;

/// What a barrier's word says, from its lowest bits on: 21 bits of bytes, twice 20 of arrivals, one
/// of the phase's parity, and two that memory which nobody has initialised, all ones or zeros,
/// lacks.
struct Phase {
  i32 bytes;     ///< still to come; negative while they come before they are announced
  u32 arrivals;  ///< still to come
  u32 expected;  ///< arrivals of each phase
  u32 parity;    ///< of the phase that has not ended
};
constexpr u64 kInitialised = 1;

u64 word_of(const Phase& phase) {
  return (static_cast<u64>(phase.bytes) & 0x1fffff) | static_cast<u64>(phase.arrivals) << 21 |
         static_cast<u64>(phase.expected) << 41 | static_cast<u64>(phase.parity) << 61 |
         kInitialised << 62;
}

Phase phase_of(u64 word) {
  if (word >> 62 != kInitialised) fail("a barrier in shared memory has not been initialised");
  return {static_cast<i32>(static_cast<u32>(word) << 11) >> 11,
          static_cast<u32>(word >> 21) & kMostArrivals,
          static_cast<u32>(word >> 41) & kMostArrivals, static_cast<u32>(word >> 61) & 1};
}

/// Blocks of a cluster reach into each other's barriers, and each is an operating system's thread.
template <class Change>
void change(u64* barrier, Change change) {
  u64 was = __atomic_load_n(barrier, __ATOMIC_ACQUIRE), is;
  do {
    Phase phase = phase_of(was);
    change(phase);
    if (phase.bytes > kMostBytes || phase.bytes < -kMostBytes)
      fail("a barrier counts more bytes than it can");
    if (phase.arrivals == 0 && phase.bytes == 0) {
      phase.parity ^= 1;
      phase.arrivals = phase.expected;
    }
    is = word_of(phase);
  } while (
      !__atomic_compare_exchange_n(barrier, &was, is, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

bool has_ended(const u64* barrier, u32 parity) {
  return phase_of(__atomic_load_n(barrier, __ATOMIC_ACQUIRE)).parity != (parity & 1);
}

}  // namespace

u64* barrier_at(u32 address) { return reinterpret_cast<u64*>(shared(address, 8, 8)); }

void arrive(u64* barrier, u32 bytes) {
  if (bytes > static_cast<u32>(kMostBytes)) fail("a barrier counts more bytes than it can");
  change(barrier, [bytes](Phase& phase) {
    if (phase.arrivals == 0) fail("more threads arrive at a barrier than it was initialised for");
    --phase.arrivals;
    phase.bytes += static_cast<i32>(bytes);
  });
}

void complete_bytes(u64* barrier, u32 bytes) {
  change(barrier, [bytes](Phase& phase) { phase.bytes -= static_cast<i32>(bytes); });
}

void mbarrier_init(u32 barrier, u32 arrivals) {
  if (arrivals == 0 || arrivals > kMostArrivals) fail("a barrier is for 1 to 2^20 - 1 arrivals");
  __atomic_store_n(barrier_at(barrier), word_of({0, arrivals, arrivals, 0}), __ATOMIC_RELEASE);
}

void mbarrier_arrive(u32 barrier, u32 bytes) { arrive(barrier_at(barrier), bytes); }

bool mbarrier_try_wait(u32 barrier, u32 parity) {
  const u64* const word = barrier_at(barrier);
  if (has_ended(word, parity)) return true;
  // Without a cluster it is this block's own threads and copies that end a phase.
  leave(word, current().block->launch.cluster > 1);
  return has_ended(word, parity);
}

void cluster_sync() {
  const Block& block = *current().block;
  Cluster& cluster = block.cluster;
  const u64 number = __atomic_load_n(&cluster.synchronised, __ATOMIC_ACQUIRE);
  const u64 threads = block.launch.cluster * block.threads.size();
  if (__atomic_add_fetch(&cluster.arrived, 1, __ATOMIC_ACQ_REL) == threads) {
    __atomic_store_n(&cluster.arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cluster.synchronised, number + 1, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&cluster.synchronised, __ATOMIC_ACQUIRE) == number)
    leave(&cluster.synchronised, true);
}

}  // namespace heddle::emulator
