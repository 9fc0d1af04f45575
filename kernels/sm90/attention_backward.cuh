// Attention backward on Hopper, one block per tile of keys.
//
//   S^T = K Q^T          P^T  = exp(score(scale * S^T) - lse)           dV += P^T dO
//   dP^T = V dO^T        dS^T = P^T o (dP^T - delta) o slope            dK += dS^T Q
//                                                                       dQ += dS K
//
// K and V stay in shared memory, dK and dV in the registers of the consumer warp groups, each of
// which owns 64 keys; Q and dO stream through rings. Working on S^T makes P^T and dS^T, as they
// leave the accumulators, the register operands of dV and dK; only dS passes through shared memory,
// for dQ, where the keys of all groups meet. dQ is summed over blocks in f32, in fragment order;
// attention_backward_rows.cuh holds the passes before and after.
//
// The products of a consumer, in the order its tensor core sees them:
//   ... dP(j) dV(j) | S(j+1) dQ(j) dK(j) | dP(j+1) dV(j+1) | ...
// dS(j) is computed under dV(j), the exponentials of step j+1 under dQ(j) and dK(j). The groups
// meet only in dS, and there a group waits with S(j+1) already behind it.
#pragma once

#include "../attention/visible.cuh"
#include "../ptx/math.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../tile/fragment.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"
#include "backward_producer.cuh"

namespace heddle::sm90 {

/// Score: kIdentity, or a static value(Cell) -> f32 score of one cell, in natural units (log2 units
/// with kInputIsLog2). Derivative: a static value(GradientCell), dL/d(scaled dot), linear in
/// `gradient`.
template <class Config, class Score = PlainBackwardScore, class Derivative = UnitDerivative>
struct AttentionBackward {
  using C = Config;
  using T = typename C::Element;
  static constexpr int kTileM = C::kTileM, kTileN = 64 * C::kConsumers;
  static constexpr int kThreads = 128 * (1 + C::kConsumers);
  // Their sum over the groups is what the launch gave: 168 a thread. More would wait for ever.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(C::kConsumers == 2, "dK, dV, S and dP of 64 keys fill a thread's registers");
  static_assert(C::kQkDim % 8 == 0 && C::kVDim % 8 == 0, "TMA moves multiples of 16 bytes");

  static constexpr int kQk = (C::kQkDim + 15) / 16 * 16, kVd = (C::kVDim + 15) / 16 * 16;
  /// Factor that takes a score to the exponent of 2, and its derivative.
  static constexpr float kToLog2 = C::kInputIsLog2 ? 1.0f : 1.4426950408889634f;
  static constexpr float kOfLog2 = C::kInputIsLog2 ? 0.6931471805599453f : 1.0f;
  using QTile = tile::SharedTile<kTileM, kQk>;
  using DoTile = tile::SharedTile<kTileM, kVd>;
  using KTile = tile::SharedTile<kTileN, kQk>;
  using VTile = tile::SharedTile<kTileN, kVd>;
  using DsTile = tile::SharedTile<kTileN, kTileM>;  // a row per key

  /// A dQ tile is split between the groups by rows or, where it has only 64, by columns.
  static constexpr bool kSplitColumns = kTileM == 64;
  static constexpr int kDqColumns = !kSplitColumns            ? kQk
                                    : kQk > tile::kBoxColumns ? tile::kBoxColumns
                                                              : tile::kBoxColumns / 2;
  static constexpr int kDqWidth = kSplitColumns ? kDqColumns * C::kConsumers : kDqColumns;
  static constexpr int kDqPart = 64 * kDqColumns;  // elements
  static_assert(kTileM == 64 || kTileM == 64 * C::kConsumers);
  static_assert(kQk <= kDqWidth, "head dims above 128 take attention_backward_wide.cuh");

