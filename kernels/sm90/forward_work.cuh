// The unit of work of the Hopper forward: one query tile of one head, and the keys it meets.
#pragma once

#include "../attention/operand.cuh"
#include "../attention/visible.cuh"
#include "../ptx/shared.cuh"
#include "forward_arguments.h"
#include "tile_order.cuh"

namespace heddle::sm90 {

/// The key tiles it meets are [key_begin, key_end). A consumer is one warp group's 64 rows of it.
template <class Block>
struct ForwardWork {
  using C = typename Block::C;
  static constexpr int kTileM = Block::kTileM, kTileN = Block::kTileN;

  i32 q_tile, head, batch;
  i32 key_begin, key_end;
  i32 q_length, kv_length;
  typename Block::Visible keys;

  HEDDLE_DEVICE bool empty() const { return key_begin >= key_end; }

  HEDDLE_DEVICE static ForwardWork at(const ForwardArguments& args, int index) {
    const attention::ForwardParameters& p = args.problem;
    ForwardWork work;
    int flat_head;
    place_in_order(args.order, p.batch * p.q_heads, index, work.q_tile, flat_head);
    work.batch = flat_head / p.q_heads;
    work.head = flat_head - work.batch * p.q_heads;
    work.q_length = p.q_length;
    work.kv_length = p.kv_length;
    if constexpr (C::kLengths) {
      work.q_length = attention::length_of(p.q_lengths, work.batch);
      work.kv_length = attention::length_of(p.kv_lengths, work.batch);
    }
    work.keys.bounds = attention::resolve_bounds(p, work.q_length, work.kv_length);
    const int first_row = work.q_tile * kTileM;
    const int last_row = min_of(first_row + kTileM, work.q_length) - 1;
    const int lo = work.keys.lo(first_row);
    const int hi = work.keys.hi(last_row);
    const bool any = first_row <= last_row && lo < hi;
    work.key_begin = any ? lo / kTileN : 0;
    work.key_end = any ? ceil_div(hi, kTileN) : 0;
    return work;
  }

  // One thread finds it, all others read it from shared memory.
  HEDDLE_DEVICE void store(u32 slot) const {
    const attention::BatchBounds& bounds = keys.bounds;
    ptx::store_shared(slot, {u32(q_tile), u32(head), u32(batch), u32(q_length)});
    ptx::store_shared(slot + 16, {u32(key_begin), u32(key_end), u32(kv_length), 0u});
    ptx::store_shared(slot + 32, {u32(bounds.lower), u32(bounds.upper), u32(bounds.lower_diagonal),
                                  u32(bounds.upper_diagonal)});
  }
  HEDDLE_DEVICE static ForwardWork load(u32 slot) {
    u32 place[4], range[4], bounds[4];
    ptx::load_shared(slot, place);
    ptx::load_shared(slot + 16, range);
    ptx::load_shared(slot + 32, bounds);
    return {i32(place[0]), i32(place[1]),
            i32(place[2]), i32(range[0]),
            i32(range[1]), i32(place[3]),
            i32(range[2]), {{i32(bounds[0]), i32(bounds[1]), i32(bounds[2]), i32(bounds[3])}}};
  }

  HEDDLE_DEVICE int first_row(int consumer) const {
    return q_tile * kTileM + consumer / C::kParts * 64;
  }

  /// The end of the key tiles that the consumer's rows meet, which may come before key_end: under a
  /// causal mask the upper rows of a query tile see less. At least one tile remains.
  HEDDLE_DEVICE int key_end_of(int consumer) const {
    // Consumers in turns must all take every step.
    if constexpr (C::kTakeTurns || !C::kUpperVaries) return key_end;
    const int end = ceil_div(keys.hi(first_row(consumer) + 63), kTileN);
    return min_of(key_end, max_of(end, key_begin + 1));
  }

  // A consumer visits the key tiles from `first` until `past`.
  HEDDLE_DEVICE int first_key_tile(int consumer) const {
    return C::kUpwards ? key_begin : key_end_of(consumer) - 1;
  }
  HEDDLE_DEVICE int past_key_tile(int consumer) const {
    return C::kUpwards ? key_end_of(consumer) : key_begin - 1;
  }
  /// How many only others meet: before its own ones come or, with kUpwards, after them.
  HEDDLE_DEVICE int others(int consumer) const { return key_end - key_end_of(consumer); }

  /// Whether every row of the consumer sees every key of the key tile.
  HEDDLE_DEVICE bool all_visible(int consumer, int key_tile) const {
    const int first = first_row(consumer), last = first + 63;
    bool all = key_tile * kTileN >= keys.lo(last);
    if constexpr (C::kUpperVaries) all = all && (key_tile + 1) * kTileN <= keys.hi(first);
    if constexpr (Block::kRowsEnd) all = all && last < q_length;
    return all;
  }

  /// What 1 stands for in the pairs of f16 that the head reads.
  HEDDLE_DEVICE float unit_of(const F16Pairs& pairs, int q_heads) const {
    return pairs.units[batch * pairs.heads + head / (q_heads / pairs.heads)];
  }
};

/// The maps of a batch entry: q, k, v, o in order.
template <class Config>
HEDDLE_DEVICE const TensorMap* maps_of(const ForwardArguments& args, int batch) {
  if constexpr (Config::kSequenceMaps) return args.sequence_maps + 4 * batch;
  return &args.q;
}

/// The batch entry's place in its maps.
template <class Config>
HEDDLE_DEVICE int map_batch(int batch) {
  return Config::kSequenceMaps ? 0 : batch;
}

}  // namespace heddle::sm90
