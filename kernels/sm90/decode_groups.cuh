// How a block of the decode kernel meets the keys of wide heads on Hopper: by warp groups. One has
// the dot products of 64 rows with a tile of 64 keys and makes weights of them; two have the sums,
// each half of the columns, and bring keys and values to a slot again once they have read it. So a
// tile's dot products run beside the last tile's sums, and the tile after both is on its way.
//
// Where values are the first columns of the keys (sm80/decode_together.cuh) each of two slots holds
// a tile of both. Else keys have one, which the first group fills, and values the other.
//
// Of keys that may be values tiles come by the copy engine, where it takes their strides: an
// address for each row, by each lane, took most of the time of the groups of sums. Of more rows
// than a block takes two blocks of a cluster, twins, meet the same keys: each brings half of a tile
// to both (kernels/notes/wide_heads.md).
#pragma once

#include "../attention/online_softmax.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../sm80/decode_products.cuh"
#include "../sm80/decode_scores.cuh"
#include "../tile/gemm.cuh"

namespace heddle::sm90 {

template <class Config, class Score>
class DecodeGroups {
  using T = typename Config::Element;
  static constexpr sm80::DecodeConfig kConfig = Config::kValues;
  static constexpr sm80::DecodeLayout kAt = sm80::decode_layout_of(kConfig);
  static constexpr int kRows = 64, kKeys = 64, kGroup = 128, kTwins = Config::kTwins;
  static_assert(kConfig.rows() == kRows && kConfig.keys == kKeys &&
                kConfig.threads() == 3 * kGroup);
  static constexpr int kPart = kConfig.part_columns(),
                       kMostColumns = max_of(Config::kQkDim, Config::kVDim);
  using QueryTile = tile::SharedTile<kRows, Config::kQkDim>;
  using KeyTile = tile::SharedTile<kKeys, Config::kQkDim>;
  using ValueTile = tile::SharedTile<kKeys, Config::kVDim>;
  using MostTile = tile::SharedTile<kKeys, kMostColumns>;
  using WeightTile = tile::SharedTile<kRows, kKeys>;
  using Sequence = sm80::DecodeSequence;
  static constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : attention::kLog2E;
  // Sums take most registers of their groups; narrower ones leave some to who brings keys besides.
  static constexpr int kRegisters = 168, kManyRegisters = kPart > 192 && !Config::kMaps ? 184 : 176,
                       kFewRegisters = 3 * kRegisters - 2 * kManyRegisters;
  // Named barriers: of the group of dot products, then of those of sums.
  static constexpr u32 kGroupBarrier = 1;

