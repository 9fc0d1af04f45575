// Attention backward on Hopper in f32: attention_backward.cuh's block and order of work, on pairs
// of f16 (f16_pairs.cuh).
//
// S and dP, whose errors count most, are summed in f32 step by step (stepwise_product.cuh), dK, dV
// and dQ tile by tile.
#pragma once

#include "attention_backward.cuh"
#include "backward_f32.cuh"

namespace heddle::sm90 {

template <class Config>
struct AttentionBackwardF32 : AttentionBackward<Config> {
  using Base = AttentionBackward<Config>;
  using C = Config;
  using T = typename C::Element;
  static_assert(C::kPlanes == 2 && is_same<T, f16>);
  static_assert(C::kUnitSlope && !Base::C::kDrops && C::kTileM == 64);
  using Base::kAt;
  using Base::kDeltaBytes;
  using Base::kDqColumns;
  using Base::kQk;
  using Base::kRowBytes;
  using Base::kTileM;
  using Base::kTileN;
  using Base::kVd;
  using typename Base::DoTile;
  using typename Base::DsTile;
  using typename Base::KTile;
  using typename Base::QTile;
  using typename Base::VTile;

  HEDDLE_DEVICE static HeadUnits units_of(const BackwardArguments& args, int batch, int head) {
    return head_units<typename Base::Block, PlainBackwardScore>(args, batch, head);
  }

  /// One consumer warp group: 64 keys of the block.
  struct Consumer : BackwardBand<typename Base::Block>, BackwardTiles<Base> {
    using Band = BackwardBand<typename Base::Block>;
    using Band::args;
    using Band::thread;
    using Band::work;
    using Shared = BackwardTiles<Base>;
    using Shared::arrive;
    using Shared::d_o_ring;
    using Shared::d_o_tile;
    using Shared::d_s_full;
    using Shared::d_s_tile;
    using Shared::part;
    using Shared::q_ring;
    using Shared::q_tile;
    using Shared::shared;

    float s[kTileM / 2], d_p[kTileM / 2], d_q[kDqColumns / 2], d_k[kQk / 2], d_v[kVd / 2];
    float d_k_part[kQk / 2], d_v_part[kVd / 2];  ///< of one step
    u32 probability[2][kTileM / 16][4];

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Band(args, work, work.key0 + 64 * (threadIdx.x / 128 - 1)), Shared(shared) {
#pragma unroll
      for (float& x : d_k) x = 0;
#pragma unroll
      for (float& x : d_v) x = 0;
    }

    // The products, each a group of its own.

