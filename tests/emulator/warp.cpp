// What threads of a block do together, and the copies of each.
#include <cstring>

#include "emulator/block.h"
#include "emulator/mbarriers.h"

namespace heddle::emulator {
namespace {

bool is_whole(const Meeting& meeting) { return meeting.arrived == meeting.mask; }

/// The calling thread among the others. Of a mask lanes of which have ended nobody would leave.
Meeting& join(u32 mask) {
  Thread& thread = current();
  const u32 bit = 1U << lane();
  if (!(mask & bit)) fail("a lane meets others by a mask that it is not in");
  Meeting& meeting = thread.warp->meeting(mask);
  if (meeting.arrived & bit) fail("a lane meets others twice at once");
  meeting.arrived |= bit;
  return meeting;
}

void end(Meeting& meeting) {
  meeting.arrived = 0;
  ++meeting.number;
}

}  // namespace

void* const* meet(u32 mask, void* operands) {
  Meeting& meeting = join(mask);
  meeting.operands[lane()] = operands;
  if (is_whole(meeting)) return meeting.operands;
  leave(&meeting.number, false);
  return nullptr;
}

void part(u32 mask) { end(current().warp->meeting(mask)); }

const u64* exchange(u32 mask, u64 value) {
  Meeting& meeting = join(mask);
  u64* const values = meeting.values[meeting.number % 2];
  values[lane()] = value;
  if (is_whole(meeting))
    end(meeting);
  else
    leave(&meeting.number, false);
  return values;
}

void barrier(u32 id, u32 count, bool waits) {
  if (id >= 16) fail("there are 16 barriers");
  if (count == 0 || count > current().block->threads.size())
    fail("a barrier is for more threads than the block has");
  HardwareBarrier& barrier = current().block->barriers[id];
  if (barrier.arrived == 0) barrier.threads = count;
  if (barrier.threads != count) fail("threads at a barrier differ in how many it is for");
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.number;
  } else if (waits) {
    leave(&barrier.number, false);
  }
}

u32 count_in_block(bool given) {
  const auto threads = static_cast<u32>(current().block->threads.size());
  HardwareBarrier& all = current().block->barriers[0];
  const u64 number = all.number;
  all.gave_true += given;
  if (all.arrived + 1 == threads) {
    all.count[number % 2] = all.gave_true;
    all.gave_true = 0;
  }
  barrier(0, threads, true);
  return all.count[number % 2];
}

void copy_async(u32 to, const void* from, u32 bytes, bool valid) {
  // Checked where it is asked for; where `valid` is false nothing is read.
  u8* const target = shared(to, bytes, bytes);
  const u8* const source = valid ? global(from, bytes, bytes) : nullptr;
  const auto copy = [target, source, bytes] {
    if (source)
      std::memcpy(target, source, bytes);
    else
      std::memset(target, 0, bytes);
  };
  if (!current().block->late) return copy();
  std::memset(target, 0xff, bytes);
  current().copies.add(copy);
}

void copy_async_commit() { current().copies.commit(); }
void copy_async_wait(int pending) { current().copies.finish(pending); }

void copy_async_arrive(u32 barrier) {
  Thread& thread = current();
  if (!thread.block->late) return mbarrier_arrive(barrier);
  thread.block->in_flight.push_back(
      [work = thread.copies.take_all(), counts = barrier_at(barrier)] {
        for (const auto& copy : work) copy();
        arrive(counts);
      });
}

}  // namespace heddle::emulator
