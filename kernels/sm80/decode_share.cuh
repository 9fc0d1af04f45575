// Which keys a block of the decode kernel meets. A sequence is the keys of one batch entry and one
// head of keys, met by a block of query rows; its tiles and those of all others, one after the
// other, are cut into shares of the blocks (decode_keys.h). Lengths on the device decide, where
// there are some.
#pragma once

#include "../attention/operand.cuh"
#include "../attention/visible.cuh"
#include "decode_arguments.h"

namespace heddle::sm80 {

/// A sequence, and the block's tiles of it.
struct DecodeSequence {
  DecodeKeys keys;
  int batch, head, row_block;  ///< head of keys
  int first_tile, tiles;       ///< the block's, counted from the sequence's first
  int begin;                   ///< of the sequence's tiles among those of all
};

/// The blocks that meet a sequence.
struct DecodeBlocks {
  int first, last;

  HEDDLE_DEVICE bool is_one() const { return first == last; }
};

/// The sequences of the calling block; all its threads go through them. kLengths: batch entries
/// have lengths of their own; every warp counts by itself and waits for no other. Where they are
/// alike nonetheless, shares end with sequences (DecodeCut) if kCuts: of wide heads registers are
/// full (warp groups spilled 100 bytes a thread). kTwins: blocks that meet the same keys, each with
/// a block of rows of its own.
template <bool kLengths, bool kCuts, int kTwins>
class DecodeShare {
 public:
  using Sequence = DecodeSequence;