 public:
  /// By all threads. `once`: values are read as keys.
  HEDDLE_DEVICE DecodeGroups(const sm80::DecodeArguments& arguments, u8* memory, float scale,
                             bool once)
      : maps_(arguments),
        p_(arguments.problem),
        shared_(memory),
        base_(shared_address(memory)),
        group_(arguments.rows.group),
        scale_(scale),
        once_(once) {
    if (threadIdx.x == 0) {
      for (int part = 0; part < kAt.kParts; ++part) {
        ptx::mbarrier_init(there(0, part), Config::kMaps ? 1 : once ? 2 * kGroup : kGroup);
        ptx::mbarrier_init(there(1, part), Config::kMaps ? 1 : 2 * kGroup);
      }
      ptx::mbarrier_init(weights_there(), kGroup);
      ptx::mbarrier_init(weights_read(), 2 * kGroup / 32);
      ptx::mbarrier_init(queries_there(), kConfig.threads());
      ptx::mbarrier_init(all_read(), kConfig.threads());
      for (int n = 0; n < kAt.kGroupsTurns; ++n)
        ptx::mbarrier_init(has_read(n), kTwins * kGroup / 32);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
  }

  /// The block's part of a sequence: leaves the sums, and maxima and sums of the rows that there
  /// are, in shared memory.
  HEDDLE_DEVICE void meet(const Sequence& sequence, int rows_there) {
    const Steps steps = steps_of(sequence);
    // Sums lay where the copy engine, of the twin too, is to write.
    if constexpr (Config::kMaps) ptx::fence_proxy_async_shared();
    if constexpr (kTwins > 1)
      ptx::cluster_sync();
    else if constexpr (Config::kMaps)
      __syncthreads();
    if (own_group() == 0) {
      ptx::registers_shrink<kFewRegisters>();
      weigh(sequence, steps, rows_there);
      ptx::registers_grow<kRegisters>();
    } else {
      ptx::registers_grow<kManyRegisters>();
      sum(sequence, steps, rows_there);
      ptx::registers_shrink<kRegisters>();
    }
    met_ += steps.count;
    ++sequences_;
  }

 private:
  /// Tiles of keys from `first` on; keys from kv_length on do not exist.
  struct Steps {
    int first, count, kv_length;
  };
  HEDDLE_DEVICE static Steps steps_of(const Sequence& sequence) {
    const auto& keys = sequence.keys;
    const int first = (keys.first_tile + sequence.first_tile) * kKeys;
    const int end = min_of(first + sequence.tiles * kKeys, keys.end);
    return {first, ceil_div(max_of(end - first, 0), kKeys), keys.kv_length};
  }

  HEDDLE_DEVICE static int own_group() { return threadIdx.x / kGroup; }
  HEDDLE_DEVICE static int own_warp() { return threadIdx.x % kGroup / 32; }
  HEDDLE_DEVICE static int own_twin() { return static_cast<int>(blockIdx.x) % kTwins; }
  HEDDLE_DEVICE u32 barrier(int n) const { return base_ + kAt.barriers + 8 * n; }
  HEDDLE_DEVICE u32 there(int slot, int part = 0) const {
    return barrier(slot * kAt.kParts + part);
  }
  HEDDLE_DEVICE u32 has_read(int n) const { return barrier(kAt.kSlots * kAt.kParts + n); }
  HEDDLE_DEVICE u32 weights_there() const { return barrier(kAt.kBarriers - 4); }
  HEDDLE_DEVICE u32 weights_read() const { return barrier(kAt.kBarriers - 3); }
  HEDDLE_DEVICE u32 queries_there() const { return barrier(kAt.kBarriers - 2); }
  HEDDLE_DEVICE u32 all_read() const { return barrier(kAt.kBarriers - 1); }
  HEDDLE_DEVICE u32 slot(int n) const { return base_ + kAt.key + n * kAt.slot_bytes; }
  HEDDLE_DEVICE static u32 operand(u32 address) {
    return tile::operand_address<(kTwins > 1)>(address);
  }
  HEDDLE_DEVICE u32 correction_of(int row) const { return base_ + kAt.corrections + 4 * row; }

  // Tiles are counted on over all sequences, as phases of barriers are.
  HEDDLE_DEVICE int slot_of_keys(int tile) const { return once_ ? tile % 2 : 0; }
  HEDDLE_DEVICE int slot_of_values(int tile) const { return once_ ? tile % 2 : 1; }
  HEDDLE_DEVICE int turn_of(int tile) const { return once_ ? tile / 2 % 2 : tile % 2; }

  /// By a group that has read a tile, before it fills the slot again: until all its warps have.
  /// Where the copy engine fills it the first warp alone waits, of twins for both's; if it `fills`.
  HEDDLE_DEVICE void wait_until_read(int tile, bool fills) const {
    if constexpr (Config::kMaps) {
      // Another warp may be a tile ahead.
      const u32 read = has_read(2 * own_group() + tile % 2);
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive(read);
        if constexpr (kTwins > 1) ptx::cluster_arrive(ptx::address_in(read, own_twin() ^ 1));
      }
      if (fills && own_warp() == 0) ptx::mbarrier_wait(read, tile / 2 % 2);
    } else {
      ptx::barrier_sync(kGroupBarrier + own_group(), kGroup);
    }
  }

