// The producer warp group of the Hopper attention backward: one thread feeds the rings of Q and dO,
// and a warp for each consumer group adds its dQ to global memory.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../tile/load_tile.cuh"
#include "../tile/ring.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"
#include "block_rank.cuh"
#include "fp8_backward_arguments.h"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward whose shared memory it fills.
template <class Main>
struct BackwardProducer {
  using C = typename Main::C;
  using QTile = typename Main::QTile;
  using DoTile = typename Main::DoTile;
  using KTile = typename Main::KTile;
  using VTile = typename Main::VTile;
  using QRing = typename Main::QRing;
  using DoRing = typename Main::DoRing;

  /// The map of q, k, v or d_o (0 .. 3) for the block's batch entry, and the entry's place in it.
  /// Found anew each time: few registers are the producer's.
  HEDDLE_DEVICE static const TensorMap* map_of(const BackwardArguments& args, int which,
                                               u32 shared) {
    if constexpr (C::kSequenceMaps)
      return args.sequence_maps + 4 * Main::load_batch(shared + Main::kAt.work) + which;
    return &args.q + which;
  }
  HEDDLE_DEVICE static int place_of(int batch) { return C::kSequenceMaps ? 0 : batch; }

  // With codes, which the four maps are of: Q and dO in 16 bits beside them.
  using QCodes = tile::SharedTile<Main::kTileM, Main::kQk / 2>;
  using DoCodes = tile::SharedTile<Main::kTileM, Main::kVd / 2>;
  static constexpr int kQCodesBytes = C::kCodes ? QCodes::kBytes : 0,
                       kDoCodesBytes = C::kCodes ? DoCodes::kBytes : 0;
  static_assert(!C::kCodes || !C::kSequenceMaps);
  HEDDLE_DEVICE static const Fp8BackwardArguments& wide(const BackwardArguments& args) {
    return static_cast<const Fp8BackwardArguments&>(args);
  }
  HEDDLE_DEVICE static const TensorMap* wide_map_of(const BackwardArguments& args, int which,
                                                    u32 shared) {
    if constexpr (C::kCodes) return which == 0 ? &wide(args).wide_q : &wide(args).wide_d_o;
    return map_of(args, which, shared);
  }

  /// Starts the copies of a tile or, where the tensor's columns are shared out, of each consumer's.
  template <class Tile>
  HEDDLE_DEVICE static void load(u32 tile, const TensorMap* map, u32 barrier, int columns, int row,
                                 int head, int batch) {
    if constexpr (C::kValues.shares() == 1)
      tile::load_tile<Tile>(tile, map, barrier, row, head, batch);
    else
      tile::load_shares<Tile>(tile, map, barrier, columns, C::kValues.share_of(columns),
                              block_rank<C::kRanks>() * C::kParts, C::kParts, row, head, batch);
  }
  template <class Tile>
  static constexpr int kStageBytes = C::kParts* Tile::kBytes;

  HEDDLE_DEVICE static void load_tiles(const BackwardArguments& args, u32 shared,
                                       const BackwardWork& work) {
    const attention::BackwardParameters& p = args.problem;
    const QRing q_ring{shared + Main::kAt.q_ring};
    const DoRing d_o_ring{shared + Main::kAt.d_o_ring};
    tile::RingCount<C::kQStages> q_at;
    tile::RingCount<C::kDOStages> d_o_at;
    typename Main::Step at(work);
    if constexpr (C::kSequenceMaps) {
#pragma unroll 1
      for (int which = 0; which < 4; ++which) ptx::tensor_map_acquire(map_of(args, which, shared));
    }
    ptx::mbarrier_arrive_expect_tx(shared + Main::kAt.k_full, kStageBytes<KTile>);
    load<KTile>(shared + Main::kAt.k, map_of(args, 1, shared), shared + Main::kAt.k_full, C::kQkDim,
                work.key0, work.key_head, place_of(work.batch));
#pragma unroll 1
    for (int step = 0; step < work.steps(); ++step) {
      const int row = at.tile * Main::kTileM;
      const i64 line =
          static_cast<i64>(work.batch * p.forward.q_heads + at.head) * args.q_rounded + row;

      ptx::mbarrier_wait(q_ring.empty(q_at.stage()), q_at.parity() ^ 1);
      const u32 q_full = q_ring.full(q_at.stage());
      ptx::mbarrier_arrive_expect_tx(q_full, kStageBytes<QTile> + kQCodesBytes + Main::kLseBytes);
      if constexpr (C::kCodes)
        tile::load_tile<QCodes>(shared + Main::kAt.q_codes + q_at.stage() * QCodes::kBytes, &args.q,
                                q_full, row, at.head, work.batch);
      load<QTile>(shared + Main::kAt.q + q_at.stage() * kStageBytes<QTile>,
                  wide_map_of(args, 0, shared), q_full, C::kQkDim, row, at.head,
                  place_of(work.batch));
      ptx::bulk_load(shared + Main::kAt.lse + q_at.stage() * Main::kLseBytes,
                     args.negative_lse + line * Main::kStatistics, Main::kLseBytes, q_full);
      if (step == 0) {
        ptx::mbarrier_arrive_expect_tx(shared + Main::kAt.v_full, kStageBytes<VTile>);
        load<VTile>(shared + Main::kAt.v, map_of(args, 2, shared), shared + Main::kAt.v_full,
                    C::kVDim, work.key0, work.key_head, place_of(work.batch));
      }
      ptx::mbarrier_wait(d_o_ring.empty(d_o_at.stage()), d_o_at.parity() ^ 1);
      const u32 d_o_full = d_o_ring.full(d_o_at.stage());
      ptx::mbarrier_arrive_expect_tx(d_o_full,
                                     kStageBytes<DoTile> + kDoCodesBytes + Main::kDeltaBytes);
      if constexpr (C::kCodes)
        tile::load_tile<DoCodes>(shared + Main::kAt.d_o_codes + d_o_at.stage() * DoCodes::kBytes,
                                 &args.d_o, d_o_full, row, at.head, work.batch);
      load<DoTile>(shared + Main::kAt.d_o + d_o_at.stage() * kStageBytes<DoTile>,
                   wide_map_of(args, 3, shared), d_o_full, C::kVDim, row, at.head,
                   place_of(work.batch));
      ptx::bulk_load(shared + Main::kAt.delta + d_o_at.stage() * Main::kDeltaBytes,
                     args.delta + line * C::kPlanes, Main::kDeltaBytes, d_o_full);
      q_at.advance();
      d_o_at.advance();
      at.advance(work);
    }
  }

