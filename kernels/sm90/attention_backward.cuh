// Attention backward on Hopper, one block per tile of keys.
//
//   S^T = K Q^T          P^T  = exp(score(scale * S^T) - lse)           dV += P^T dO
//   dP^T = V dO^T        dS^T = P^T o (dP^T - delta) o slope            dK += dS^T Q
//                                                                       dQ += dS K
//
// K and V stay in shared memory, dK and dV in the registers of the consumer warp groups, each of
// which owns 64 keys; Q and dO stream through rings. Working on S^T makes P^T and dS^T, as they
// leave the accumulators, the register operands of dV and dK; only dS passes through shared memory,
// for dQ, where the keys of all groups meet. dQ is summed over blocks in f32, in fragment order,
// unless a block has all keys of its head; attention_backward_rows.cuh holds the passes before and
// after.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "backward_block.cuh"
#include "backward_producer.cuh"
#include "backward_scores.cuh"
#include "backward_steps.cuh"
#include "backward_tile_gradient.cuh"
#include "backward_tiles.cuh"
#include "fp8_turned_keys.cuh"

namespace heddle::sm90 {

/// Head dims up to 128. Score, Derivative: backward_scores.cuh.
template <class Config, class Score = PlainBackwardScore, class Derivative = UnitDerivative>
struct AttentionBackward : BackwardBlock<Config, Config::kTileM, 64 * Config::kConsumers> {
  using Block = BackwardBlock<Config, Config::kTileM, 64 * Config::kConsumers>;
  using Block::kDeltaBytes;
  using Block::kLseBytes;
  using Block::kQk;
  using Block::kRowBytes;
  using Block::kTileM;
  using Block::kTileN;
  using Block::kVd;
  using typename Block::C;
  using typename Block::DoTile;
  using typename Block::DsTile;
  using typename Block::KTile;
  using typename Block::QTile;
  using typename Block::T;
  using typename Block::Tiles;
  using typename Block::VTile;
  static constexpr bool kPlainScore = Score::kIdentity;
  static constexpr int kThreads = C::kValues.threads();
  // Their sum over the groups is no more than the launch gave, else they would wait for ever.
  static constexpr int kLaunchedRegisters = 65536 / (C::kBlocks * kThreads) / 8 * 8;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = min_of(
      240, ((1 + C::kConsumers) * kLaunchedRegisters - kProducerRegisters) / C::kConsumers / 8 * 8);
  static constexpr bool kSplitColumns = C::kValues.splits_columns();
  static constexpr int kDqColumns = C::kValues.dq_columns(), kDqWidth = C::kValues.dq_width();
  static constexpr int kDqPart = 64 * kDqColumns;  // elements: [8 columns][thread][4]
  static constexpr int kDqGroupStride = 512, kDqWarpStride = 128;
  static constexpr int kDqTurns = C::kValues.dq_turns();  ///< of a query tile
  using DqTile = tile::SharedTile<64, kDqColumns>;        ///< of a group, as it is written
  static_assert(!C::kAllKeys || is_same<typename C::Result, T>, "f32 leaves by its sums");
  static_assert(kTileM == 64 || kTileM == 64 * C::kConsumers);
  static_assert(kQk <= kDqWidth, "head dims above 128 take attention_backward_by_gradient.cuh");

  static constexpr BackwardLayout kAt = layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDOStages>;
  static_assert(kSharedBytes <= kMostShared, "shared memory of a block");

  // Named barriers: 0 is __syncthreads. The dQ pair exists once per group.
  static constexpr int kConsumersBarrier = 1, kDqFullBarrier = 2, kDqEmptyBarrier = 4;

  /// What a consumer group hands to the warp that adds up dQ: has been read, or is written.
  HEDDLE_DEVICE static void wait_read(int part) {
    ptx::barrier_sync(kDqEmptyBarrier + part, 128 + 32);
  }
  HEDDLE_DEVICE static void hand_over(int part) {
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kDqFullBarrier + part, 128 + 32);
  }

  using Producer = BackwardProducer<AttentionBackward>;
  using TileGradient = BackwardTileGradient<AttentionBackward>;
  using TurnedKeys = Fp8TurnedKeys<AttentionBackward>;
  /// One consumer warp group: 64 keys of the block.
  struct Consumer : BackwardScores<Block, Score, Derivative>, BackwardTiles<AttentionBackward> {
    using Scores = BackwardScores<Block, Score, Derivative>;
    using Scores::args;
    using Scores::probability;
    using Scores::s;
    using Scores::scale;
    using Scores::thread;
    using Scores::work;
    using Shared = BackwardTiles<AttentionBackward>;
    using Shared::arrive;
    using Shared::d_o_ring;
    using Shared::d_o_tile;
    using Shared::d_s_full;
    using Shared::d_s_tile;
    using Shared::part;
    using Shared::q_ring;
    using Shared::q_tile;
    using Shared::shared;

    typename Tiles::Position tiled_at;

