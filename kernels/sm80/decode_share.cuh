// Which keys a block of the decode kernel meets. A sequence is the keys of one batch entry and one
// head of keys, met by a block of query rows; its tiles and those of all others, one after the
// other, are cut into as many equal shares as there are blocks. Lengths on the device decide.
#pragma once

#include "../attention/operand.cuh"
#include "../attention/visible.cuh"
#include "decode_arguments.h"

namespace heddle::sm80 {

/// What the rows of a batch entry see, and the tiles it takes to meet it: one at least, where it is
/// said that a row sees nothing. kLengths: entries have lengths of their own.
template <bool kLengths>
struct DecodeKeys {
  int q_length, kv_length;
  attention::BatchBounds bounds;
  int end;
  int first_tile, tiles;

  HEDDLE_DEVICE static DecodeKeys of(const attention::ForwardParameters& p, int batch,
                                     int tile_keys) {
    DecodeKeys keys;
    keys.q_length = kLengths ? attention::length_of(p.q_lengths, batch) : p.q_length;
    keys.kv_length = kLengths ? attention::length_of(p.kv_lengths, batch) : p.kv_length;
    keys.bounds = attention::resolve_bounds(p, keys.q_length, keys.kv_length);
    // Neither end of what a row sees comes before that of the row above: what all see begins with
    // the first row that sees a key, and ends with the last.
    const attention::BatchBounds& b = keys.bounds;
    const int first_row = max_of(0, b.lower - b.upper_diagonal + 1),
              last_row = min_of(keys.q_length, b.upper - b.lower_diagonal) - 1;
    const bool sees =
        b.lower < b.upper && b.lower_diagonal < b.upper_diagonal && first_row <= last_row;
    const int begin = sees ? keys.visible(first_row).lo : 0;
    keys.end = sees ? keys.visible(last_row).hi : 0;
    keys.first_tile = begin / tile_keys;
    keys.tiles = max_of(1, ceil_div(keys.end, tile_keys) - keys.first_tile);
    return keys;
  }
  /// The keys that a row sees.
  HEDDLE_DEVICE attention::KeyInterval visible(int row) const {
    return {max_of(bounds.lower, row + bounds.lower_diagonal),
            min_of(bounds.upper, row + bounds.upper_diagonal)};
  }
};

/// A sequence, the block's tiles of it, and the blocks that meet the others.
template <bool kLengths>
struct DecodeSequence {
  DecodeKeys<kLengths> keys;
  int batch, head, row_block;  ///< head of keys
  int first_tile, tiles;       ///< the block's, counted from the sequence's first
  int first_block, last_block;

  HEDDLE_DEVICE bool is_whole() const { return first_block == last_block; }
};

/// The sequences of the calling block, in their order; all its threads go through them. Every warp
/// counts by itself and waits for no other.
template <bool kLengths>
class DecodeShare {
 public:
  using Keys = DecodeKeys<kLengths>;
  using Sequence = DecodeSequence<kLengths>;

  HEDDLE_DEVICE DecodeShare(const attention::ForwardParameters& p, int tile_keys, int row_blocks)
      : p_(p), tile_keys_(tile_keys), per_batch_(p.k_heads * row_blocks), row_blocks_(row_blocks) {
    if constexpr (!kLengths) {
      keys_ = Keys::of(p, 0, tile_keys);
      take_share(p.batch * tiles_of(keys_));
      batch_ = at_ / tiles_of(keys_);
      begins_ = batch_ * tiles_of(keys_);
      return;
    }
    const int lane = threadIdx.x % 32;
    const int per_lane = ceil_div(p.batch, 32), first = lane * per_lane,
              last = min_of(first + per_lane, p.batch);
    int mine = 0;
    for (int batch = first; batch < last; ++batch) mine += tiles_of(Keys::of(p, batch, tile_keys));
    int until = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, until, step);
      if (lane >= step) until += other;
    }
    take_share(__shfl_sync(0xffffffffu, until, 31));
    if (at_ == end_) return;
    // The lane that counted the first tile, and of its batch entries the one whose tile it is.
    const int source = __popc(__ballot_sync(0xffffffffu, until <= at_));
    begins_ = __shfl_sync(0xffffffffu, until - mine, source);
    batch_ = source * per_lane;
    keys_ = Keys::of(p, batch_, tile_keys);
  }

  HEDDLE_DEVICE bool valid() const { return at_ < end_; }

  HEDDLE_DEVICE Sequence take() {
    while (at_ >= begins_ + tiles_of(keys_)) {
      begins_ += tiles_of(keys_);
      ++batch_;
      if constexpr (kLengths) keys_ = Keys::of(p_, batch_, tile_keys_);
    }
    const int number = (at_ - begins_) / keys_.tiles;
    const int begins = begins_ + number * keys_.tiles, ends = begins + keys_.tiles;
    const int stop = min_of(end_, ends), head = number / row_blocks_;
    const Sequence sequence{keys_,
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
  /// The block's share of so many tiles; those left over go to the first blocks.
  HEDDLE_DEVICE void take_share(int tiles) {
    const int block = blockIdx.x, blocks = gridDim.x;
    per_block_ = tiles / blocks;
    left_over_ = tiles - per_block_ * blocks;
    at_ = block * per_block_ + min_of(block, left_over_);
    end_ = at_ + per_block_ + (block < left_over_ ? 1 : 0);
  }
  HEDDLE_DEVICE int tiles_of(const Keys& keys) const { return keys.tiles * per_batch_; }
  /// The block whose share a tile is.
  HEDDLE_DEVICE int block_of(int tile) const {
    const int of_larger = left_over_ * (per_block_ + 1);
    if (tile < of_larger) return tile / (per_block_ + 1);
    return left_over_ + (tile - of_larger) / per_block_;
  }

  const attention::ForwardParameters& p_;
  int tile_keys_, per_batch_, row_blocks_;
  int per_block_, left_over_;  ///< tiles
  int at_ = 0, end_ = 0;
  int batch_ = 0, begins_ = 0;  ///< a batch entry and its first tile
  Keys keys_;
};

}  // namespace heddle::sm80
