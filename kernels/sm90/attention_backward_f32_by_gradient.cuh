// Attention backward on Hopper in f32 for head dims above 64: attention_backward_by_gradient.cuh's
// groups on pairs of f16, in the arithmetic of attention_backward_f32.cuh.
//
// A group makes one product at a time: while it adds steps up in f32, the tensor core works for the
// other two.
#pragma once

#include "attention_backward_by_gradient.cuh"
#include "backward_f32.cuh"

namespace heddle::sm90 {

/// Score, Derivative: backward_scores.cuh.
template <class Config, class Score = PlainBackwardScore, class Derivative = UnitDerivative>
struct AttentionBackwardF32ByGradient : AttentionBackwardByGradient<Config, Score, Derivative> {
  using Base = AttentionBackwardByGradient<Config, Score, Derivative>;
  using Block = typename Base::Block;
  using C = typename Block::C;
  using T = typename C::Element;
  static_assert(C::kPlanes == 2 && is_same<T, f16>);
  static_assert(Base::kHandovers == 1 && !Base::Tiles::kThere);
  using Base::arrive;
  using Base::d_o_tile;
  using Base::d_s_tile;
  using Base::kAt;
  using Base::kDeltaBytes;
  using Base::kQk;
  using Base::kRowBytes;
  using Base::kTileM;
  using Base::kVd;
  using Base::p_slice;
  using Base::q_tile;
  using typename Base::DoPosition;
  using typename Base::DoRing;
  using typename Base::DoTile;
  using typename Base::DsTile;
  using typename Base::Handover;
  using typename Base::HandoverPosition;
  using typename Base::KTile;
  using typename Base::QPosition;
  using typename Base::QRing;
  using typename Base::QTile;
  using typename Base::VTile;

  HEDDLE_DEVICE static HeadUnits units_of(const BackwardArguments& args, int batch, int head) {
    return head_units<Block, Score>(args, batch, head);
  }

  static constexpr bool kStepUnits = C::kValues.has_step_units();

  /// Columns of a product that is added to so many.
  static constexpr int at_once(int columns) { return columns <= 128 ? columns : 64; }
  /// Slices of the columns that are summed apart, as by the forward: of wide values its consumers
  /// have a share of the columns each (shared_dots.cuh).
  static constexpr int kSlices = kQk / 16, kShare = kVd > 128 ? (kSlices + 1) / 2 : kSlices;
  /// Sums of S and dP in flight: beside a sum of a share of 64 queries, or many columns of dK,
  /// there are registers for one.
  static constexpr int kScoreSums =
      C::kFewRegisters || (C::kTileM == 64 && kShare < kSlices) ? 1 : 2;
  static constexpr int kGradientSums =
      (C::kTileM == 64 && kQk > 128) || max_of(kQk, kVd) > 192 ? 1 : 2;

  // --- S, P and dV ----------------------------------------------------------------------------

  struct DvWarpGroup : BackwardBand<Block> {
    using Band = BackwardBand<Block>;
    static constexpr bool kLong = Score::kSideBySide > 0 ||
                                  (!C::kUnitSlope && Derivative::kSideBySide > 0);
    using Band::args;
    using Band::work;
    const u32 shared;
    float s[kTileM / 2], d_v[kVd / 2];