    float d_p[kTileM / 2], d_q[kDqColumns / 2], d_k[kQk / 2], d_v[kVd / 2];
    u32 d_s[kTileM / 16][4];
    u32 largest = 0;  ///< magnitude of dS

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Scores(args, work, work.key0 + 64 * (threadIdx.x / 128 - 1)), Shared(shared) {}

    HEDDLE_DEVICE static u32 operand(u32 address) {
      return tile::operand_address<(C::kCluster > 1)>(address);
    }

    // The products, each a group of its own.

    HEDDLE_DEVICE void begin_s(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kQk / 16>(
          s, tile::KMajor<KTile>(operand(shared + kAt.k), 64 * part),
          tile::KMajor<QTile>(operand(q_tile(stage))), false);
      ptx::wgmma_commit();
    }
    template <int kBehind>
    HEDDLE_DEVICE void end_s() {
      ptx::wgmma_wait<kBehind>();
      ptx::pin(s);
    }
    HEDDLE_DEVICE void begin_d_p(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kVd / 16>(
          d_p, tile::KMajor<VTile>(operand(shared + kAt.v), 64 * part),
          tile::KMajor<DoTile>(operand(d_o_tile(stage))), false);
      ptx::wgmma_commit();
    }
    template <int kBehind>
    HEDDLE_DEVICE void end_d_p() {
      ptx::wgmma_wait<kBehind>();
      ptx::pin(d_p);
    }
    HEDDLE_DEVICE void issue_d_v(int stage, bool accumulate) {
      ptx::wgmma_fence();
      tile::issue_product<T, kVd, kTileM / 16>(
          d_v, probability, tile::MnMajor<DoTile>(operand(d_o_tile(stage))), accumulate);
      ptx::wgmma_commit();
    }
    /// The sums are the tensor core's: nothing is left to add.
    HEDDLE_DEVICE void add_d_v(int) {}
    HEDDLE_DEVICE void issue_d_k(int, int stage, bool accumulate) {
      ptx::wgmma_fence();
      tile::issue_product<T, kQk, kTileM / 16>(
          d_k, d_s, tile::MnMajor<QTile>(operand(q_tile(stage))), accumulate);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void add_d_k(int) {}
    HEDDLE_DEVICE void issue_d_q(int step) {
      ptx::mbarrier_wait(d_s_full(step), step >> 1 & 1);
      ptx::wgmma_fence();
      tile::issue_product<T, kDqColumns, kTileN / 16>(
          d_q, tile::MnMajor<DsTile>(operand(d_s_tile(step)), kSplitColumns ? 0 : 64 * part),
          tile::MnMajor<KTile>(operand(shared + kAt.k), kSplitColumns ? kDqColumns * part : 0),
          false);
      ptx::wgmma_commit();
    }

    /// S^T of the step to P^T, with what the score reads of its cells.
    HEDDLE_DEVICE void exponentiate(int stage, const typename Block::Step& step) {
      const u32 lse = shared + kAt.lse + stage * kLseBytes;
      if constexpr (Tiles::kThere) {
        const typename Tiles::Ring ring{shared + kAt.tiled_ring};
        ptx::mbarrier_wait(ring.full(tiled_at.stage()), tiled_at.parity());
        typename Tiles::ColumnReader tiled(shared + kAt.tiled + tiled_at.stage() * Tiles::kBytes,
                                           64 * part);
        Scores::exponentiate(lse, step, &tiled);
        ptx::mbarrier_arrive(ring.empty(tiled_at.stage()));
        tiled_at.advance();
      } else {
        Scores::exponentiate(lse, step);
      }
    }

    /// dS = P o slope o (dP - delta), kept as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(int stage, int step, int) {
      const u32 delta =
          shared + kAt.delta + stage * kDeltaBytes + tile::fragment_column(thread) * 4;
      const float keep_scale = Block::keep_scale_of(args);
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        differentiate_slice<C>(d_s[k], this->factor(k), this->probability[k], d_p, delta, k,
                               keep_scale, largest);
        tile::store_slice<DsTile>(d_s_tile(step), 64 * part + thread / 32 * 16, k, d_s[k]);
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      arrive(d_s_full(step));
    }

    HEDDLE_DEVICE TileGradient tile_gradient() const { return {args, work, shared}; }

    /// Hands dQ, in fragment order, to the warp that adds it up; writes it if it is whole.
    HEDDLE_DEVICE void send_d_q(int step, const typename Block::Step& at) {
      if constexpr (C::kAllKeys) {
        store_d_q(at);
        return;
      }
      const u32 to = shared + kAt.d_q + part * kDqPart * 4 + thread * 16;
      if (!C::kTiledGradient && step > 0) wait_read(part);
#pragma unroll
      for (int i = 0; i < kDqColumns / 8; ++i)
        ptx::store_shared(to + i * 128 * 16, d_q[4 * i], d_q[4 * i + 1], d_q[4 * i + 2],
                          d_q[4 * i + 3]);
      hand_over(part);
    }

