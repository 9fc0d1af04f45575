// Which keys the decode kernel meets, and how blocks share them: plain numbers, which the host
// counts once where no length on the device decides. Counted by each warp they were a third of the
// instructions before the first copy.
#pragma once

#include "../attention/bounds.h"
#include "../ptx/divisor.h"

namespace heddle::sm80 {

/// What the rows of a batch entry see, and the tiles it takes to meet it: one at least, where it is
/// said that a row sees nothing.
struct DecodeKeys {
  int q_length, kv_length;
  attention::BatchBounds bounds;
  int end;
  int first_tile, tiles;

  static constexpr DecodeKeys of(const attention::Bound* bounds, int count, int q_length,
                                 int kv_length, int tile_keys) {
    DecodeKeys keys{
        q_length, kv_length, attention::resolve_bounds(bounds, count, q_length, kv_length),
        0,        0,         1};
    const attention::BatchBounds& b = keys.bounds;
    int begin = 0;
    if (b.lower < b.upper && b.lower_diagonal < b.upper_diagonal) {
      // Neither end of what a row sees comes before that of the row above: what all see begins with
      // the first row that sees a key, and ends with the last.
      const int first = b.lower - b.upper_diagonal + 1, first_row = first > 0 ? first : 0;
      const int end = b.upper - b.lower_diagonal, last_row = (end < q_length ? end : q_length) - 1;
      if (first_row <= last_row) {
        begin = keys.visible(first_row).lo;
        keys.end = keys.visible(last_row).hi;
      }
    }
    keys.first_tile = begin / tile_keys;
    const int tiles = (keys.end + tile_keys - 1) / tile_keys - keys.first_tile;
    keys.tiles = tiles > 1 ? tiles : 1;
    return keys;
  }
  /// The keys that a row sees.
  constexpr attention::KeyInterval visible(int row) const {
    const int lo = row + bounds.lower_diagonal, hi = row + bounds.upper_diagonal;
    return {lo > bounds.lower ? lo : bounds.lower, hi < bounds.upper ? hi : bounds.upper};
  }
  /// Those that all rows from `first` to `last` see, since neither end of what a row sees comes
  /// before that of the row above.
  constexpr attention::KeyInterval visible_to_all(int first, int last) const {
    return {visible(last).lo, visible(first).hi};
  }
};

/// What the host knows of how sequences are shared out, whatever lengths they have.
struct DecodeSplit {
  int sequences, blocks;
  int whole;  ///< sequences of a block, at most, where each meets whole ones
  int parts;  ///< of a sequence, where there are blocks for several
  Divisor<true> by_blocks, by_parts;

  static constexpr DecodeSplit of(int sequences, int blocks) {
    const int parts = sequences > 0 ? blocks / sequences : 0;
    return {sequences,
            blocks,
            blocks > 0 ? (sequences + blocks - 1) / blocks : 0,
            parts,
            Divisor<true>::of(blocks),
            Divisor<true>::of(parts)};
  }
};

/// Where all sequences have as many tiles: how many each counts for in the blocks' shares, and how
/// many are a share. A share that goes on in the next sequence costs time where the one ends and
/// the other begins, and so does a sequence that several blocks meet. Where unequal shares cost no
/// more, a block meets whole sequences, or a part of one.
struct DecodeCut {
  int tiles;      ///< those that it has, and in its last part some without keys
  int per_block;  ///< 0: shares are equal

  static constexpr DecodeCut of(int tiles, const DecodeSplit& split) {
    // Tiles that a block meets in that time (kernels/notes/sm80_decode.md).
    constexpr int kOfJoining = 3, kOfGoingOn = 5;
    const int equal = split.by_blocks.quotient(split.sequences * tiles + split.blocks - 1) +
                      kOfJoining + kOfGoingOn;
    const int whole = split.whole * tiles;
    if (split.sequences < split.blocks) {
      const int part = split.by_parts.quotient(tiles + split.parts - 1);
      if (part + kOfJoining < whole && part + kOfJoining <= equal)
        return {Divisor<false>::of(part).quotient(tiles + part - 1) * part, part};
    }
    return {tiles, whole <= equal ? whole : 0};
  }
};

/// The tiles of all sequences, one after the other, cut into shares of as many tiles; equal ones
/// are as many as there are blocks, and those left over go to the first.
template <bool kCounted>
struct DecodeShares {
  int tiles, per_block, left_over;
  Divisor<kCounted> by_larger, by_smaller;  ///< shares with one that was left over, and others

  /// per_block: 0 of equal shares.
  static constexpr DecodeShares of(int tiles, const DecodeSplit& split, int per_block) {
    const bool equal = per_block == 0;
    if (equal) per_block = split.by_blocks.quotient(tiles);
    return {tiles, per_block, equal ? tiles - per_block * split.blocks : 0,
            Divisor<kCounted>::of(per_block + 1), Divisor<kCounted>::of(per_block)};
  }
  constexpr int first_of(int block) const {
    const int first = block * per_block + (block < left_over ? block : left_over);
    return first < tiles ? first : tiles;
  }
  /// The block whose share a tile is.
  constexpr int block_of(int tile) const {
    const int of_larger = left_over * (per_block + 1);
    if (tile < of_larger) return by_larger.quotient(tile);
    return left_over + by_smaller.quotient(tile - of_larger);
  }
};

/// Where sequences are all alike. Aligned as what follows it in a launch.
struct alignas(8) DecodeCounts {
  DecodeKeys keys;
  DecodeShares<true> shares;
  Divisor<true> by_entry, by_sequence, by_row_blocks;  ///< tiles of an entry, of a sequence

  static constexpr DecodeCounts of(DecodeKeys keys, int k_heads, int row_blocks,
                                   const DecodeSplit& split) {
    const int of_entry = k_heads * row_blocks;
    const DecodeCut cut = DecodeCut::of(keys.tiles, split);
    keys.tiles = cut.tiles;
    return {keys, DecodeShares<true>::of(split.sequences * cut.tiles, split, cut.per_block),
            Divisor<true>::of(of_entry * cut.tiles), Divisor<true>::of(cut.tiles),
            Divisor<true>::of(row_blocks)};
  }
};

}  // namespace heddle::sm80
