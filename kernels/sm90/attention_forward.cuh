// Attention forward on Hopper.
//
//   O = softmax(score(scale * Q K^T)) V,  log-sum-exp = log(sum(exp(score)))
//
// A persistent block is one producer warp group, whose first thread deals out query tiles and feeds
// rings of K and V tiles by TMA, and two or three consumer warp groups of 64 query rows each. A
// consumer keeps two products in flight: while the tensor core adds P(j) V(j), it computes the
// softmax of S(j+1). Consumers take turns at issuing, so one's softmax runs under the other's
// products. Keys are visited from the last visible tile backwards: masked tiles come first and the
// bulk of the loop has no mask code.
#pragma once

#include "../attention/forward_arguments.cuh"
#include "../attention/online_softmax.cuh"
#include "../attention/tile_order.cuh"
#include "../attention/visible.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/fragment.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"

namespace heddle::sm90 {

using attention::ForwardArguments;
using attention::WorkItem;

/// Scores left as the scaled dot product, with a positive scale.
struct PlainScore {
  static constexpr bool kPlain = true;
};

/// Defaults a generated configuration derives from and overrides.
struct ForwardConfig {
  using Element = bf16;
  using Score = PlainScore;  ///< kPlain, or constructible from (arguments, batch, head) and
                             ///< callable as (scaled dot, row, key) -> score in natural units
  static constexpr int kHeadDimQk = 128, kHeadDimV = 128;
  static constexpr int kTileN = 128;
  static constexpr int kConsumers = 2;
  static constexpr int kStages = 2;
  static constexpr bool kLowerVaries = false, kUpperVaries = false;
  static constexpr bool kLengths = false;  ///< lengths per batch entry
  static constexpr bool kSink = false;
  static constexpr bool kRowMax = false;          ///< row_max and row_sum are wanted
  static constexpr bool kTakeTurns = true;        ///< consumers issue products in turn
  static constexpr bool kOutputAliasesQ = false;  ///< O is staged where Q was
  static constexpr bool kRescaleEarly = false;    ///< O is corrected between the two products
  static constexpr bool kFenceSoftmax = true;     ///< see hold_until
  static constexpr int kSlack = 0;                ///< see OnlineSoftmax
};

template <class Config>
struct AttentionForward {
  using C = Config;
  using T = typename C::Element;
  static constexpr int kTileM = 64 * C::kConsumers;
  static constexpr int kTileN = C::kTileN;
  static constexpr int kThreads = 128 * (1 + C::kConsumers);
  static constexpr int kProducerRegisters = C::kConsumers == 2 ? 40 : C::kConsumers == 3 ? 32 : 56;
  static constexpr int kConsumerRegisters = C::kConsumers == 2   ? 232
                                            : C::kConsumers == 3 ? 160
                                                                 : 256;
  static_assert(kTileN % 16 == 0 && kTileN <= 256,
                "P's slices are 16 keys, a box 256 rows at most");
  static_assert(C::kHeadDimQk % 8 == 0 && C::kHeadDimV % 8 == 0, "TMA moves multiples of 16 bytes");

  static constexpr int kQkSlices = (C::kHeadDimQk + 15) / 16;
  static constexpr int kPvSlices = kTileN / 16;

  using QTile = tile::SharedTile<64, C::kHeadDimQk>;  // one consumer's rows
  using KTile = tile::SharedTile<kTileN, C::kHeadDimQk>;
  using VTile = tile::SharedTile<kTileN, C::kHeadDimV>;
  using OTile = tile::SharedTile<64, C::kHeadDimV>;
  static_assert(!C::kOutputAliasesQ || OTile::kBytes <= QTile::kBytes, "O must fit where Q was");