  // Shared memory, from a 1024-byte boundary.
  static constexpr int kRowBytes = kTileM * 4;
  static constexpr int kKOffset = 0;
  static constexpr int kVOffset = kKOffset + KTile::kBytes;
  static constexpr int kQOffset = kVOffset + VTile::kBytes;
  static constexpr int kDoOffset = kQOffset + C::kQStages * QTile::kBytes;
  static constexpr int kDsOffset = kDoOffset + C::kDoStages * DoTile::kBytes;
  static constexpr int kDqOffset = kDsOffset + 2 * DsTile::kBytes;  // a fast group may run ahead
  static constexpr int kLseOffset = kDqOffset + C::kConsumers * kDqPart * 4;
  static constexpr int kDeltaOffset = kLseOffset + C::kQStages * kRowBytes;
  static constexpr int kBarriers = kDeltaOffset + C::kDoStages * kRowBytes;
  using QRing = tile::Ring<C::kQStages>;
  using DoRing = tile::Ring<C::kDoStages>;
  static constexpr int kKFull = kBarriers, kVFull = kBarriers + 8;
  static constexpr int kDsFull = kBarriers + 16;  // two
  static constexpr int kQRing = kBarriers + 32;
  static constexpr int kDoRing = kQRing + QRing::kBytes;
  /// What the launch asks for; the kernel aligns its window itself.
  static constexpr int kMapRows = kDoRing + DoRing::kBytes;
  static constexpr int kSharedBytes = kMapRows + 16 + tile::kTileAlignment;
  static_assert(kSharedBytes <= 227 * 1024, "shared memory of a block");

  // Named barriers: 0 is __syncthreads. The dQ pair exists once per group.
  static constexpr int kConsumersBarrier = 1, kDqFullBarrier = 2, kDqEmptyBarrier = 4;

  using Visible = attention::VisibleKeys<C::kLowerVaries, C::kUpperVaries>;
  using Producer = BackwardProducer<AttentionBackward>;
  /// A causal deterministic pass starts its blocks, and sums them, from the last key down: there
  /// each block's first query tile is one nobody else has yet to add to.
  static constexpr bool kDescending = C::kDeterministic && C::kUpperVaries;

  // --- Work -----------------------------------------------------------------------------------

  HEDDLE_DEVICE static float scale_of(const BackwardArguments& args) {
    const attention::ForwardParameters& p = args.problem.forward;
    return p.scale_operand != nullptr ? *p.scale_operand : p.scale;
  }

  HEDDLE_DEVICE static Visible visible(const BackwardArguments& args, const BackwardWork& w) {
    return {attention::resolve_bounds(args.problem.forward, w.batch, w.q_length, w.kv_length)};
  }

  HEDDLE_DEVICE static BackwardWork work_of_block(const BackwardArguments& args) {
    const attention::ForwardParameters& p = args.problem.forward;
    // Heads come in sections that share the L2; within one, the first key tile of every head, then
    // the second: of a causal mask the longest first.
    const int tiles = ceil_div(p.kv_length, kTileN);
    const int section = blockIdx.x / (args.section * tiles) * args.section;
    const int place = blockIdx.x - section * tiles;
    const int width = min_of(args.section, p.batch * p.k_heads - section);
    const int order = place / width, flat_head = section + place - order * width;

    BackwardWork w;
    w.batch = flat_head / p.k_heads;
    w.key_head = flat_head - w.batch * p.k_heads;
    w.key0 = kTileN * (kDescending ? tiles - 1 - order : order);
    w.group = p.q_heads / p.k_heads;
    w.q_length = C::kLengths ? attention::length_of(p.q_lengths, w.batch) : p.q_length;
    w.kv_length = C::kLengths ? attention::length_of(p.kv_lengths, w.batch) : p.kv_length;
    // The rows that see any of the keys.
    const attention::BatchBounds keys = visible(args, w).bounds;
    int begin = 0, end = w.q_length;
    if constexpr (C::kUpperVaries) begin = max_of(begin, w.key0 - keys.upper_diagonal + 1);
    if constexpr (C::kLowerVaries) end = min_of(end, w.key0 + kTileN - keys.lower_diagonal);
    const bool any = begin < end && w.key0 < keys.upper && w.key0 + kTileN > keys.lower;
    w.tile_begin = begin / kTileM;
    w.tile_count = any ? ceil_div(end, kTileM) - w.tile_begin : 0;
    return w;
  }

  /// How many blocks add to a query tile before this one.
  HEDDLE_DEVICE static int turn(const Visible& keys, const BackwardWork& w, int q_tile) {
    const u32 mine = static_cast<u32>(w.key0) / kTileN;
    if (!kDescending) return mine - static_cast<u32>(keys.lo(q_tile * kTileM)) / kTileN;
    const int last_row = min_of((q_tile + 1) * kTileM, w.q_length) - 1;
    return static_cast<u32>(keys.hi(last_row) - 1) / kTileN - mine;
  }

