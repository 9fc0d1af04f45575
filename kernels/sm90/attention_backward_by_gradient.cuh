// Attention backward on Hopper for head dims up to 512, one block per 64 keys, or above 256 two of
// a cluster, each with half of all columns.
//
//   dV group:  S^T  = K Q^T      P^T  = exp(score(scale * S^T) - lse)      dV += P^T dO
//   dK group:  dP^T = V dO^T     dS^T = P^T o (dP^T - delta) o slope       dK += dS^T Q
//   dQ group:                                                             dQ += dS K
//
// dK and dV of 64 keys fill the registers of a warp group each, so a group owns one of them and the
// product that feeds it: P^T and dS^T, as they leave the accumulators, are the register operands of
// dV and dK. P^T passes from thread to thread of the first two groups through shared memory, dS to
// the third, which has the registers left for dQ and nothing to do but to add it up in f32.
// Each group runs its own loop; what keeps the tensor cores busy is that the three are apart.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "backward_block.cuh"
#include "backward_producer.cuh"
#include "backward_register_sums.cuh"
#include "backward_scores.cuh"
#include "backward_turns.cuh"
#include "block_rank.cuh"
#include "peer_dots.cuh"

namespace heddle::sm90 {

template <class Config, class Score = PlainBackwardScore, class Derivative = UnitDerivative>
struct AttentionBackwardByGradient : BackwardBlock<Config, Config::kTileM, 64>,
                                     BackwardRegisterSums<Config> {
  using Block = BackwardBlock<Config, Config::kTileM, 64>;
  using Sums = BackwardRegisterSums<Config>;
  using Block::kDeltaBytes;
  using Block::kLseBytes;
  using Block::kQk;
  using Block::kRowBytes;
  using Block::kTileM;
  using Block::kTileN;
  using Block::kVd;
  using Sums::kDqParts;
  using Sums::kDqTurnsOfBlock;
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
  static_assert(C::kByGradient);
  static constexpr bool kShares = C::kRanks > 1;  ///< columns
  /// What a group knows of its work and of itself it finds anew in each step: to hold it there are
  /// no registers beside 256 columns and what goes to the other block.
  static constexpr bool kFindsAnew = kShares && max_of(kQk, kVd) > 192;
  // Their sum over the groups is what the launch gave: 128 a thread. More would wait for ever.
  static constexpr bool kProducerHasMore = Tiles::kThere || kShares;
  static constexpr int kProducerRegisters = Sums::kTurned || kProducerHasMore ? 32 : 24,
                       kOwnerRegisters = Sums::kTurned ? 216 : 208,
                       kDqRegisters = Sums::kTurned      ? 48
                                      : kProducerHasMore ? 64
                                                         : 72;
  static_assert(kQk <= 256 && kVd <= 256, "registers");
  static_assert(!(Tiles::kThere && C::kDeterministic), "no warp is left to fetch them");

  static constexpr int kPartsOfTurn = BackwardConfig::kPartsOfTurn;
  static constexpr int kHandovers = C::kValues.handovers();

  static constexpr BackwardLayout kAt = layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDOStages>;
  using Handover = tile::Ring<kHandovers>;
  using Turns = BackwardTurns<AttentionBackwardByGradient>;
  static_assert(kSharedBytes <= kMostShared, "shared memory of a block");

  using Producer = BackwardProducer<AttentionBackwardByGradient>;
  // Counted, they are all the step.
  using QPosition = tile::RingPosition<C::kQStages, kFindsAnew>;
  using DoPosition = tile::RingPosition<C::kDOStages, kFindsAnew>;
  using HandoverPosition = tile::RingPosition<kHandovers, kFindsAnew>;

  HEDDLE_DEVICE static u32 q_tile(u32 shared, int stage) {
    return shared + kAt.q + stage * QTile::kBytes;
  }
  HEDDLE_DEVICE static u32 d_o_tile(u32 shared, int stage) {
    return shared + kAt.d_o + stage * DoTile::kBytes;
  }

  HEDDLE_DEVICE static u32 operand(u32 shared) { return tile::operand_address<kShares>(shared); }
  /// The block's first column of a tensor of so many.
  HEDDLE_DEVICE static int first_column(int columns) {
    return block_rank<C::kRanks>() * C::kValues.share_of(columns);
  }

  /// One arrival a warp, for what all its lanes have done.
  HEDDLE_DEVICE static void arrive(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  HEDDLE_DEVICE static int thread_of_group() {
    return (kFindsAnew ? ptx::thread_anew() : threadIdx.x) % 128;
  }
  HEDDLE_DEVICE static BackwardWork work_of(const BackwardWork& held, u32 shared) {
    return kFindsAnew ? Block::load_work(shared + kAt.work) : held;
  }
  HEDDLE_DEVICE static int steps_of(int held, u32 shared) {
    return kFindsAnew ? Block::load_work(shared + kAt.work).steps() : held;
  }

  HEDDLE_DEVICE static u32 p_slice(u32 shared, int stage, int k) {
    return shared + kAt.p + stage * kAt.p_bytes + k * 128 * 16 + thread_of_group() * 16;
  }
  HEDDLE_DEVICE static u32 d_s_tile(u32 shared, int stage) {
    return shared + kAt.d_s + stage * DsTile::kBytes;
  }

  /// d (64 x kColumns) += a * the tile. ptxas compiles no product of more columns than 128 in a
  /// kernel that starts with 128 registers.
  template <int kColumns, class Tile>
  HEDDLE_DEVICE static void issue_halves(float (&d)[kColumns / 2], const u32 (&a)[kTileM / 16][4],
                                         u32 tile_address, bool accumulate) {
    constexpr int kFirst = min_of(kColumns, 128), kRest = kColumns - kFirst;
    tile::issue_product<T, kFirst, kTileM / 16>(reinterpret_cast<float(&)[kFirst / 2]>(d), a,
                                                tile::MnMajor<Tile>(tile_address), accumulate);
    if constexpr (kRest > 0)
      tile::issue_product<T, kRest, kTileM / 16>(
          reinterpret_cast<float(&)[kRest / 2]>(d[kFirst / 2]), a,
          tile::MnMajor<Tile>(tile_address, kFirst), accumulate);
  }

  // --- S, P and dV ----------------------------------------------------------------------------

  struct DvWarpGroup : BackwardScores<Block, Score, Derivative> {
    using Scores = BackwardScores<Block, Score, Derivative>;
    using Scores::args;
    using Scores::probability;
    using Scores::s;
    using Scores::thread;
    using Scores::work;
    const u32 shared;
    PeerDots<AttentionBackwardByGradient, PeerDotsOf::scores> exchange{shared};
    float d_v[kVd / 2];

    HEDDLE_DEVICE DvWarpGroup(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Scores(args, work, work.key0), shared(shared) {}

    HEDDLE_DEVICE void issue_s(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kQk / 16>(s, tile::KMajor<KTile>(operand(shared + kAt.k)),
                                               tile::KMajor<QTile>(operand(q_tile(shared, stage))),
                                               false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_v(int stage, bool accumulate) {
      ptx::wgmma_fence();
      issue_halves<kVd, DoTile>(d_v, probability, operand(d_o_tile(shared, stage)), accumulate);
      ptx::wgmma_commit();
    }

    /// S^T of the step to P^T, with what the score reads of its cells: of its tiles there is one at
    /// a time, as of P's.
    HEDDLE_DEVICE void exponentiate(u32 lse, const typename Block::Step& step,
                                    const HandoverPosition& p_at) {
      if constexpr (Tiles::kThere) {
        static_assert(C::kTiledStages == 1 && kHandovers == 1);
        const typename Tiles::Ring ring{shared + kAt.tiled_ring};
        ptx::mbarrier_wait(ring.full(0), p_at.parity());
        typename Tiles::ColumnReader tiled(shared + kAt.tiled, 0);
        exponentiate(lse, step, &tiled);
        ptx::mbarrier_arrive(ring.empty(0));
      } else {
        exponentiate(lse, step, nullptr);
      }
    }

    HEDDLE_DEVICE void exponentiate(u32 lse, const typename Block::Step& step,
                                    typename Tiles::ColumnReader* tiled) {
      if constexpr (kFindsAnew) {
        const BackwardWork anew = work_of(work, shared);
        Scores scores(args, anew, anew.key0);
#pragma unroll
        for (int i = 0; i < kTileM / 2; ++i) scores.s[i] = s[i];
        scores.template exponentiate<true>(lse, step, tiled);
#pragma unroll
        for (int k = 0; k < kTileM / 16; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            probability[k][i] = scores.probability[k][i];
            if constexpr (Scores::kWeighs) this->weight[k][i] = scores.weight[k][i];
          }
      } else {
        Scores::template exponentiate<true>(lse, step, tiled);
      }
    }

    HEDDLE_DEVICE void run(int steps) {
      const QRing q_ring{shared + kAt.q_ring};
      const DoRing d_o_ring{shared + kAt.d_o_ring};
      typename Block::Step at(work);
      const Handover p_ring{shared + kAt.p_ring};
      QPosition q_at;
      DoPosition d_o_at, d_o_last;
      HandoverPosition p_at, p_last;
      ptx::mbarrier_wait(shared + kAt.k_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps_of(steps, shared); ++step) {
        ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
        issue_s(q_at.stage());
        if (step > 0) {
          ptx::wgmma_wait<1>();  // dV
          arrive(d_o_ring.empty(d_o_last.stage()));
        }
        ptx::wgmma_wait<0>();
        ptx::pin(s);
        exchange.send(s, step);
        exchange.add(s, step);
        exponentiate(shared + kAt.lse + q_at.stage() * kLseBytes, at, p_at);
        ptx::mbarrier_arrive(q_ring.empty(q_at.stage()));

        ptx::mbarrier_wait(p_ring.empty(p_at.stage()), p_at.parity() ^ 1);
#pragma unroll
        for (int k = 0; k < kTileM / 16; ++k)
          ptx::store_shared(p_slice(shared, p_at.stage(), k), this->factor(k));
        ptx::mbarrier_arrive(p_ring.full(p_at.stage()));

        ptx::mbarrier_wait(d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        issue_d_v(d_o_at.stage(), step > 0);
        d_o_last = d_o_at;
        p_last = p_at;
        q_at.advance();
        d_o_at.advance();
        p_at.advance();
        at.advance(work_of(work, shared));
      }
      ptx::wgmma_wait<0>();
      ptx::pin(d_v);
      // The dK group takes P when it is done with dO.
      ptx::mbarrier_wait(p_ring.empty(p_last.stage()), p_last.parity());
      Block::template store_gradient<DoTile, C::kVDim, kVd>(
          d_v, Block::keep_scale_of(args), d_o_tile(shared, d_o_last.stage()), thread / 32 * 16,
          args.problem.d_v, args, work_of(work, shared), first_column(C::kVDim));
    }
  };

  // --- dP, dS and dK --------------------------------------------------------------------------

  struct DkWarpGroup {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    PeerDots<AttentionBackwardByGradient, PeerDotsOf::gradients> exchange{shared};
    float d_p[kTileM / 2], d_k[kQk / 2];
    u32 d_s[kTileM / 16][4];
    u32 largest = 0;  ///< magnitude of dS

    HEDDLE_DEVICE DkWarpGroup(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args), work(work), shared(shared) {}

    HEDDLE_DEVICE void issue_d_p(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kVd / 16>(
          d_p, tile::KMajor<VTile>(operand(shared + kAt.v)),
          tile::KMajor<DoTile>(operand(d_o_tile(shared, stage))), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_k(int stage, bool accumulate) {
      ptx::wgmma_fence();
      issue_halves<kQk, QTile>(d_k, d_s, operand(q_tile(shared, stage)), accumulate);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void run(int steps) {
      const QRing q_ring{shared + kAt.q_ring};
      const DoRing d_o_ring{shared + kAt.d_o_ring};
      const int warp_row = threadIdx.x % 128 / 32 * 16;
      const Handover p_ring{shared + kAt.p_ring}, d_s_ring{shared + kAt.d_s_ring};
      QPosition q_at, q_last;
      DoPosition d_o_at;
      HandoverPosition handover;
      ptx::mbarrier_wait(shared + kAt.v_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps_of(steps, shared); ++step) {
        ptx::mbarrier_wait(d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        issue_d_p(d_o_at.stage());
        if (step > 0) {
          ptx::wgmma_wait<1>();  // dK
          arrive(q_ring.empty(q_last.stage()));
        }
        ptx::wgmma_wait<0>();
        ptx::pin(d_p);
        exchange.send(d_p, step);
        exchange.add(d_p, step);

        const u32 stage = handover.stage();
        ptx::mbarrier_wait(p_ring.full(stage), handover.parity());
        ptx::mbarrier_wait(d_s_ring.empty(stage), handover.parity() ^ 1);
        const int thread = thread_of_group();
        const u32 delta =
            shared + kAt.delta + d_o_at.stage() * kDeltaBytes + tile::fragment_column(thread) * 4;
        const float keep_scale = Block::keep_scale_of(args);
#pragma unroll
        for (int k = 0; k < kTileM / 16; ++k) {
          u32 factor[4], probability[4];
          ptx::load_shared(p_slice(shared, stage, k), factor);
#pragma unroll
          for (int i = 0; C::kDrops && i < 4; ++i) {
            // Of a half whose sign is set nothing is left.
            probability[i] = factor[i] & ~ptx::signs_of_halves(factor[i]);
            factor[i] &= 0x7fff7fff;
          }
          differentiate_slice<C>(d_s[k], factor, probability, d_p, delta, k, keep_scale, largest);
          tile::store_slice<DsTile>(d_s_tile(shared, stage), thread / 32 * 16, k, d_s[k]);
        }
        ptx::fence_proxy_async_shared();
        arrive(d_s_ring.full(stage));
        ptx::mbarrier_arrive(p_ring.empty(stage));
        handover.advance();
        ptx::mbarrier_arrive(d_o_ring.empty(d_o_at.stage()));

        ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
        issue_d_k(q_at.stage(), step > 0);
        q_last = q_at;
        q_at.advance();
        d_o_at.advance();
      }
      ptx::wgmma_wait<0>();
      ptx::pin(d_k);
      raise_largest<Block>(args, largest);
      // Both who read this tile of Q are done: the dV group before it handed over P.
      Block::template store_gradient<QTile, C::kQkDim, kQk>(
          d_k, Block::scale_of(args) * Block::kOfSlope, q_tile(shared, q_last.stage()), warp_row,
          args.problem.d_k, args, work_of(work, shared), first_column(C::kQkDim));
    }
  };

  // --- dQ -------------------------------------------------------------------------------------

  struct DqWarpGroup {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    float d_q[Sums::kDqCells];  ///< 64 columns: more would cost the other groups their registers

    HEDDLE_DEVICE DqWarpGroup(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args), work(work), shared(shared) {}

    HEDDLE_DEVICE void multiply(u32 stage, int part) {
      const tile::MnMajor<typename DsTile::Plane> d_s(operand(d_s_tile(shared, stage)));
      const tile::MnMajor<typename KTile::Plane> keys(operand(shared + kAt.k), 64 * part);
      ptx::wgmma_fence();
      if constexpr (Sums::kTurned)
        tile::issue_product<T, kTileM, kTileN / 16, C::kPlanes>(d_q, keys, d_s, false);
      else
        tile::issue_product<T, 64, kTileN / 16, C::kPlanes>(d_q, d_s, keys, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(d_q);
    }

    HEDDLE_DEVICE void run() {
      const Handover d_s_ring{shared + kAt.d_s_ring};
      typename Block::Step at(work);
      HandoverPosition handover;
      typename Turns::Position turn_at;
      ptx::mbarrier_wait(shared + kAt.k_full, 0);
#pragma unroll 1
      for (int left = work.steps(); left > 0; --left) {
        const int tile =
            (work.batch * args.problem.forward.q_heads + at.head) * (args.q_rounded / kTileM) +
            at.tile;
        float unit = 1;
        if constexpr (C::kPlanes > 1)
          unit = args.head_units[work.batch * args.problem.forward.q_heads + at.head].d_q;
        ptx::mbarrier_wait(d_s_ring.full(handover.stage()), handover.parity());
        if constexpr (C::kValues.has_step_units())
          unit *= ptx::load_shared_f32(shared + kAt.weight_unit);
#pragma unroll 1
        for (int part = 0; part < kDqParts; ++part) {
          multiply(handover.stage(), part);
          if (part + 1 == kDqParts) arrive(d_s_ring.empty(handover.stage()));
          const int turn = part / kPartsOfTurn;
          const bool first = part % kPartsOfTurn == 0;
          const bool last = part + 1 == kDqParts || (part + 1) % kPartsOfTurn == 0;
          if (C::kDeterministic && first)
            ptx::mbarrier_wait(Turns::ring(shared, turn).full(turn_at.stage()), turn_at.parity());
          Sums::add_d_q(args, tile, block_rank<C::kRanks>() * kDqParts + part, d_q, unit);
          if (C::kDeterministic && last) arrive(Turns::added(shared, turn, turn_at.stage()));
        }
        turn_at.advance();
        handover.advance();
        at.advance(work);
      }
    }
  };

  // --- Kernel ---------------------------------------------------------------------------------

  /// Grid: ranks * key tiles * key heads * batch, in clusters of ranks; kThreads threads;
  /// kSharedBytes.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    run_with<DvWarpGroup, DkWarpGroup>(args);
  }

  template <class DvOf, class DkOf>
  HEDDLE_DEVICE static void run_with(const BackwardArguments& args) {
    extern __shared__ __align__(1024) char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      const BackwardWork work = Block::work_of_block(args);
      Block::store_work(shared + kAt.work, work);
      ptx::mbarrier_init(shared + kAt.k_full, 1);
      ptx::mbarrier_init(shared + kAt.v_full, 1);
      // What threads read or write themselves, every one hands on for itself: racecheck follows no
      // other. The 4 are warps done with a product.
      Handover{shared + kAt.p_ring}.init(128, 128);
      Handover{shared + kAt.d_s_ring}.init(4, 4);
      QRing{shared + kAt.q_ring}.init(1, 128 + 4);
      DoRing{shared + kAt.d_o_ring}.init(1, 128 + 4);
      if constexpr (C::kDeterministic) Turns::init(shared, 4);
      if constexpr (Tiles::kThere) typename Tiles::Ring{shared + kAt.tiled_ring}.init(1, 128);
      PeerDots<AttentionBackwardByGradient, PeerDotsOf::scores>::init(shared);
      ptx::mbarrier_init_fence();
    }
    if constexpr (C::kRanks > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::grid_dependents_launch();
    ptx::grid_dependency_wait();
    if (const BackwardWork work = Block::load_work(shared + kAt.work); work.steps() == 0) {
      Block::template store_zeros<C::kQkDim>(args.problem.d_k, args, work);
      Block::template store_zeros<C::kVDim>(args.problem.d_v, args, work);
      return;
    }

    // Each role on its own: see store_work.
    const auto work = [&] { return Block::load_work(shared + kAt.work); };
    const int group = threadIdx.x / 128;
    if (group == 0) {
      ptx::registers_shrink<kProducerRegisters>();
      const BackwardWork w = work();
      const int warp = threadIdx.x / 32;
      if (ptx::elect_one()) {
        if (warp == 0) Producer::load_tiles(args, shared, w);
        if constexpr (C::kDeterministic) {
          static_assert(kDqTurnsOfBlock <= 2, "a warp each");
          if (warp == 1) Turns::take(args, shared, w);
          if (warp >= 2 && warp < 2 + kDqTurnsOfBlock) Turns::pass(args, shared, w, warp - 2);
        } else if constexpr (Tiles::kThere) {
          if (warp == 1) Producer::load_scores(args, shared);
        }
      }
    } else if (group == 1) {
      ptx::registers_grow<kOwnerRegisters>();
      const BackwardWork w = work();
      DvOf(args, w, shared).run(w.steps());
    } else if (group == 2) {
      ptx::registers_grow<kOwnerRegisters>();
      const BackwardWork w = work();
      DkOf(args, w, shared).run(w.steps());
    } else {
      ptx::registers_shrink<kDqRegisters>();
      const BackwardWork w = work();
      DqWarpGroup(args, w, shared).run();
    }
    // The other block may still reach in here.
    if constexpr (C::kRanks > 1) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
};

}  // namespace heddle::sm90
