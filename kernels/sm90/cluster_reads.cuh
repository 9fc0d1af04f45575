// Reads of what another block of the cluster writes here, and word to it that they have ended.
//
// An arrival waits for no load that was issued before it. Where products read shared memory all the
// time, loads wait for longer than the other block takes to hear of the arrival and to write anew:
// threads then read numbers of the step to come (H200: in one of a few thousand tiles). So what is
// made of the loads is looked at first.
#pragma once

#include "../ptx/cluster.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/types.cuh"

namespace heddle::sm90 {

/// True, and not before the loads that `result` is made of have ended: arithmetic makes no NaN of
/// these bits, in f32 or in pairs of 16 bits, but no compiler knows.
HEDDLE_DEVICE bool is_made(u32 result) { return result != 0x7fabcdef; }
HEDDLE_DEVICE bool is_made(float result) { return is_made(__float_as_uint(result)); }

/// The same of all; of every kOfLoad in a row, which one load is for, the first.
template <int kOfLoad, class Result, int kCount>
HEDDLE_DEVICE bool are_made(const Result (&results)[kCount]) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kCount; i += kOfLoad) all = all && is_made(results[i]);
  return all;
}

/// By a warp that has made `sums`, every four of a load from what block `rank` writes: tells that
/// block, at the barrier that lies where `barrier` does here.
template <int kCount>
HEDDLE_DEVICE void tell_read(u32 barrier, u32 rank, const float (&sums)[kCount]) {
  const bool read = are_made<4>(sums);
  __syncwarp();
  if (ptx::elect_one() && read) ptx::cluster_arrive(ptx::address_in(barrier, rank));
}

}  // namespace heddle::sm90