  // --- Consumers ------------------------------------------------------------------------------

  /// Zeroes the rows of a tile from `row` on: what lies past a sequence may be NaN, and 0 * NaN is.
  /// All consumers call it together.
  template <class Tile>
  HEDDLE_DEVICE static void clear_rows(u32 tile_address, int row) {
    if (row >= Tile::kRows) return;
    const u32 zero[4] = {0, 0, 0, 0};
    const int lines = Tile::kRows - row, chunks = tile::kLineBytes / 16;
    for (int i = threadIdx.x - 128; i < Tile::kBoxes * lines * chunks; i += 128 * C::kConsumers) {
      const int box = i / (lines * chunks), rest = i - box * lines * chunks;
      ptx::store_shared(tile_address + box * Tile::kBoxBytes + row * tile::kLineBytes + rest * 16,
                        zero);
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(kConsumersBarrier, 128 * C::kConsumers);
  }

  /// Rows past a dense length are written as zeros, past a ragged one left alone.
  HEDDLE_DEVICE static int written_rows(const attention::Tensor& out, const BackwardArguments& args,
                                        const BackwardWork& work) {
    return C::kLengths && out.offsets != nullptr ? work.kv_length : args.problem.forward.kv_length;
  }

  /// Writes a warp's 16 rows of a gradient, if it is wanted, through its own rows of a tile that is
  /// no longer read.
  template <class Tile, int kHeadDim, int kColumns>
  HEDDLE_DEVICE static void store_gradient(const float (&d)[kColumns / 2], float scale,
                                           u32 tile_address, const attention::Tensor& out,
                                           const BackwardArguments& args,
                                           const BackwardWork& work) {
    if (out.data == nullptr) return;
    const int warp_row = (threadIdx.x / 32 - 4) * 16;  // warps 0..3 produce
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      u32 slice[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        slice[i] = ptx::pack<T>(d[8 * k + 2 * i] * scale, d[8 * k + 2 * i + 1] * scale);
      tile::store_slice<Tile>(tile_address, warp_row, k, slice);
    }
    __syncwarp();
    T* base = attention::element_pointer<T>(out, work.batch, work.key_head, work.key0, 0);
    const int rows = written_rows(out, args, work) - work.key0;
    constexpr int kChunks = kColumns / 8;
#pragma unroll 4
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const int row = warp_row + i / kChunks, chunk = i % kChunks;
      u32 x[4];
      ptx::load_shared(tile_address + Tile::chunk_offset(row, chunk), x);
      if (row < rows && chunk * 8 < kHeadDim)
        *reinterpret_cast<uint4*>(base + row * out.stride[2] + chunk * 8) =
            make_uint4(x[0], x[1], x[2], x[3]);
    }
  }

  /// One consumer warp group: 64 keys of the block.
  struct Consumer {
    const BackwardArguments& args;
    const BackwardWork& work;
    const u32 shared;
    const QRing q_ring;
    const DoRing d_o_ring;
    const int part, thread;
    const int first_key;  ///< of the thread's two; the other is 8 further
    const float scale;
    int whole_begin, whole_end;   ///< tiles of queries within these rows need no selection
    int first_query, last_query;  ///< that see first_key, less the thread's first column
    u32 keys_seen;                ///< bit h: the thread's key h lies within the constant bounds

