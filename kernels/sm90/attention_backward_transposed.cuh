// Attention backward on Hopper for queries and keys of 129 to 192 columns and values of up to 128,
// as latent attention (MLA) trains with: attention_backward_by_gradient.cuh's roles, one block per
// 96 keys, and sums that lie the other way round.
//
//   dV group:  S  = Q K^T      P  = exp(scale * S - lse)      dV^T += dO^T P
//   dK group:  dP = dO V^T     dS = P o (dP - delta)          dK^T += Q^T dS
//   dQ group:                                                 dQ += dS K
//
// What limits the other kernel there is what a step reads and adds in the L2 cache: 40 KiB of Q and
// dO, 48 of sums of dQ. Here that is once for 96 keys instead of 64. As 96 are no multiple of the
// 64 rows of a product, keys are its columns, and dK and dV are summed transposed: five products of
// 64 of their columns, 48 registers each.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "backward_block.cuh"
#include "backward_producer.cuh"
#include "backward_register_sums.cuh"

namespace heddle::sm90 {

template <class Config, class Score = PlainBackwardScore, class Derivative = UnitDerivative>
struct AttentionBackwardTransposed : BackwardBlock<Config, 64, 96>, BackwardRegisterSums<Config> {
  using Block = BackwardBlock<Config, 64, 96>;
  using Sums = BackwardRegisterSums<Config>;
  using Block::kDeltaBytes;
  using Block::kLseBytes;
  using Block::kQk;
  using Block::kTileM;
  using Block::kTileN;
  using Block::kVd;
  using Sums::kDqParts;
  using typename Block::C;
  using typename Block::DoTile;
  using typename Block::KTile;
  using typename Block::QTile;
  using typename Block::T;
  using typename Block::VTile;
  static constexpr bool kPlainScore = true;
  static constexpr int kThreads = C::kValues.threads();
  static_assert(Score::kIdentity && C::kUnitSlope && !C::kDrops && !C::kMaxAndSum);
  static_assert(C::kPlanes == 1 && !C::kDeterministic && is_same<typename C::Result, T>);
  static_assert(QTile::kBoxes == 3 && DoTile::kBoxes <= 2, "registers of the three groups");
  // Their sum over the groups is what the launch gave: 128 a thread.
  static constexpr int kProducerRegisters = 24, kDvRegisters = 184, kDkRegisters = 224,
                       kDqRegisters = 80;

  using PTile = tile::SharedTile<kTileM, kTileN>;  ///< of P and of dS: a row per query
  static constexpr int kHandovers = C::kValues.handovers();
  static constexpr u32 kGroupBarrier = 1;

  static constexpr BackwardLayout kAt = layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  static_assert(kSharedBytes <= kMostShared, "shared memory of a block");
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDOStages>;
  using Handover = tile::Ring<kHandovers>;
  using Producer = BackwardProducer<AttentionBackwardTransposed>;
  using QPosition = tile::RingPosition<C::kQStages>;
  using DoPosition = tile::RingPosition<C::kDOStages>;
  using HandoverPosition = tile::RingPosition<kHandovers>;

  /// Where a group finds what is in shared memory.
  struct Group {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    const QRing q_ring{shared + kAt.q_ring};
    const DoRing d_o_ring{shared + kAt.d_o_ring};
    const Handover p_ring{shared + kAt.p_ring}, d_s_ring{shared + kAt.d_s_ring};

    HEDDLE_DEVICE Group(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args), work(work), shared(shared) {}

    HEDDLE_DEVICE u32 q_tile(u32 stage) const { return shared + kAt.q + stage * QTile::kBytes; }
    HEDDLE_DEVICE u32 d_o_tile(u32 stage) const {
      return shared + kAt.d_o + stage * DoTile::kBytes;
    }
    HEDDLE_DEVICE u32 p_tile(u32 stage) const { return shared + kAt.p + stage * kAt.p_bytes; }
    HEDDLE_DEVICE u32 d_s_tile(u32 stage) const { return shared + kAt.d_s + stage * PTile::kBytes; }

    /// One arrival a warp, for what all its lanes have done.
    HEDDLE_DEVICE static void arrive(u32 barrier) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
    }

    /// 64 columns of dV or dK, transposed, of a step: those of a tile of dO or Q from `column` on,
    /// times P or dS.
    template <class Tile>
    HEDDLE_DEVICE static void issue_sum(float (&sum)[kTileN / 2], u32 tile_address, int column,
                                        u32 weights, bool accumulate) {
      tile::issue_product<T, kTileN, kTileM / 16>(sum, tile::MnMajor<Tile>(tile_address, column),
                                                  tile::MnMajor<PTile>(weights, 0), accumulate);
    }