    HEDDLE_DEVICE void store_d_q(const typename Block::Step& at) {
      const attention::Tensor& out = args.problem.d_q;
      if (out.data == nullptr) return;
      const int row = at.tile * kTileM + (kSplitColumns ? 0 : 64 * part);
      const int column = kSplitColumns ? kDqColumns * part : 0;
      __syncwarp();  // all lanes have read what the step before staged
      Block::template store_rows<DqTile, kDqColumns>(
          d_q, scale * Block::kOfSlope, shared + kAt.d_q + part * kAt.d_q_bytes, thread / 32 * 16,
          attention::element_pointer<T>(out, work.batch, at.head, row, column), out.stride[2],
          Block::written_queries(args, work) - row, C::kQkDim - column);
    }

    HEDDLE_DEVICE void store() {
      ptx::pin(d_v);
      ptx::pin(d_k);
      raise_largest<Block>(args, largest);
      const int warp_row = 64 * part + thread / 32 * 16;
      Block::template store_gradient<VTile, C::kVDim, kVd>(
          d_v, Block::keep_scale_of(args), shared + kAt.v, warp_row, args.problem.d_v, args, work);
      ptx::barrier_sync(kConsumersBarrier, 128 * C::kConsumers);  // all have read K
      Block::template store_gradient<KTile, C::kQkDim, kQk>(
          d_k, scale * Block::kOfSlope, shared + kAt.k, warp_row, args.problem.d_k, args, work);
    }
  };

  // --- Kernel ---------------------------------------------------------------------------------

  /// Grid: key tiles * key heads * batch; kThreads threads; kSharedBytes.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) { run_with<Consumer>(args); }

  template <class ConsumerOf>
  HEDDLE_DEVICE static void run_with(const BackwardArguments& args) {
    extern __shared__ __align__(1024) char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      const BackwardWork work = Block::work_of_block(args);
      Block::store_work(shared + kAt.work, work);
      ptx::mbarrier_init(shared + kAt.k_full, 1);
      ptx::mbarrier_init(shared + kAt.v_full, 1);
      ptx::mbarrier_init(shared + kAt.d_s_full, 4 * C::kConsumers);
      ptx::mbarrier_init(shared + kAt.d_s_full + 8, 4 * C::kConsumers);
      // Every thread for the row statistics it read: racecheck follows no other.
      QRing{shared + kAt.q_ring}.init(1, 128 * C::kConsumers);
      DoRing{shared + kAt.d_o_ring}.init(1, 128 * C::kConsumers);
      if constexpr (Tiles::kThere)
        typename Tiles::Ring{shared + kAt.tiled_ring}.init(1, 128 * C::kConsumers);
      if constexpr (C::kTiledGradient) TileGradient::init(shared);
      if constexpr (C::kCodes) TurnedKeys::init(shared);
      ptx::mbarrier_init_fence();
    }
    if constexpr (C::kCluster > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::grid_dependents_launch();
    ptx::grid_dependency_wait();
    if (const BackwardWork work = Block::load_work(shared + kAt.work); work.steps() == 0) {
      Block::template store_zeros<C::kQkDim>(args.problem.d_k, args, work);
      Block::template store_zeros<C::kVDim>(args.problem.d_v, args, work);
      if constexpr (C::kAllKeys) Block::store_zero_queries(args, work, threadIdx.x, kThreads);
      if constexpr (C::kTiledGradient)
        TileGradient{args, work, shared}.store_zeros(threadIdx.x, kThreads);
      return;
    }

    if (threadIdx.x < 128) {
      ptx::registers_shrink<kProducerRegisters>();
      const int warp = threadIdx.x / 32;
      if constexpr (C::kCodes) {
        if (warp > 0) TurnedKeys::make(shared, threadIdx.x - 32);
      }
      const BackwardWork work = Block::load_work(shared + kAt.work);
      if (warp == 0) {
        if (ptx::elect_one()) Producer::load_tiles(args, shared, work);
      } else if (warp == C::kConsumers + 1) {
        if constexpr (Tiles::kThere) {
          if (ptx::elect_one()) Producer::load_scores(args, shared);
        }
      } else if (warp <= C::kConsumers) {
        if constexpr (!C::kAllKeys) Producer::reduce_d_q(args, shared, work, warp - 1);
      }
    } else {
      ptx::registers_grow<kConsumerRegisters>();
      const BackwardWork work = Block::load_work(shared + kAt.work);
      ConsumerOf consumer(args, work, shared);
      run_steps<AttentionBackward>(consumer, work);
      if constexpr (C::kAllKeys)
        Block::store_zero_queries(args, work, threadIdx.x - 128, 128 * C::kConsumers);
      if constexpr (C::kTiledGradient)
        consumer.tile_gradient().store_zeros(threadIdx.x - 128, 128 * C::kConsumers);
    }
  }
};

}  // namespace heddle::sm90