    float s[kTileM / 2], d_p[kTileM / 2], d_q[kDqColumns / 2], d_k[kQk / 2], d_v[kVd / 2];
    u32 probability[kTileM / 16][4], d_s[kTileM / 16][4];
    u32 weight[C::kUnitSlope ? 1 : kTileM / 16][4];  ///< P o slope
    /// Whether each P is rounded as it is computed or all at the end: as ptxas finds registers.
    static constexpr bool kPackEarly = !Score::kIdentity && kTileM == 64;

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : args(args),
          work(work),
          shared(shared),
          q_ring{shared + kQRing},
          d_o_ring{shared + kDoRing},
          part(threadIdx.x / 128 - 1),
          thread(threadIdx.x % 128),
          first_key(work.key0 + 64 * part + tile::fragment_row(thread, 0)),
          scale(scale_of(args)) {
      const attention::BatchBounds keys = visible(args, work).bounds;
      const bool keys_within = work.key0 >= keys.lower && work.key0 + kTileN <= keys.upper;
      whole_begin = C::kUpperVaries ? work.key0 + kTileN - keys.upper_diagonal : 0;
      whole_end = C::kLengths ? work.q_length : round_up(work.q_length, kTileM);
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

    /// One arrival a warp.
    HEDDLE_DEVICE void arrive(u32 barrier) const {
      if (thread % 32 == 0) ptx::mbarrier_arrive(barrier);
    }

    // The products, each a group of its own.

    HEDDLE_DEVICE void issue_s(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kQk / 16>(s, tile::KMajor<KTile>(shared + kKOffset, 64 * part),
                                               tile::KMajor<QTile>(q_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_p(int stage) {
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kVd / 16>(d_p,
                                               tile::KMajor<VTile>(shared + kVOffset, 64 * part),
                                               tile::KMajor<DoTile>(d_o_tile(stage)), false);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_v(int stage, bool accumulate) {
      ptx::wgmma_fence();
      tile::issue_product<T, kVd, kTileM / 16>(d_v, probability,
                                               tile::MnMajor<DoTile>(d_o_tile(stage)), accumulate);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_k(int stage, bool accumulate) {
      ptx::wgmma_fence();
      tile::issue_product<T, kQk, kTileM / 16>(d_k, d_s, tile::MnMajor<QTile>(q_tile(stage)),
                                               accumulate);
      ptx::wgmma_commit();
    }
    HEDDLE_DEVICE void issue_d_q(int step) {
      ptx::mbarrier_wait(d_s_full(step), step >> 1 & 1);
      ptx::wgmma_fence();
      tile::issue_product<T, kDqColumns, kTileN / 16>(
          d_q, tile::MnMajor<DsTile>(d_s_tile(step), kSplitColumns ? 0 : 64 * part),
          tile::MnMajor<KTile>(shared + kKOffset, kSplitColumns ? kDqColumns * part : 0), false);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void wait_q(const tile::RingPosition<C::kQStages>& at, const BackwardStep& step) {
      ptx::mbarrier_wait(q_ring.full(at.stage()), at.parity());
      if constexpr (C::kLengths)
        clear_rows<QTile>(q_tile(at.stage()), work.q_length - step.tile * kTileM);
    }
    HEDDLE_DEVICE void wait_d_o(const tile::RingPosition<C::kDoStages>& at,
                                const BackwardStep& step) {
      ptx::mbarrier_wait(d_o_ring.full(at.stage()), at.parity());
      if constexpr (C::kLengths)
        clear_rows<DoTile>(d_o_tile(at.stage()), work.q_length - step.tile * kTileM);
    }

    /// Zeroes what the mask hides of P^T for the queries from row0.
    HEDDLE_DEVICE void select(int row0) {
      int first[2], last[2];  // of the queries that see each key, from the thread's first column
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        first[h] = first_query + 8 * h - row0;
        last[h] = kTileM;
        if constexpr (C::kLowerVaries) last[h] = last_query + 8 * h - row0;
        if constexpr (C::kLengths)
          last[h] = min_of(last[h], work.q_length - 1 - row0 - tile::fragment_column(thread));
        if ((keys_seen >> h & 1) == 0) last[h] = -1;
      }
#pragma unroll
      for (int i = 0; i < kTileM / 2; ++i) {
        const int query = tile::fragment_column_step(i), h = tile::fragment_half(i);
        bool visible = query <= last[h];
        if constexpr (C::kUpperVaries) visible = visible && query >= first[h];
        const u32 mask = visible ? 0xffffffffu : i % 2 ? 0x0000ffffu : 0xffff0000u;
        if constexpr (kPackEarly)
          probability[i / 8][i % 8 / 2] &= mask;
        else
          s[i] = visible ? s[i] : 0.0f;
        if constexpr (!C::kUnitSlope) weight[i / 8][i % 8 / 2] &= mask;
      }
    }

    /// S^T to P^T, rounded to operands.
    HEDDLE_DEVICE void exponentiate(int stage, const BackwardStep& at) {
      const int row0 = at.tile * kTileM;
      const u32 lse = shared + kLseOffset + stage * kRowBytes + tile::fragment_column(thread) * 4;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        float negative_lse2[2];
        const int row_k = row0 + tile::fragment_column(thread) + 16 * k;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i % 2 == 0)
            ptx::load_shared(lse + 64 * k + 16 * i, negative_lse2[0], negative_lse2[1]);
          float slope[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int n = 8 * k + 2 * i + e;
            if constexpr (Score::kIdentity) {
              s[n] = ptx::exp2(ptx::fma(s[n], scale * kToLog2, negative_lse2[e]));
            } else {
              // What a cell outside the tensors would load may not exist.
              const int row = row_k + tile::fragment_column_step(n - 8 * k);
              const int key = first_key + 8 * tile::fragment_half(n);
              const GradientCell cell{s[n] * scale,
                                      min_of(row, work.q_length - 1),
                                      min_of(key, work.kv_length - 1),
                                      work.batch,
                                      at.head,
                                      work.q_length,
                                      work.kv_length,
                                      args.problem.forward.loads,
                                      1.0f};
              const float x = Score::value(cell);
              if constexpr (!C::kUnitSlope) slope[e] = Derivative::value(cell);
              s[n] = ptx::exp2(ptx::fma(x, kToLog2, negative_lse2[e]));
            }
          }
          const float p0 = s[8 * k + 2 * i], p1 = s[8 * k + 2 * i + 1];
          if constexpr (kPackEarly) probability[k][i] = ptx::pack<T>(p0, p1);
          if constexpr (!C::kUnitSlope) weight[k][i] = ptx::pack<T>(p0 * slope[0], p1 * slope[1]);
        }
      }
      // Tiles wholly inside the visible band need no selection.
      if (row0 < whole_begin || row0 + kTileM > whole_end) select(row0);
      if constexpr (!kPackEarly) tile::pack_fragment<T, kTileM>(probability, s);
    }

    /// dS = P o slope o (dP - delta), kept as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(int stage, int step) {
      const u32 row_delta =
          shared + kDeltaOffset + stage * kRowBytes + tile::fragment_column(thread) * 4;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        float delta[2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i % 2 == 0) ptx::load_shared(row_delta + 64 * k + 16 * i, delta[0], delta[1]);
          float p0, p1;
          ptx::unpack<T>(C::kUnitSlope ? probability[k][i] : weight[C::kUnitSlope ? 0 : k][i], p0,
                         p1);
          d_s[k][i] = ptx::pack<T>(p0 * (d_p[8 * k + 2 * i] - delta[0]),
                                   p1 * (d_p[8 * k + 2 * i + 1] - delta[1]));
        }
        tile::store_slice<DsTile>(d_s_tile(step), 64 * part + thread / 32 * 16, k, d_s[k]);
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      arrive(d_s_full(step));
    }

    /// Hands dQ, in fragment order, to the warp that adds it up.
    HEDDLE_DEVICE void send_d_q(int step) {
      const u32 to = shared + kDqOffset + part * kDqPart * 4 + thread * 16;
      if (step > 0) ptx::barrier_sync(kDqEmptyBarrier + part, 128 + 32);
#pragma unroll
      for (int i = 0; i < kDqColumns / 8; ++i)
        ptx::store_shared(to + i * 128 * 16, d_q[4 * i], d_q[4 * i + 1], d_q[4 * i + 2],
                          d_q[4 * i + 3]);
      ptx::fence_proxy_async_shared();
      ptx::barrier_arrive(kDqFullBarrier + part, 128 + 32);
    }

    HEDDLE_DEVICE void run(int steps) {
      BackwardStep next(work);
      tile::RingPosition<C::kQStages> q_at, q_next;
      tile::RingPosition<C::kDoStages> d_o_at;

      ptx::mbarrier_wait(shared + kKFull, 0);
      if constexpr (C::kLengths)
        clear_rows<KTile>(shared + kKOffset, max_of(work.kv_length - work.key0, 0));
      wait_q(q_at, next);
      issue_s(0);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      exponentiate(0, next);
      ptx::mbarrier_wait(shared + kVFull, 0);
      if constexpr (C::kLengths)
        clear_rows<VTile>(shared + kVOffset, max_of(work.kv_length - work.key0, 0));
      wait_d_o(d_o_at, next);
      issue_d_p(0);
      issue_d_v(0, false);
      ptx::wgmma_wait<1>();
      ptx::pin(d_p);
      differentiate(0, 0);
      ptx::wgmma_wait<0>();
      arrive(d_o_ring.empty(0));

#pragma unroll 1
      for (int step = 0; step + 1 < steps; ++step) {
        next.advance(work);
        q_next.advance();
        d_o_at.advance();

        wait_q(q_next, next);
        issue_s(q_next.stage());
        issue_d_q(step);
        issue_d_k(q_at.stage(), step > 0);
        ptx::wgmma_wait<2>();  // S
        ptx::pin(s);
        exponentiate(q_next.stage(), next);
        ptx::wgmma_wait<1>();  // dQ
        ptx::pin(d_q);
        send_d_q(step);

        if constexpr (!C::kDkUnderDp) {
          ptx::wgmma_wait<0>();
          arrive(q_ring.empty(q_at.stage()));
        }
        wait_d_o(d_o_at, next);
        issue_d_p(d_o_at.stage());
        issue_d_v(d_o_at.stage(), true);
        if constexpr (C::kDkUnderDp) {
          ptx::wgmma_wait<2>();  // dK
          arrive(q_ring.empty(q_at.stage()));
        }
        ptx::wgmma_wait<1>();  // dP
        ptx::pin(d_p);
        differentiate(d_o_at.stage(), step + 1);
        ptx::wgmma_wait<0>();  // dV
        arrive(d_o_ring.empty(d_o_at.stage()));
        q_at = q_next;
      }

      issue_d_q(steps - 1);
      issue_d_k(q_at.stage(), steps > 1);
      ptx::wgmma_wait<0>();
      ptx::pin(d_q);
      send_d_q(steps - 1);
      ptx::pin(d_v);
      ptx::pin(d_k);
      store_gradient<VTile, C::kVDim, kVd>(d_v, 1.0f, shared + kVOffset, args.problem.d_v, args,
                                           work);
      ptx::barrier_sync(kConsumersBarrier, 128 * C::kConsumers);  // all have read K
      store_gradient<KTile, C::kQkDim, kQk>(d_k, scale * kOfLog2, shared + kKOffset,
                                            args.problem.d_k, args, work);
    }
  };