  HEDDLE_DEVICE DecodeShare(const DecodeArguments& args, int tile_keys)
      : args_(args), tile_keys_(tile_keys) {
    if constexpr (!kLengths) {
      take_share(args.counts.shares);
    } else {
      const int lane = threadIdx.x % 32, first = lane * entries_of_lane(),
                last = min_of(first + entries_of_lane(), args.problem.batch);
      int most = 0;
      for (int batch = first; batch < last; ++batch) {
        lengths_ = lengths_of(batch);
        const DecodeKeys keys = keys_of(lengths_);
        counted_ += tiles_of(keys);
        most = max_of(most, keys.tiles);
      }
      counted_until_ = counted_;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, counted_until_, step);
        if (lane >= step) counted_until_ += other;
        most = max_of(most, __shfl_xor_sync(0xffffffffu, most, step));
      }
      int tiles = __shfl_sync(0xffffffffu, counted_until_, 31), per_block = 0;
      if (kCuts && tiles == args.split.sequences * most) {
        const DecodeCut cut = DecodeCut::of(most, args.split);
        tiles_of_each_ = cut.tiles;
        tiles = args.split.sequences * cut.tiles;
        per_block = cut.per_block;
        counted_ = max_of(last - first, 0) * per_batch() * cut.tiles;
        counted_until_ = last * per_batch() * cut.tiles;
      }
      take_share(Shares::of(tiles, args.split, per_block));
    }
  }

  /// Twins are one to all that counts blocks.
  HEDDLE_DEVICE static int own_block() { return static_cast<int>(blockIdx.x) / kTwins; }
  HEDDLE_DEVICE static int own_twin() { return static_cast<int>(blockIdx.x) % kTwins; }

  HEDDLE_DEVICE bool valid() const { return at_ < end_; }

  HEDDLE_DEVICE Sequence take() {
    const int tile = takes_last_ ? end_ - 1 : at_;
    const DecodeKeys keys = find(tile);
    const int number = sequence_of(tile - begins_, keys), begin = begins_ + number * keys.tiles;
    const int first = max_of(at_, begin), end = min_of(end_, begin + keys.tiles),
              head = head_of(number);
    if (takes_last_)
      end_ = first;
    else
      at_ = end;
    takes_last_ = false;
    const int row_block = (number - head * args_.rows.blocks) * kTwins + own_twin();
    return {keys, batch_, head, row_block, first - begin, end - first, begin};
  }

  /// Apart from take(): copies begin before it.
  HEDDLE_DEVICE DecodeBlocks blocks_of(const Sequence& sequence) const {
    return {shares_.block_of(sequence.begin),
            shares_.block_of(sequence.begin + sequence.keys.tiles - 1)};
  }

 private:
  using Shares = DecodeShares<!kLengths>;

  /// Of a batch entry.
  struct EntryLengths {
    int q, kv;
  };
  HEDDLE_DEVICE EntryLengths lengths_of(int batch) const {
    const attention::Lengths &q = args_.problem.q_lengths, &kv = args_.problem.kv_lengths;
    if ((q.is_64_bit | q.cumulative | kv.is_64_bit | kv.cumulative) != 0)
      return {attention::length_of(q, batch), attention::length_of(kv, batch)};
    // As they are most often: neither is waited for before the other is on its way.
    const auto number = [batch](const attention::Lengths& lengths) {
      return lengths.data ? static_cast<const i32*>(lengths.data)[batch] : lengths.full;
    };
    const int of_q = number(q), of_kv = number(kv);
    return {min_of(max_of(of_q, 0), q.full), min_of(max_of(of_kv, 0), kv.full)};
  }
  HEDDLE_DEVICE DecodeKeys keys_of(EntryLengths lengths) const {
    const attention::ForwardParameters& p = args_.problem;
    DecodeKeys keys = DecodeKeys::of(p.bounds, p.bound_count, lengths.q, lengths.kv, tile_keys_);
    if (tiles_of_each_ > 0) keys.tiles = tiles_of_each_;
    return keys;
  }
  HEDDLE_DEVICE DecodeKeys keys_of(int batch) const { return keys_of(lengths_of(batch)); }
  HEDDLE_DEVICE void take_share(const Shares& shares) {
    const int block = own_block();
    shares_ = shares;
    at_ = shares.first_of(block);
    end_ = shares.first_of(block + 1);
    takes_last_ = args_.split.sequences > args_.split.blocks;
  }
  /// Blocks of rows of a group, of a batch entry; twins' are one.
  HEDDLE_DEVICE int per_batch() const { return args_.problem.k_heads * args_.rows.blocks; }
  HEDDLE_DEVICE int tiles_of(const DecodeKeys& keys) const { return keys.tiles * per_batch(); }
  HEDDLE_DEVICE int entries_of_lane() const { return ceil_div(args_.problem.batch, 32); }
  /// Of a batch entry, that of one of its tiles.
  HEDDLE_DEVICE int sequence_of(int tile, const DecodeKeys& keys) const {
    if constexpr (!kLengths) return args_.counts.by_sequence.quotient(tile);
    return Divisor<false>::of(keys.tiles).quotient(tile);
  }
  HEDDLE_DEVICE int head_of(int sequence) const {
    if (args_.rows.blocks == 1) return sequence;
    if constexpr (!kLengths) return args_.counts.by_row_blocks.quotient(sequence);
    return Divisor<false>::of(args_.rows.blocks).quotient(sequence);
  }
  /// Goes to the batch entry whose tile it is. Returns its keys, which are counted again for each
  /// sequence: kept from one to the next they were registers of the main loop.
  HEDDLE_DEVICE DecodeKeys find(int tile) {
    if constexpr (!kLengths) {
      batch_ = args_.counts.by_entry.quotient(tile);
      begins_ = batch_ * tiles_of(args_.counts.keys);
      return args_.counts.keys;
    } else {
      const int of_lane = entries_of_lane();
      if (of_lane == 1 || !knows_entry_ || tile < begins_) {
        // The lane that counted the tile, and of its entries the first.
        const int source = __popc(__ballot_sync(0xffffffffu, counted_until_ <= tile));
        const auto of_source = [source](int x) { return __shfl_sync(0xffffffffu, x, source); };
        begins_ = of_source(counted_until_ - counted_);
        batch_ = source * of_lane;
        knows_entry_ = true;
        if (of_lane == 1) return keys_of({of_source(lengths_.q), of_source(lengths_.kv)});
      }
      DecodeKeys keys = keys_of(batch_);
      while (tile >= begins_ + tiles_of(keys)) {
        begins_ += tiles_of(keys);
        keys = keys_of(++batch_);
      }
      return keys;
    }
  }

  const DecodeArguments& args_;
  int tile_keys_;
  Shares shares_;
  int at_ = 0, end_ = 0;
  /// Of more sequences than blocks the last one first, which the block begins and another ends:
  /// what others wait for comes before what is the block's alone.
  bool takes_last_ = false;
  bool knows_entry_ = false;
  int batch_ = 0, begins_ = 0;           ///< a batch entry and its first tile
  int counted_ = 0, counted_until_ = 0;  ///< tiles of the lane's entries, and of all up to them
  EntryLengths lengths_{};               ///< of the last of the lane's entries
  int tiles_of_each_ = 0;                ///< of lengths that are all alike, else 0
};

}  // namespace heddle::sm80