  /// One thread: what the score reads in every cell.
  HEDDLE_DEVICE static void load_scores(const BackwardArguments& args, u32 shared) {
    using Tiles = typename Main::Tiles;
    const typename Tiles::Ring ring{shared + Main::kAt.tiled_ring};
    // Few registers are the producer's: all but the step's number is found anew.
    tile::RingCount<C::kTiledStages> stage;
#pragma unroll 1
    for (u32 step = 0;; ++step) {
      const BackwardWork work = Main::load_work(shared + Main::kAt.work);
      if (step == work.steps()) break;
      const typename Main::Step at(work, step);
      ptx::mbarrier_wait(ring.empty(stage.stage()), stage.parity() ^ 1);
      Tiles::load(args.tiled, shared + Main::kAt.tiled + stage.stage() * Tiles::kBytes,
                  ring.full(stage.stage()), work.key0, at.tile * Main::kTileM, at.head, work.batch);
      stage.advance();
    }
  }

  /// A warp of the producer group: adds the dQ parts of consumer group `part` to global memory, and
  /// sends what it has of the gradient of tiles, of the step before.
  HEDDLE_DEVICE static void reduce_d_q(const BackwardArguments& args, u32 shared,
                                       const BackwardWork& work, int part) {
    const bool leader = ptx::elect_one();
    typename Main::Step at(work);
#pragma unroll 1
    for (int left = work.steps(); left > 0; --left) {
      const int tile =
          (work.batch * args.problem.forward.q_heads + at.head) * (args.q_rounded / Main::kTileM) +
          at.tile;
      ptx::barrier_sync(Main::kDqFullBarrier + part, 128 + 32);
      if (leader) {
        if constexpr (C::kTiledGradient) {
          if (left < work.steps()) store_before(args, shared, work, left, part);
        }
        if constexpr (C::kDeterministic) {
          // Read anew: the bounds find no registers through the loop.
          const int mine = Main::turn(Main::load_work(shared + Main::kAt.work), at.tile);
          while (ptx::load_acquire(args.turns + tile * Main::kDqTurns + part) != mine) {
          }
          ptx::fence_proxy_async_global();
        }
        ptx::bulk_reduce_add_f32(
            args.d_q_sum + static_cast<i64>(tile) * (Main::kTileM * Main::kDqWidth) +
                part * Main::kDqPart,
            shared + Main::kAt.d_q + part * Main::kDqPart * 4, Main::kDqPart * 4);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
      __syncwarp();
      if (C::kTiledGradient || left > 1)
        ptx::barrier_arrive(Main::kDqEmptyBarrier + part, 128 + 32);
      if constexpr (C::kDeterministic) {
        if (leader) {  // the turn passes when the sum has landed, not when its source was read
          ptx::bulk_wait<0>();
          ptx::fence_proxy_async_global();
          ptx::atomic_add_release(args.turns + tile * Main::kDqTurns + part, 1);
        }
      }
      at.advance(work);
    }
    if constexpr (C::kTiledGradient) {
      ptx::barrier_sync(Main::kDqFullBarrier + part, 128 + 32);
      if (leader) {
        store_before(args, shared, work, 0, part);
        ptx::bulk_commit();
      }
    }
    if (leader) ptx::bulk_wait<0>();
  }

  /// The gradient of tiles, of the step before the last `left`.
  HEDDLE_DEVICE static void store_before(const BackwardArguments& args, u32 shared,
                                         const BackwardWork& work, int left, int part) {
    const typename Main::Step at(work, static_cast<u32>(work.steps() - left - 1));
    Main::TileGradient::store(args, shared, work, at, part);
  }
};

}  // namespace heddle::sm90
