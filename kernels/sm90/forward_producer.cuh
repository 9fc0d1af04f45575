// The producer warp group of the Hopper attention forward: one thread deals out query tiles,
// another feeds the rings of Q, K and V, and a third that of what scores read of their cells; a
// warp writes what rows past a ragged sequence's end have.
#pragma once

#include "../attention/row_statistics.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../tile/load_tile.cuh"
#include "../tile/ring.cuh"
#include "block_rank.cuh"
#include "forward_arguments.h"
#include "forward_work.cuh"
#include "tile_order.cuh"

namespace heddle::sm90 {

template <class Block>
struct ForwardProducer {
  using C = typename Block::C;
  using QTile = typename Block::QTile;
  using KTile = typename Block::KTile;
  using VTile = typename Block::VTile;
  using KvRing = typename Block::KvRing;
  using ItemRing = typename Block::ItemRing;
  using QRing = typename Block::QRing;
  using Work = ForwardWork<Block>;
  static constexpr int kTileM = Block::kTileM, kTileN = Block::kTileN;

  /// Deals out work to the loading thread and the consumers; q_tile -1 ends it. One thread.
  HEDDLE_DEVICE static void deal(const ForwardArguments& args, u32 shared) {
    const ItemRing ring{shared + Block::kAt.item_ring};
    tile::RingCount<ForwardLayout::kItemStages> at;
    TileStream<C::kRanks> stream(args.order);
    while (true) {
      const bool valid = stream.valid();
      Work work{-1};
      if (valid) work = Work::at(args, stream.index());
      // A ragged tile past its sequence's end has nothing to read, and but for what end_rows_beyond
      // writes nothing to write.
      const bool skip = C::kLengths && valid && args.problem.q.offsets != nullptr &&
                        work.q_tile * kTileM >= work.q_length;
      if (!skip) {
        ptx::mbarrier_wait(ring.empty(at.stage()), at.parity() ^ 1);
        work.store(shared + Block::kAt.items + at.stage() * ForwardLayout::kItemBytes);
        ptx::mbarrier_arrive(ring.full(at.stage()));
        at.advance();
      }
      if (!valid) return;
      // The ring holds one more than is at work: nobody waits for the atomic.
      stream.take_next();
    }
  }

  /// Statistics that lie dense beside ragged rows: of whole tiles past a sequence's end they are as
  /// of rows that see nothing. One warp, which else has nothing to do: written by the thread that
  /// deals, they took 4 to 14 % of a packed batch of 2048 to 8192 rows.
  HEDDLE_DEVICE static void end_rows_beyond(const ForwardArguments& args) {
    const attention::ForwardParameters& p = args.problem;
    const auto dense = [](const attention::Tensor& statistic) {
      return statistic.data != nullptr && statistic.offsets == nullptr;
    };
    if (p.q.offsets == nullptr || !(dense(p.stats) || dense(p.max) || dense(p.sum_exp))) return;
#pragma unroll 1
    for (int index = blockIdx.x; index < args.order.total; index += gridDim.x) {
      int q_tile, flat_head;
      place_in_order(args.order, p.batch * p.q_heads, index, q_tile, flat_head);
      const int batch = flat_head / p.q_heads, head = flat_head - batch * p.q_heads;
      const int first = q_tile * kTileM, end = min_of(first + kTileM, p.q_length);
      if (first < attention::length_of(p.q_lengths, batch)) continue;
      const auto fill = [&](const attention::Tensor& statistic, float value) {
        if (!dense(statistic)) return;
#pragma unroll 1  // few registers are the producer's
        for (int row = first + static_cast<int>(threadIdx.x) % 32; row < end; row += 32)
          *attention::element_pointer<float>(statistic, batch, head, row, 0) = value;
      };
      fill(p.stats, attention::minus_infinity());
      fill(p.max, attention::minus_infinity());
      fill(p.sum_exp, 0.0f);
    }
  }

  /// Starts the copies of a stage's tiles, of a tensor that has so many columns.
  template <class Tile>
  HEDDLE_DEVICE static void load_stage(u32 stage, const TensorMap* map, u32 full, int columns,
                                       int row, int head, int batch) {
    ptx::mbarrier_arrive_expect_tx(full, Block::kTiles * Tile::kBytes);
    if constexpr (!Block::kSharesDots) {
      tile::load_tile<Tile>(stage, map, full, row, head, batch);
    } else {
      tile::load_shares<Tile>(stage, map, full, columns, C::kValues.share_of(columns),
                              block_rank<C::kRanks>() * C::kParts, C::kParts, row, head, batch);
    }
  }

