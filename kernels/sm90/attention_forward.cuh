// Attention forward on Hopper.
//
//   O = softmax(score(scale * Q K^T)) V,  log-sum-exp = log(sum(exp(score)))
//
// A persistent block is one producer warp group, in which one thread deals out query tiles and
// another feeds rings of K and V tiles by TMA, and two or three consumer warp groups of 64 query
// rows each. A consumer keeps two products in flight: while the tensor core adds P(j) V(j), it
// computes the softmax of S(j+1). Consumers take turns at issuing, so one's softmax runs under the
// other's products. Keys are visited from the last visible tile backwards: masked tiles come first
// and the bulk of the loop has no mask code.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/online_softmax.cuh"
#include "../attention/operand.cuh"
#include "../attention/rope.cuh"
#include "../attention/visible.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/fragment.cuh"
#include "../tile/gemm.cuh"
#include "../tile/load_tile.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"
#include "forward_arguments.h"
#include "forward_config.cuh"
#include "fragment_dropout.cuh"
#include "tile_order.cuh"

namespace heddle::sm90 {

using attention::ForwardParameters;

/// Score: kIdentity, or a static value(Cell) -> f32 score of one cell, in natural units (log2 units
/// with kInputIsLog2).
template <class Config, class Score = PlainScore>
struct AttentionForward {
  using C = Config;
  using T = typename C::Element;
  static constexpr int kTileM = 64 * C::kConsumers;
  static constexpr int kTileN = C::kTileN;
  static constexpr int kThreads = 128 * (1 + C::kConsumers);
  // 65536 registers; with 24 for the producer and 240 each for two consumers the producer spilled.
  static constexpr int kProducerRegisters = C::kConsumers == 2 ? 40 : C::kConsumers == 3 ? 32 : 56;
  static constexpr int kConsumerRegisters = C::kConsumers == 2   ? 232
                                            : C::kConsumers == 3 ? 160
                                                                 : 256;
  static_assert(kTileN % 16 == 0 && kTileN <= 256,
                "P's slices are 16 keys, a box 256 rows at most");
  static_assert(C::kQkDim % 8 == 0 && C::kVDim % 8 == 0, "TMA moves multiples of 16 bytes");
  static_assert(!(C::kRowMax && C::kSlack > 0), "a lagging reference is no maximum");
  static_assert(C::kDropout != Dropout::mask, "keep masks are the general kernel's");

  static constexpr int kQkSlices = (C::kQkDim + 15) / 16;
  static constexpr int kPvSlices = kTileN / 16;
  /// One FFMA takes a dot product to its exponent; else scores are made first.
  static constexpr bool kPlain = Score::kIdentity && C::kPositiveScale;
  /// Cells of rows past the end must not be evaluated: what they load may not exist.
  static constexpr bool kRowsEnd = !Score::kIdentity || C::kSequenceMaps;
  static constexpr float kToLog2 = C::kInputIsLog2 ? 1.f : attention::kLog2E;

  using QTile = tile::PlanesOf<64, C::kQkDim, C::kPlanes>;  // one consumer's rows
  using KTile = tile::PlanesOf<kTileN, C::kQkDim, C::kPlanes>;
  using VTile = tile::PlanesOf<kTileN, C::kVDim, C::kPlanes>;
  using OTile = tile::SharedTile<64, C::kVDim>;
  using Weights = u32[C::kPlanes][kPvSlices][4];
  /// f32 leaves from registers, and is summed in f32 from key tile to key tile: in products of
  /// f32's own precision it would show that tensor cores cut sums off instead of rounding them.
  static constexpr bool kWide = C::kPlanes > 1;
  static constexpr int kPartial = kWide ? C::kVDim / 2 : 1;
  /// Weights reach 2^kSlack; times this they keep two planes of f16 in range down to 2^-17.
  static constexpr float kWeightUnit = 128;
  static_assert(!kWide || (is_same<T, f16> && !C::kSequenceMaps && C::kRopeDim == 0));
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
  /// O is staged so many boxes at a time.
  static constexpr int kRoundBoxes = ceil_div(OTile::kBoxes, C::kOutputRounds);
  static constexpr int kOStride =
      C::kOutputAliasesQ ? QTile::kBytes : kRoundBoxes * OTile::kBoxBytes;
  static constexpr int kItemOffset = kVOffset + C::kStages * VTile::kBytes +
                                     (C::kOutputAliasesQ || kWide ? 0 : C::kConsumers * kOStride);
  static constexpr int kItemBytes = 48;
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

