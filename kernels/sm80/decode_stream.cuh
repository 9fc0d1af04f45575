// What a warp of the decode kernel brings from memory: its keys and values of all the sequences
// that its block meets, a step after the other by asynchronous copies, some steps ahead of the one
// that is met. Where a sequence's sums have room beside the stages, the first steps of the next
// are on their way before it has ended: memory does not wait for what warps put together.
#pragma once

#include "decode_products.cuh"
#include "decode_share.cuh"

namespace heddle::sm80 {

/// For a lane of a warp. Each step is a group of copies; so are those that bring nothing, by which
/// the groups behind a step are always as many.
template <class Config>
class DecodeStream {
  using T = typename Config::Element;
  static constexpr DecodeConfig kConfig = Config::kValues;
  static constexpr DecodeLayout kAt = decode_layout_of(kConfig);
  static constexpr int kKeys = Config::kKeys, kTileKeys = kConfig.tile_keys();
  using Share = DecodeShare<Config::kLengths, true, Config::kTwins>;
  using Products = DecodeProducts<Config>;
  using KeyRows = decltype(attention::stored_rows<typename Config::K, Config::kRowsK>(
      attention::Tensor{}, attention::Pages{}, 0, 0));
  using ValueRows = decltype(attention::stored_rows<typename Config::V, Config::kRowsV>(
      attention::Tensor{}, attention::Pages{}, 0, 0));

 public:
  using Sequence = typename Share::Sequence;

  HEDDLE_DEVICE DecodeStream(const DecodeArguments& args, u8* memory, const Products& products)
      : args_(args),
        p_(args.problem),
        products_(products),
        stages_(products.base + kAt.key + products.warp * kAt.warp_bytes),
        sequences_(reinterpret_cast<Sequence*>(memory + kAt.sequences) + 2 * products.warp),
        share_(args, kTileKeys) {}

  HEDDLE_DEVICE bool has_more() const { return met_ < begun_ || share_.valid(); }
  /// Of three sequences and more the last is on its way: most often the block's alone.
  HEDDLE_DEVICE bool is_at_last_of_many() const { return met_ >= 2 && !share_.valid(); }

  /// The sequence that is met next; its first steps are on their way.
  HEDDLE_DEVICE Sequence next() {
    if (met_ == begun_) since_begin_ = 0;
    while (since_begin_ < Config::kStages) bring_step<true>(false);
    return sequences_[met_ % 2];
  }
  /// Where its queries are.
  HEDDLE_DEVICE int query_slot() const { return met_ % kConfig.query_slots(); }
  HEDDLE_DEVICE void end_sequence() { ++met_; }
  HEDDLE_DEVICE DecodeBlocks blocks_of(const Sequence& sequence) const {
    return share_.blocks_of(sequence);
  }

  /// The warp's keys of a sequence: its first one, the end of those there are, and how many steps
  /// they take, one at least.
  struct Part {
    int first, end, steps;
  };
  HEDDLE_DEVICE Part part_of(const Sequence& sequence) const {
    const int first = (sequence.keys.first_tile + sequence.first_tile) * kTileKeys +
                      products_.warp * kKeys,
              end = min_of(first + sequence.tiles * kTileKeys, sequence.keys.end);
    return {first, end, max_of(1, ceil_div(end - first, kTileKeys))};
  }

  /// The stage of the step that is met next, once its keys and values are there.
  HEDDLE_DEVICE u32 wait() const {
    ptx::copy_async_wait<Config::kStages - 1>();
    __syncwarp();
    return stages_ + met_stage_ * kAt.stage_bytes;
  }
  /// The step has been met; its stage is given to a later one, of the next sequence where that may
  /// begin before this one has ended.
  HEDDLE_DEVICE void pass(bool may_begin_next) {
    __syncwarp();
    met_stage_ = after(met_stage_);
    bring_step<(Config::kRowsApart > 0)>(may_begin_next);
  }
  /// Nothing is on its way.
  HEDDLE_DEVICE static void drain() {
    ptx::copy_async_wait<0>();
    __syncwarp();
  }

 private:
  HEDDLE_DEVICE static int after(int stage) { return stage + 1 == Config::kStages ? 0 : stage + 1; }

  HEDDLE_DEVICE void begin() {
    const Sequence sequence = share_.take();
    key_rows_ = attention::stored_rows<typename Config::K, Config::kRowsK>(
        p_.k, p_.pages_k, sequence.batch, sequence.head);
    value_rows_ = attention::stored_rows<typename Config::V, Config::kRowsV>(
        p_.v, p_.pages_v, sequence.batch, sequence.head);
    const Part part = part_of(sequence);
    key_ = part.first;
    end_ = part.end;
    steps_ = part.steps;
    kv_length_ = sequence.keys.kv_length;
    if (key_ < end_) find_blocks();
    if (products_.lane == 0) sequences_[begun_ % 2] = sequence;
    __syncwarp();
    ++begun_;
    since_begin_ = 0;
  }