  // Shared memory, from a 1024-byte boundary.
  static constexpr int kQOffset = 0;
  static constexpr int kKOffset = kQOffset + C::kConsumers * QTile::kBytes;
  static constexpr int kVOffset = kKOffset + C::kStages * KTile::kBytes;
  static constexpr int kOOffset =
      C::kOutputAliasesQ ? kQOffset : kVOffset + C::kStages * VTile::kBytes;
  static constexpr int kOStride = C::kOutputAliasesQ ? QTile::kBytes : OTile::kBytes;
  static constexpr int kItemOffset = kVOffset + C::kStages * VTile::kBytes +
                                     (C::kOutputAliasesQ ? 0 : C::kConsumers * OTile::kBytes);
  static constexpr int kItemBytes = 32;
  static constexpr int kItemStages = 2;
  static constexpr int kBarrierOffset = kItemOffset + kItemStages * kItemBytes;
  using KvRing = tile::Ring<C::kStages>;
  using ItemRing = tile::Ring<kItemStages>;
  using QRing = tile::Ring<1>;
  static constexpr int kKRing = kBarrierOffset;
  static constexpr int kVRing = kKRing + KvRing::kBytes;
  static constexpr int kItemRing = kVRing + KvRing::kBytes;
  static constexpr int kQRing = kItemRing + ItemRing::kBytes;
  /// What the launch asks for; the kernel aligns its window itself.
  static constexpr int kSharedBytes = kQRing + C::kConsumers * QRing::kBytes + tile::kTileAlignment;
  static_assert(kSharedBytes <= 227 * 1024, "shared memory of a block");

  // Named barriers: 0 is __syncthreads.
  static constexpr int kTurnBarrier = 1;   // + consumer
  static constexpr int kGroupBarrier = 4;  // + consumer: the warp group's own

  using Visible = attention::VisibleKeys<C::kLowerVaries, C::kUpperVaries>;
  static constexpr bool kMaskedLoop = C::kUpperVaries || C::kLengths;

  HEDDLE_DEVICE static Visible visible(const ForwardArguments& args, int batch, int& q_length,
                                       int& kv_length) {
    q_length = args.q_length;
    kv_length = args.kv_length;
    if constexpr (C::kLengths) {
      q_length = min_of(q_length, args.q_lengths[batch]);
      kv_length = min_of(kv_length, args.kv_lengths[batch]);
    }
    return Visible(args.bounds, q_length, kv_length);
  }

  // --- Producer -------------------------------------------------------------------------------

  template <class Tile>
  HEDDLE_DEVICE static void load(u32 shared, const TensorMap* map, u32 barrier, int row, int head,
                                 int batch) {
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box)
      ptx::tma_load_4d(shared + box * Tile::kBoxBytes, map, barrier, box * tile::kBoxColumns, row,
                       head, batch);
  }

  HEDDLE_DEVICE static WorkItem make_item(const ForwardArguments& args, int index) {
    WorkItem item;
    int flat_head;
    attention::place_in_order(args.order, args.batch * args.heads, index, item.q_tile, flat_head);
    item.batch = flat_head / args.heads;
    item.head = flat_head - item.batch * args.heads;
    int q_length, kv_length;
    const Visible keys = visible(args, item.batch, q_length, kv_length);
    const int first_row = item.q_tile * kTileM;
    const int last_row = min_of(first_row + kTileM, q_length) - 1;
    const int lo = keys.lo(first_row);
    const int hi = keys.hi(last_row);
    const bool any = first_row <= last_row && lo < hi;
    item.key_begin = any ? lo / kTileN : 0;
    item.key_end = any ? ceil_div(hi, kTileN) : 0;
    return item;
  }