  /// The only stage of Q is released after its last step, unless O's store holds it. (Within that
  /// step, right after its last product, costs every step a branch: -4 % at S 8192.)
  static constexpr bool kEarlyRelease = C::kQStages == 1 && !C::kOutputAliasesQ;
  /// How a query tile follows another: see cross_late. Consumers in turns cannot issue one product
  /// now and the other later; score expressions leave no registers for it.
  static constexpr bool kLateCross =
      kEarlyRelease || (C::kRopeDim > 0 && kPlain && kCrossTiles && !C::kTakeTurns);
  static constexpr bool kCrosses = kCrossTiles || kLateCross;

  // Named barriers: 0 is __syncthreads.
  static constexpr int kTurnBarrier = 1;   // + consumer
  static constexpr int kGroupBarrier = 4;  // + consumer: the warp group's own

  using Visible = attention::VisibleKeys<C::kLowerVaries, C::kUpperVaries>;
  using Softmax = attention::OnlineSoftmax<C::kSlack>;

  /// One query tile of one head, and the key tiles it meets: [key_begin, key_end).
  struct WorkItem {
    i32 q_tile, head, batch;
    i32 key_begin, key_end;
    i32 q_length, kv_length;
    Visible keys;

    HEDDLE_DEVICE bool empty() const { return key_begin >= key_end; }
  };

  // --- Producer -------------------------------------------------------------------------------

  HEDDLE_DEVICE static WorkItem make_item(const ForwardArguments& args, int index) {
    const ForwardParameters& p = args.problem;
    WorkItem item;
    int flat_head;
    place_in_order(args.order, p.batch * p.q_heads, index, item.q_tile, flat_head);
    item.batch = flat_head / p.q_heads;
    item.head = flat_head - item.batch * p.q_heads;
    item.q_length = p.q_length;
    item.kv_length = p.kv_length;
    if constexpr (C::kSequenceMaps) {
      item.q_length = attention::length_of(p.q_lengths, item.batch);
      item.kv_length = attention::length_of(p.kv_lengths, item.batch);
    }
    item.keys.bounds = attention::resolve_bounds(p, item.batch, item.q_length, item.kv_length);
    const int first_row = item.q_tile * kTileM;
    const int last_row = min_of(first_row + kTileM, item.q_length) - 1;
    const int lo = item.keys.lo(first_row);
    const int hi = item.keys.hi(last_row);
    const bool any = first_row <= last_row && lo < hi;
    item.key_begin = any ? lo / kTileN : 0;
    item.key_end = any ? ceil_div(hi, kTileN) : 0;
    return item;
  }

  /// The maps of a batch entry: q, k, v, o in order.
  HEDDLE_DEVICE static const TensorMap* maps_of(const ForwardArguments& args, int batch) {
    if constexpr (C::kSequenceMaps) return args.sequence_maps + 4 * batch;
    return &args.q;
  }

  /// Deals out work items to the loading thread and the consumers; one thread.
  HEDDLE_DEVICE static void schedule(const ForwardArguments& args, u32 shared) {
    const ItemRing ring{shared + kItemRing};
    tile::RingCount<kItemStages> at;
    TileStream stream(args.order);
    while (true) {
      const bool valid = stream.valid();
      WorkItem item{-1};
      if (valid) {
        item = make_item(args, stream.index());
        stream.request_next();
        // A ragged tile past its sequence's end has nothing to read or write.
        const bool skip = C::kSequenceMaps && args.problem.q.offsets != nullptr &&
                          item.q_tile * kTileM >= item.q_length;
        if (skip) {
          stream.take_next();
          continue;
        }
      }
      ptx::mbarrier_wait(ring.empty(at.stage()), at.parity() ^ 1);
      const u32 slot = shared + kItemOffset + at.stage() * kItemBytes;
      const attention::BatchBounds& bounds = item.keys.bounds;
      ptx::store_shared(slot,
                        {u32(item.q_tile), u32(item.head), u32(item.batch), u32(item.q_length)});
      ptx::store_shared(slot + 16,
                        {u32(item.key_begin), u32(item.key_end), u32(item.kv_length), 0u});
      ptx::store_shared(slot + 32, {u32(bounds.lower), u32(bounds.upper),
                                    u32(bounds.lower_diagonal), u32(bounds.upper_diagonal)});
      ptx::mbarrier_arrive(ring.full(at.stage()));
      at.advance();
      if (!valid) return;
      stream.take_next();
    }
  }

