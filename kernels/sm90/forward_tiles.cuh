// What reaches a consumer warp group of the Hopper forward: work, and the tiles of Q, K and V in
// their rings.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../tile/ring.cuh"
#include "block_rank.cuh"
#include "forward_work.cuh"

namespace heddle::sm90 {

/// Tiles are "at hand" from their wait to their release; each kind comes in its own order.
template <class Block>
struct ForwardTiles {
  using C = typename Block::C;
  using Work = ForwardWork<Block>;
  using ScoreTiles = typename Block::ScoreTiles;
  const u32 shared;
  const int consumer;  ///< which, uniform in the warp group
  const typename Block::KvRing k_ring, v_ring;
  const typename Block::ItemRing item_ring;
  const typename Block::QRing q_ring;
  tile::RingCount<C::kStages> k_at, v_at;
  tile::RingCount<ForwardLayout::kItemStages> item_at;
  tile::RingCount<C::kQStages> q_at;
  tile::RingCount<C::kTiledStages> tiled_at;  ///< what scores read of their cells, if kTiled

  HEDDLE_DEVICE ForwardTiles(u32 shared, int consumer)
      : shared(shared),
        consumer(consumer),
        k_ring{shared + Block::kAt.k_ring},
        v_ring{shared + Block::kAt.v_ring},
        item_ring{shared + Block::kAt.item_ring},
        q_ring{shared + Block::kAt.q_rings + consumer / C::kParts * Block::QRing::kBytes} {}

  /// Which columns of O the consumer has, of those of its block that share its rows, and of all.
  HEDDLE_DEVICE int part() const { return consumer % C::kParts; }
  HEDDLE_DEVICE int share() const { return block_rank<C::kRanks>() * C::kParts + part(); }

  HEDDLE_DEVICE static u32 operand(u32 tile) {
    return tile::operand_address<(C::kRanks > 1)>(tile);
  }
  HEDDLE_DEVICE u32 q() const {
    return shared + Block::kAt.q + q_at.stage() * Block::kAt.q_stage_bytes +
           (Block::kSharesDots ? consumer : consumer / C::kParts) * Block::QTile::kBytes;
  }
  /// Where O is staged, and before it rotations.
  HEDDLE_DEVICE u32 staging() const {
    return shared + Block::kAt.o + consumer * Block::kAt.o_stride;
  }
  HEDDLE_DEVICE u32 k() const {
    return shared + Block::kAt.k + tile_of_stage(k_at.stage()) * Block::KTile::kBytes;
  }
  HEDDLE_DEVICE u32 v() const {
    return shared + Block::kAt.v + tile_of_stage(v_at.stage()) * Block::VTile::kBytes;
  }

  /// Of all consumers' rows.
  HEDDLE_DEVICE u32 tiled() const {
    return shared + Block::kAt.tiled + tiled_at.stage() * ScoreTiles::kBytes;
  }

  /// Every thread arrives for what it read itself, here and of what is staged: racecheck follows no
  /// other.
  HEDDLE_DEVICE Work next_work() {
    ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
    const Work work =
        Work::load(shared + Block::kAt.items + item_at.stage() * ForwardLayout::kItemBytes);
    ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
    item_at.advance();
    return work;
  }

  HEDDLE_DEVICE void wait_q() const {
    ptx::mbarrier_wait(q_ring.full(q_at.stage()), q_at.parity());
  }
  /// Says that the query tile at hand is rotated, where it is not its consumer that does so.
  HEDDLE_DEVICE u32 rotated() const {
    return shared + Block::kAt.rotated + (consumer * C::kQStages + q_at.stage()) * 8;
  }
  HEDDLE_DEVICE void wait_rotated() const { ptx::mbarrier_wait(rotated(), q_at.parity()); }
  HEDDLE_DEVICE typename Block::StagingRing staging_ring() const {
    return {shared + Block::kAt.staging_rings + consumer * Block::StagingRing::kBytes};
  }
  /// For the rotations of the query tile at hand; past the last one, for the staging to be free.
  HEDDLE_DEVICE void wait_staging() const {
    ptx::mbarrier_wait(staging_ring().full(0), q_at.count() % 2);
  }
  /// What is staged is used up, or is O to be stored.
  HEDDLE_DEVICE void leave_staging() const { ptx::mbarrier_arrive(staging_ring().empty(0)); }
  HEDDLE_DEVICE void wait_k() const {
    ptx::mbarrier_wait(k_ring.full(k_at.stage()), k_at.parity());
  }
  HEDDLE_DEVICE void wait_v() const {
    ptx::mbarrier_wait(v_ring.full(v_at.stage()), v_at.parity());
  }
  HEDDLE_DEVICE void wait_tiled() const {
    if constexpr (ScoreTiles::kThere)
      ptx::mbarrier_wait(tiled_ring().full(tiled_at.stage()), tiled_at.parity());
  }
  /// By then all lanes have exchanged maxima of what they read.
  HEDDLE_DEVICE void release_tiled() {
    if constexpr (ScoreTiles::kThere) {
      if (warp_leader()) ptx::mbarrier_arrive(tiled_ring().empty(tiled_at.stage()));
      tiled_at.advance();
    }
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

  /// Lets K tiles pass that only other consumers need, and their scores' tiles; skip_v does so for
  /// their V.
  HEDDLE_DEVICE void skip_k(int tiles) {
    for (; tiles > 0; --tiles) {
      wait_k();
      wait_tiled();
      __syncwarp();
      release_k();
      release_tiled();
    }
  }
  HEDDLE_DEVICE void skip_v(int tiles) {
    for (; tiles > 0; --tiles) {
      wait_v();
      __syncwarp();
      release_v();
    }
  }

 private:
  HEDDLE_DEVICE int tile_of_stage(int stage) const {
    return Block::kSharesDots ? stage * Block::kTiles + part() : stage;
  }
  HEDDLE_DEVICE typename ScoreTiles::Ring tiled_ring() const {
    return {shared + Block::kAt.tiled_ring};
  }
  /// A comparison is a predicate held throughout, and masks need all there are: elections make
  /// them 13 to 32 % faster, biases +-2 %, and kernels without tiles up to 2 % slower.
  HEDDLE_DEVICE static bool warp_leader() {
    if constexpr (ScoreTiles::kThere)
      return ptx::elect_one();
    else
      return threadIdx.x % 32 == 0;
  }
};

}  // namespace heddle::sm90
