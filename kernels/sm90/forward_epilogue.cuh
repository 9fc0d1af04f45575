// The end of a query tile in the Hopper forward: the row statistics, and O on its way to memory.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../attention/operand.cuh"
#include "../attention/row_end.cuh"
#include "../ptx/math.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../tile/fragment.cuh"
#include "../tile/shared_tile.cuh"
#include "../tile/stepwise_product.cuh"
#include "block_rank.cuh"
#include "forward_arguments.h"
#include "forward_tiles.cuh"

namespace heddle::sm90 {

template <class Block>
struct ForwardEpilogue {
  using C = typename Block::C;
  using T = typename Block::T;
  using OTile = typename Block::OTile;
  using Softmax = typename Block::Softmax;
  using Tiles = ForwardTiles<Block>;
  using Work = ForwardWork<Block>;
  using Output = float[Block::kVColumns / 2];
  static constexpr bool kSplitF16 = Block::kSplitF16;

  /// Divides by the row sums and writes O and the row statistics.
  template <class Scores>
  HEDDLE_DEVICE static void run(const ForwardArguments& args, Tiles& tiles, const Work& work,
                                const Scores& scores, Output& out, const Softmax& softmax) {
    float factor[2];
    finish(args, work, tiles.consumer, scores, softmax, factor);
    store(args, tiles, work, out, factor);
  }

  /// Writes the row statistics. `factor` is what O's rows are still to be multiplied with. It may
  /// come while the last P V runs.
  template <class Scores>
  HEDDLE_DEVICE static void finish(const ForwardArguments& args, const Work& work, int consumer,
                                   const Scores& scores, const Softmax& softmax,
                                   float (&factor)[2]) {
    const attention::ForwardParameters& p = args.problem;
    float kept = 1;
    if constexpr (C::kDropout != Dropout::none)
      kept = p.keep_scale_operand != nullptr ? *p.keep_scale_operand : p.keep_scale;
    if constexpr (kSplitF16)
      kept *= work.unit_of(args.v_pairs, p.q_heads) * (1 / Block::kWeightUnit);
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = work.first_row(consumer) + tile::fragment_row(thread, h);
      const bool valid = !C::kLengths || row < work.q_length;
      const bool writes = thread % 4 == 0 && consumer % C::kParts == 0 &&
                          block_rank<C::kRanks>() == 0 && row < p.q_length;
      const attention::RowEnd end =
          attention::end_row<kSplitF16, Block::kLog2References, C::kSink, Block::kByFactor>(
              p, work.batch, work.head, row, valid, writes,
              scores.terms_of(work, softmax, h, softmax.total(h)));
      factor[h] = end.has_output ? end.factor * kept : 0.0f;
    }
  }

  /// Writes O, its rows times `factor`; releases a Q that O covers, or that no product has released
  /// because the rows see no key.
  HEDDLE_DEVICE static void store(const ForwardArguments& args, Tiles& tiles, const Work& work,
                                  Output& out, const float (&factor)[2]) {
    if constexpr (is_same<typename C::Result, float> || C::kParts > 1) {
      if constexpr (!kSplitF16) clear_unseen(out, factor);
      store_from_registers(args.problem, work, tiles, out, factor);
      if (work.empty()) tiles.release_q();
      return;
    }
    stage(args, work, tiles, out, factor);
    if constexpr (C::kOutputAliasesQ) {
      if (threadIdx.x % 128 == 0) {
        ptx::bulk_wait_read<0>();
        ptx::mbarrier_arrive(tiles.q_ring.empty(tiles.q_at.stage()));
      }
      tiles.q_at.advance();
    } else if (work.empty() && !Block::kStagedRotations) {
      tiles.release_q();
    }
  }

  /// Sends O's boxes of a round to memory from where they are staged. One thread.
  HEDDLE_DEVICE static void send(const ForwardArguments& args, u32 from, int round, int row,
                                 int head, int batch) {
    const TensorMap* map = maps_of<C>(args, batch) + 3;
    if constexpr (C::kSequenceMaps) ptx::tensor_map_acquire(map);
#pragma unroll
    for (int n = 0; n < Block::kAt.o_boxes; ++n) {
      const int box = round * Block::kAt.o_boxes + n;
      if (box >= OTile::kBoxes) continue;
      ptx::tma_store_4d(map, from + n * OTile::kBoxBytes, box * tile::kBoxColumns, row, head,
                        map_batch<C>(batch));
    }
    ptx::bulk_commit();
  }