  /// Feeds the Q, K and V rings; one thread.
  HEDDLE_DEVICE static void load_tiles(const ForwardArguments& args, u32 shared) {
    const KvRing k_ring{shared + kKRing}, v_ring{shared + kVRing};
    const ItemRing item_ring{shared + kItemRing};
    tile::RingCount<C::kStages> k_at, v_at;
    tile::RingCount<kItemStages> item_at;
    tile::RingCount<C::kQStages> q_at;

    // V runs one key tile behind K, as its products do, also from one query tile to the next.
    int v_key_tile = -1, v_head = 0, v_batch = 0;
    const auto load_v = [&] {
      if (v_key_tile < 0) return;
      ptx::mbarrier_wait(v_ring.empty(v_at.stage()), v_at.parity() ^ 1);
      const u32 full = v_ring.full(v_at.stage());
      ptx::mbarrier_arrive_expect_tx(full, VTile::kBytes);
      tile::load_tile<VTile>(shared + kVOffset + v_at.stage() * VTile::kBytes,
                             maps_of(args, v_batch) + 2, full, v_key_tile * kTileN, v_head,
                             C::kSequenceMaps ? 0 : v_batch);
      v_at.advance();
      v_key_tile = -1;
    };

    while (true) {
      ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
      const u32 slot = shared + kItemOffset + item_at.stage() * kItemBytes;
      const int q_tile = i32(ptx::load_shared_u32(slot));
      const int head = i32(ptx::load_shared_u32(slot + 4));
      const int batch = i32(ptx::load_shared_u32(slot + 8));
      const int key_begin = i32(ptx::load_shared_u32(slot + 16));
      const int key_end = i32(ptx::load_shared_u32(slot + 20));
      ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
      item_at.advance();
      if (q_tile < 0) break;
      const TensorMap* maps = maps_of(args, batch);
      if constexpr (C::kSequenceMaps) {
        for (int map = 0; map < 3; ++map) ptx::tensor_map_acquire(maps + map);
      }
      const int map_batch = C::kSequenceMaps ? 0 : batch;
      const int k_head = head / (args.problem.q_heads / args.problem.k_heads);
      const auto load_k = [&](int key_tile) {
        ptx::mbarrier_wait(k_ring.empty(k_at.stage()), k_at.parity() ^ 1);
        const u32 full = k_ring.full(k_at.stage());
        ptx::mbarrier_arrive_expect_tx(full, KTile::kBytes);
        tile::load_tile<KTile>(shared + kKOffset + k_at.stage() * KTile::kBytes, maps + 1, full,
                               key_tile * kTileN, k_head, map_batch);
        k_at.advance();
      };

      int key_tile = key_end - 1;
      if (key_tile >= key_begin) load_k(key_tile);
#pragma unroll 1
      for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
        const QRing ring{shared + kQRing + consumer * QRing::kBytes};
        ptx::mbarrier_wait(ring.empty(q_at.stage()), q_at.parity() ^ 1);
        const u32 full = ring.full(q_at.stage());
        ptx::mbarrier_arrive_expect_tx(full, QTile::kBytes);
        tile::load_tile<QTile>(
            shared + kQOffset + q_at.stage() * kQStageBytes + consumer * QTile::kBytes, maps, full,
            q_tile * kTileM + consumer * 64, head, map_batch);
      }
      q_at.advance();
      load_v();
      v_head = head / (args.problem.q_heads / args.problem.v_heads);
      v_batch = batch;
      for (; key_tile >= key_begin; --key_tile) {
        if (key_tile > key_begin) load_k(key_tile - 1);
        v_key_tile = key_tile;
        if (!kCrossTiles || key_tile > key_begin) load_v();
      }
    }
    load_v();
  }

  // --- Consumers ------------------------------------------------------------------------------

  /// One consumer warp group's state across key tiles and work items.
  struct Consumer {
    const ForwardArguments& args;
    const ForwardParameters& p;
    const u32 shared;
    const int consumer;  ///< which, uniform in the warp group
    const KvRing k_ring, v_ring;
    const ItemRing item_ring;
    const QRing q_ring;
    tile::RingCount<C::kStages> k_at, v_at;
    tile::RingCount<kItemStages> item_at;
    tile::RingCount<C::kQStages> q_at;
    const float problem_scale;
    float scale;  ///< of the dot products at hand

    HEDDLE_DEVICE Consumer(const ForwardArguments& args, u32 shared, int consumer)
        : args(args),
          p(args.problem),
          shared(shared),
          consumer(consumer),
          k_ring{shared + kKRing},
          v_ring{shared + kVRing},
          item_ring{shared + kItemRing},
          q_ring{shared + kQRing + consumer * QRing::kBytes},
          problem_scale(p.scale_operand != nullptr ? *p.scale_operand : p.scale),
          scale(problem_scale) {}

