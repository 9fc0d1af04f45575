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
  static constexpr int kStages = 2;  ///< of the K and V rings
  static constexpr int kQStages =
      2;  ///< 2: the next query tile starts under this one's last product
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
  static constexpr bool kCrossTiles = C::kQStages > 1;
  static_assert(!(kCrossTiles && C::kOutputAliasesQ), "the next Q would wait for this O's store");

  // Shared memory, from a 1024-byte boundary.
  static constexpr int kQOffset = 0;
  static constexpr int kQStageBytes = C::kConsumers * QTile::kBytes;
  static constexpr int kKOffset = kQOffset + C::kQStages * kQStageBytes;
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
  using QRing = tile::Ring<C::kQStages>;  // one a consumer
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
    tile::RingPosition<C::kQStages> q_at;

    // V runs one key tile behind K, as its products do, also from one query tile to the next.
    int v_key_tile = -1, v_head = 0, v_batch = 0;
    const auto load_v = [&] {
      if (v_key_tile < 0) return;
      ptx::mbarrier_wait(v_ring.empty(v_at.stage), v_at.parity ^ 1);
      const u32 full = v_ring.full(v_at.stage);
      ptx::mbarrier_arrive_expect_tx(full, VTile::kBytes);
      load<VTile>(shared + kVOffset + v_at.stage * VTile::kBytes, &args.v, full,
                  v_key_tile * kTileN, v_head, v_batch);
      v_at.advance();
      v_key_tile = -1;
    };

    attention::TileStream stream(args.order);
    while (stream.valid()) {
      const WorkItem item = make_item(args, stream.index());
      publish(item_ring, item_at, shared, item);
      stream.request_next();
      const int k_head = item.head / args.queries_per_key_head;
      const int next_v_head = item.head / args.queries_per_value_head;
      const auto load_k = [&](int key_tile) {
        ptx::mbarrier_wait(k_ring.empty(k_at.stage), k_at.parity ^ 1);
        const u32 full = k_ring.full(k_at.stage);
        ptx::mbarrier_arrive_expect_tx(full, KTile::kBytes);
        load<KTile>(shared + kKOffset + k_at.stage * KTile::kBytes, &args.k, full,
                    key_tile * kTileN, k_head, item.batch);
        k_at.advance();
      };

      int key_tile = item.key_end - 1;
      if (key_tile >= item.key_begin) load_k(key_tile);
#pragma unroll 1  // few registers are the producer's
      for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
        const QRing ring{shared + kQRing + consumer * QRing::kBytes};
        ptx::mbarrier_wait(ring.empty(q_at.stage), q_at.parity ^ 1);
        const u32 full = ring.full(q_at.stage);
        ptx::mbarrier_arrive_expect_tx(full, QTile::kBytes);
        load<QTile>(shared + kQOffset + q_at.stage * kQStageBytes + consumer * QTile::kBytes,
                    &args.q, full, item.q_tile * kTileM + consumer * 64, item.head, item.batch);
      }
      q_at.advance();
      load_v();
      for (; key_tile >= item.key_begin; --key_tile) {
        if (key_tile > item.key_begin) load_k(key_tile - 1);
        v_key_tile = key_tile;
        v_head = next_v_head;
        v_batch = item.batch;
        if (!kCrossTiles || key_tile > item.key_begin) load_v();
      }
      stream.take_next();
    }
    load_v();
    publish(item_ring, item_at, shared, WorkItem{-1, 0, 0, 0, 0});
  }

  HEDDLE_DEVICE static void publish(const ItemRing& ring, tile::RingPosition<kItemStages>& at,
                                    u32 shared, const WorkItem& item) {
    ptx::mbarrier_wait(ring.empty(at.stage), at.parity ^ 1);
    const u32 slot = shared + kItemOffset + at.stage * kItemBytes;
    ptx::store_shared(slot, {u32(item.q_tile), u32(item.head), u32(item.batch), 0u});
    ptx::store_shared(slot + 16, {u32(item.key_begin), u32(item.key_end), 0u, 0u});
    ptx::mbarrier_arrive(ring.full(at.stage));
    at.advance();
  }

  // --- Consumers ------------------------------------------------------------------------------

  /// One consumer warp group's view of a work item: its 64 rows and what they see.
  struct QueryTile {
    WorkItem item;
    int first_row, q_length, kv_length;
    Visible keys;

    HEDDLE_DEVICE QueryTile(const ForwardArguments& args, const WorkItem& item, int consumer)
        : item(item),
          first_row(item.q_tile * kTileM + consumer * 64),
          keys(visible(args, item.batch, q_length, kv_length)) {}

    HEDDLE_DEVICE bool valid() const { return item.q_tile >= 0; }
    HEDDLE_DEVICE bool empty() const { return item.key_begin >= item.key_end; }

    /// Whether every row sees every key of the key tile.
    HEDDLE_DEVICE bool clear(int key_tile) const {
      const int last_row = first_row + 63;
      bool clear = key_tile * kTileN >= keys.lo(last_row);
      if constexpr (C::kUpperVaries) clear = clear && (key_tile + 1) * kTileN <= keys.hi(first_row);
      if constexpr (C::kLengths) clear = clear && last_row < q_length;
      return clear;
    }
  };

  /// One consumer warp group's state across key tiles and work items.
  struct Consumer {
    using Softmax = attention::OnlineSoftmax<C::kRowMax ? 0 : C::kSlack>;

    const ForwardArguments& args;
    const u32 shared;
    const int consumer;  ///< which, uniform in the warp group
    const KvRing k_ring, v_ring;
    const ItemRing item_ring;
    const QRing q_ring;
    tile::RingPosition<C::kStages> k_at, v_at;
    tile::RingPosition<kItemStages> item_at;
    tile::RingPosition<C::kQStages> q_at;

    HEDDLE_DEVICE Consumer(const ForwardArguments& args, u32 shared, int consumer)
        : args(args),
          shared(shared),
          consumer(consumer),
          k_ring{shared + kKRing},
          v_ring{shared + kVRing},
          item_ring{shared + kItemRing},
          q_ring{shared + kQRing + consumer * QRing::kBytes} {}

    HEDDLE_DEVICE static bool warp_leader() { return threadIdx.x % 32 == 0; }

    HEDDLE_DEVICE void wait_turn() const {
      if constexpr (C::kTakeTurns) ptx::barrier_sync(kTurnBarrier + consumer, 256);
    }
    HEDDLE_DEVICE void pass_turn() const {
      if constexpr (C::kTakeTurns)
        ptx::barrier_arrive(kTurnBarrier + (consumer + 1 == C::kConsumers ? 0 : consumer + 1), 256);
    }

    HEDDLE_DEVICE QueryTile next_tile() {
      ptx::mbarrier_wait(item_ring.full(item_at.stage), item_at.parity);
      const u32 slot = shared + kItemOffset + item_at.stage * kItemBytes;
      u32 place[4], range[4];
      ptx::load_shared(slot, place);
      ptx::load_shared(slot + 16, range);
      __syncwarp();
      if (warp_leader()) ptx::mbarrier_arrive(item_ring.empty(item_at.stage));
      item_at.advance();
      return QueryTile(
          args, WorkItem{i32(place[0]), i32(place[1]), i32(place[2]), i32(range[0]), i32(range[1])},
          consumer);
    }

    /// s = Q K^T for the tiles at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_scores(float (&s)[kTileN / 2]) {
      const tile::KMajor<QTile> q(shared + kQOffset + q_at.stage * kQStageBytes +
                                  consumer * QTile::kBytes);
      const tile::KMajor<KTile> k(shared + kKOffset + k_at.stage * KTile::kBytes);
      ptx::wgmma_fence();
      tile::issue_product<T, kTileN, kQkSlices>(s, q, k, false);
      ptx::wgmma_commit();
    }

    /// out += P V for the V tile at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_output(float (&out)[C::kHeadDimV / 2], const u32 (&p)[kPvSlices][4]) {
      const tile::MnMajor<VTile> v(shared + kVOffset + v_at.stage * VTile::kBytes);
      ptx::wgmma_fence();
      tile::issue_product<T, C::kHeadDimV, kPvSlices>(out, p, v, true);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void wait_q() const { ptx::mbarrier_wait(q_ring.full(q_at.stage), q_at.parity); }
    HEDDLE_DEVICE void wait_k() const { ptx::mbarrier_wait(k_ring.full(k_at.stage), k_at.parity); }
    HEDDLE_DEVICE void wait_v() const { ptx::mbarrier_wait(v_ring.full(v_at.stage), v_at.parity); }
    HEDDLE_DEVICE void release_q() {
      if (warp_leader()) ptx::mbarrier_arrive(q_ring.empty(q_at.stage));
      q_at.advance();
    }
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
    template <bool kMasked>
    HEDDLE_DEVICE void apply_softmax(float (&s)[kTileN / 2], const QueryTile& tile, int key_tile,
                                     Softmax& softmax, float (&correction)[2]) {
      const int thread = threadIdx.x % 128;
      const int first_key = key_tile * kTileN + tile::fragment_column(thread);
      float scale = args.scale * attention::kLog2E;
      if constexpr (!C::Score::kPlain) {
        const typename C::Score score(args, tile.item.batch, tile.item.head);
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i)
          s[i] = score(s[i] * args.scale,
                       tile.first_row + tile::fragment_row(thread, tile::fragment_half(i)),
                       first_key + tile::fragment_column_step(i));
        scale = attention::kLog2E;
      }
      if constexpr (kMasked) {
        int lo[2], hi[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = tile.first_row + tile::fragment_row(thread, h);
          lo[h] = tile.keys.lo(row) - first_key;
          hi[h] = (C::kLengths && row >= tile.q_length ? 0 : tile.keys.hi(row)) - first_key;
        }
        // A constant lower bound other than 0 needs the test too.
        attention::mask_scores(s, lo, hi, C::kLowerVaries || args.bounds.lower > 0);
      }
      softmax.update(s, scale, correction);
    }

    /// Scores and probabilities of a query tile's last key tile, with nothing to hide them behind.
    HEDDLE_DEVICE void start(const QueryTile& tile, u32 (&p)[kPvSlices][4], Softmax& softmax,
                             float (&correction)[2]) {
      float s[kTileN / 2];
      wait_q();
      wait_k();
      issue_scores(s);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      release_k();
      softmax.reset();
      apply_softmax<true>(s, tile, tile.item.key_end - 1, softmax, correction);
      tile::pack_fragment<T, kTileN>(p, s);
    }

    /// The scores and softmax of `key_tile` while the previous key tile's P V is added; p becomes
    /// `key_tile`'s probabilities. With kCross the key tile is the first of the next query tile:
    /// `softmax` starts afresh, and `out` is left complete but for its row factors.
    template <bool kMasked, bool kCross>
    HEDDLE_DEVICE void step(const QueryTile& tile, int key_tile, float (&out)[C::kHeadDimV / 2],
                            u32 (&p)[kPvSlices][4], Softmax& softmax, float (&correction)[2]) {
      float s[kTileN / 2];
      wait_k();
      wait_turn();
      issue_scores(s);
      if constexpr (C::kRescaleEarly) attention::scale_rows(out, correction);
      wait_v();
      issue_output(out, p);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release_k();
      if constexpr (kCross) softmax.reset();
      apply_softmax<kMasked>(s, tile, key_tile, softmax, correction);
      ptx::pin(s);
      if constexpr (C::kFenceSoftmax) attention::hold_until(softmax.sum[0] + softmax.sum[1]);
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      ptx::pin(s);
      release_v();
      if constexpr (!C::kRescaleEarly && !kCross) correct_output(out, correction);
      tile::pack_fragment<T, kTileN>(p, s);
    }

    HEDDLE_DEVICE static void correct_output(float (&out)[C::kHeadDimV / 2],
                                             const float (&correction)[2]) {
      if constexpr (C::kSlack > 0) {
        if (!__any_sync(0xffffffffu, correction[0] != 1.f || correction[1] != 1.f)) return;
      }
      attention::scale_rows(out, correction);
    }

    HEDDLE_DEVICE static void clear(float (&out)[C::kHeadDimV / 2]) {
#pragma unroll
      for (int i = 0; i < C::kHeadDimV / 2; ++i) out[i] = 0;
    }

    HEDDLE_DEVICE void run() {
      if (consumer == C::kConsumers - 1) pass_turn();  // the first turn is consumer 0's
      QueryTile tile = next_tile();
      while (tile.valid()) {
        float out[C::kHeadDimV / 2];
        clear(out);
        Softmax softmax;
        if (tile.empty()) {
          softmax.reset();
          wait_q();
          finish(tile, out, softmax);
          tile = next_tile();
          continue;
        }
        float correction[2];
        u32 p[kPvSlices][4];
        start(tile, p, softmax, correction);
        while (true) {
          for (int key_tile = tile.item.key_end - 2; key_tile >= tile.item.key_begin; --key_tile) {
            if (tile.clear(key_tile))
              step<false, false>(tile, key_tile, out, p, softmax, correction);
            else
              step<true, false>(tile, key_tile, out, p, softmax, correction);
          }
          if constexpr (kCrossTiles) {
            release_q();
            const QueryTile following = next_tile();
            if (following.valid() && !following.empty()) {
              Softmax done = softmax;
              wait_q();
              step<true, true>(following, following.item.key_end - 1, out, p, softmax, correction);
              finish(tile, out, done);
              clear(out);
              tile = following;
              continue;
            }
            last_output(out, p, correction);
            finish(tile, out, softmax);
            tile = following;
          } else {
            last_output(out, p, correction);
            finish(tile, out, softmax);
            tile = next_tile();
          }
          break;
        }
      }
      if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
    }

    /// The last P V of a query tile that none follows at once.
    HEDDLE_DEVICE void last_output(float (&out)[C::kHeadDimV / 2], const u32 (&p)[kPvSlices][4],
                                   const float (&correction)[2]) {
      if constexpr (C::kRescaleEarly) attention::scale_rows(out, correction);
      wait_v();
      issue_output(out, p);
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      release_v();
    }

    /// Divides by the row sums and writes O and the row statistics.
    HEDDLE_DEVICE void finish(const QueryTile& tile, float (&out)[C::kHeadDimV / 2],
                              Softmax& softmax) {
      const WorkItem& item = tile.item;
      const int thread = threadIdx.x % 128;
      float factor[2];
      if constexpr (C::kSink) {
        float correction[2];
        softmax.add_sink(args.sink[item.head] * attention::kLog2E, thread % 4 == 0, correction);
        attention::scale_rows(out, correction);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile.first_row + tile::fragment_row(thread, h);
        float sum = softmax.total(h);
        float reference = softmax.reference[h];
        if (C::kLengths && row >= tile.q_length) {
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
                            tile.first_row, item.head, item.batch);
        ptx::bulk_commit();
      }
      if constexpr (C::kOutputAliasesQ) {
        if (thread == 0) {
          ptx::bulk_wait_read<0>();
          ptx::mbarrier_arrive(q_ring.empty(q_at.stage));
        }
        q_at.advance();
      } else if (!kCrossTiles || tile.empty()) {
        release_q();
      }
    }
  };

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
      Consumer(args, shared, warp_group - 1).run();
    }
  }
};

}  // namespace heddle::sm90
