// The gradient of what a score adds in every cell (dBias): the sum of dS over the batch entries and
// heads along which the operand is broadcast.
//
//   S^T = K Q^T      P^T = exp(score - lse)      dP^T = V dO^T      sum += P^T o (dP^T - delta)
//
// A block owns 64 queries by 128 keys of the operand and keeps their sum in registers, so nothing
// is added up in memory and the order is fixed. Each step fetches the tiles of one batch entry and
// head; two consumer warp groups have 64 keys each.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/gemm.cuh"
#include "../tile/load_tile.cuh"
#include "backward_block.cuh"
#include "backward_scores.cuh"

namespace heddle::sm90 {

template <class Config>
struct UnitSlope : Config {
  static constexpr bool kUnitSlope = true;  ///< of the operand, whatever the dot product's is
};

/// Head dims up to 128; the operand comes by tiles, and its gradient is that of the score.
template <class Config, class Score>
struct AttentionBackwardLoad
    : BackwardBlock<UnitSlope<Config>, BackwardLoadLayout::kTileM, BackwardLoadLayout::kTileN> {
  using Block =
      BackwardBlock<UnitSlope<Config>, BackwardLoadLayout::kTileM, BackwardLoadLayout::kTileN>;
  using Block::kLseBytes;
  using Block::kQk;
  using Block::kRowBytes;
  using Block::kTileM;
  using Block::kTileN;
  using Block::kVd;
  using typename Block::C;
  using typename Block::DoTile;
  using typename Block::KTile;
  using typename Block::QTile;
  using typename Block::T;
  using typename Block::Tiles;
  using typename Block::VTile;
  static_assert(Tiles::kThere && !Tiles::kBooleans);
  static_assert(kQk <= 128 && kVd <= 128);
  /// Two consumer groups and a warp that fetches.
  static constexpr int kConsumers = 2, kThreads = 128 * kConsumers + 32;
  static constexpr int kStages = BackwardLoadLayout::kStages;
  static constexpr BackwardLoadLayout kAt = load_layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  using Ring = tile::Ring<kStages>;
  static_assert(kSharedBytes <= kMostShared, "shared memory of a block");

  /// The steps of a block: batch entries, and the heads of each. Those that see none of its cells
  /// are passed over.
  struct Steps {
    const BackwardArguments& args;
    int batch, last_batch, first_head, last_head, head;
    BackwardWork work;
    bool sees;

    HEDDLE_DEVICE explicit Steps(const BackwardArguments& args) : args(args) {
      const attention::ForwardParameters& p = args.problem.forward;
      const int heads = args.tiled.per_head ? p.q_heads : 1, z = blockIdx.z;
      first_head = args.tiled.per_head ? z % heads : 0;
      last_head = args.tiled.per_head ? first_head : p.q_heads - 1;
      batch = args.tiled.per_batch ? z / heads : 0;
      last_batch = args.tiled.per_batch ? batch : p.batch - 1;
      head = first_head;
      look();
    }
    HEDDLE_DEVICE bool done() const { return batch > last_batch; }
    HEDDLE_DEVICE void advance() {
      if (++head <= last_head && sees) return;
      head = first_head;
      ++batch;
      if (!done()) look();
    }

   private:
    HEDDLE_DEVICE void look() {
      const attention::ForwardParameters& p = args.problem.forward;
      work.batch = batch;
      work.key_head = 0;
      work.group = work.tile_count = 1;
      work.key0 = static_cast<int>(blockIdx.x) * kTileN;
      work.first_tile = static_cast<int>(blockIdx.y);
      work.q_length = C::kLengths ? attention::length_of(p.q_lengths, batch) : p.q_length;
      work.kv_length = C::kLengths ? attention::length_of(p.kv_lengths, batch) : p.kv_length;
      work.keys = attention::resolve_bounds(p, work.q_length, work.kv_length);
      sees = Block::sees(work, work.first_tile * kTileM, kTileM);
    }
  };

  HEDDLE_DEVICE static u32 stage_at(u32 shared, u32 stage) {
    return shared + stage * kAt.stage_bytes;
  }
  HEDDLE_DEVICE static u32 statistics_at(u32 shared, u32 stage) {
    return shared + kAt.statistics + stage * kAt.statistics_bytes;
  }

  /// One thread.
  HEDDLE_DEVICE static void fetch(const BackwardArguments& args, u32 shared) {
    const attention::ForwardParameters& p = args.problem.forward;
    const Ring ring{shared + kAt.ring};
    const int row = static_cast<int>(blockIdx.y) * kTileM, group = p.q_heads / p.k_heads;
    tile::RingPosition<kStages> at;
    for (Steps step(args); !step.done(); step.advance()) {
      if (!step.sees) continue;
      ptx::mbarrier_wait(ring.empty(at.stage()), at.parity() ^ 1);
      const u32 full = ring.full(at.stage()), stage = stage_at(shared, at.stage());
      const u32 statistics = statistics_at(shared, at.stage());
      const TensorMap* maps = C::kLengths ? args.sequence_maps + 4 * step.batch : &args.q;
      const int place = C::kLengths ? 0 : step.batch, key_head = step.head / group;
      if constexpr (C::kLengths) {
        for (int which = 0; which < 4; ++which) ptx::tensor_map_acquire(maps + which);
      }
      ptx::mbarrier_arrive_expect_tx(full, KTile::kBytes + VTile::kBytes + QTile::kBytes +
                                               DoTile::kBytes + kAt.statistics_bytes);
      tile::load_tile<QTile>(stage + kAt.q, maps, full, row, step.head, place);
      tile::load_tile<KTile>(stage + kAt.k, maps + 1, full, step.work.key0, key_head, place);
      const i64 line = static_cast<i64>(step.batch * p.q_heads + step.head) * args.q_rounded + row;
      ptx::bulk_load(statistics, args.negative_lse + line * Block::kStatistics, kLseBytes, full);
      ptx::bulk_load(statistics + kLseBytes, args.delta + line, kRowBytes, full);
      Tiles::load(args.tiled, stage + kAt.tiled, full, step.work.key0, row, step.head, step.batch);
      tile::load_tile<VTile>(stage + kAt.v, maps + 2, full, step.work.key0, key_head, place);
      tile::load_tile<DoTile>(stage + kAt.d_o, maps + 3, full, row, step.head, place);
      at.advance();
    }
  }

  /// A consumer group: its 64 keys.
  HEDDLE_DEVICE static void consume(const BackwardArguments& args, u32 shared) {
    using Scores = BackwardScores<Block, Score, UnitDerivative>;
    const Ring ring{shared + kAt.ring};
    const int part = threadIdx.x / 128;
    const float keep_scale = Block::keep_scale_of(args);
    tile::RingPosition<kStages> at;
    float sum[kTileM / 2] = {}, d_p[kTileM / 2];
    for (Steps step(args); !step.done(); step.advance()) {
      if (!step.sees) continue;
      const u32 stage = stage_at(shared, at.stage());
      const u32 statistics = statistics_at(shared, at.stage());
      Scores scores(args, step.work, step.work.key0 + 64 * part);
      ptx::mbarrier_wait(ring.full(at.stage()), at.parity());
      ptx::wgmma_fence();
      tile::issue_product<T, kTileM, kQk / 16>(scores.s,
                                               tile::KMajor<KTile>(stage + kAt.k, 64 * part),
                                               tile::KMajor<QTile>(stage + kAt.q), false);
      ptx::wgmma_commit();
      tile::issue_product<T, kTileM, kVd / 16>(d_p, tile::KMajor<VTile>(stage + kAt.v, 64 * part),
                                               tile::KMajor<DoTile>(stage + kAt.d_o), false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(scores.s);
      typename Tiles::ColumnReader tiled(stage + kAt.tiled, 64 * part);
      typename Block::Step place(step.work);
      place.head = step.head;
      scores.exponentiate(statistics, place, &tiled);
      ptx::wgmma_wait<0>();
      ptx::pin(d_p);
      const u32 delta = statistics + kLseBytes + tile::fragment_column(threadIdx.x) * 4;
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k)
        add_slice(sum, scores.factor(k), scores.probability[k], d_p, delta, k, keep_scale);
      __syncwarp();
      ptx::mbarrier_arrive(ring.empty(at.stage()));
      at.advance();
    }
    store(args, sum);
  }

  /// sum += factor o (dP - delta), slice k; arguments as of differentiate_slice.
  HEDDLE_DEVICE static void add_slice(float (&sum)[kTileM / 2], const u32 (&factor)[4],
                                      const u32 (&probability)[4], const float (&d_p)[kTileM / 2],
                                      u32 delta, int k, float keep_scale) {
    float row_delta[2], pair[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i % 2 == 0) ptx::load_shared(delta + 64 * k + 16 * i, row_delta[0], row_delta[1]);
      const int n = 8 * k + 2 * i;
      differentiate_pair<C>(pair, factor[i], probability[i], d_p[n], d_p[n + 1], row_delta,
                            keep_scale);
      sum[n] += pair[0];
      sum[n + 1] += pair[1];
    }
  }

