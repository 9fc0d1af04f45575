// Attention backward on Hopper in f32: attention_backward.cuh's block and order of work, on pairs
// of f16 (f16_pairs.cuh).
//
// Each product is three of f16 (high high, high low, low high). Tensor cores cut sums off instead
// of rounding them, so dK and dV are summed over one step in the tensor core and over the steps in
// f32. P and dS become pairs in registers. P is at most 1; dS = P (dP - delta) is at most 2 |dO|
// |V| by the largest row norms of the head, which gives its unit.
#pragma once

#include "attention_backward.cuh"

namespace heddle::sm90 {

template <class Config>
struct AttentionBackwardF32 : AttentionBackward<Config> {
  using Base = AttentionBackward<Config>;
  using C = Config;
  using T = typename C::Element;
  static_assert(C::kPlanes == 2 && is_same<T, f16>);
  static_assert(!C::kLengths && C::kUnitSlope && C::kTileM == 64);
  static constexpr int kTileM = Base::kTileM, kTileN = Base::kTileN;
  static constexpr int kQk = Base::kQk, kVd = Base::kVd, kDqColumns = Base::kDqColumns;

  using QTile = tile::PlanesOf<kTileM, kQk, 2>;
  using DoTile = tile::PlanesOf<kTileM, kVd, 2>;
  using KTile = tile::PlanesOf<kTileN, kQk, 2>;
  using VTile = tile::PlanesOf<kTileN, kVd, 2>;
  using DsTile = tile::PlanesOf<kTileN, kTileM, 2>;

  // Shared memory, from a 1024-byte boundary.
  static constexpr int kRowBytes = kTileM * 4;
  static constexpr int kKOffset = 0;
  static constexpr int kVOffset = kKOffset + KTile::kBytes;
  static constexpr int kQOffset = kVOffset + VTile::kBytes;
  static constexpr int kDoOffset = kQOffset + C::kQStages * QTile::kBytes;
  static constexpr int kDsOffset = kDoOffset + C::kDoStages * DoTile::kBytes;
  static constexpr int kDqOffset = kDsOffset + 2 * DsTile::kBytes;  // a fast group may run ahead
  static constexpr int kLseOffset = kDqOffset + C::kConsumers * Base::kDqPart * 4;
  static constexpr int kDeltaOffset = kLseOffset + C::kQStages * kRowBytes;
  static constexpr int kBarriers = kDeltaOffset + C::kDoStages * kRowBytes;
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDoStages>;
  static constexpr int kKFull = kBarriers, kVFull = kBarriers + 8;
  static constexpr int kDsFull = kBarriers + 16;  // two
  static constexpr int kQRing = kBarriers + 32;
  static constexpr int kDoRing = kQRing + QRing::kBytes;
  static constexpr int kWork = kDoRing + DoRing::kBytes;
  static constexpr int kSharedBytes = kWork + Base::kWorkBytes + tile::kTileAlignment;
  static_assert(kSharedBytes <= 227 * 1024, "shared memory of a block");

  using Producer = BackwardProducer<AttentionBackwardF32>;

  /// P times this is split: pairs keep all their bits down to 2^-2.
  static constexpr float kWeightUnit = 16384;