  /// Brings boxes of columns, [first_box, end_box), of the tile of keys, or values, from `first`
  /// on, which end before `end`, to slot `n`, as its part `part`. Twins bring half of the rows
  /// each. By a warp.
  template <class Rows>
  HEDDLE_DEVICE void load_boxes(const TensorMap* map, const Rows& rows, const Sequence& sequence,
                                int first, int end, int n, int part, int first_box,
                                int end_box) const {
    constexpr int kOwn = kKeys / kTwins;
    const int begin = own_twin() * kOwn;
    const bool issues = ptx::elect_one();
    if (issues)
      ptx::mbarrier_arrive_expect_tx(there(n, part), (end_box - first_box) * KeyTile::kBoxBytes);
    // Rows from `at` on of the tile, which are the map's from `row` on. Keys are read once, and
    // would push queries and parts out of the cache: 32.4 us for 34.1 (16 heads, 8 x 8192), 59.4
    // for 64.2 (64 heads, 32 x 4096).
    const auto load = [&](int at, int row, int batch) {
#pragma unroll 1
      for (int box = first_box; issues && box < end_box; ++box) {
        const u32 to = slot(n) + box * KeyTile::kBoxBytes + at * tile::kLineBytes;
        if constexpr (kTwins > 1)
          ptx::tma_load_4d_to((1 << kTwins) - 1, to, map, there(n, part), box * tile::kBoxColumns,
                              row, sequence.head, batch, ptx::evict_first());
        else
          ptx::tma_load_4d(to, map, there(n, part), box * tile::kBoxColumns, row, sequence.head,
                           batch, ptx::evict_first());
      }
    };
    // A lane looks one box's block up for all. Of pages of one row there are more than lanes. Of
    // one that does not exist the copy engine brings zeros.
    const int log_rows = maps_.log_box_rows, lane = threadIdx.x % 32;
    i32 block = 0;
#pragma unroll 1
    for (int at = 0; at < kOwn; at += 1 << log_rows) {
      if ((at >> log_rows) % 32 == 0)
        block = rows.block_of(min_of(first + begin + (at + (lane << log_rows)) % kOwn, end - 1));
      const i32 of_box = __shfl_sync(0xffffffffu, block, at >> log_rows);
      load(begin + at, rows.within(first + begin + at), Rows::kInPages ? of_box : sequence.batch);
    }
  }

  /// Brings kBoxes boxes from kFirstBox on of the keys or values from `first` on: kRowsOfWarp rows
  /// from `row` on by each warp. Each row is of so many lanes that its address is found once.
  template <int kFirstBox, int kBoxes, int kRowsOfWarp, class Rows>
  HEDDLE_DEVICE static void bring(u32 tile, const Rows& rows, int columns, int first, int end,
                                  int row) {
    constexpr int kFirst = 8 * kFirstBox;
    constexpr int kChunks = min_of(8 * kBoxes, 2 * ceil_div(kMostColumns, 16) - kFirst);
    if constexpr (kChunks > 0) {
      constexpr int kLanes = kChunks > 16 ? 32 : kChunks > 8 ? 16 : 8, kAtOnce = 32 / kLanes;
      static_assert(kRowsOfWarp % kAtOnce == 0 && kRowsOfWarp <= 32);
      const int lane = threadIdx.x % 32, own = row + lane / kLanes;
      // A lane looks one row's block up for all.
      const i32 block = rows.block_of(min_of(first + row + lane % kRowsOfWarp, end - 1));
      // Unrolled further, addresses of later rows would be kept where sums are.
#pragma unroll(Config::kRowsV == attention::KeyRows::paged ? 1 : 2)
      for (int n = 0; n < kRowsOfWarp / kAtOnce; ++n) {
        const int at = own + n * kAtOnce, key = first + at;
        const i32 of_row = __shfl_sync(0xffffffffu, block, n * kAtOnce + lane / kLanes);
        const T* const from = rows.at(min_of(key, end - 1), of_row);
#pragma unroll
        for (int m = 0; m < ceil_div(kChunks, kLanes); ++m) {
          const int more = m * kLanes + lane % kLanes, chunk = kFirst + more;
          if (kChunks % kLanes != 0 && more >= kChunks) continue;
          const bool exists = key < end && 8 * chunk < columns && rows.exists(of_row);
          ptx::copy_async_16(tile + KeyTile::chunk_offset(at, chunk),
                             from + (exists ? 8 * chunk : 0), exists);
        }
      }
    }
  }

