// The turns of blocks at a query tile, for sums in a fixed order: of the Hopper backward by
// gradient, whose adding group has no thread to spare for them.
//
// That sums have landed takes a fence of more than a microsecond, and to see whose turn it is a
// round trip to the L2. Neither is the adding group's to wait for: one warp takes turns ahead of it
// and others pass them on behind it, each with a fence for all that the group had added by then.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/ring.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"
#include "block_rank.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackwardByGradient whose shared memory has the barriers. Of a tile's
/// turns a block takes Main::kDqTurnsOfBlock, each with a ring of its own.
template <class Main>
struct BackwardTurns {
  static constexpr int kStages = BackwardLayout::kTurnStages;
  using Ring = tile::Ring<kStages>;
  using Position = tile::RingPosition<kStages>;

  /// `full`: taken; `empty`: passed on.
  HEDDLE_DEVICE static Ring ring(u32 shared, int turn) {
    return {shared + Main::kAt.turns + turn * BackwardLayout::kTurnBytes};
  }
  /// The group that adds has done so.
  HEDDLE_DEVICE static u32 added(u32 shared, int turn, u32 stage) {
    return shared + Main::kAt.turns + turn * BackwardLayout::kTurnBytes + Ring::kBytes + 8 * stage;
  }

  /// `arrivals`: on `added`.
  HEDDLE_DEVICE static void init(u32 shared, int arrivals) {
    for (int turn = 0; turn < Main::kDqTurnsOfBlock; ++turn) {
      ring(shared, turn).init(1, 1);
      for (int stage = 0; stage < kStages; ++stage)
        ptx::mbarrier_init(added(shared, turn, stage), arrivals);
    }
  }

  HEDDLE_DEVICE static i32* counter(const BackwardArguments& args, const BackwardWork& work,
                                    const typename Main::Step& at, int turn) {
    const int heads = work.batch * args.problem.forward.q_heads + at.head;
    const int of_others = block_rank<Main::C::kRanks>() * Main::kDqTurnsOfBlock;
    return args.turns + (heads * (args.q_rounded / Main::kTileM) + at.tile) * Main::kDqTurns +
           of_others + turn;
  }

  /// One thread: waits at each tile for the blocks that come before this one.
  HEDDLE_DEVICE static void take(const BackwardArguments& args, u32 shared,
                                 const BackwardWork& work) {
    typename Main::Step at(work);
    Position position;
#pragma unroll 1
    for (int left = work.steps(); left > 0; --left) {
      const int before = Main::turn(work, at.tile);
#pragma unroll 1
      for (int turn = 0; turn < Main::kDqTurnsOfBlock; ++turn) {
        const Ring turns = ring(shared, turn);
        ptx::mbarrier_wait(turns.empty(position.stage()), position.parity() ^ 1);
        const i32* passed = counter(args, work, at, turn);
        while (ptx::load_acquire(passed) != before) {
        }
        ptx::mbarrier_arrive(turns.full(position.stage()));
      }
      position.advance();
      at.advance(work);
    }
  }

  /// One thread for each turn of a tile: gives it to the next block once the sums have landed.
  HEDDLE_DEVICE static void pass(const BackwardArguments& args, u32 shared,
                                 const BackwardWork& work, int turn) {
    const Ring turns = ring(shared, turn);
    typename Main::Step at(work);
    Position position;
#pragma unroll 1
    for (int left = work.steps(); left > 0; --left) {
      ptx::mbarrier_wait(added(shared, turn, position.stage()), position.parity());
      ptx::atomic_add_release(counter(args, work, at, turn), 1);
      ptx::mbarrier_arrive(turns.empty(position.stage()));
      position.advance();
      at.advance(work);
    }
  }
};

}  // namespace heddle::sm90