    HEDDLE_DEVICE static float unit(const F16Pairs& pairs, const WorkItem& item, int q_heads) {
      return pairs.units[item.batch * pairs.heads + item.head / (q_heads / pairs.heads)];
    }
    HEDDLE_DEVICE void scale_for(const WorkItem& item) {
      if constexpr (kWide)
        scale = problem_scale * tile::kCutOff<kQkSlices> * unit(args.q_pairs, item, p.q_heads) *
                unit(args.k_pairs, item, p.q_heads);
    }

    HEDDLE_DEVICE static bool warp_leader() { return threadIdx.x % 32 == 0; }

    HEDDLE_DEVICE void wait_turn() const {
      if constexpr (C::kTakeTurns) ptx::barrier_sync(kTurnBarrier + consumer, 256);
    }
    HEDDLE_DEVICE void pass_turn() const {
      if constexpr (C::kTakeTurns)
        ptx::barrier_arrive(kTurnBarrier + (consumer + 1 == C::kConsumers ? 0 : consumer + 1), 256);
    }

    HEDDLE_DEVICE WorkItem next_item() {
      ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
      const u32 slot = shared + kItemOffset + item_at.stage() * kItemBytes;
      u32 place[4], range[4], bounds[4];
      ptx::load_shared(slot, place);
      ptx::load_shared(slot + 16, range);
      ptx::load_shared(slot + 32, bounds);
      __syncwarp();
      if (warp_leader()) ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
      item_at.advance();
      return {
          i32(place[0]), i32(place[1]),
          i32(place[2]), i32(range[0]),
          i32(range[1]), i32(place[3]),
          i32(range[2]), Visible{{i32(bounds[0]), i32(bounds[1]), i32(bounds[2]), i32(bounds[3])}}};
    }

    HEDDLE_DEVICE int first_row(const WorkItem& item) const {
      return item.q_tile * kTileM + consumer * 64;
    }

    /// The end of the key tiles that this consumer's rows meet, which may come before the work
    /// item's: under a causal mask the upper rows of a query tile see less. At least one tile
    /// remains.
    HEDDLE_DEVICE int own_key_end(const WorkItem& item) const {
      // Consumers in turns must all take every step.
      if constexpr (C::kTakeTurns || !C::kUpperVaries) return item.key_end;
      const int end = ceil_div(item.keys.hi(first_row(item) + 63), kTileN);
      return min_of(item.key_end, max_of(end, item.key_begin + 1));
    }

    /// Lets K tiles pass that only other consumers need; skip_v does so for their V.
    HEDDLE_DEVICE void skip_k(int tiles) {
      for (; tiles > 0; --tiles) {
        wait_k();
        __syncwarp();
        release_k();
      }
    }
    HEDDLE_DEVICE void skip_v(int tiles) {
      for (; tiles > 0; --tiles) {
        wait_v();
        __syncwarp();
        release_v();
      }
    }

    /// Whether every row of this consumer sees every key of the key tile.
    HEDDLE_DEVICE bool all_visible(const WorkItem& item, int key_tile) const {
      const int first = first_row(item), last = first + 63;
      bool all = key_tile * kTileN >= item.keys.lo(last);
      if constexpr (C::kUpperVaries) all = all && (key_tile + 1) * kTileN <= item.keys.hi(first);
      if constexpr (kRowsEnd) all = all && last < item.q_length;
      return all;
    }

    /// s = Q K^T for the tiles at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_scores(float (&s)[kTileN / 2]) {
      const tile::KMajor<typename QTile::Plane> q(shared + kQOffset + q_at.stage() * kQStageBytes +
                                                  consumer * QTile::kBytes);
      const tile::KMajor<typename KTile::Plane> k(shared + kKOffset + k_at.stage() * KTile::kBytes);
      ptx::wgmma_fence();
      tile::issue_product<T, kTileN, kQkSlices, C::kPlanes>(s, q, k, false);
      ptx::wgmma_commit();
    }

    /// out += P V for the V tile at hand, by way of `partial` if kWide; asynchronous, one group.
    HEDDLE_DEVICE void issue_output(float (&out)[C::kVDim / 2], float (&partial)[kPartial],
                                    const Weights& weights) {
      const tile::MnMajor<typename VTile::Plane> v(shared + kVOffset +
                                                   v_at.stage() * VTile::kBytes);
      ptx::wgmma_fence();
      if constexpr (kWide)
        tile::issue_product<T, C::kVDim>(partial, weights, v, false);
      else
        tile::issue_product<T, C::kVDim>(out, weights, v, true);
      ptx::wgmma_commit();
    }

