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

  /// Ragged sequences follow each other in one buffer: leaves the rows of the maps where the batch
  /// entry starts (q, k, v, d_o) in shared memory. The loading thread has no registers to divide.
  HEDDLE_DEVICE static void place_maps(const BackwardArguments& args, u32 shared, int batch) {
    const attention::BackwardParameters& p = args.problem;
    for (int which = 0; which < 4; ++which) {
      const attention::Tensor& tensor = which == 0   ? p.forward.q
                                        : which == 1 ? p.forward.k
                                        : which == 2 ? p.forward.v
                                                     : p.d_o;
      i64 row = 0;
      if (tensor.offsets != nullptr)
        row = attention::load_integer(tensor.offsets, batch, tensor.offsets_are_64_bit) *
              tensor.multiplier / tensor.stride[2];
      ptx::store_shared(shared + Main::kMapRows + 4 * which, static_cast<u32>(row));
    }
  }
  HEDDLE_DEVICE static int map_row(u32 shared, int which) {
    return C::kLengths ? static_cast<int>(ptx::load_shared_u32(shared + Main::kMapRows + 4 * which))
                       : 0;
  }
  HEDDLE_DEVICE static int map_batch(const attention::Tensor& tensor, int batch) {
    return C::kLengths && tensor.offsets != nullptr ? 0 : batch;
  }

  HEDDLE_DEVICE static void load_tiles(const BackwardArguments& args, u32 shared,
                                       const BackwardWork& work) {
    const attention::BackwardParameters& p = args.problem;
    const QRing q_ring{shared + Main::kQRing};
    const DoRing d_o_ring{shared + Main::kDoRing};
    tile::RingPosition<C::kQStages> q_at;
    tile::RingPosition<C::kDoStages> d_o_at;
    typename Main::Step at(work);
    ptx::mbarrier_arrive_expect_tx(shared + Main::kKFull, KTile::kBytes);
    tile::load_tile<KTile>(shared + Main::kKOffset, &args.k, shared + Main::kKFull,
                           map_row(shared, 1) + work.key0, work.key_head,
                           map_batch(p.forward.k, work.batch));
#pragma unroll 1  // few registers are the producer's
    for (int step = 0; step < work.steps(); ++step) {
      const int row = at.tile * Main::kTileM;
      const i64 line =
          static_cast<i64>(work.batch * p.forward.q_heads + at.head) * args.q_rounded + row;

      ptx::mbarrier_wait(q_ring.empty(q_at.stage()), q_at.parity() ^ 1);
      const u32 q_full = q_ring.full(q_at.stage());
      ptx::mbarrier_arrive_expect_tx(q_full, QTile::kBytes + Main::kRowBytes);
      tile::load_tile<QTile>(shared + Main::kQOffset + q_at.stage() * QTile::kBytes, &args.q,
                             q_full, map_row(shared, 0) + row, at.head,
                             map_batch(p.forward.q, work.batch));
      ptx::bulk_load(shared + Main::kLseOffset + q_at.stage() * Main::kRowBytes,
                     args.negative_lse2 + line, Main::kRowBytes, q_full);
      if (step == 0) {
        ptx::mbarrier_arrive_expect_tx(shared + Main::kVFull, VTile::kBytes);
        tile::load_tile<VTile>(shared + Main::kVOffset, &args.v, shared + Main::kVFull,
                               map_row(shared, 2) + work.key0, work.key_head,
                               map_batch(p.forward.v, work.batch));
      }
      ptx::mbarrier_wait(d_o_ring.empty(d_o_at.stage()), d_o_at.parity() ^ 1);
      const u32 d_o_full = d_o_ring.full(d_o_at.stage());
      ptx::mbarrier_arrive_expect_tx(d_o_full, DoTile::kBytes + Main::kRowBytes);
      tile::load_tile<DoTile>(shared + Main::kDoOffset + d_o_at.stage() * DoTile::kBytes, &args.d_o,
                              d_o_full, map_row(shared, 3) + row, at.head,
                              map_batch(p.d_o, work.batch));
      ptx::bulk_load(shared + Main::kDeltaOffset + d_o_at.stage() * Main::kRowBytes,
                     args.delta + line, Main::kRowBytes, d_o_full);
      q_at.advance();
      d_o_at.advance();
      at.advance(work);
    }
  }

  /// A warp of the producer group: adds the dQ parts of consumer group `part` to global memory.
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
        if constexpr (C::kDeterministic) {
          // Read anew: the bounds find no registers through the loop.
          const int mine = Main::turn(Main::load_work(shared + Main::kWork), at.tile);
          while (ptx::load_acquire(args.turns + tile * Main::kDqTurns + part) != mine) {
          }
          ptx::fence_proxy_async_global();
        }
        ptx::bulk_reduce_add_f32(
            args.d_q_sum + static_cast<i64>(tile) * (Main::kTileM * Main::kDqWidth) +
                part * Main::kDqPart,
            shared + Main::kDqOffset + part * Main::kDqPart * 4, Main::kDqPart * 4);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
      __syncwarp();
      if (left > 1) ptx::barrier_arrive(Main::kDqEmptyBarrier + part, 128 + 32);
      if constexpr (C::kDeterministic) {
        if (leader) {  // the turn passes when the sum has landed, not when its source was read
          ptx::bulk_wait<0>();
          ptx::fence_proxy_async_global();
          ptx::atomic_add_release(args.turns + tile * Main::kDqTurns + part, 1);
        }
      }
      at.advance(work);
    }
    if (leader) ptx::bulk_wait<0>();
  }
};

}  // namespace heddle::sm90
