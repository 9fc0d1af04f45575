// What runs before an attention that rotates its queries, in one launch: keys are rotated from
// memory to memory, and the rotations of the queries' rows are made.
#pragma once

#include "../ptx/sync.cuh"
#include "../streaming/rope.cuh"
#include "rope.cuh"

namespace heddle::attention {

/// Without keys to rotate.
struct NoKeys {
  static constexpr int kThreads = kRotationThreads;
  HEDDLE_DEVICE static void run_block(const streaming::RopeArguments&, int, int) {}
};

/// Keys: a streaming::Rope. Blocks of kRotationThreads: key_blocks and one for each 8 rows.
template <int kRopeDim, RopePairing kPairing, class Keys = NoKeys>
HEDDLE_DEVICE void rotations_before(const RotationsBefore& args) {
  static_assert(Keys::kThreads == kRotationThreads);
  ptx::grid_dependency_wait();
  ptx::grid_dependents_launch();
  const int block = blockIdx.x;
  if (block < args.key_blocks)
    Keys::run_block(args.keys, block % args.key_columns, block / args.key_columns);
  else
    make_rotations<kRopeDim, kPairing>(args.queries, block - args.key_blocks);
}

}  // namespace heddle::attention