    /// After the wait for issue_output.
    HEDDLE_DEVICE static void complete_output(float (&out)[C::kVDim / 2],
                                              float (&partial)[kPartial]) {
      if constexpr (kWide) {
        ptx::pin(partial);
        // Rows that see few of the keys lack less: half of it.
#pragma unroll
        for (int i = 0; i < C::kVDim / 2; ++i)
          out[i] = ptx::fma(partial[i], tile::kCutOff<kPvSlices / 2>, out[i]);
      } else {
        ptx::pin(out);
      }
    }

    HEDDLE_DEVICE static void pack_weights(Weights& weights, const float (&s)[kTileN / 2]) {
      if constexpr (kWide)
        tile::split_fragment<T, kTileN>(weights, s, kWeightUnit);
      else
        tile::pack_fragment<T, kTileN>(weights[0], s);
    }

    /// Waits for the query tile at hand, and rotates this consumer's rows where they lie. The
    /// tables' loads are on their way together: one after the other they took twice as long.
    HEDDLE_DEVICE void wait_q(const WorkItem& item) const {
      const u32 full = q_ring.full(q_at.stage());
      if constexpr (C::kRopeDim == 0) {
        ptx::mbarrier_wait(full, q_at.parity());
      } else {
        constexpr int kBatch = min_of(kRopeUnits, C::kVDim > 128 || !kPlain ? 1
                                                  : C::kConsumers > 2       ? 2
                                                                            : 4);
#pragma unroll 1
        for (int start = 0; start < kRopeUnits; start += kBatch) {
          RopeUnit units[kBatch];
          load_tables(item, start, units);
          if (start == 0) ptx::mbarrier_wait(full, q_at.parity());
          rotate(start, units);
        }
        rotation_done();
      }
    }

    using RopeUnit = attention::RopeUnit<C::kQkDim, C::kRopeDim, C::kRopePairing>;
    /// The warp group shares out 64 rows of units; a thread's are 128 apart.
    static constexpr int kRopeUnits = ceil_div(64 * RopeUnit::kCount, 128);

