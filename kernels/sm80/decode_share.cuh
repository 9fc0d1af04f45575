// Which keys a block of the decode kernel meets. A sequence is the keys of one batch entry and one
// head of keys, met by a block of query rows; its tiles and those of all others, one after the
// other, are cut into as many equal shares as there are blocks. Lengths on the device decide.
#pragma once

#include "../attention/operand.cuh"
#include "../attention/visible.cuh"
#include "../ptx/sync.cuh"
#include "decode_arguments.h"

namespace heddle::sm80 {

/// What the rows of a batch entry see, and the tiles it takes to meet it: one at least, where it is
/// said that a row sees nothing.
struct DecodeKeys {
  int q_length, kv_length;
  int begin, end;
  int first_tile, tiles;

  HEDDLE_DEVICE static DecodeKeys of(const attention::ForwardParameters& p, int batch,
                                     int tile_keys) {
    DecodeKeys keys;
    keys.q_length = attention::length_of(p.q_lengths, batch);
    keys.kv_length = attention::length_of(p.kv_lengths, batch);
    keys.begin = keys.kv_length;
    keys.end = 0;
    for (int row = 0; row < keys.q_length; ++row) {
      const attention::KeyInterval seen =
          attention::visible_keys(p.bounds, p.bound_count, row, keys.q_length, keys.kv_length);
      if (seen.lo >= seen.hi) continue;
      keys.begin = min_of(keys.begin, seen.lo);
      keys.end = max_of(keys.end, seen.hi);
    }
    keys.begin = min_of(keys.begin, keys.end);
    keys.first_tile = keys.begin / tile_keys;
    keys.tiles = max_of(1, ceil_div(keys.end, tile_keys) - keys.first_tile);
    return keys;
  }
};

/// A sequence, the block's tiles of it, and the blocks that meet the others.
struct DecodeSequence {
  DecodeKeys keys;
  int batch, head, row_block;  ///< head of keys
  int first_tile, tiles;       ///< the block's, counted from the sequence's first
  int first_block, last_block;

  HEDDLE_DEVICE bool is_whole() const { return first_block == last_block; }
};

/// The sequences of the calling block, in their order; all its threads go through them.
template <int kThreads>
class DecodeShare {
 public:
  /// `scratch` has room for a number for each warp, and for two more.
  HEDDLE_DEVICE DecodeShare(const attention::ForwardParameters& p, int tile_keys, int row_blocks,
                            int* scratch)
      : p_(p), tile_keys_(tile_keys), row_blocks_(row_blocks) {
    const int per_thread = ceil_div(p.batch, kThreads), first = threadIdx.x * per_thread,
              last = min_of(first + per_thread, p.batch);
    int mine = 0;
    for (int batch = first; batch < last; ++batch) mine += tiles_of(batch);
    const int before = sum_before(mine, scratch);
    const int block = blockIdx.x;
    // Those left over go to the first blocks.
    per_block_ = total_ / static_cast<int>(gridDim.x);
    left_over_ = total_ - per_block_ * static_cast<int>(gridDim.x);
    at_ = block * per_block_ + min_of(block, left_over_);
    end_ = at_ + per_block_ + (block < left_over_ ? 1 : 0);
    if (at_ == end_) return;
    if (before <= at_ && at_ < before + mine) {
      int begins = before, batch = first;
      for (int tiles = tiles_of(batch); at_ >= begins + tiles; tiles = tiles_of(batch)) {
        begins += tiles;
        ++batch;
      }
      scratch[0] = batch;
      scratch[1] = begins;
    }
    __syncthreads();
    batch_ = scratch[0];
    begins_ = scratch[1];
    __syncthreads();
    keys_ = DecodeKeys::of(p, batch_, tile_keys);
  }

  HEDDLE_DEVICE bool valid() const { return at_ < end_; }

  HEDDLE_DEVICE DecodeSequence take() {
    while (at_ >= begins_ + tiles_of(keys_)) {
      begins_ += tiles_of(keys_);
      keys_ = DecodeKeys::of(p_, ++batch_, tile_keys_);
    }
    const int number = (at_ - begins_) / keys_.tiles;
    const int begins = begins_ + number * keys_.tiles, ends = begins + keys_.tiles;
    const int stop = min_of(end_, ends), head = number / row_blocks_;
    const DecodeSequence sequence{keys_,
                                  batch_,
                                  head,
                                  number - head * row_blocks_,
                                  at_ - begins,
                                  stop - at_,
                                  block_of(begins),
                                  block_of(ends - 1)};
    at_ = stop;
    return sequence;
  }

 private:
  HEDDLE_DEVICE int tiles_of(const DecodeKeys& keys) const {
    return keys.tiles * p_.k_heads * row_blocks_;
  }
  HEDDLE_DEVICE int tiles_of(int batch) const {
    return tiles_of(DecodeKeys::of(p_, batch, tile_keys_));
  }
  /// The block whose share a tile is.
  HEDDLE_DEVICE int block_of(int tile) const {
    const int of_larger = left_over_ * (per_block_ + 1);
    if (tile < of_larger) return tile / (per_block_ + 1);
    return left_over_ + (tile - of_larger) / per_block_;
  }
  /// What the threads before have; total_ is what all have.
  HEDDLE_DEVICE int sum_before(int mine, int* scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    total_ = 0;
#pragma unroll
    for (int n = 0; n < kThreads / 32; ++n) {
      if (n == warp) sum += total_;
      total_ += scratch[n];
    }
    __syncthreads();
    return sum - mine;
  }

  const attention::ForwardParameters& p_;
  int tile_keys_, row_blocks_;
  int total_, per_block_, left_over_;  ///< tiles
  int at_ = 0, end_ = 0;
  int batch_ = 0, begins_ = 0;  ///< a batch entry and its first tile
  DecodeKeys keys_;
};

/// Counts a block's arrival at a counter that may have held anything before the launch; whether it
/// is the last of `blocks`. One thread, after a fence.
HEDDLE_DEVICE bool arrives_last(unsigned long long* counter, unsigned long long claim, int blocks) {
  unsigned long long seen = 0, next = 0;
  while (true) {
    const bool claimed = seen >> kArrivedBits == claim >> kArrivedBits;
    next = (claimed ? seen : claim) + 1;
    const unsigned long long found = atomicCAS(counter, seen, next);
    if (found == seen) break;
    seen = found;
  }
  const bool last = next == claim + blocks;
  // The next launch, whose claim may be the same, begins anew.
  if (last) *counter = 0;
  return last;
}

}  // namespace heddle::sm80