  /// The last store is in memory.
  HEDDLE_DEVICE static void wait() {
    if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  }

 private:
  /// Rows past a length are written in a dense tensor, in a ragged one they have no place.
  HEDDLE_DEVICE static int written_rows(const attention::ForwardParameters& p, const Work& work,
                                        const attention::Tensor& tensor) {
    return C::kLengths && tensor.offsets != nullptr ? work.q_length : p.q_length;
  }

  /// Writes O: in f32 the four lanes of a quad fill a sector of 32 bytes, in 16 bits half of one.
  HEDDLE_DEVICE static void store_from_registers(const attention::ForwardParameters& p,
                                                 const Work& work, const Tiles& tiles,
                                                 const Output& out, const float (&factor)[2]) {
    using Result = typename C::Result;
    const int thread = threadIdx.x % 128, first_column = tiles.share() * Block::kVColumns;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = work.first_row(tiles.consumer) + tile::fragment_row(thread, h);
      if (row >= written_rows(p, work, p.o)) continue;
      Result* to = attention::element_pointer<Result>(p.o, work.batch, work.head, row,
                                                      first_column + tile::fragment_column(thread));
      const float lacking = kSplitF16 ? factor[h] * tile::kOutputLacks : 0.0f;
#pragma unroll
      for (int i = 2 * h; i < Block::kVColumns / 2; i += 4) {
        const int column = tile::fragment_column_step(i);
        // The last part's columns may end before its boxes do.
        if (Block::kShares * Block::kVColumns > C::kVDim && first_column + column >= C::kVDim)
          continue;
        const float x = ptx::fma(out[i], factor[h], out[i] * lacking),
                    y = ptx::fma(out[i + 1], factor[h], out[i + 1] * lacking);
        if constexpr (is_same<Result, float>)
          *reinterpret_cast<float2*>(to + column) = make_float2(x, y);
        else
          *reinterpret_cast<u32*>(to + column) = ptx::pack<T>(x, y);
      }
    }
  }

  /// Zeroes rows whose factor is 0. Cleared, not multiplied by 0: a value that the row does not see
  /// may be NaN or infinite.
  HEDDLE_DEVICE static void clear_unseen(Output& out, const float (&factor)[2]) {
    if (!__any_sync(0xffffffffu, factor[0] == 0.f || factor[1] == 0.f)) return;
#pragma unroll
    for (int i = 0; i < Block::kVColumns / 2; ++i)
      out[i] = factor[tile::fragment_half(i)] == 0.f ? 0.f : out[i];
  }

  /// Writes O in its 16-bit type by TMA, staged in shared memory, where it may still be on its way
  /// when this returns.
  HEDDLE_DEVICE static void stage(const ForwardArguments& args, const Work& work,
                                  const Tiles& tiles, Output& out, const float (&factor)[2]) {
    const int thread = threadIdx.x % 128;
    const u32 staging = tiles.staging();
    const u32 group_barrier = Block::kGroupBarrier + tiles.consumer;
    clear_unseen(out, factor);
    attention::scale_rows(out, factor);
#pragma unroll
    for (int round = 0; round < C::kOutputRounds; ++round) {
      constexpr int kRoundSlices = Block::kAt.o_boxes * tile::kBoxColumns / 16;
      const u32 base = staging - round * Block::kAt.o_boxes * OTile::kBoxBytes;
      if constexpr (!Block::kStagedRotations) {
        if (thread == 0) ptx::bulk_wait_read<0>();  // the store before has left the staging
        ptx::barrier_sync(group_barrier, 128);
      }
#pragma unroll
      for (int n = 0; n < kRoundSlices; ++n) {
        const int k = round * kRoundSlices + n;
        if (16 * k >= C::kVDim) continue;
        const bool half = C::kVDim - 16 * k == 8;
        u32 slice[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          slice[i] = i >= 2 && half ? 0 : ptx::pack<T>(out[8 * k + 2 * i], out[8 * k + 2 * i + 1]);
        tile::store_slice<OTile>(base, thread / 32 * 16, k, slice);
      }
      ptx::fence_proxy_async_shared();
      if constexpr (Block::kStagedRotations) {
        tiles.leave_staging();
      } else {
        ptx::barrier_sync(group_barrier, 128);
        if (thread == 0)
          send(args, staging, round, work.first_row(tiles.consumer), work.head, work.batch);
      }
    }
  }
};

}  // namespace heddle::sm90