  /// Brings the rows of queries that there are. What the others hold stays theirs.
  HEDDLE_DEVICE void bring_queries(const Sequence& sequence, int rows_there) const {
    constexpr int kChunks = 2 * ceil_div(Config::kQkDim, 16);
    const sm80::GroupedRows<T> rows{p_.q, sequence.batch, sequence.head * group_, group_};
    const int lane = threadIdx.x % 32, first = sequence.row_block * kRows;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rows_there; row += Config::kWarps) {
      const bool is_token = first + row < group_ * sequence.keys.q_length;
      const T* const from = is_token ? rows(first + row) : rows(first);
#pragma unroll
      for (int n = 0; n < ceil_div(kChunks, 32); ++n) {
        const int chunk = n * 32 + lane;
        if (kChunks % 32 != 0 && chunk >= kChunks) continue;
        const bool exists = is_token && 8 * chunk < Config::kQkDim;
        ptx::copy_async_16(base_ + QueryTile::chunk_offset(row, chunk),
                           from + (exists ? 8 * chunk : 0), exists);
      }
    }
    ptx::copy_async_arrive(queries_there());
  }

  /// Until the keys of a tile are there.
  HEDDLE_DEVICE void wait_for_keys(int tile) const {
    const int n = slot_of_keys(tile), turn = turn_of(tile);
    ptx::mbarrier_wait(there(n), turn);
    if constexpr (Config::kMaps) {
      for (int part = 1; once_ && part < kAt.kParts; ++part)
        ptx::mbarrier_wait(there(n, part), turn);
    } else {
      ptx::fence_proxy_async_shared();
    }
  }