  HEDDLE_DEVICE static HeadUnits units_of(const BackwardArguments& args, int batch, int head) {
    const int query_head = batch * args.q_pairs.heads + head;
    const int key_head =
        batch * args.k_pairs.heads + head / (args.q_pairs.heads / args.k_pairs.heads);
    const float q = args.q_pairs.units[query_head], d_o = args.d_o_pairs.units[query_head];
    const float k = args.k_pairs.units[key_head], v = args.v_pairs.units[key_head];
    // dS has the unit that brings its bound to 2^14 .. 2^15.
    const float bound =
        2 * sqrtf(args.d_o_pairs.norms[query_head]) * sqrtf(args.v_pairs.norms[key_head]);
    const int exponent = max_of(static_cast<int>(__float_as_uint(bound) >> 23) - 127, 0);
    const float shrink = __uint_as_float(static_cast<u32>(127 + 14 - exponent) << 23);
    // Where the product of two units is no number f32 has, neither is any gradient.
    const float d_p_unit = ptx::max(d_o * v, 1e-30f);
    HeadUnits units;
    units.dot = Base::scale_of(args) * Base::kToLog2 * tile::kCutOff<kQk / 16> * q * k;
    units.delta = shrink * (1 / kWeightUnit) / d_p_unit;
    units.d_p = shrink * (1 / kWeightUnit) * tile::kCutOff<kVd / 16>;
    units.d_v = d_o * (1 / kWeightUnit) * tile::kCutOff<kTileM / 16>;
    units.d_k = d_p_unit / shrink * q * tile::kCutOff<kTileM / 16>;
    units.d_q = d_p_unit / shrink * k * tile::kCutOff<kTileN / 16>;
    return units;
  }

  /// Writes a warp's 16 rows of a gradient; the four lanes of a quad fill a sector of 32 bytes.
  template <int kHeadDim, int kColumns>
  HEDDLE_DEVICE static void store_gradient(const float (&d)[kColumns / 2], float scale,
                                           const attention::Tensor& out,
                                           const BackwardArguments& args,
                                           const BackwardWork& work) {
    if (out.data == nullptr) return;
    const int thread = threadIdx.x % 128, part = threadIdx.x / 128 - 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = work.key0 + 64 * part + tile::fragment_row(thread, h);
      if (key >= args.problem.forward.kv_length) continue;
      float* to = attention::element_pointer<float>(out, work.batch, work.key_head, key,
                                                    tile::fragment_column(thread));
#pragma unroll
      for (int i = 2 * h; i < kColumns / 2; i += 4) {
        if (tile::fragment_column_step(i - 2 * h) < kHeadDim)
          *reinterpret_cast<float2*>(to + tile::fragment_column_step(i)) =
              make_float2(d[i] * scale, d[i + 1] * scale);
      }
    }
  }