    HEDDLE_DEVICE DvWarpGroup(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Band(args, work, work.key0), shared(shared) {}

    /// Calls use(band); of few registers it is found anew, not held through the products.
    template <class Use>
    HEDDLE_DEVICE void with_band(Use use) const {
      if constexpr (C::kFewRegisters) {
        const BackwardWork anew = Base::load_work(shared + Base::kAt.work);
        use(Band(args, anew, anew.key0));
      } else {
        use(static_cast<const Band&>(*this));
      }
    }

    /// S^T of the step to P^T. `lse` is where its statistics lie. Where slopes are not 1 P o
    /// slope is written for the dK group at once: it finds no registers beside P.
    HEDDLE_DEVICE void exponentiate(u32 lse, const typename Block::Step& at, const Band& band) {
      const HeadUnits& of = units_at(args, band.work, at.head);
      const int row0 = at.tile * kTileM;
      float most = 0;  // magnitude of P o slope
      if constexpr (Score::kIdentity) {
        exponentiate_f32<Block>(s, lse, of);
      } else {
        const float unit = of.dot, rest = of.dot_rest, score = of.score, to_log2 = of.to_log2;
        lse += tile::fragment_column(threadIdx.x) * 4;
#pragma unroll(kLong ? 1 : kTileM / 8)
        for (int n = 0; n < kTileM / 8; ++n) {
          const F32Rows<Block> rows(lse + 32 * n);
          float* four = s + (kLong ? 0 : 4 * n);
          float slope[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const GradientCell cell =
                band.cell(ptx::fma(four[i], unit, four[i] * rest), 4 * n + i, row0, at.head, 0.0f);
            const float apart = ptx::fma(Score::value(cell), score, rows.lse[i % 2]);
            constexpr bool kMost = Block::template kMost<Score>;
            four[i] = ptx::exp2(rows.template exponent<kMost>(apart, to_log2, i % 2));
            slope[i] = Derivative::value(cell);
          }
          ptx::pin(slope);  // what later cells load finds no registers yet
          if constexpr (!C::kUnitSlope) {
            float factor[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              factor[i] = four[i] * slope[i];
              most = ptx::max(most, fabsf(factor[i]));
            }
            store(factor, n);
          }
          if constexpr (kLong) tile::rotate<4>(s);
        }
      }
      if (band.whole(row0)) return leave_most(most);
      u32 seen = 0;
      band.each_cell(row0, [&](int i, bool visible) {
        s[i] = visible ? s[i] : 0.0f;
        if (visible) seen |= 1u << i;
      });
      if constexpr (!C::kUnitSlope) {
        most = 0;
#pragma unroll
        for (int n = 0; n < kTileM / 8; ++n) {
          float factor[4];
          ptx::load_shared(p_slice(shared, 0, n), factor[0], factor[1], factor[2], factor[3]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            factor[i] = (seen >> (4 * n + i) & 1) != 0 ? factor[i] : 0.0f;
            most = ptx::max(most, fabsf(factor[i]));
          }
          store(factor, n);
        }
      }
      leave_most(most);
    }

    /// For the dK group, before it is given P o slope: the largest of the warp.
    HEDDLE_DEVICE void leave_most(float most) const {
      if constexpr (kStepUnits) {
        const u32 bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
        if (threadIdx.x % 32 == 0)
          ptx::store_shared(shared + kAt.most_weights + threadIdx.x % 128 / 32 * 4, bits);
      }
    }

    /// Writes P, where slopes are 1. Dropped cells have their sign set, and lose their P.
    HEDDLE_DEVICE void hand_over(const typename Block::Step& at) {
      if constexpr (C::kDrops) {
        with_band([&](const Band& band) {
          band.each_kept(at, [&](int k, const u32(&kept)[4]) {
#pragma unroll
            for (int n = 2 * k; n < 2 * k + 2; ++n) {
              float factor[4];
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                float& p = s[4 * n + i];
                const u32 halves = kept[n % 2 * 2 + i / 2];
                const bool keep = (i % 2 == 0 ? halves & 0xffff : halves >> 16) != 0;
                factor[i] = keep ? p : -p;
                p = keep ? p : 0.0f;
              }
              store(factor, n);
            }
          });
        });
      } else {
#pragma unroll
        for (int n = 0; n < kTileM / 8; ++n) store(reinterpret_cast<float(&)[4]>(s[4 * n]), n);
      }
    }
    HEDDLE_DEVICE void store(const float (&factor)[4], int n) const {
      ptx::store_shared(p_slice(shared, 0, n), factor[0], factor[1], factor[2], factor[3]);
    }