  // --- Kernel ---------------------------------------------------------------------------------

  /// Keys that no query sees have zero gradients.
  template <int kHeadDim>
  HEDDLE_DEVICE static void store_zeros(const attention::Tensor& out, const BackwardArguments& args,
                                        const BackwardWork& work) {
    if (out.data == nullptr) return;
    constexpr int kChunks = kHeadDim / 8;
    T* base = attention::element_pointer<T>(out, work.batch, work.key_head, work.key0, 0);
    const int rows = min_of(kTileN, written_rows(out, args, work) - work.key0);
    for (int i = threadIdx.x; i < rows * kChunks; i += kThreads)
      *reinterpret_cast<uint4*>(base + i / kChunks * out.stride[2] + i % kChunks * 8) =
          make_uint4(0, 0, 0, 0);
  }

  /// Grid: key tiles * key heads * batch; kThreads threads; kSharedBytes.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    extern __shared__ char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    const BackwardWork work = work_of_block(args);
    const int steps = work.tile_count * work.group;

    if (threadIdx.x == 0) {
      ptx::mbarrier_init(shared + kKFull, 1);
      ptx::mbarrier_init(shared + kVFull, 1);
      ptx::mbarrier_init(shared + kDsFull, 4 * C::kConsumers);
      ptx::mbarrier_init(shared + kDsFull + 8, 4 * C::kConsumers);
      QRing{shared + kQRing}.init(1, 4 * C::kConsumers);
      DoRing{shared + kDoRing}.init(1, 4 * C::kConsumers);
      ptx::mbarrier_init_fence();
      if constexpr (C::kLengths) Producer::place_maps(args, shared, work.batch);
    }
    __syncthreads();
    ptx::grid_dependents_launch();
    ptx::grid_dependency_wait();
    if (steps == 0) {
      store_zeros<C::kQkDim>(args.problem.d_k, args, work);
      store_zeros<C::kVDim>(args.problem.d_v, args, work);
      return;
    }

    if (threadIdx.x < 128) {
      ptx::registers_shrink<kProducerRegisters>();
      const int warp = threadIdx.x / 32;
      if (warp == 0) {
        if (ptx::elect_one()) Producer::load_tiles(args, shared, work, steps);
      } else if (warp <= C::kConsumers) {
        Producer::reduce_d_q(args, shared, work, steps, warp - 1);
      }
    } else {
      ptx::registers_grow<kConsumerRegisters>();
      Consumer(args, work, shared).run(steps);
    }
  }
};

}  // namespace heddle::sm90