  template <int kCount>
  HEDDLE_DEVICE static void add_scaled(float (&sum)[kCount], const float (&part)[kCount],
                                       float factor) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = ptx::fma(part[i], factor, sum[i]);
  }

  /// One consumer warp group: 64 keys of the block.
  struct Consumer {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    const QRing q_ring;
    const DoRing d_o_ring;
    const int part, thread;
    const int first_key;          ///< of the thread's two; the other is 8 further
    int whole_begin, whole_end;   ///< tiles of queries within these rows need no selection
    int first_query, last_query;  ///< that see first_key, less the thread's first column
    u32 keys_seen;                ///< bit h: the thread's key h lies within the constant bounds

    float s[kTileM / 2], d_p[kTileM / 2], d_q[kDqColumns / 2], d_k[kQk / 2], d_v[kVd / 2];
    float d_k_part[kQk / 2], d_v_part[kVd / 2];  ///< of one step
    u32 probability[2][kTileM / 16][4], d_s[2][kTileM / 16][4];

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args),
          work(work),
          shared(shared),
          q_ring{shared + kQRing},
          d_o_ring{shared + kDoRing},
          part(threadIdx.x / 128 - 1),
          thread(threadIdx.x % 128),
          first_key(work.key0 + 64 * part + tile::fragment_row(thread, 0)) {
      const attention::BatchBounds keys = work.keys;
      const bool keys_within = work.key0 >= keys.lower && work.key0 + kTileN <= keys.upper;
      whole_begin = C::kUpperVaries ? work.key0 + kTileN - keys.upper_diagonal : 0;
      whole_end = round_up(work.q_length, kTileM);
      if constexpr (C::kLowerVaries)
        whole_end = min_of(whole_end, work.key0 - keys.lower_diagonal + 1);
      if (!keys_within) whole_end = 0;
      first_query = first_key - tile::fragment_column(thread) - keys.upper_diagonal + 1;
      last_query = first_key - tile::fragment_column(thread) - keys.lower_diagonal;
      keys_seen = 0;
      for (int h = 0; h < 2; ++h)
        if (first_key + 8 * h >= keys.lower && first_key + 8 * h < keys.upper) keys_seen |= 1 << h;
    }

    HEDDLE_DEVICE u32 q_tile(int stage) const { return shared + kQOffset + stage * QTile::kBytes; }
    HEDDLE_DEVICE u32 d_o_tile(int stage) const {
      return shared + kDoOffset + stage * DoTile::kBytes;
    }
    HEDDLE_DEVICE u32 d_s_tile(int step) const {
      return shared + kDsOffset + (step & 1) * DsTile::kBytes;
    }
    HEDDLE_DEVICE u32 d_s_full(int step) const { return shared + kDsFull + 8 * (step & 1); }

    /// In global memory: registers are for sums.
    HEDDLE_DEVICE const HeadUnits& units(int head) const {
      return args.head_units[work.batch * args.problem.forward.q_heads + head];
    }

    /// One arrival a warp.
    HEDDLE_DEVICE void arrive(u32 barrier) const {
      if (thread % 32 == 0) ptx::mbarrier_arrive(barrier);
    }

    // The products, each a group of its own.

    HEDDLE_DEVICE void issue_s(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kQk / 16, 2>(
          s, tile::KMajor<typename KTile::Plane>(shared + kKOffset, 64 * part),
          tile::KMajor<typename QTile::Plane>(q_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_p(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kVd / 16, 2>(
          d_p, tile::KMajor<typename VTile::Plane>(shared + kVOffset, 64 * part),
          tile::KMajor<typename DoTile::Plane>(d_o_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_v(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kVd>(d_v_part, probability,
                                  tile::MnMajor<typename DoTile::Plane>(d_o_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_k(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kQk>(d_k_part, d_s,
                                  tile::MnMajor<typename QTile::Plane>(q_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_q(int step) {
      ptx::mbarrier_wait(d_s_full(step), step >> 1 & 1);
      ptx::wgmma_fence();
      tile::issue_product<T, kDqColumns, kTileN / 16, 2>(
          d_q, tile::MnMajor<typename DsTile::Plane>(d_s_tile(step)),
          tile::MnMajor<typename KTile::Plane>(shared + kKOffset, kDqColumns * part), false);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void wait_q(const tile::RingPosition<C::kQStages>& at) const {
      ptx::mbarrier_wait(q_ring.full(at.stage()), at.parity());
    }
    HEDDLE_DEVICE void wait_d_o(const tile::RingPosition<C::kDoStages>& at) const {
      ptx::mbarrier_wait(d_o_ring.full(at.stage()), at.parity());
    }

    /// Zeroes what the mask hides of P^T for the queries from row0.
    HEDDLE_DEVICE void select(int row0) {
      int first[2], last[2];  // of the queries that see each key, from the thread's first column
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        first[h] = first_query + 8 * h - row0;
        last[h] = kTileM;
        if constexpr (C::kLowerVaries) last[h] = last_query + 8 * h - row0;
        if ((keys_seen >> h & 1) == 0) last[h] = -1;
      }
#pragma unroll
      for (int i = 0; i < kTileM / 2; ++i) {
        const int query = tile::fragment_column_step(i), h = tile::fragment_half(i);
        bool visible = query <= last[h];
        if constexpr (C::kUpperVaries) visible = visible && query >= first[h];
        s[i] = visible ? s[i] : 0.0f;
      }
    }

    /// S^T to P^T, as operands.
    HEDDLE_DEVICE void exponentiate(int stage, const typename Base::Step& at) {
      const int row0 = at.tile * kTileM;
      const u32 lse = shared + kLseOffset + stage * kRowBytes + tile::fragment_column(thread) * 4;
      const float unit = units(at.head).dot;
#pragma unroll
      for (int n = 0; n < kTileM / 8; ++n) {
        float negative_lse2[2];
        ptx::load_shared(lse + 32 * n, negative_lse2[0], negative_lse2[1]);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i)
          s[i] = ptx::exp2(ptx::fma(s[i], unit, negative_lse2[i % 2]));
      }
      // Tiles wholly inside the visible band need no selection.
      if (row0 < whole_begin || row0 + kTileM > whole_end) select(row0);
      tile::split_fragment<T, kTileM>(probability, s, kWeightUnit);
    }

    /// dS = P o (dP - delta), kept as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(int stage, int step, int head) {
      const u32 row_delta =
          shared + kDeltaOffset + stage * kRowBytes + tile::fragment_column(thread) * 4;
      const float unit = units(head).d_p, delta_unit = units(head).delta;
#pragma unroll
      for (int n = 0; n < kTileM / 8; ++n) {
        float delta[2];
        ptx::load_shared(row_delta + 32 * n, delta[0], delta[1]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int k = n / 2, i = n % 2 * 2 + h;
          float high[2], low[2];
          ptx::unpack<T>(probability[0][k][i], high[0], high[1]);
          ptx::unpack<T>(probability[1][k][i], low[0], low[1]);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = d_p[4 * n + 2 * h + e];
            x = (high[e] + low[e]) * ptx::fma(x, unit, -delta[e] * delta_unit);
          }
        }
      }
      tile::split_fragment<T, kTileM>(d_s, d_p, 1.0f);
#pragma unroll
      for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
        for (int k = 0; k < kTileM / 16; ++k)
          tile::store_slice<typename DsTile::Plane>(d_s_tile(step) + plane * DsTile::Plane::kBytes,
                                                    64 * part + thread / 32 * 16, k, d_s[plane][k]);
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      arrive(d_s_full(step));
    }

    /// Hands dQ, in fragment order, to the warp that adds it up.
    HEDDLE_DEVICE void send_d_q(int step, float unit) {
      const u32 to = shared + kDqOffset + part * Base::kDqPart * 4 + thread * 16;
      if (step > 0) ptx::barrier_sync(Base::kDqEmptyBarrier + part, 128 + 32);
#pragma unroll
      for (int i = 0; i < kDqColumns / 8; ++i)
        ptx::store_shared(to + i * 128 * 16, d_q[4 * i] * unit, d_q[4 * i + 1] * unit,
                          d_q[4 * i + 2] * unit, d_q[4 * i + 3] * unit);
      ptx::fence_proxy_async_shared();
      ptx::barrier_arrive(Base::kDqFullBarrier + part, 128 + 32);
    }

    HEDDLE_DEVICE void run(int steps) {
      typename Base::Step next(work);
      tile::RingPosition<C::kQStages> q_at, q_next;
      tile::RingPosition<C::kDoStages> d_o_at;
#pragma unroll
      for (float& x : d_k) x = 0;
#pragma unroll
      for (float& x : d_v) x = 0;

      ptx::mbarrier_wait(shared + kKFull, 0);
      wait_q(q_at);
      issue_s(0);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      exponentiate(0, next);
      ptx::mbarrier_wait(shared + kVFull, 0);
      wait_d_o(d_o_at);
      issue_d_p(0);
      issue_d_v(0);
      ptx::wgmma_wait<1>();
      ptx::pin(d_p);
      differentiate(0, 0, next.head);
      ptx::wgmma_wait<0>();
      ptx::pin(d_v_part);
      add_scaled(d_v, d_v_part, units(next.head).d_v);
      arrive(d_o_ring.empty(0));

#pragma unroll 1
      for (int step = 0; step + 1 < steps; ++step) {
        const int head = next.head;  // of `step`
        next.advance(work);
        q_next.advance();
        d_o_at.advance();

        wait_q(q_next);
        issue_s(q_next.stage());
        issue_d_q(step);
        issue_d_k(q_at.stage());
        ptx::wgmma_wait<2>();  // S
        ptx::pin(s);
        exponentiate(q_next.stage(), next);
        ptx::wgmma_wait<1>();  // dQ
        ptx::pin(d_q);
        send_d_q(step, units(head).d_q);
        ptx::wgmma_wait<0>();  // dK
        ptx::pin(d_k_part);
        arrive(q_ring.empty(q_at.stage()));
        add_scaled(d_k, d_k_part, units(head).d_k);

        wait_d_o(d_o_at);
        issue_d_p(d_o_at.stage());
        issue_d_v(d_o_at.stage());
        ptx::wgmma_wait<1>();  // dP
        ptx::pin(d_p);
        differentiate(d_o_at.stage(), step + 1, next.head);
        ptx::wgmma_wait<0>();  // dV
        ptx::pin(d_v_part);
        add_scaled(d_v, d_v_part, units(next.head).d_v);
        arrive(d_o_ring.empty(d_o_at.stage()));
        q_at = q_next;
      }

      issue_d_q(steps - 1);
      issue_d_k(q_at.stage());
      ptx::wgmma_wait<0>();
      ptx::pin(d_q);
      ptx::pin(d_k_part);
      send_d_q(steps - 1, units(next.head).d_q);
      add_scaled(d_k, d_k_part, units(next.head).d_k);
      store_gradient<C::kVDim, kVd>(d_v, 1.0f, args.problem.d_v, args, work);
      store_gradient<C::kQkDim, kQk>(d_k, Base::scale_of(args) * Base::kOfLog2, args.problem.d_k,
                                     args, work);
    }
  };

  /// Keys that no query sees have zero gradients.
  template <int kHeadDim>
  HEDDLE_DEVICE static void store_zeros(const attention::Tensor& out, const BackwardArguments& args,
                                        const BackwardWork& work) {
    if (out.data == nullptr) return;
    constexpr int kChunks = kHeadDim / 4;
    float* base = attention::element_pointer<float>(out, work.batch, work.key_head, work.key0, 0);
    const int rows = min_of(kTileN, args.problem.forward.kv_length - work.key0);
    for (int i = threadIdx.x; i < rows * kChunks; i += Base::kThreads)
      *reinterpret_cast<float4*>(base + i / kChunks * out.stride[2] + i % kChunks * 4) =
          make_float4(0, 0, 0, 0);
  }

  /// Launched as AttentionBackward::run, after prepare and the kernels that make pairs.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    extern __shared__ char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      Base::store_work(shared + kWork, Base::work_of_block(args));
      ptx::mbarrier_init(shared + kKFull, 1);
      ptx::mbarrier_init(shared + kVFull, 1);
      ptx::mbarrier_init(shared + kDsFull, 4 * C::kConsumers);
      ptx::mbarrier_init(shared + kDsFull + 8, 4 * C::kConsumers);
      QRing{shared + kQRing}.init(1, 4 * C::kConsumers);
      DoRing{shared + kDoRing}.init(1, 4 * C::kConsumers);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    ptx::grid_dependents_launch();
    ptx::grid_dependency_wait();
    if (const BackwardWork work = Base::load_work(shared + kWork); work.steps() == 0) {
      store_zeros<C::kQkDim>(args.problem.d_k, args, work);
      store_zeros<C::kVDim>(args.problem.d_v, args, work);
      return;
    }

    if (threadIdx.x < 128) {
      ptx::registers_shrink<Base::kProducerRegisters>();
      const int warp = threadIdx.x / 32;
      const BackwardWork work = Base::load_work(shared + kWork);
      if (warp == 0) {
        if (ptx::elect_one()) Producer::load_tiles(args, shared, work);
      } else if (warp <= C::kConsumers) {
        Producer::reduce_d_q(args, shared, work, warp - 1);
      }
    } else {
      ptx::registers_grow<Base::kConsumerRegisters>();
      const BackwardWork work = Base::load_work(shared + kWork);
      Consumer(args, work, shared).run(work.steps());
    }
  }
};

}  // namespace heddle::sm90