  template <bool kMayBegin>
  HEDDLE_DEVICE void bring_step(bool may_begin_next) {
    const bool begins =
        kMayBegin && steps_ == 0 && share_.valid() && begun_ - met_ <= may_begin_next;
    if (begins) begin();
    if (steps_ > 0) {
      if (key_ < end_) {
        const u32 stage = stages_ + brought_stage_ * kAt.stage_bytes;
        bring<typename Products::KeyTile, typename Config::K, kConfig.key_bytes()>(stage, key_rows_,
                                                                                   key_block_);
        bring<typename Products::ValueTile, typename Config::V, kConfig.value_bytes()>(
            stage + kAt.value_in_stage, value_rows_, value_block_);
      }
      key_ += kTileKeys;
      brought_stage_ = after(brought_stage_);
      --steps_;
      if (key_ < end_) find_blocks();
    }
    if (begins) bring_queries();
    ptx::copy_async_commit();
    ++since_begin_;
  }

  /// Looks the blocks of the next step's rows up, a row's by a lane: a step before they are asked
  /// for.
  HEDDLE_DEVICE void find_blocks() {
    const int row = min_of(key_ + products_.lane % kKeys, kv_length_ - 1);
    key_block_ = key_rows_.block_of(row);
    value_block_ = value_rows_.block_of(row);
  }

  /// Brings the rows of keys or values, of kBytes, from key_ on; what there is none of is zero.
  template <class Tile, typename Element, int kBytes, class Rows>
  HEDDLE_DEVICE void bring(u32 tile, const Rows& rows, i32 block) const {
    using Codes = attention::Codes<Element>;
    // Numbers fill whole slices of 16 columns.
    constexpr int kChunks = Codes::kColumns > 0 ? kBytes / 16 : ceil_div(kBytes, 32) * 2;
    constexpr int kCount = ceil_div(kKeys * kChunks, 32);
    static_assert(kKeys <= 32);
    const int lane = products_.lane;
    if constexpr (32 % kChunks == 0 && kKeys * kChunks % 32 == 0 && 16 * kChunks == kBytes) {
      // What most steps are: all rows exist, and a lane's chunks lie evenly apart.
      if (key_ + kKeys <= kv_length_ && rows.are_in_one_block(key_, kKeys) && rows.exists(block)) {
        constexpr int kRowsAtOnce = 32 / kChunks;
        const int row = lane / kChunks, chunk = lane % kChunks;
        const auto* from = rows.at(key_ + row, block);
#pragma unroll
        for (int n = 0; n < kCount; ++n, from += kRowsAtOnce * rows.apart())
          ptx::copy_async_16_once(tile + Tile::chunk_offset(row + n * kRowsAtOnce, chunk),
                                  reinterpret_cast<const u8*>(from) + 16 * chunk, true);
        return;
      }
    }
#pragma unroll 4
    for (int n = 0; n < kCount; ++n) {
      const int place = n * 32 + lane, row = place / kChunks, chunk = place % kChunks;
      const i32 of_row = __shfl_sync(0xffffffffu, block, row);
      const bool exists = key_ + row < kv_length_ && 16 * chunk < kBytes && rows.exists(of_row);
      const auto* from =
          reinterpret_cast<const u8*>(rows.at(min_of(key_ + row, kv_length_ - 1), of_row));
      if (kKeys * kChunks % 32 != 0 && row >= kKeys) continue;
      const u32 to = tile + Tile::chunk_offset(row, chunk);
      if constexpr (Rows::kInPages && Codes::kZeros != 0) {
        // Zeros are not what copies that bring nothing leave.
        if (!rows.exists(of_row)) {
          constexpr u32 kWords[4] = {Codes::kZeros, Codes::kZeros, Codes::kZeros, Codes::kZeros};
          ptx::store_shared(to, kWords);
          continue;
        }
      }
      ptx::copy_async_16_once(to, from + (exists ? 16 * chunk : 0), exists);
    }
  }

  /// The warp's share of the queries of the sequence begun last: small, they arrive with the keys
  /// and values of its first step.
  HEDDLE_DEVICE void bring_queries() const {
    const Sequence sequence = sequences_[(begun_ - 1) % 2];
    const int group = args_.rows.group, first_row = sequence.row_block * kConfig.rows(),
              row_end = group * sequence.keys.q_length;
    const GroupedRows<T> rows{p_.q, sequence.batch, sequence.head * group, group};
    const Products to = products_.of_slot((begun_ - 1) % kConfig.query_slots());
    if constexpr (Products::kKeyCodes && !Products::kTurned) {
      to.prepare_queries(rows, first_row, row_end, p_.k_scales, sequence.head);
    } else {
      load_rows<typename Products::QueryTile, Config::kQkDim, kConfig.threads(), true, T>(
          to.query, rows, first_row, row_end);
      if constexpr (Products::kKeyCodes) to.bring_scales(p_.k_scales, sequence.head);
    }
  }

  const DecodeArguments& args_;
  const attention::ForwardParameters& p_;
  Products products_;
  u32 stages_;
  Sequence* sequences_;  ///< those begun last, in turn
  Share share_;
  KeyRows key_rows_;
  ValueRows value_rows_;
  i32 key_block_ = 0, value_block_ = 0;    ///< of the rows brought next, a lane's
  int key_ = 0, end_ = 0, kv_length_ = 0;  ///< of the keys brought next
  int steps_ = 0;                          ///< not yet brought of the sequence begun last
  int begun_ = 0, met_ = 0;                ///< sequences
  int since_begin_ = 0;                    ///< groups of copies since one was begun
  int brought_stage_ = 0, met_stage_ = 0;
};

}  // namespace heddle::sm80