  /// The group of dot products: weights of each tile, and what earlier sums are multiplied by.
  HEDDLE_DEVICE void weigh(const Sequence& sequence, const Steps& steps, int rows_there) const {
    const auto& keys = sequence.keys;
    const auto key_rows =
        attention::stored_rows<T, Config::kRowsK>(p_.k, p_.pages_k, sequence.batch, sequence.head);
    const auto first_key = [&](int step) { return steps.first + step * kKeys; };
    const auto bring_keys = [&](int step) {
      if (once_ || step >= steps.count) return;
      if constexpr (Config::kMaps) {
        if (own_warp() == 0)
          load_boxes(&maps_.k, key_rows, sequence, first_key(step), steps.kv_length, 0, 0, 0,
                     KeyTile::kBoxes);
      } else {
        bring<0, KeyTile::kBoxes, kKeys / 4>(slot(0), key_rows, Config::kQkDim, first_key(step),
                                             steps.kv_length, own_warp() * (kKeys / 4));
        ptx::copy_async_arrive(there(0));
      }
    };
    bring_keys(0);
    bring_queries(sequence, rows_there);

    int rows[2];
    bool is_there[2];  // sums of other rows are nobody's, and need no correction
    attention::KeyInterval visible[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      is_there[half] = tile::fragment_row(threadIdx.x, half) < rows_there;
      rows[half] = sequence.row_block * kRows + tile::fragment_row(threadIdx.x, half);
      visible[half] = {0, 0};
      if (rows[half] < group_ * keys.q_length) visible[half] = keys.visible(rows[half] / group_);
    }
    const int first_row = sequence.row_block * kRows,
              last_row = min_of(first_row + kRows, group_ * keys.q_length) - 1;
    const attention::KeyInterval to_all =
        keys.visible_to_all(first_row / group_, last_row / group_);
    attention::OnlineSoftmax<0, false, true> softmax;
    softmax.reset();
    ptx::mbarrier_wait(queries_there(), sequences_ % 2);
    ptx::fence_proxy_async_shared();
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      const int tile = met_ + step;
      wait_for_keys(tile);
      float scores[kKeys / 2];
      ptx::wgmma_fence();
      tile::issue_product<T, kKeys, ceil_div(Config::kQkDim, 16)>(
          scores, tile::KMajor<QueryTile>(operand(base_)),
          tile::KMajor<KeyTile>(operand(slot(slot_of_keys(tile)))), false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(scores);
      if (!once_) wait_until_read(tile, step + 1 < steps.count);
      // Where sums clear rows, and where all groups meet after a tile, this one meets too:
      // racecheck (CUDA 13.0) else takes sums for read before they are left, though all threads
      // meet in between. It does not where all groups have met as many barriers.
      if (Config::kMaps ? steps.kv_length - first_key(step) < kKeys : once_)
        ptx::barrier_sync(kGroupBarrier, kGroup);
      bring_keys(step + 1);
      const float scales[2] = {scale_, scale_};
      sm80::score_cells<Score, sm80::DecodeCells<false>, kKeys>(
          scores, scales, visible, to_all, rows, sequence, group_, p_.loads, first_key(step));
      float correction[2];
      softmax.update(scores, kToLog2, correction);
      u32 weights[kKeys / 16][4];
      tile::pack_fragment<T, kKeys>(weights, scores);
      // Those of the tile before; at first there are none, and that phase is over.
      ptx::mbarrier_wait(weights_read(), (tile + 1) % 2);
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        tile::store_slice<WeightTile>(base_ + kAt.weights, 16 * own_warp(), k, weights[k]);
      if (threadIdx.x % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_shared(correction_of(tile::fragment_row(threadIdx.x, half)),
                            is_there[half] ? correction[half] : 1.0f);
      }
      ptx::fence_proxy_async_shared();
      ptx::mbarrier_arrive(weights_there());
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = softmax.total(half);
      const int row = tile::fragment_row(threadIdx.x, half);
      if (threadIdx.x % 4 == 0 && row < rows_there)
        reinterpret_cast<float2*>(shared_ + kAt.statistics)[row] =
            make_float2(softmax.reference[half], total);
    }
    wait_for_readers();
  }

  /// Rows of values from `from` on, which no key has, become 0: they weigh nothing, but may hold
  /// what is no number. Those of keys are hidden.
  template <int kFirstBox, int kBoxes>
  HEDDLE_DEVICE void clear_rows(u32 tile, int from) const {
    constexpr int kChunks = 8 * min_of(kBoxes, ValueTile::kBoxes - kFirstBox);
    if (kChunks <= 0 || from >= kKeys) return;
    constexpr int kEach = max_of(kChunks, 1);
#pragma unroll 1
    for (int n = threadIdx.x % kGroup; n < (kKeys - from) * kEach; n += kGroup)
      ptx::store_shared(tile + ValueTile::chunk_offset(from + n / kEach, 8 * kFirstBox + n % kEach),
                        0.0f, 0.0f, 0.0f, 0.0f);
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(kGroupBarrier + own_group(), kGroup);
  }

  /// A group of sums, of its part of the columns.
  HEDDLE_DEVICE void sum(const Sequence& sequence, const Steps& steps, int rows_there) const {
    if (own_group() == 1)
      sum_part<0>(sequence, steps, rows_there);
    else
      sum_part<1>(sequence, steps, rows_there);
  }