    template <int kCount>
    HEDDLE_DEVICE void load_tables(const WorkItem& item, int start,
                                   RopeUnit (&units)[kCount]) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int index = (start + i) * 128 + threadIdx.x % 128, r = index / RopeUnit::kCount;
        // Rows past the end are zeros: any position will do.
        const int row = max_of(min_of(first_row(item) + r, item.q_length - 1), 0);
        units[i].load_tables(args.q_rope, attention::rope_position(args.q_rope, item.batch, row),
                             index % RopeUnit::kCount);
      }
    }

    /// Turns this thread's units.
    template <int kCount>
    HEDDLE_DEVICE void rotate(int start, const RopeUnit (&units)[kCount]) const {
      const u32 q = shared + kQOffset + q_at.stage() * kQStageBytes + consumer * QTile::kBytes;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int index = (start + i) * 128 + threadIdx.x % 128, r = index / RopeUnit::kCount;
        if (r >= 64) return;
        units[i].template rotate<T>(
            index % RopeUnit::kCount, args.q_rope.scale,
            [&](int chunk, u32(&x)[4]) { ptx::load_shared(q + QTile::chunk_offset(r, chunk), x); },
            [&](int chunk, const u32(&x)[4]) {
              ptx::store_shared(q + QTile::chunk_offset(r, chunk), x);
            });
      }
    }

    /// Columns before the rotated ones get the scale; then the products may read the tile.
    HEDDLE_DEVICE void rotation_done() const {
      if (RopeUnit::kFirst > 0 && args.q_rope.scale != 1.f) {
        const u32 q = shared + kQOffset + q_at.stage() * kQStageBytes + consumer * QTile::kBytes;
        for (int index = threadIdx.x % 128; index < 64 * RopeUnit::kFirst; index += 128) {
          const u32 at =
              q + QTile::chunk_offset(index / RopeUnit::kFirst, index % RopeUnit::kFirst);
          u32 x[4];
          ptx::load_shared(at, x);
          attention::scale_chunk<T>(x, args.q_rope.scale);
          ptx::store_shared(at, x);
        }
      }
      ptx::fence_proxy_async_shared();
      ptx::barrier_sync(kGroupBarrier + consumer, 128);
    }
    HEDDLE_DEVICE void wait_k() const {
      ptx::mbarrier_wait(k_ring.full(k_at.stage()), k_at.parity());
    }
    HEDDLE_DEVICE void wait_v() const {
      ptx::mbarrier_wait(v_ring.full(v_at.stage()), v_at.parity());
    }
    HEDDLE_DEVICE void release_q() {
      if (warp_leader()) ptx::mbarrier_arrive(q_ring.empty(q_at.stage()));
      q_at.advance();
    }
    HEDDLE_DEVICE void release_k() {
      if (warp_leader()) ptx::mbarrier_arrive(k_ring.empty(k_at.stage()));
      k_at.advance();
    }
    HEDDLE_DEVICE void release_v() {
      if (warp_leader()) ptx::mbarrier_arrive(v_ring.empty(v_at.stage()));
      v_at.advance();
    }

    /// Makes scores of `key_tile`'s dot products, masks and exponentiates them; what they do to
    /// earlier terms is in `correction`.
    template <bool kMasked>
    HEDDLE_DEVICE void apply_softmax(float (&s)[kTileN / 2], const WorkItem& item, int key_tile,
                                     Softmax& softmax, float (&correction)[2]) {
      const int thread = threadIdx.x % 128;
      const int first_key = key_tile * kTileN + tile::fragment_column(thread);
      const int rows[2] = {first_row(item) + tile::fragment_row(thread, 0),
                           first_row(item) + tile::fragment_row(thread, 1)};
      int lo[2] = {0, 0}, hi[2] = {kTileN, kTileN};  // visible columns, from the thread's first
      if constexpr (kMasked) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          lo[h] = item.keys.lo(rows[h]) - first_key;
          hi[h] = (kRowsEnd && rows[h] >= item.q_length ? 0 : item.keys.hi(rows[h])) - first_key;
        }
      }
      if constexpr (!kPlain) {
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i) s[i] *= scale;
      }
      if constexpr (!Score::kIdentity) {
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i) {
          int row = rows[tile::fragment_half(i)], key = first_key + tile::fragment_column_step(i);
          if constexpr (kMasked) {
            // What cells past an end would load may not exist: they stand in for the last ones.
            row = min_of(row, item.q_length - 1);
            key = min_of(key, item.kv_length - 1);
          }
          s[i] = Score::value(
              Cell{s[i], row, key, item.batch, item.head, item.q_length, item.kv_length, p.loads});
        }
      }
      // A constant lower bound other than 0 needs the test too.
      if constexpr (kMasked)
        attention::mask_scores(s, lo, hi, C::kLowerVaries || item.keys.bounds.lower > 0);
      softmax.update(s, kPlain ? scale * kToLog2 : kToLog2, correction);
      if constexpr (C::kDropout != Dropout::none)
        drop_weights<C::kDropout>(s, p, item.batch, item.head, rows, first_key);
    }

    /// Scores and probabilities of a query tile's last key tile, with nothing to hide them behind.
    HEDDLE_DEVICE void start(const WorkItem& item, Weights& weights, Softmax& softmax,
                             float (&correction)[2]) {
      float s[kTileN / 2];
      const int key_end = own_key_end(item);
      scale_for(item);
      wait_q(item);
      skip_k(item.key_end - key_end);
      wait_k();
      issue_scores(s);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      release_k();
      softmax.reset();
      apply_softmax<true>(s, item, key_end - 1, softmax, correction);
      pack_weights(weights, s);
      skip_v(item.key_end - key_end);
    }

    /// The scores and softmax of `key_tile` while the previous key tile's P V is added; `weights`
    /// become
    /// `key_tile`'s probabilities. With kCross the key tile is the first of the next query tile:
    /// `softmax` starts afresh, and `out` is left complete but for its row factors.
    template <bool kMasked, bool kCross>
    HEDDLE_DEVICE void step(const WorkItem& item, int key_tile, float (&out)[C::kVDim / 2],
                            Weights& weights, Softmax& softmax, float (&correction)[2]) {
      float s[kTileN / 2], partial[kPartial];
      wait_k();
      wait_turn();
      issue_scores(s);
      wait_v();
      issue_output(out, partial, weights);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release_k();
      if constexpr (kCross) {
        softmax.reset();
        scale_for(item);
      }
      apply_softmax<kMasked>(s, item, key_tile, softmax, correction);
      ptx::pin(s);
      ptx::wgmma_wait<0>();
      complete_output(out, partial);
      ptx::pin(s);
      release_v();
      if constexpr (!kCross) correct_output(out, correction);
      pack_weights(weights, s);
    }

    /// The step between two query tiles where Q is not there yet, or to be rotated: it is waited
    /// for under the last P V, and this tile's O is written under the next one's first scores.
    HEDDLE_DEVICE void cross_late(const WorkItem& item, const WorkItem& following,
                                  float (&out)[C::kVDim / 2], Weights& weights, Softmax& softmax,
                                  float (&correction)[2]) {
      Softmax done = softmax;
      float partial[kPartial];
      wait_v();
      issue_output(out, partial, weights);
      wait_q(following);
      const int key_end = own_key_end(following);
      skip_k(following.key_end - key_end);
      wait_k();
      float s[kTileN / 2];
      issue_scores(s);
      ptx::wgmma_wait<1>();
      complete_output(out, partial);
      release_v();
      finish(item, out, done);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      release_k();
      softmax.reset();
      scale_for(following);
      apply_softmax<true>(s, following, key_end - 1, softmax, correction);
      pack_weights(weights, s);
      skip_v(following.key_end - key_end);
    }

    HEDDLE_DEVICE static void correct_output(float (&out)[C::kVDim / 2],
                                             const float (&correction)[2]) {
      if constexpr (C::kSlack > 0) {
        if (!__any_sync(0xffffffffu, correction[0] != 1.f || correction[1] != 1.f)) return;
      }
      attention::scale_rows(out, correction);
    }

    HEDDLE_DEVICE void run() {
      if (consumer == C::kConsumers - 1) pass_turn();  // the first turn is consumer 0's
      WorkItem item = next_item();
      while (item.q_tile >= 0) {
        float out[C::kVDim / 2];
        attention::clear(out);
        Softmax softmax;
        if (item.empty()) {
          softmax.reset();
          wait_q(item);
          finish(item, out, softmax);
          item = next_item();
          continue;
        }
        float correction[2];
        Weights weights;
        start(item, weights, softmax, correction);
        while (true) {
          for (int key_tile = own_key_end(item) - 2; key_tile >= item.key_begin; --key_tile) {
            if (all_visible(item, key_tile))
              step<false, false>(item, key_tile, out, weights, softmax, correction);
            else
              step<true, false>(item, key_tile, out, weights, softmax, correction);
          }
          if constexpr (kCrossTiles || kEarlyRelease) release_q();
          const WorkItem following = kCrosses ? next_item() : item;
          if (kCrosses && following.q_tile >= 0 && !following.empty()) {
            if constexpr (kLateCross) {
              cross_late(item, following, out, weights, softmax, correction);
              attention::clear(out);
              item = following;
              continue;
            }
            Softmax done = softmax;
            const int key_end = own_key_end(following);
            wait_q(following);
            skip_k(following.key_end - key_end);
            step<true, true>(following, key_end - 1, out, weights, softmax, correction);
            skip_v(following.key_end - key_end);
            finish(item, out, done);
            attention::clear(out);
            item = following;
            continue;
          }
          last_output(out, weights);
          finish(item, out, softmax);
          item = kCrosses ? following : next_item();
          break;
        }
      }
      if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
    }

    /// The last P V of a query tile that none follows at once.
    HEDDLE_DEVICE void last_output(float (&out)[C::kVDim / 2], const Weights& weights) {
      float partial[kPartial];
      wait_v();
      issue_output(out, partial, weights);
      ptx::wgmma_wait<0>();
      complete_output(out, partial);
      release_v();
    }

    /// Writes O in f32; the four lanes of a quad fill a sector of 32 bytes.
    HEDDLE_DEVICE void store_wide(const WorkItem& item, const float (&out)[C::kVDim / 2],
                                  const float (&factor)[2]) const {
      const int thread = threadIdx.x % 128;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row(item) + tile::fragment_row(thread, h);
        if (row >= p.q_length) continue;
        float* to = attention::element_pointer<float>(p.o, item.batch, item.head, row,
                                                      tile::fragment_column(thread));
#pragma unroll
        for (int i = 2 * h; i < C::kVDim / 2; i += 4)
          *reinterpret_cast<float2*>(to + tile::fragment_column_step(i)) =
              make_float2(out[i] * factor[h], out[i + 1] * factor[h]);
      }
    }

    /// Divides by the row sums and writes O and the row statistics.
    HEDDLE_DEVICE void finish(const WorkItem& item, float (&out)[C::kVDim / 2], Softmax& softmax) {
      const int thread = threadIdx.x % 128;
      float factor[2];
      if constexpr (C::kSink) {
        float correction[2];
        // The sink is in natural units even when scores are not.
        softmax.add_sink(p.sink[item.head] * attention::kLog2E, thread % 4 == 0, correction);
        attention::scale_rows(out, correction);
      }
      float kept = 1;
      if constexpr (C::kDropout != Dropout::none)
        kept = p.keep_scale_operand != nullptr ? *p.keep_scale_operand : p.keep_scale;
      if constexpr (kWide) kept *= unit(args.v_pairs, item, p.q_heads) * (1 / kWeightUnit);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row(item) + tile::fragment_row(thread, h);
        float sum = softmax.total(h);
        float reference = softmax.reference[h];
        if (C::kSequenceMaps && row >= item.q_length) {
          sum = 0;
          reference = attention::minus_infinity();
        }
        factor[h] = sum == 0.f ? 0.f : kept / sum;
        const bool ragged = C::kSequenceMaps && p.q.offsets != nullptr;
        if (thread % 4 == 0 && row < (ragged ? item.q_length : p.q_length)) {
          const auto write = [&](const attention::Tensor& target, float value) {
            if (target.data != nullptr)
              *attention::element_pointer<float>(target, item.batch, item.head, row, 0) = value;
          };
          // Statistics are natural also when scores came in log2 units.
          write(p.stats, attention::log_sum_exp<kWide>(reference, sum, p.stats_log2));
          if constexpr (C::kRowMax) {
            write(p.max, reference * attention::kLn2);
            write(p.sum_exp, sum);
          }
        }
      }

      if constexpr (kWide) {
        store_wide(item, out, factor);
        if (item.empty()) release_q();
        return;
      }
      const u32 staging = shared + kOOffset + consumer * kOStride;
      const u32 group_barrier = kGroupBarrier + consumer;
      attention::scale_rows(out, factor);