    /// Until no group reads K or V any more.
    HEDDLE_DEVICE void wait_for_readers() const {
      ptx::mbarrier_arrive(shared + kAt.all_read);
      ptx::mbarrier_wait(shared + kAt.all_read, 0);
    }

    /// Writes the block's rows of a gradient, if it is wanted, by way of a tile that is no longer
    /// read.
    template <class Tile, int kHeadDim>
    HEDDLE_DEVICE void store_gradient(const float (&sums)[Tile::kBoxes][kTileN / 2], float scale,
                                      u32 tile_address, const attention::Tensor& out) const {
      if (out.data == nullptr) return;
      const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
      // A warp has 16 columns of a box. Its matrices are 8 of them by 8 keys, and turn on their
      // way.
      const int own_chunk = thread / 32 * 2 + lane / 8 % 2, own_key = lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box) {
#pragma unroll
        for (int k = 0; k < kTileN / 16; ++k) {
          u32 pair[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            pair[i] = ptx::pack<T>(sums[box][8 * k + 2 * i] * scale,
                                   sums[box][8 * k + 2 * i + 1] * scale);
          ptx::store_matrix_x4_transposed(
              tile_address + Tile::chunk_offset(16 * k + own_key, 8 * box + own_chunk), pair[0],
              pair[1], pair[2], pair[3]);
        }
      }
      ptx::barrier_sync(kGroupBarrier + threadIdx.x / 128, 128);
      const int rows = Block::written_rows(out, args, work) - work.key0;
      T* const base = attention::element_pointer<T>(out, work.batch, work.key_head, work.key0, 0);
      constexpr int kChunks = 8 * Tile::kBoxes;
#pragma unroll 2
      for (int i = thread; i < kTileN * kChunks; i += 128) {
        const int row = i / kChunks, chunk = i % kChunks;
        u32 x[4];
        ptx::load_shared(tile_address + Tile::chunk_offset(row, chunk), x);
        if (row < rows && chunk * 8 < kHeadDim)
          *reinterpret_cast<uint4*>(base + row * out.stride[2] + chunk * 8) =
              make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  };

  // --- S, P and dV ----------------------------------------------------------------------------

  struct DvWarpGroup : Group {
    using Group::args;
    using Group::shared;
    using Group::work;
    float s[kTileN / 2], d_v[DoTile::kBoxes][kTileN / 2];

    using Group::Group;

    HEDDLE_DEVICE void issue_s(u32 stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileN, kQk / 16>(s, tile::KMajor<QTile>(this->q_tile(stage)),
                                               tile::KMajor<KTile>(shared + kAt.k), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_v(u32 d_o_stage, u32 p_stage, bool accumulate) {
      ptx::wgmma_fence();
#pragma unroll
      for (int box = 0; box < DoTile::kBoxes; ++box)
        Group::template issue_sum<DoTile>(d_v[box], this->d_o_tile(d_o_stage), 64 * box,
                                          this->p_tile(p_stage), accumulate);
      ptx::wgmma_commit();
    }

    /// S to P, of which what the mask hides is zero. `lse` is where the rows' statistics are.
    HEDDLE_DEVICE void exponentiate(u32 lse, int row0, float scale) {
      const typename Block::Visible keys{work.keys};
      const int first = work.key0 + tile::fragment_column(threadIdx.x);
      const bool whole = row0 + kTileM <= work.q_length &&
                         keys.lo(row0 + kTileM - 1) <= work.key0 &&
                         keys.hi(row0) >= work.key0 + kTileN;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile::fragment_row(threadIdx.x, half);
        const float minus_lse = ptx::load_shared_f32(lse + 4 * row);
#pragma unroll
        for (int i = 2 * half; i < kTileN / 2; i += 4)
#pragma unroll
          for (int e = i; e < i + 2; ++e)
            s[e] = ptx::exp2(ptx::fma(s[e], scale * Block::kToLog2, minus_lse));
        if (whole) continue;
        const int begin = keys.lo(row0 + row) - first,
                  end = row0 + row < work.q_length ? keys.hi(row0 + row) - first : 0;
#pragma unroll
        for (int i = 2 * half; i < kTileN / 2; i += 4)
#pragma unroll
          for (int e = i; e < i + 2; ++e) {
            const int key = tile::fragment_column_step(e);
            s[e] = key >= begin && key < end ? s[e] : 0.0f;
          }
      }
    }

    HEDDLE_DEVICE void run(int steps) {
      typename Block::Step at(work);
      QPosition q_at;
      DoPosition d_o_at, d_o_last;
      HandoverPosition p_at, p_last;
      const float scale = Block::scale_of(args);
      ptx::mbarrier_wait(shared + kAt.k_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(this->q_ring.full(q_at.stage()), q_at.parity());
        issue_s(q_at.stage());
        if (step > 0) {
          ptx::wgmma_wait<1>();  // dV
          Group::arrive(this->d_o_ring.empty(d_o_last.stage()));
          Group::arrive(this->p_ring.empty(p_last.stage()));
        }
        ptx::wgmma_wait<0>();
        ptx::pin(s);
        exponentiate(shared + kAt.lse + q_at.stage() * kLseBytes, at.tile * kTileM, scale);
        ptx::mbarrier_arrive(this->q_ring.empty(q_at.stage()));

        u32 p[kTileN / 16][4];
        tile::pack_fragment<T, kTileN>(p, s);
        ptx::mbarrier_wait(this->p_ring.empty(p_at.stage()), p_at.parity() ^ 1);
#pragma unroll
        for (int k = 0; k < kTileN / 16; ++k)
          tile::store_slice<PTile>(this->p_tile(p_at.stage()), threadIdx.x % 128 / 32 * 16, k,
                                   p[k]);
        ptx::fence_proxy_async_shared();
        ptx::mbarrier_arrive(this->p_ring.full(p_at.stage()));

        ptx::mbarrier_wait(this->d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        ptx::mbarrier_wait(this->p_ring.full(p_at.stage()), p_at.parity());  // of all warps
        issue_d_v(d_o_at.stage(), p_at.stage(), step > 0);
        d_o_last = d_o_at;
        p_last = p_at;
        q_at.advance();
        d_o_at.advance();
        p_at.advance();
        at.advance(work);
      }
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int box = 0; box < DoTile::kBoxes; ++box) ptx::pin(d_v[box]);
      this->wait_for_readers();
      this->template store_gradient<VTile, C::kVDim>(d_v, 1.0f, shared + kAt.v, args.problem.d_v);
    }
  };

  // --- dP, dS and dK --------------------------------------------------------------------------

  struct DkWarpGroup : Group {
    using Group::args;
    using Group::shared;
    using Group::work;
    float d_p[kTileN / 2], d_k[QTile::kBoxes][kTileN / 2];

    using Group::Group;

    HEDDLE_DEVICE void issue_d_p(u32 stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileN, kVd / 16>(d_p, tile::KMajor<DoTile>(this->d_o_tile(stage)),
                                               tile::KMajor<VTile>(shared + kAt.v), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_k(u32 q_stage, u32 d_s_stage, bool accumulate) {
      ptx::wgmma_fence();
#pragma unroll
      for (int box = 0; box < QTile::kBoxes; ++box)
        Group::template issue_sum<QTile>(d_k[box], this->q_tile(q_stage), 64 * box,
                                         this->d_s_tile(d_s_stage), accumulate);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void run(int steps) {
      const int warp_row = threadIdx.x % 128 / 32 * 16, lane = threadIdx.x % 32;
      QPosition q_at, q_last;
      DoPosition d_o_at;
      HandoverPosition handover, last;
      ptx::mbarrier_wait(shared + kAt.v_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(this->d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        issue_d_p(d_o_at.stage());
        if (step > 0) {
          ptx::wgmma_wait<1>();  // dK
          Group::arrive(this->q_ring.empty(q_last.stage()));
          Group::arrive(this->d_s_ring.empty(last.stage()));
        }
        ptx::wgmma_wait<0>();
        ptx::pin(d_p);

        float delta[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          delta[half] = ptx::load_shared_f32(shared + kAt.delta + d_o_at.stage() * kDeltaBytes +
                                             4 * tile::fragment_row(threadIdx.x, half));
        const u32 stage = handover.stage();
        ptx::mbarrier_wait(this->p_ring.full(stage), handover.parity());
        ptx::mbarrier_wait(this->d_s_ring.empty(stage), handover.parity() ^ 1);
#pragma unroll
        for (int k = 0; k < kTileN / 16; ++k) {
          u32 p[4], d_s[4];
          ptx::load_matrix_x4(
              this->p_tile(stage) + PTile::chunk_offset(warp_row + lane % 16, 2 * k + lane / 16),
              p);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float p0, p1;
            ptx::unpack<T>(p[i], p0, p1);
            d_s[i] = ptx::pack<T>(p0 * (d_p[8 * k + 2 * i] - delta[i % 2]),
                                  p1 * (d_p[8 * k + 2 * i + 1] - delta[i % 2]));
          }
          tile::store_slice<PTile>(this->d_s_tile(stage), warp_row, k, d_s);
        }
        ptx::fence_proxy_async_shared();
        Group::arrive(this->d_s_ring.full(stage));
        ptx::mbarrier_arrive(this->p_ring.empty(stage));
        ptx::mbarrier_arrive(this->d_o_ring.empty(d_o_at.stage()));

        ptx::mbarrier_wait(this->q_ring.full(q_at.stage()), q_at.parity());
        ptx::mbarrier_wait(this->d_s_ring.full(stage), handover.parity());  // of all warps
        issue_d_k(q_at.stage(), stage, step > 0);
        q_last = q_at;
        last = handover;
        handover.advance();
        q_at.advance();
        d_o_at.advance();
      }
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int box = 0; box < QTile::kBoxes; ++box) ptx::pin(d_k[box]);
      this->wait_for_readers();
      this->template store_gradient<KTile, C::kQkDim>(d_k, Block::scale_of(args) * Block::kOfSlope,
                                                      shared + kAt.k, args.problem.d_k);
    }
  };

  // --- dQ -------------------------------------------------------------------------------------

  struct DqWarpGroup : Group {
    using Group::args;
    using Group::shared;
    using Group::work;
    float d_q[32];  ///< 64 columns: more would cost the other groups their registers

    using Group::Group;

    HEDDLE_DEVICE void multiply(u32 stage, int part) {
      ptx::wgmma_fence();
      tile::issue_product<T, 64, kTileN / 16>(d_q, tile::KMajor<PTile>(this->d_s_tile(stage)),
                                              tile::MnMajor<KTile>(shared + kAt.k, 64 * part),
                                              false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(d_q);
    }

    HEDDLE_DEVICE void run(int steps) {
      typename Block::Step at(work);
      HandoverPosition handover;
      ptx::mbarrier_wait(shared + kAt.k_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const int tile =
            (work.batch * args.problem.forward.q_heads + at.head) * (args.q_rounded / kTileM) +
            at.tile;
        const u32 stage = handover.stage();
        ptx::mbarrier_wait(this->d_s_ring.full(stage), handover.parity());
#pragma unroll
        for (int part = 0; part < kDqParts; ++part) {
          multiply(stage, part);
          if (part + 1 == kDqParts) Group::arrive(this->d_s_ring.empty(stage));
          Sums::add_d_q(args, tile, part, d_q, 1.0f);
        }
        handover.advance();
        at.advance(work);
      }
      this->wait_for_readers();
    }
  };

  // --- Kernel ---------------------------------------------------------------------------------

  /// Grid: key tiles * key heads * batch; kThreads threads; kSharedBytes.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    extern __shared__ __align__(1024) char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      Block::store_work(shared + kAt.work, Block::work_of_block(args));
      ptx::mbarrier_init(shared + kAt.k_full, 1);
      ptx::mbarrier_init(shared + kAt.v_full, 1);
      ptx::mbarrier_init(shared + kAt.all_read, 3 * 128);
      // What threads read or write themselves, every one hands on for itself: racecheck follows no
      // other. The 4 are warps done with a product.
      Handover{shared + kAt.p_ring}.init(128, 128 + 4);
      Handover{shared + kAt.d_s_ring}.init(4, 4 + 4);
      QRing{shared + kAt.q_ring}.init(1, 128 + 4);
      DoRing{shared + kAt.d_o_ring}.init(1, 128 + 4);
      ptx::mbarrier_init_fence();
    }
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
      if (threadIdx.x < 32 && ptx::elect_one()) Producer::load_tiles(args, shared, w);
    } else if (group == 1) {
      ptx::registers_grow<kDvRegisters>();
      const BackwardWork w = work();
      DvWarpGroup(args, w, shared).run(w.steps());
    } else if (group == 2) {
      ptx::registers_grow<kDkRegisters>();
      const BackwardWork w = work();
      DkWarpGroup(args, w, shared).run(w.steps());
    } else {
      ptx::registers_shrink<kDqRegisters>();
      const BackwardWork w = work();
      DqWarpGroup(args, w, shared).run(w.steps());
    }
  }
};

}  // namespace heddle::sm90