  template <int kNumber>
  HEDDLE_DEVICE void sum_part(const Sequence& sequence, const Steps& steps, int rows_there) const {
    constexpr int kBoxes = kPart / tile::kBoxColumns, kFirstBox = kNumber * kBoxes;
    // At one address keys and values are stored alike.
    const auto rows =
        attention::stored_rows<T, Config::kRowsV>(p_.v, p_.pages_v, sequence.batch, sequence.head);
    const int columns = once_ ? Config::kQkDim : Config::kVDim;
    const auto first_key = [&](int step) { return steps.first + step * kKeys; };
    // Those that the group alone reads, and of those that no group of sums does half, by the copy
    // engine the first group all.
    const auto bring_values = [&](int step) {
      if (step >= steps.count) return;
      const int n = slot_of_values(met_ + step), first = first_key(step);
      if constexpr (Config::kMaps) {
        if (own_warp() == 0) {
          const TensorMap* const map = once_ ? &maps_.k : &maps_.v;
          load_boxes(map, rows, sequence, first, steps.kv_length, n, kNumber, kFirstBox,
                     min_of(kFirstBox + kBoxes, MostTile::kBoxes));
          if (once_ && kNumber == 0)
            load_boxes(map, rows, sequence, first, steps.kv_length, n, 2, 2 * kBoxes,
                       max_of(2 * kBoxes, KeyTile::kBoxes));
        }
      } else {
        bring<kFirstBox, kBoxes, kKeys / 4>(slot(n), rows, columns, first, steps.kv_length,
                                            own_warp() * (kKeys / 4));
        if (once_)
          bring<2 * kBoxes, KeyTile::kBoxes, kKeys / 8>(
              slot(n), rows, columns, first, steps.kv_length,
              kNumber * (kKeys / 2) + own_warp() * (kKeys / 8));
        ptx::copy_async_arrive(there(n));
      }
    };
    const int ahead = once_ ? 2 : 1;
    bring_values(0);
    bring_queries(sequence, rows_there);
    if (once_) bring_values(1);

    float out[kPart / 2];
    attention::clear(out);
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      const int tile = met_ + step;
      ptx::mbarrier_wait(there(slot_of_values(tile), Config::kMaps ? kNumber : 0), turn_of(tile));
      if constexpr (!Config::kMaps) ptx::fence_proxy_async_shared();
      if constexpr (Config::kMaps)
        clear_rows<kFirstBox, kBoxes>(slot(slot_of_values(tile)),
                                      steps.kv_length - first_key(step));
      ptx::mbarrier_wait(weights_there(), tile % 2);
      float correction[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        correction[half] =
            ptx::load_shared_f32(correction_of(tile::fragment_row(threadIdx.x, half)));
      if (correction[0] != 1.0f || correction[1] != 1.0f) attention::scale_rows(out, correction);
      ptx::wgmma_fence();
      tile::issue_product<T, kPart, kKeys / 16>(
          out, tile::KMajor<WeightTile>(operand(base_ + kAt.weights)),
          tile::MnMajor<ValueTile>(operand(slot(slot_of_values(tile))), kNumber * kPart), true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      __syncwarp();  // what other lanes read is read
      if (ptx::elect_one()) ptx::mbarrier_arrive(weights_read());
      wait_until_read(tile, step + ahead < steps.count);
      bring_values(step + ahead);
    }
    wait_for_readers();

    // Where queries and slots were.
#pragma unroll
    for (int i = 0; i < kPart / 2; i += 2) {
      const int row = tile::fragment_row(threadIdx.x, tile::fragment_half(i));
      const int column =
          kNumber * kPart + tile::fragment_column(threadIdx.x) + tile::fragment_column_step(i);
      if (row < rows_there && column < Config::kVDim)
        ptx::store_shared(base_ + kAt.sums + 4 * (row * kConfig.sum_columns() + column), out[i],
                          out[i + 1]);
    }
  }

  /// Until no group reads queries or slots any more.
  HEDDLE_DEVICE void wait_for_readers() const {
    ptx::mbarrier_arrive(all_read());
    ptx::mbarrier_wait(all_read(), sequences_ % 2);
  }

  const sm80::DecodeMaps<Config::kMaps>& maps_;
  const attention::ForwardParameters& p_;
  u8* shared_;
  u32 base_;
  int group_;
  float scale_;
  bool once_;
  int met_ = 0;        ///< tiles so far
  int sequences_ = 0;  ///< and sequences
};

}  // namespace heddle::sm90