  /// A lane holds two keys: the eight lanes of a column of the fragment write neighbours.
  HEDDLE_DEVICE static void store(const BackwardArguments& args, const float (&sum)[kTileM / 2]) {
    const attention::BackwardParameters& p = args.problem;
    const int thread = threadIdx.x % 128;
    const int heads = args.tiled.per_head ? p.forward.q_heads : 1, z = blockIdx.z;
    const int row = static_cast<int>(blockIdx.y) * kTileM + tile::fragment_column(thread);
    const int key = static_cast<int>(blockIdx.x) * kTileN + threadIdx.x / 128 * 64 +
                    tile::fragment_row(thread, 0);
    using Out = typename Tiles::T;
    Out* out = attention::element_pointer<Out>(p.d_load, z / heads, z % heads, row, key);
#pragma unroll
    for (int n = 0; n < kTileM / 2; ++n) {
      const int down = tile::fragment_column_step(n), right = 8 * tile::fragment_half(n);
      if (row + down < p.forward.q_length && key + right < p.forward.kv_length)
        out[down * p.d_load.stride[2] + right * p.d_load.stride[3]] =
            ptx::narrow<Out>(sum[n] * Block::kOfLog2);
    }
  }

  /// After prepare. Grid: (key tiles, tiles of 64 queries, batch entries * heads of the operand);
  /// kThreads threads; kSharedBytes.
  HEDDLE_DEVICE static void run(const BackwardArguments& args) {
    extern __shared__ char dynamic_shared[];
    const u32 shared = round_up(shared_address(dynamic_shared), tile::kTileAlignment);
    if (threadIdx.x == 0) {
      Ring{shared + kAt.ring}.init(2, 128 * kConsumers);  // Tiles::load arrives for itself
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 128 * kConsumers) {
      if (ptx::elect_one()) fetch(args, shared);
    } else {
      consume(args, shared);
    }
  }
};

}  // namespace heddle::sm90
