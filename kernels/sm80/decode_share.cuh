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

/// A sequence, and the block's tiles of it.
template <bool kLengths>
struct DecodeSequence {
  DecodeKeys<kLengths> keys;
  int batch, head, row_block;  ///< head of keys
  int first_tile, tiles;       ///< the block's, counted from the sequence's first
  int begin;                   ///< of the sequence's tiles among those of all
};

/// Of numbers that are not negative, in fewer instructions than any.
HEDDLE_DEVICE int quotient(int a, int b) {
  return static_cast<int>(static_cast<u32>(a) / static_cast<u32>(b));
}

/// The blocks that meet a sequence.
struct DecodeBlocks {
  int first, last;

  HEDDLE_DEVICE bool is_one() const { return first == last; }
};

/// The sequences of the calling block; all its threads go through them. Every warp counts by itself
/// and waits for no other.
template <bool kLengths>
class DecodeShare {
 public:
  using Keys = DecodeKeys<kLengths>;
  using Sequence = DecodeSequence<kLengths>;

  HEDDLE_DEVICE DecodeShare(const DecodeArguments& args, int tile_keys)
      : p_(args.problem),
        tile_keys_(tile_keys),
        row_blocks_(args.rows.blocks),
        per_batch_(args.problem.k_heads * args.rows.blocks) {
    const attention::ForwardParameters& p = p_;
    if constexpr (!kLengths) {
      keys_ = Keys::of(p, 0, tile_keys);
      take_share(p.batch * tiles_of(keys_));
      return;
    }
    const int lane = threadIdx.x % 32, first = lane * entries_of_lane(),
              last = min_of(first + entries_of_lane(), p.batch);
    for (int batch = first; batch < last; ++batch)
      counted_ += tiles_of(Keys::of(p, batch, tile_keys));
    counted_until_ = counted_;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, counted_until_, step);
      if (lane >= step) counted_until_ += other;
    }
    take_share(__shfl_sync(0xffffffffu, counted_until_, 31));
  }

  HEDDLE_DEVICE bool valid() const { return at_ < end_; }

  HEDDLE_DEVICE Sequence take() {
    const int tile = takes_last_ ? end_ - 1 : at_;
    find(tile);
    const int number = quotient(tile - begins_, keys_.tiles);
    const int begin = begins_ + number * keys_.tiles;
    const int first = max_of(at_, begin), end = min_of(end_, begin + keys_.tiles),
              head = row_blocks_ == 1 ? number : quotient(number, row_blocks_);
    if (takes_last_)
      end_ = first;
    else
      at_ = end;
    takes_last_ = false;
    return {keys_, batch_, head, number - head * row_blocks_, first - begin, end - first, begin};
  }

  /// Apart from take(): copies begin before it.
  HEDDLE_DEVICE DecodeBlocks blocks_of(const Sequence& sequence) const {
    return {block_of(sequence.begin), block_of(sequence.begin + sequence.keys.tiles - 1)};
  }

 private:
  /// The block's share of so many tiles; those left over go to the first blocks.
  HEDDLE_DEVICE void take_share(int tiles) {
    const int block = blockIdx.x, blocks = gridDim.x;
    per_block_ = quotient(tiles, blocks);
    left_over_ = tiles - per_block_ * blocks;
    at_ = block * per_block_ + min_of(block, left_over_);
    end_ = at_ + per_block_ + (block < left_over_ ? 1 : 0);
    takes_last_ = p_.batch * per_batch_ > blocks;
  }
  HEDDLE_DEVICE int tiles_of(const Keys& keys) const { return keys.tiles * per_batch_; }
  HEDDLE_DEVICE int entries_of_lane() const { return ceil_div(p_.batch, 32); }
  /// Goes to the batch entry whose tile it is.
  HEDDLE_DEVICE void find(int tile) {
    if constexpr (!kLengths) {
      batch_ = quotient(tile, tiles_of(keys_));
      begins_ = batch_ * tiles_of(keys_);
      return;
    }
    if (!knows_entry_ || tile < begins_) {
      // The lane that counted the tile, and of its entries the first.
      const int source = __popc(__ballot_sync(0xffffffffu, counted_until_ <= tile));
      begins_ = __shfl_sync(0xffffffffu, counted_until_ - counted_, source);
      batch_ = source * entries_of_lane();
      keys_ = Keys::of(p_, batch_, tile_keys_);
      knows_entry_ = true;
    }
    while (tile >= begins_ + tiles_of(keys_)) {
      begins_ += tiles_of(keys_);
      keys_ = Keys::of(p_, ++batch_, tile_keys_);
    }
  }
  /// The block whose share a tile is.
  HEDDLE_DEVICE int block_of(int tile) const {
    const int of_larger = left_over_ * (per_block_ + 1);
    if (tile < of_larger) return quotient(tile, per_block_ + 1);
    return left_over_ + quotient(tile - of_larger, per_block_);
  }

  const attention::ForwardParameters& p_;
  int tile_keys_, row_blocks_, per_batch_;  ///< blocks of rows of a group, of a batch entry
  int per_block_, left_over_;               ///< tiles
  int at_ = 0, end_ = 0;
  /// Of more sequences than blocks the last one first, which the block begins and another ends:
  /// what others wait for comes before what is the block's alone.
  bool takes_last_ = false;
  bool knows_entry_ = false;
  int batch_ = 0, begins_ = 0;           ///< a batch entry and its first tile
  int counted_ = 0, counted_until_ = 0;  ///< tiles of the lane's entries, and of all up to them
  Keys keys_;
};

}  // namespace heddle::sm80