#pragma unroll
      for (int round = 0; round < C::kOutputRounds; ++round) {
        constexpr int kRoundSlices = kRoundBoxes * tile::kBoxColumns / 16;
        const u32 base = staging - round * kRoundBoxes * OTile::kBoxBytes;
        if (thread == 0) ptx::bulk_wait_read<0>();  // the store before has left the staging
        ptx::barrier_sync(group_barrier, 128);
#pragma unroll
        for (int n = 0; n < kRoundSlices; ++n) {
          const int k = round * kRoundSlices + n;
          if (16 * k >= C::kVDim) continue;
          const bool half = C::kVDim - 16 * k == 8;
          u32 slice[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            slice[i] =
                i >= 2 && half ? 0 : ptx::pack<T>(out[8 * k + 2 * i], out[8 * k + 2 * i + 1]);
          tile::store_slice<OTile>(base, thread / 32 * 16, k, slice);
        }
        ptx::fence_proxy_async_shared();
        ptx::barrier_sync(group_barrier, 128);
        if (thread == 0) {
          if constexpr (C::kSequenceMaps) ptx::tensor_map_acquire(maps_of(args, item.batch) + 3);
#pragma unroll
          for (int n = 0; n < kRoundBoxes; ++n) {
            const int box = round * kRoundBoxes + n;
            if (box >= OTile::kBoxes) continue;
            ptx::tma_store_4d(maps_of(args, item.batch) + 3, base + box * OTile::kBoxBytes,
                              box * tile::kBoxColumns, first_row(item), item.head,
                              C::kSequenceMaps ? 0 : item.batch);
          }
          ptx::bulk_commit();
        }
      }
      if constexpr (C::kOutputAliasesQ) {
        if (thread == 0) {
          ptx::bulk_wait_read<0>();
          ptx::mbarrier_arrive(q_ring.empty(q_at.stage()));
        }
        q_at.advance();
      } else if (item.empty()) {
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
      if constexpr (!C::kSequenceMaps) {
        for (int map = 0; map < (kWide ? 3 : 4); ++map) ptx::tma_prefetch(&args.q + map);
      }
      KvRing{shared + kKRing}.init(1, 4 * C::kConsumers);
      KvRing{shared + kVRing}.init(1, 4 * C::kConsumers);
      ItemRing{shared + kItemRing}.init(1, 4 * C::kConsumers + 1);
      for (int consumer = 0; consumer < C::kConsumers; ++consumer)
        QRing{shared + kQRing + consumer * QRing::kBytes}.init(1, C::kOutputAliasesQ ? 1 : 4);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();

    if (warp_group == 0) {
      ptx::registers_shrink<kProducerRegisters>();
      if (threadIdx.x == 0) load_tiles(args, shared);
      if (threadIdx.x == 32) schedule(args, shared);
    } else {
      ptx::registers_grow<kConsumerRegisters>();
      Consumer(args, shared, warp_group - 1).run();
    }
  }
};

}  // namespace heddle::sm90