  /// Feeds the Q, K and V rings; one thread.
  HEDDLE_DEVICE static void load_tiles(const ForwardArguments& args, u32 shared) {
    const KvRing k_ring{shared + Block::kAt.k_ring}, v_ring{shared + Block::kAt.v_ring};
    const ItemRing item_ring{shared + Block::kAt.item_ring};
    tile::RingCount<C::kStages> k_at, v_at;
    tile::RingCount<ForwardLayout::kItemStages> item_at;
    tile::RingCount<C::kQStages> q_at;

    // V runs one key tile behind K, as its products do, also from one query tile to the next.
    int v_key_tile = -1, v_head = 0, v_batch = 0;
    const auto load_v = [&] {
      if (v_key_tile < 0) return;
      ptx::mbarrier_wait(v_ring.empty(v_at.stage()), v_at.parity() ^ 1);
      load_stage<VTile>(shared + Block::kAt.v + v_at.stage() * Block::kTiles * VTile::kBytes,
                        maps_of<C>(args, v_batch) + 2, v_ring.full(v_at.stage()), C::kVDim,
                        v_key_tile * kTileN, v_head, map_batch<C>(v_batch));
      v_at.advance();
      v_key_tile = -1;
    };

    // What rotates keys may still run.
    if constexpr (C::kRopeDim > 0) ptx::grid_dependency_wait();
    while (true) {
      // Only what loading needs: few registers are the producer's.
      ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
      const u32 slot = shared + Block::kAt.items + item_at.stage() * ForwardLayout::kItemBytes;
      const int q_tile = i32(ptx::load_shared_u32(slot));
      const int head = i32(ptx::load_shared_u32(slot + 4));
      const int batch = i32(ptx::load_shared_u32(slot + 8));
      const int key_begin = i32(ptx::load_shared_u32(slot + 16));
      const int key_end = i32(ptx::load_shared_u32(slot + 20));
      ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
      item_at.advance();
      if (q_tile < 0) break;
      const TensorMap* maps = maps_of<C>(args, batch);
      if constexpr (C::kSequenceMaps) {
        for (int map = 0; map < 3; ++map) ptx::tensor_map_acquire(maps + map);
      }
      const int k_head = head / (args.problem.q_heads / args.problem.k_heads);
      const auto load_k = [&](int key_tile) {
        ptx::mbarrier_wait(k_ring.empty(k_at.stage()), k_at.parity() ^ 1);
        load_stage<KTile>(shared + Block::kAt.k + k_at.stage() * Block::kTiles * KTile::kBytes,
                          maps + 1, k_ring.full(k_at.stage()), C::kQkDim, key_tile * kTileN, k_head,
                          map_batch<C>(batch));
        k_at.advance();
      };

      const auto load_q = [&] {
#pragma unroll 1
        for (int group = 0; group < Block::kRowGroups; ++group) {
          const QRing ring{shared + Block::kAt.q_rings + group * QRing::kBytes};
          ptx::mbarrier_wait(ring.empty(q_at.stage()), q_at.parity() ^ 1);
          load_stage<QTile>(shared + Block::kAt.q + q_at.stage() * Block::kAt.q_stage_bytes +
                                group * Block::kTiles * QTile::kBytes,
                            maps, ring.full(q_at.stage()), C::kQkDim, q_tile * kTileM + group * 64,
                            head, map_batch<C>(batch));
        }
        q_at.advance();
      };
      // What is to be rotated comes before the first keys.
      if constexpr (Block::kRotators) load_q();

      int key_tile = C::kUpwards ? key_begin : key_end - 1;
      const int past = C::kUpwards ? key_end : key_begin - 1;
      if (key_tile != past) load_k(key_tile);
      if constexpr (!Block::kRotators) load_q();
      load_v();
      v_head = head / (args.problem.q_heads / args.problem.v_heads);
      v_batch = batch;
      for (; key_tile != past; key_tile += Block::kKeyStep) {
        const bool last = key_tile + Block::kKeyStep == past;
        if (!last) load_k(key_tile + Block::kKeyStep);
        v_key_tile = key_tile;
        if (!Block::kCrossTiles || !last) load_v();
      }
    }
    load_v();
  }

  /// Feeds the ring of what scores read of their cells; one thread.
  HEDDLE_DEVICE static void load_scores(const ForwardArguments& args, u32 shared) {
    using Tiles = typename Block::ScoreTiles;
    const ItemRing item_ring{shared + Block::kAt.item_ring};
    const typename Tiles::Ring ring{shared + Block::kAt.tiled_ring};
    tile::RingCount<ForwardLayout::kItemStages> item_at;
    tile::RingCount<C::kTiledStages> at;
    while (true) {
      ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
      const Work work =
          Work::load(shared + Block::kAt.items + item_at.stage() * ForwardLayout::kItemBytes);
      ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
      item_at.advance();
      if (work.q_tile < 0) break;
#pragma unroll 1
      for (int key_tile = work.key_end - 1; key_tile >= work.key_begin; --key_tile) {
        ptx::mbarrier_wait(ring.empty(at.stage()), at.parity() ^ 1);
        Tiles::load(args.tiled, shared + Block::kAt.tiled + at.stage() * Tiles::kBytes,
                    ring.full(at.stage()), key_tile * kTileN, work.q_tile * kTileM, work.head,
                    work.batch);
        at.advance();
      }
    }
  }
};

}  // namespace heddle::sm90