    HEDDLE_DEVICE void begin_s(int stage) {
      tile::product_by_steps<T, kTileM, kQk / 16, 2, C::kMaxAndSum>(
          s, tile::KMajor<typename KTile::Plane>(shared + kAt.k, 64 * part),
          tile::KMajor<typename QTile::Plane>(q_tile(stage)));
    }
    template <int kBehind>
    HEDDLE_DEVICE void end_s() {}
    HEDDLE_DEVICE void begin_d_p(int stage) {
      tile::product_by_steps<T, kTileM, kVd / 16, 1>(
          d_p, tile::KMajor<typename VTile::Plane>(shared + kAt.v, 64 * part),
          tile::KMajor<typename DoTile::Plane>(d_o_tile(stage)));
    }
    template <int kBehind>
    HEDDLE_DEVICE void end_d_p() {}
    HEDDLE_DEVICE void issue_d_v(int stage, bool) {
      ptx::wgmma_fence();
      tile::issue_product<T, kVd>(d_v_part, probability,
                                  tile::MnMajor<typename DoTile::Plane>(d_o_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void add_d_v(int head) {
      ptx::pin(d_v_part);
      add_scaled(d_v, d_v_part, units_at(args, work, head).d_v);
    }
    /// After issue_d_q, which waits for dS. (From registers, dS of one step would be held through
    /// the scores of the next.)
    HEDDLE_DEVICE void issue_d_k(int step, int stage, bool) {
      ptx::wgmma_fence();
      tile::issue_product<T, kQk, kTileM / 16, 2>(
          d_k_part, tile::KMajor<typename DsTile::Plane>(d_s_tile(step), 64 * part),
          tile::MnMajor<typename QTile::Plane>(q_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void add_d_k(int head) {
      ptx::pin(d_k_part);
      add_scaled(d_k, d_k_part, units_at(args, work, head).d_k);
    }
    HEDDLE_DEVICE void issue_d_q(int step) {
      ptx::mbarrier_wait(d_s_full(step), step >> 1 & 1);
      ptx::wgmma_fence();
      tile::issue_product<T, kDqColumns, kTileN / 16, 2>(
          d_q, tile::MnMajor<typename DsTile::Plane>(d_s_tile(step)),
          tile::MnMajor<typename KTile::Plane>(shared + kAt.k, kDqColumns * part), false);
      ptx::wgmma_commit();
    }

    /// S^T to P^T, as operands.
    HEDDLE_DEVICE void exponentiate(int stage, const typename Base::Step& at) {
      const int row0 = at.tile * kTileM;
      exponentiate_f32<typename Base::Block>(s, shared + kAt.lse + stage * Base::kLseBytes,
                                             units_at(args, work, at.head));
      if (!this->whole(row0))
        this->each_cell(row0, [&](int i, bool visible) { s[i] = visible ? s[i] : 0.0f; });
      tile::split_fragment<T, kTileM>(probability, s, kWeightUnit);
    }

    /// dS = P o (dP - delta), written for dK and dQ.
    HEDDLE_DEVICE void differentiate(int stage, int step, int head) {
      const u32 row_delta =
          shared + kAt.delta + stage * kDeltaBytes + tile::fragment_column(thread) * 4;
      const float unit = units_at(args, work, head).d_p,
                  delta_unit = units_at(args, work, head).delta;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        float d_s[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          F32Slope<kRowBytes> slope(row_delta + 4 * (16 * k + i / 2 * 8));
          float high[2], low[2];
          ptx::unpack<T>(probability[0][k][i], high[0], high[1]);
          ptx::unpack<T>(probability[1][k][i], low[0], low[1]);
#pragma unroll
          for (int e = 0; e < 2; ++e)
            d_s[2 * i + e] =
                (high[e] + low[e]) * slope.of(d_p[8 * k + 2 * i + e], e, unit, delta_unit);
        }
        u32 planes[2][1][4];
        tile::split_fragment<T, 16>(planes, d_s, 1.0f);
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
          tile::store_slice<typename DsTile::Plane>(d_s_tile(step) + plane * DsTile::Plane::kBytes,
                                                    64 * part + thread / 32 * 16, k,
                                                    planes[plane][0]);
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      arrive(d_s_full(step));
    }

    /// Hands dQ, in fragment order, to the warp that adds it up.
    HEDDLE_DEVICE void send_d_q(int step, const typename Base::Block::Step& at) {
      const float unit = units_at(args, work, at.head).d_q;
      const u32 to = shared + Base::kAt.d_q + part * Base::kDqPart * 4 + thread * 16;
      if (step > 0) ptx::barrier_sync(Base::kDqEmptyBarrier + part, 128 + 32);
#pragma unroll
      for (int i = 0; i < kDqColumns / 8; ++i)
        ptx::store_shared(to + i * 128 * 16, d_q[4 * i] * unit, d_q[4 * i + 1] * unit,
                          d_q[4 * i + 2] * unit, d_q[4 * i + 3] * unit);
      ptx::fence_proxy_async_shared();
      ptx::barrier_arrive(Base::kDqFullBarrier + part, 128 + 32);
    }

    HEDDLE_DEVICE void store() {
      const int key0 = work.key0 + 64 * part;
      Base::Block::template store_f32_gradient<C::kVDim, kVd>(d_v, 1.0f, args.problem.d_v, args,
                                                              work, key0);
      Base::Block::template store_f32_gradient<C::kQkDim, kQk>(
          d_k, Base::scale_of(args) * Base::kOfLog2, args.problem.d_k, args, work, key0);
    }
  };

  /// Launched as AttentionBackward::run, after prepare and the kernels that make pairs.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    Base::template run_with<Consumer>(args);
  }
};

}  // namespace heddle::sm90
