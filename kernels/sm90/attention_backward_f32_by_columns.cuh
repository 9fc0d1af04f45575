// Attention backward on Hopper in f32 for head dims above 256: two warp groups of each of two
// blocks of a cluster share 64 keys, each with columns of its own of Q, K, V and dO.
//
//   S^T  = K Q^T      dP^T  = V dO^T       of its own columns, then added up in all
//   P^T  = exp(scale * S^T - lse)          dS^T = P^T o (dP^T - delta)
//   dV  += P^T dO     dK   += dS^T Q       dQ^T = K^T dS^T
//
// in the arithmetic of attention_backward_f32.cuh. dQ is made transposed: a product has 64 rows,
// and a step no more than 32 queries, as columns of 64 keys and their gradients fill what there is
// of shared memory and of registers.
#pragma once

#include "../ptx/cluster.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "backward_block.cuh"
#include "backward_f32.cuh"
#include "backward_producer.cuh"
#include "backward_register_sums.cuh"
#include "backward_scores.cuh"
#include "block_rank.cuh"
#include "shared_dots.cuh"

namespace heddle::sm90 {

template <class Config>
struct AttentionBackwardF32ByColumns : BackwardBlock<Config, Config::kTileM, 64>,
                                       BackwardRegisterSums<Config> {
  using Main = AttentionBackwardF32ByColumns;
  using Block = BackwardBlock<Config, Config::kTileM, 64>;
  using Sums = BackwardRegisterSums<Config>;
  using Block::kDeltaBytes;
  using Block::kLseBytes;
  using Block::kRowBytes;
  using Block::kTileM;
  using Block::kTileN;
  using Sums::kDqColumns;
  using Sums::kDqWidth;
  using typename Block::C;
  using typename Block::DoTile;
  using typename Block::KTile;
  using typename Block::QTile;
  using typename Block::T;
  using typename Block::VTile;
  static constexpr bool kPlainScore = true;
  static_assert(C::kPlanes == 2 && is_same<T, f16> && is_same<typename C::Result, float>);
  static_assert(!C::kHasScore && C::kUnitSlope && !C::kDrops && !C::kDeterministic);
  static constexpr int kThreads = C::kValues.threads();
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // Of a consumer.
  static constexpr int kQkColumns = Block::kQk, kVColumns = Block::kVd;
  static_assert(kQkColumns <= 128 && kVColumns <= 128, "registers");
  /// A row per key; its planes side by side in one box.
  using DsTile = tile::SharedTile<kTileN, 2 * kTileM>;
  static_assert(2 * kTileM == tile::kBoxColumns);
  struct DsPlane : DsTile {
    static constexpr int kBytes = 2 * kTileM;  ///< to the other plane
  };
  static constexpr int kDqBoxes = kDqColumns / tile::kBoxColumns;

  static constexpr BackwardLayout kAt = layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  static_assert(kSharedBytes <= kMostShared, "shared memory of a block");
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDOStages>;
  using Producer = BackwardProducer<Main>;

  // Of SharedDots.
  static constexpr bool kSharesDots = true;
  static constexpr int kDotCells = kTileM / 2;
  // Named barriers: 0 is __syncthreads.
  static constexpr int kDotsBarrier = 1, kGroupBarrier = 5;

  HEDDLE_DEVICE static HeadUnits units_of(const BackwardArguments& args, int batch, int head) {
    return head_units<Block, PlainBackwardScore>(args, batch, head);
  }

  /// One consumer warp group: its columns.
  struct Consumer : BackwardBand<Block> {
    using Band = BackwardBand<Block>;
    using Band::args;
    using Band::thread;
    using Band::work;
    const u32 shared;
    const int part, share;
    SharedDots<Main> exchange;
    float d_k[kQkColumns / 2], d_v[kVColumns / 2];

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Band(args, work, work.key0),
          shared(shared),
          part(static_cast<int>(threadIdx.x) / 128 - 1),
          share(block_rank<C::kRanks>() * C::kParts + part),
          exchange(shared, part) {
#pragma unroll
      for (float& x : d_k) x = 0;
#pragma unroll
      for (float& x : d_v) x = 0;
    }

    HEDDLE_DEVICE static u32 operand(u32 address) {
      return tile::operand_address<(C::kRanks > 1)>(address);
    }
    /// Where the consumer's own of the tiles of a stage lies, as an operand.
    template <class Tile>
    HEDDLE_DEVICE u32 own(int at, int stage = 0) const {
      return operand(shared + at + (C::kParts * stage + part) * Tile::kBytes);
    }
    HEDDLE_DEVICE u32 d_s_tile() const { return shared + kAt.d_s + part * DsTile::kBytes; }

    /// Dot products of columns of keys with those of queries, over the consumer's own.
    template <class KeyTile, class QueryTile, int kColumns, bool kTransposed>
    HEDDLE_DEVICE static void multiply(float (&dots)[kTileM / 2], u32 keys, u32 queries) {
      tile::product_by_steps<T, kTileM, kColumns / 16, 2, kTransposed>(
          dots, tile::KMajor<typename KeyTile::Plane>(keys),
          tile::KMajor<typename QueryTile::Plane>(queries));
    }

    /// S^T to P^T.
    HEDDLE_DEVICE void exponentiate(float (&s)[kTileM / 2], int stage,
                                    const typename Block::Step& at) const {
      const int row0 = at.tile * kTileM;
      exponentiate_f32<Block>(s, shared + kAt.lse + stage * kLseBytes,
                              units_at(args, work, at.head));
      if (!this->whole(row0))
        this->each_cell(row0, [&](int i, bool visible) { s[i] = visible ? s[i] : 0.0f; });
    }

    /// dS = P o (dP - delta), as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(u32 (&d_s)[2][kTileM / 16][4], const float (&p)[kTileM / 2],
                                     const float (&d_p)[kTileM / 2], int stage, int head) const {
      const u32 delta =
          shared + kAt.delta + stage * kDeltaBytes + tile::fragment_column(thread) * 4;
      const float unit = units_at(args, work, head).d_p * kWeightUnit,
                  delta_unit = units_at(args, work, head).delta * kWeightUnit;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        float x[8];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const F32Slope<kRowBytes> slope(delta + 4 * (16 * k + 8 * n));
#pragma unroll
          for (int i = 4 * n; i < 4 * n + 4; ++i)
            x[i] = p[8 * k + i] * slope.of(d_p[8 * k + i], i % 2, unit, delta_unit);
        }
        split_slice(d_s, k, x);
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
          tile::store_slice<DsTile>(d_s_tile(), thread / 32 * 16, kTileM / 16 * plane + k,
                                    d_s[plane][k]);
      }
      ptx::fence_proxy_async_shared();
      ptx::barrier_sync(kGroupBarrier + part, 128);
    }

    HEDDLE_DEVICE void add_d_q(const typename Block::Step& at) const {
      float d_q[kDqBoxes][kTileM / 2];
      const u32 d_s = operand(d_s_tile());
      ptx::wgmma_fence();
#pragma unroll
      for (int box = 0; box < kDqBoxes; ++box)
        tile::issue_product<T, kTileM, kTileN / 16, 2>(
            d_q[box],
            tile::MnMajor<typename KTile::Plane>(own<KTile>(kAt.k), tile::kBoxColumns * box),
            tile::MnMajor<DsPlane>(d_s), false);
      ptx::wgmma_commit();
      const float unit = units_at(args, work, at.head).d_q;
      const int head = work.batch * args.problem.forward.q_heads + at.head,
                tile = head * (args.q_rounded / kTileM) + at.tile;
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int box = 0; box < kDqBoxes; ++box) {
        ptx::pin(d_q[box]);
        // The last box may reach beyond the share.
        if (tile::kBoxColumns * box + thread / 32 * 16 < kQkColumns)
          Sums::add_d_q(args, tile, kDqBoxes * share + box, d_q[box], unit);
      }
    }

    HEDDLE_DEVICE void run() {
      const QRing q_ring{shared + kAt.q_ring};
      const DoRing d_o_ring{shared + kAt.d_o_ring};
      typename Block::Step at(work);
      tile::RingPosition<C::kQStages> q_at;
      tile::RingPosition<C::kDOStages> d_o_at;
      ptx::mbarrier_wait(shared + kAt.k_full, 0);
      ptx::mbarrier_wait(shared + kAt.v_full, 0);
#pragma unroll 1
      for (int left = work.steps(); left > 0; --left) {
        const u32 q = own<QTile>(kAt.q, q_at.stage()), d_o = own<DoTile>(kAt.d_o, d_o_at.stage());
        float p[kTileM / 2], d_p[kTileM / 2];
        ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
        multiply<KTile, QTile, kQkColumns, C::kMaxAndSum>(p, own<KTile>(kAt.k), q);
        exchange.leave(p);
        ptx::mbarrier_wait(d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        multiply<VTile, DoTile, kVColumns, false>(d_p, own<VTile>(kAt.v), d_o);
        exchange.take(p);
        exchange.leave(d_p);
        exponentiate(p, q_at.stage(), at);
        {
          u32 probability[2][kTileM / 16][4];
          tile::split_fragment<T, kTileM>(probability, p, kWeightUnit);
          add_product<DoTile, 64>(d_v, probability, d_o, units_at(args, work, at.head).d_v);
        }
        exchange.take(d_p);
        u32 d_s[2][kTileM / 16][4];
        differentiate(d_s, p, d_p, d_o_at.stage(), at.head);
        ptx::mbarrier_arrive(d_o_ring.empty(d_o_at.stage()));
        add_product<QTile, 64>(d_k, d_s, q, units_at(args, work, at.head).d_k);
        ptx::mbarrier_arrive(q_ring.empty(q_at.stage()));
        add_d_q(at);
        q_at.advance();
        d_o_at.advance();
        at.advance(work);
      }
      Block::template store_f32_gradient<C::kVDim, kVColumns>(d_v, 1.0f, args.problem.d_v, args,
                                                              work, work.key0, share * kVColumns);
      Block::template store_f32_gradient<C::kQkDim, kQkColumns>(
          d_k, Block::scale_of(args) * Block::kOfLog2, args.problem.d_k, args, work, work.key0,
          share * kQkColumns);
    }
  };

  /// Grid: ranks * key tiles * key heads * batch, in clusters of ranks; kThreads threads;
  /// kSharedBytes. After prepare and the kernels that make pairs.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    extern __shared__ __align__(1024) char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      Block::store_work(shared + kAt.work, Block::work_of_block(args));
      ptx::mbarrier_init(shared + kAt.k_full, 1);
      ptx::mbarrier_init(shared + kAt.v_full, 1);
      // Every thread for the row statistics it read: racecheck follows no other.
      QRing{shared + kAt.q_ring}.init(1, 128 * C::kConsumers);
      DoRing{shared + kAt.d_o_ring}.init(1, 128 * C::kConsumers);
      SharedDots<Main>::init(shared);
      ptx::mbarrier_init_fence();
    }
    if constexpr (C::kRanks > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::grid_dependents_launch();
    ptx::grid_dependency_wait();
    const BackwardWork work = Block::load_work(shared + kAt.work);
    if (work.steps() == 0) {  // of both blocks of a cluster
      Block::template store_zeros<C::kQkDim>(args.problem.d_k, args, work);
      Block::template store_zeros<C::kVDim>(args.problem.d_v, args, work);
      return;
    }
    if (threadIdx.x < 128) {
      ptx::registers_shrink<kProducerRegisters>();
      if (threadIdx.x == 0) Producer::load_tiles(args, shared, Block::load_work(shared + kAt.work));
    } else {
      ptx::registers_grow<kConsumerRegisters>();
      const BackwardWork own = Block::load_work(shared + kAt.work);
      Consumer(args, own, shared).run();
    }
    // The other block may still reach in here.
    if constexpr (C::kRanks > 1) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
};

}  // namespace heddle::sm90