    HEDDLE_DEVICE void multiply(u32 queries) {
      const tile::KMajor<typename KTile::Plane> k(shared + kAt.k);
      const tile::KMajor<typename QTile::Plane> q(queries);
      tile::product_by_steps<T, kTileM, kShare, kScoreSums, C::kMaxAndSum>(s, k, q);
      if constexpr (kShare < kSlices) {
        float others[kTileM / 2];
        tile::product_by_steps<T, kTileM, kSlices - kShare, kScoreSums, C::kMaxAndSum, kShare>(
            others, k, q);
#pragma unroll
        for (int i = 0; i < kTileM / 2; ++i) s[i] += others[i];
      }
    }

    HEDDLE_DEVICE void run(int steps) {
      const QRing q_ring{shared + Base::kAt.q_ring};
      const DoRing d_o_ring{shared + Base::kAt.d_o_ring};
      const Handover p_ring{shared + Base::kAt.p_ring};
      typename Block::Step at(work);
      QPosition q_at;
      DoPosition d_o_at;
      HandoverPosition p_at;
#pragma unroll
      for (float& x : d_v) x = 0;
      ptx::mbarrier_wait(shared + Base::kAt.k_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
        multiply(q_tile(shared, q_at.stage()));
        if constexpr (!C::kUnitSlope) ptx::mbarrier_wait(p_ring.empty(0), p_at.parity() ^ 1);
        with_band([&](const Band& band) {
          exponentiate(shared + kAt.lse + q_at.stage() * Base::kLseBytes, at, band);
        });
        ptx::mbarrier_arrive(q_ring.empty(q_at.stage()));

        if constexpr (C::kUnitSlope) {
          ptx::mbarrier_wait(p_ring.empty(0), p_at.parity() ^ 1);
          hand_over(at);
        }
        ptx::mbarrier_arrive(p_ring.full(0));

        u32 probability[2][kTileM / 16][4];
        tile::split_fragment<T, kTileM>(probability, s, kWeightUnit);
        ptx::mbarrier_wait(d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        add_product<DoTile, at_once(kVd)>(d_v, probability, d_o_tile(shared, d_o_at.stage()),
                                          units_at(args, work, at.head).d_v);
        arrive(d_o_ring.empty(d_o_at.stage()));
        q_at.advance();
        d_o_at.advance();
        p_at.advance();
        at.advance(work);
      }
      Block::template store_f32_gradient<C::kVDim, kVd>(d_v, Block::keep_scale_of(args),
                                                        args.problem.d_v, args, work, work.key0);
    }
  };

  // --- dP, dS and dK --------------------------------------------------------------------------

  struct DkWarpGroup {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    float d_p[kTileM / 2], d_k[kQk / 2];
    u32 d_s[2][kTileM / 16][4];

    HEDDLE_DEVICE DkWarpGroup(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args), work(work), shared(shared) {}

    /// The unit of the step's P o slope, a power of two above its largest; also left for dQ.
    HEDDLE_DEVICE float weight_unit(const HeadUnits& units) const {
      if constexpr (!kStepUnits) return 1;
      float of_warp[4], most = units.least_weight;
      ptx::load_shared(shared + kAt.most_weights, of_warp[0], of_warp[1], of_warp[2], of_warp[3]);
#pragma unroll
      for (float x : of_warp) most = ptx::max(most, x);
      const u32 bits = __float_as_uint(most > kMostWeight ? kMostWeight : most);
      const float unit = 2 * __uint_as_float(bits & 0x7f800000);
      if (threadIdx.x % 128 == 0) ptx::store_shared(shared + kAt.weight_unit, unit);
      return unit;
    }