  HEDDLE_DEVICE static void produce(const ForwardArguments& args, u32 shared) {
    const KvRing k_ring{shared + kKRing}, v_ring{shared + kVRing};
    const ItemRing item_ring{shared + kItemRing};
    tile::RingPosition<C::kStages> k_at, v_at;
    tile::RingPosition<kItemStages> item_at;
    u32 q_parity = 1;

    attention::TileStream stream(args.order);
    while (true) {
      WorkItem item;
      if (stream.valid()) {
        item = make_item(args, stream.index);
      } else {
        item.q_tile = -1;
      }
      ptx::mbarrier_wait(item_ring.empty(item_at.stage), item_at.parity ^ 1);
      const u32 slot = shared + kItemOffset + item_at.stage * kItemBytes;
      ptx::store_shared(slot, {u32(item.q_tile), u32(item.head), u32(item.batch), 0u});
      ptx::store_shared(slot + 16, {u32(item.key_begin), u32(item.key_end), 0u, 0u});
      ptx::mbarrier_arrive(item_ring.full(item_at.stage));
      item_at.advance();
      if (item.q_tile < 0) return;
      stream.advance();
      if (item.key_begin >= item.key_end) continue;

      const int k_head = item.head / args.queries_per_key_head;
      const int v_head = item.head / args.queries_per_value_head;
      const auto load_k = [&](int key_tile) {
        ptx::mbarrier_wait(k_ring.empty(k_at.stage), k_at.parity ^ 1);
        const u32 full = k_ring.full(k_at.stage);
        ptx::mbarrier_arrive_expect_tx(full, KTile::kBytes);
        load<KTile>(shared + kKOffset + k_at.stage * KTile::kBytes, &args.k, full,
                    key_tile * kTileN, k_head, item.batch);
        k_at.advance();
      };
      const auto load_v = [&](int key_tile) {
        ptx::mbarrier_wait(v_ring.empty(v_at.stage), v_at.parity ^ 1);
        const u32 full = v_ring.full(v_at.stage);
        ptx::mbarrier_arrive_expect_tx(full, VTile::kBytes);
        load<VTile>(shared + kVOffset + v_at.stage * VTile::kBytes, &args.v, full,
                    key_tile * kTileN, v_head, item.batch);
        v_at.advance();
      };

      load_k(item.key_end - 1);
#pragma unroll
      for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
        const QRing ring{shared + kQRing + consumer * QRing::kBytes};
        ptx::mbarrier_wait(ring.empty(0), q_parity);
        ptx::mbarrier_arrive_expect_tx(ring.full(0), QTile::kBytes);
        load<QTile>(shared + kQOffset + consumer * QTile::kBytes, &args.q, ring.full(0),
                    item.q_tile * kTileM + consumer * 64, item.head, item.batch);
      }
      q_parity ^= 1;
      for (int key_tile = item.key_end - 2; key_tile >= item.key_begin; --key_tile) {
        load_k(key_tile);
        load_v(key_tile + 1);
      }
      load_v(item.key_begin);
    }
  }

  // --- Consumers ------------------------------------------------------------------------------

  /// One consumer warp group's state across the key tiles of a work item.
  struct Consumer {
    const ForwardArguments& args;
    const u32 shared;
    const int consumer;  ///< which, uniform in the warp group
    const KvRing k_ring, v_ring;
    tile::RingPosition<C::kStages> k_at, v_at;
    attention::OnlineSoftmax<C::kRowMax ? 0 : C::kSlack> softmax;
    float out[C::kHeadDimV / 2];
    u32 probability[kPvSlices][4];

    HEDDLE_DEVICE Consumer(const ForwardArguments& args, u32 shared, int consumer)
        : args(args),
          shared(shared),
          consumer(consumer),
          k_ring{shared + kKRing},
          v_ring{shared + kVRing} {}

    HEDDLE_DEVICE static bool warp_leader() { return threadIdx.x % 32 == 0; }

    HEDDLE_DEVICE void wait_turn() const {
      if constexpr (C::kTakeTurns) ptx::barrier_sync(kTurnBarrier + consumer, 256);
    }
    HEDDLE_DEVICE void pass_turn() const {
      if constexpr (C::kTakeTurns)
        ptx::barrier_arrive(kTurnBarrier + (consumer + 1 == C::kConsumers ? 0 : consumer + 1), 256);
    }

    /// s = Q K^T for the K tile at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_scores(float (&s)[kTileN / 2]) {
      const tile::KMajor<QTile> q(shared + kQOffset + consumer * QTile::kBytes);
      const tile::KMajor<KTile> k(shared + kKOffset + k_at.stage * KTile::kBytes);
      ptx::wgmma_fence();
      tile::issue_product<T, kTileN, kQkSlices>(s, q, k, false);
      ptx::wgmma_commit();
    }

    /// out += P V for the V tile at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_output(bool accumulate) {
      const tile::MnMajor<VTile> v(shared + kVOffset + v_at.stage * VTile::kBytes);
      ptx::wgmma_fence();
      tile::issue_product<T, C::kHeadDimV, kPvSlices>(out, probability, v, accumulate);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void wait_k() const { ptx::mbarrier_wait(k_ring.full(k_at.stage), k_at.parity); }
    HEDDLE_DEVICE void wait_v() const { ptx::mbarrier_wait(v_ring.full(v_at.stage), v_at.parity); }
    HEDDLE_DEVICE void release_k() {
      if (warp_leader()) ptx::mbarrier_arrive(k_ring.empty(k_at.stage));
      k_at.advance();
    }
    HEDDLE_DEVICE void release_v() {
      if (warp_leader()) ptx::mbarrier_arrive(v_ring.empty(v_at.stage));
      v_at.advance();
    }

    /// Edits, masks and exponentiates the scores of `key_tile`; what they do to earlier terms is in
    /// `correction`.
    template <bool kMasked, class Score>
    HEDDLE_DEVICE void apply_softmax(float (&s)[kTileN / 2], int key_tile, int first_row,
                                     const Visible& keys, int q_length, const Score& score,
                                     float (&correction)[2]) {
      const int thread = threadIdx.x % 128;
      const int first_key = key_tile * kTileN + tile::fragment_column(thread);
      float scale = args.scale * attention::kLog2E;
      if constexpr (!C::Score::kPlain) {
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i)
          s[i] = score(s[i] * args.scale,
                       first_row + tile::fragment_row(thread, tile::fragment_half(i)),
                       first_key + tile::fragment_column_step(i));
        scale = attention::kLog2E;
      }
      if constexpr (kMasked) {
        int lo[2], hi[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = first_row + tile::fragment_row(thread, h);
          lo[h] = keys.lo(row) - first_key;
          hi[h] = (C::kLengths && row >= q_length ? 0 : keys.hi(row)) - first_key;
        }
        // A constant lower bound other than 0 needs the test too.
        attention::mask_scores(s, lo, hi, C::kLowerVaries || args.bounds.lower > 0);
      }
      softmax.update(s, scale, correction);
    }

    /// The next K tile's scores and softmax while the last tile's P V is added.
    template <bool kMasked, class Score>
    HEDDLE_DEVICE void step(int key_tile, bool accumulate, int first_row, const Visible& keys,
                            int q_length, const Score& score, float (&correction)[2]) {
      float s[kTileN / 2];
      wait_k();
      wait_turn();
      issue_scores(s);
      if constexpr (C::kRescaleEarly) attention::scale_rows(out, correction);
      wait_v();
      issue_output(accumulate);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release_k();
      apply_softmax<kMasked>(s, key_tile, first_row, keys, q_length, score, correction);
      ptx::pin(s);
      if constexpr (C::kFenceSoftmax) attention::hold_until(softmax.sum[0] + softmax.sum[1]);
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      ptx::pin(s);
      release_v();
      if constexpr (!C::kRescaleEarly) correct_output(correction);
      tile::pack_fragment<T, kTileN>(probability, s);
    }

    HEDDLE_DEVICE void correct_output(const float (&correction)[2]) {
      if constexpr (C::kSlack > 0) {
        if (!__any_sync(0xffffffffu, correction[0] != 1.f || correction[1] != 1.f)) return;
      }
      attention::scale_rows(out, correction);
    }

    HEDDLE_DEVICE void run(const WorkItem& item, u32 q_parity) {
      int q_length, kv_length;
      const Visible keys = visible(args, item.batch, q_length, kv_length);
      const int first_row = item.q_tile * kTileM + consumer * 64;
      const QRing q_ring{shared + kQRing + consumer * QRing::kBytes};
      const auto score = make_score(item);

      softmax.reset();
      if (item.key_begin < item.key_end) {
        // Key tiles from `clear_end` on, and before `clear_begin`, hold keys some row must not see.
        const int last_row = first_row + 63;
        const int clear_end = C::kLengths && last_row >= q_length ? 0 : keys.hi(first_row) / kTileN;
        const int clear_begin = ceil_div(keys.lo(last_row), kTileN);

        float correction[2];
        int key_tile = item.key_end - 1;
        ptx::mbarrier_wait(q_ring.full(0), q_parity);
        wait_k();
        {
          float s[kTileN / 2];
          issue_scores(s);
          ptx::wgmma_wait<0>();
          ptx::pin(s);
          release_k();
          apply_softmax<true>(s, key_tile, first_row, keys, q_length, score, correction);
          tile::pack_fragment<T, kTileN>(probability, s);
        }
        bool accumulate = false;
        --key_tile;
        if constexpr (kMaskedLoop) {
          for (; key_tile >= item.key_begin && key_tile >= clear_end; --key_tile) {
            step<true>(key_tile, accumulate, first_row, keys, q_length, score, correction);
            accumulate = true;
          }
        }
        for (; key_tile >= max_of(item.key_begin, clear_begin); --key_tile) {
          step<false>(key_tile, accumulate, first_row, keys, q_length, score, correction);
          accumulate = true;
        }
        // Without a moving lower bound only the last tile can hold keys below a constant one.
        for (; key_tile >= item.key_begin; --key_tile) {
          step<true>(key_tile, accumulate, first_row, keys, q_length, score, correction);
          accumulate = true;
        }
        if constexpr (!C::kOutputAliasesQ) {
          if (warp_leader()) ptx::mbarrier_arrive(q_ring.empty(0));
        }
        if constexpr (C::kRescaleEarly) attention::scale_rows(out, correction);
        wait_v();
        issue_output(accumulate);
        ptx::wgmma_wait<0>();
        ptx::pin(out);
        release_v();
      } else {
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) out[i] = 0;
      }
      finish(item, first_row, q_length);
      if constexpr (C::kOutputAliasesQ) {
        if (item.key_begin < item.key_end && threadIdx.x % 128 == 0) {
          ptx::bulk_wait_read<0>();
          ptx::mbarrier_arrive(q_ring.empty(0));
        }
      }
    }

    HEDDLE_DEVICE auto make_score(const WorkItem& item) const {
      if constexpr (C::Score::kPlain)
        return PlainScore{};
      else
        return typename C::Score(args, item.batch, item.head);
    }

    /// Divides by the row sums and writes O and the row statistics.
    HEDDLE_DEVICE void finish(const WorkItem& item, int first_row, int q_length) {
      const int thread = threadIdx.x % 128;
      float factor[2];
      if constexpr (C::kSink) {
        float correction[2];
        softmax.add_sink(args.sink[item.head] * attention::kLog2E, thread % 4 == 0, correction);
        attention::scale_rows(out, correction);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + tile::fragment_row(thread, h);
        float sum = softmax.total(h);
        float reference = softmax.reference[h];
        if (C::kLengths && row >= q_length) {
          sum = 0;
          reference = attention::minus_infinity();
        }
        factor[h] = sum == 0.f ? 0.f : 1.f / sum;
        if (thread % 4 == 0 && row < args.q_length) {
          if (args.log_sum_exp.data != nullptr)
            *args.log_sum_exp.at(item.batch, item.head, row) =
                sum == 0.f ? attention::minus_infinity()
                           : (reference + ptx::log2(sum)) * attention::kLn2;
          if constexpr (C::kRowMax) {
            if (args.row_max.data != nullptr)
              *args.row_max.at(item.batch, item.head, row) = reference * attention::kLn2;
            if (args.row_sum.data != nullptr) *args.row_sum.at(item.batch, item.head, row) = sum;
          }
        }
      }

      const u32 staging = shared + kOOffset + consumer * kOStride;
      const u32 group_barrier = kGroupBarrier + consumer;
      if (thread == 0) ptx::bulk_wait_read<0>();  // the last tile's store has left the staging
      ptx::barrier_sync(group_barrier, 128);
      attention::scale_rows(out, factor);
#pragma unroll
      for (int k = 0; k < C::kHeadDimV / 16; ++k) {
        u32 slice[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          slice[i] = ptx::pack<T>(out[8 * k + 2 * i], out[8 * k + 2 * i + 1]);
        tile::store_slice<OTile>(staging, thread / 32 * 16, k, slice);
      }
      if constexpr (C::kHeadDimV % 16 != 0) {
        constexpr int k = C::kHeadDimV / 16;
        const u32 slice[4] = {ptx::pack<T>(out[8 * k], out[8 * k + 1]),
                              ptx::pack<T>(out[8 * k + 2], out[8 * k + 3]), 0, 0};
        tile::store_slice<OTile>(staging, thread / 32 * 16, k, slice);
      }
      ptx::fence_proxy_async_shared();
      ptx::barrier_sync(group_barrier, 128);
      if (thread == 0) {
#pragma unroll
        for (int box = 0; box < OTile::kBoxes; ++box)
          ptx::tma_store_4d(&args.o, staging + box * OTile::kBoxBytes, box * tile::kBoxColumns,
                            first_row, item.head, item.batch);
        ptx::bulk_commit();
      }
    }
  };

  HEDDLE_DEVICE static void consume(const ForwardArguments& args, u32 shared, int consumer) {
    Consumer state(args, shared, consumer);
    const ItemRing item_ring{shared + kItemRing};
    tile::RingPosition<kItemStages> item_at;
    u32 q_parity = 0;
    if (consumer == C::kConsumers - 1) state.pass_turn();  // the first turn is consumer 0's
    while (true) {
      ptx::mbarrier_wait(item_ring.full(item_at.stage), item_at.parity);
      const u32 slot = shared + kItemOffset + item_at.stage * kItemBytes;
      u32 place[4], range[4];
      ptx::load_shared(slot, place);
      ptx::load_shared(slot + 16, range);
      __syncwarp();
      if (Consumer::warp_leader()) ptx::mbarrier_arrive(item_ring.empty(item_at.stage));
      item_at.advance();
      const WorkItem item{i32(place[0]), i32(place[1]), i32(place[2]), i32(range[0]),
                          i32(range[1])};
      if (item.q_tile < 0) break;
      state.run(item, q_parity);
      if (item.key_begin < item.key_end) q_parity ^= 1;
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  }

  // --- Kernel ---------------------------------------------------------------------------------

  HEDDLE_DEVICE static void run(const ForwardArguments& args) {
    extern __shared__ u8 dynamic_shared[];
    const u32 shared =
        (shared_address(dynamic_shared) + tile::kTileAlignment - 1) & ~(tile::kTileAlignment - 1);
    // The same in every lane, so that what depends on it lives in uniform registers.
    const int warp_group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);

    if (threadIdx.x == 0) {
      ptx::tma_prefetch(&args.q);
      ptx::tma_prefetch(&args.k);
      ptx::tma_prefetch(&args.v);
      ptx::tma_prefetch(&args.o);
      KvRing{shared + kKRing}.init(1, 4 * C::kConsumers);
      KvRing{shared + kVRing}.init(1, 4 * C::kConsumers);
      ItemRing{shared + kItemRing}.init(1, 4 * C::kConsumers);
      for (int consumer = 0; consumer < C::kConsumers; ++consumer)
        QRing{shared + kQRing + consumer * QRing::kBytes}.init(1, C::kOutputAliasesQ ? 1 : 4);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();

    if (warp_group == 0) {
      ptx::registers_shrink<kProducerRegisters>();
      if (threadIdx.x == 0) produce(args, shared);
    } else {
      ptx::registers_grow<kConsumerRegisters>();
      consume(args, shared, warp_group - 1);
    }
  }
};

}  // namespace heddle::sm90