    /// dS = P o (dP - delta), kept as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(u32 delta, const HeadUnits& units, float weight_unit) {
      delta += tile::fragment_column(threadIdx.x) * 4;
      const float weights =  // weight_unit is a power of two
          kWeightUnit * __uint_as_float(0x7f000000 - __float_as_uint(weight_unit));
      const float unit = units.d_p * weights * Block::keep_scale_of(args);
      const float delta_unit = units.delta * weights;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        float x[8];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          u32 p[4];
          ptx::load_shared(p_slice(shared, 0, 2 * k + n), p);
          const F32Slope<kRowBytes> slope(delta + 4 * (16 * k + 8 * n));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = 8 * k + 4 * n + i;
            float weight = __uint_as_float(p[i]), gradient = d_p[at];
            if constexpr (C::kDrops) {
              gradient = p[i] >> 31 != 0 ? 0.0f : gradient;
              weight = fabsf(weight);
            }
            x[4 * n + i] = weight * slope.of(gradient, i % 2, unit, delta_unit);
          }
        }
        split_slice(d_s, k, x);
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
          tile::store_slice<typename DsTile::Plane>(
              d_s_tile(shared, 0) + plane * DsTile::Plane::kBytes, threadIdx.x % 128 / 32 * 16, k,
              d_s[plane][k]);
      }
      ptx::fence_proxy_async_shared();
    }

    /// The factor on what dropout keeps may take dS beyond the bound that gives its unit, and
    /// beyond f16, as may a slope beyond kMostWeight: what is summed of it is no number then.
    HEDDLE_DEVICE void fall_back_unless_finite() const {
      bool is_finite = true;
#pragma unroll
      for (int i = 0; i < kQk / 2; ++i)
        is_finite = is_finite & (fabsf(d_k[i]) < __int_as_float(0x7f800000));
      if (!is_finite) *args.problem.forward.fallback = 1;
    }

    HEDDLE_DEVICE void run(int steps) {
      const QRing q_ring{shared + Base::kAt.q_ring};
      const DoRing d_o_ring{shared + Base::kAt.d_o_ring};
      const Handover p_ring{shared + Base::kAt.p_ring}, d_s_ring{shared + Base::kAt.d_s_ring};
      typename Block::Step at(work);
      QPosition q_at;
      DoPosition d_o_at;
      HandoverPosition handover;
#pragma unroll
      for (float& x : d_k) x = 0;
      ptx::mbarrier_wait(shared + Base::kAt.v_full, 0);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(d_o_ring.full(d_o_at.stage()), d_o_at.parity());
        tile::product_by_steps<T, kTileM, kVd / 16, kGradientSums>(
            d_p, tile::KMajor<typename VTile::Plane>(shared + kAt.v),
            tile::KMajor<typename DoTile::Plane>(d_o_tile(shared, d_o_at.stage())));

        ptx::mbarrier_wait(p_ring.full(0), handover.parity());
        ptx::mbarrier_wait(d_s_ring.empty(0), handover.parity() ^ 1);
        const float of_weights = weight_unit(units_at(args, work, at.head));
        differentiate(shared + kAt.delta + d_o_at.stage() * kDeltaBytes,
                      units_at(args, work, at.head), of_weights);
        arrive(d_s_ring.full(0));
        ptx::mbarrier_arrive(p_ring.empty(0));
        ptx::mbarrier_arrive(d_o_ring.empty(d_o_at.stage()));

        ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
        add_product<QTile, at_once(kQk)>(d_k, d_s, q_tile(shared, q_at.stage()),
                                         units_at(args, work, at.head).d_k * of_weights);
        arrive(q_ring.empty(q_at.stage()));
        handover.advance();
        q_at.advance();
        d_o_at.advance();
        at.advance(work);
      }
      if constexpr (!C::kUnitSlope || C::kDrops) fall_back_unless_finite();
      Block::template store_f32_gradient<C::kQkDim, kQk>(d_k, Base::scale_of(args) * Base::kOfLog2,
                                                         args.problem.d_k, args, work, work.key0);
    }
  };

  /// Launched as AttentionBackwardByGradient::run, after prepare and the kernels that make pairs.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    Base::template run_with<DvWarpGroup, DkWarpGroup>(args);
  }
};

}  // namespace heddle::sm90
