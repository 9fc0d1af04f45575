// The gradient of what comes by tiles (dBias), of dS as a consumer of the Hopper backward has it:
// nothing is computed twice.
//
// Where the operand is broadcast along the batch, the blocks of the same keys and head of all its
// entries are a cluster and step side by side. Each sums its share of a step's queries: it is sent
// them from registers by the threads of the others that hold the same cells, and adds them up in
// f32, in the order of the entries, under the next step's products. A step later they leave by the
// copy engine, beside dQ.
#pragma once

#include "../attention/operand.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/math.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/tma.cuh"
#include "../tile/tile_bytes.h"
#include "backward_arguments.h"
#include "backward_config.cuh"
#include "cluster_reads.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward whose shared memory has the barriers, the exchange (what each
/// warp is sent) and the share (the sums, a box of the copy engine for each consumer group).
template <class Main>
struct BackwardTileGradient {
  using C = typename Main::C;
  using T = typename Main::T;
  using Out = typename Main::Tiles::T;
  static constexpr int kTileM = Main::kTileM, kTileN = Main::kTileN, kCluster = C::kCluster;
  static constexpr int kWarps = kTileN / 16;
  /// Of a step, that a block writes; eight are two words of a thread, each of two queries of a key.
  static constexpr int kQueries = kTileM / kCluster, kWords = kQueries / 4;
  static constexpr int kPieceWords = kWords < 4 ? kWords : 4, kPieces = kWords / kPieceWords;
  static constexpr int kBoxBytes = kQueries * tile::kLineBytes;  ///< of 64 keys
  static_assert(kTileM == 64 && kTileN == 128 && sizeof(Out) == 2 && kWords >= 2);
  static_assert(!C::kAllKeys, "the warps that add up dQ send the shares");

  const BackwardArguments& args;
  const BackwardWork& work;
  const u32 shared;

  /// One thread, before any of the cluster goes on.
  HEDDLE_DEVICE static void init(u32 shared) {
    if constexpr (kCluster > 1) {
      ptx::mbarrier_init(sent(shared), 1);
      ptx::mbarrier_init(taken(shared), kWarps * kCluster);
      expect(shared);
    }
  }

  /// Once a step has been differentiated: to the blocks that sum its cells.
  HEDDLE_DEVICE void put(u32 step, const u32 (&d_s)[kTileM / 16][4]) const {
    if constexpr (kCluster > 1) {
      if (step > 0) ptx::mbarrier_wait(taken(shared), step - 1 & 1);
      send(d_s);
    }
  }

  /// Before the next step is differentiated: this block's share, `d_s` its own. It is sent with the
  /// next step's dQ.
  HEDDLE_DEVICE void sum(u32 step, const u32 (&d_s)[kTileM / 16][4]) const {
    u32 cells[kWords];
    if constexpr (kCluster > 1) {
      ptx::mbarrier_wait(sent(shared), step & 1);
      if (threadIdx.x == 128) expect(shared);
      add_up(d_s, cells);
      const bool read = are_made<1>(cells);
      __syncwarp();
      if (const u32 other = threadIdx.x % 32; other < kCluster && read)
        ptx::cluster_arrive(ptx::address_in(taken(shared), other));
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) cells[i] = gradient(word(d_s, i));
    }
    Main::wait_read(warp() / 4);
    turn(cells);
  }

  /// After the last step. A block stays until all have arrived in it.
  HEDDLE_DEVICE void finish(u32 step, const u32 (&d_s)[kTileM / 16][4]) const {
    sum(step, d_s);
    Main::hand_over(warp() / 4);
    if constexpr (kCluster > 1) ptx::mbarrier_wait(taken(shared), step & 1);
  }

  /// One thread: the share of a step that consumer group `part` has summed.
  HEDDLE_DEVICE static void store(const BackwardArguments& args, u32 shared,
                                  const BackwardWork& work, const typename Main::Step& at,
                                  int part) {
    ptx::tma_store_4d(&args.d_tiled, shared + Main::kAt.share + part * kBoxBytes,
                      work.key0 + 64 * part, at.tile * kTileM + rank() * kQueries, at.head,
                      kCluster > 1 ? 0 : work.batch);
  }

  /// Cells that no step has are zero. Called by `threads` threads, of which this is number
  /// `thread`.
  HEDDLE_DEVICE void store_zeros(int thread, int threads) const {
    const attention::ForwardParameters& p = args.problem.forward;
    constexpr int kChunks = kTileN / 8;
    const int first_tile = C::kDownwards ? work.first_tile - work.tile_count + 1 : work.first_tile;
    const int first = work.tile_count > 0 ? first_tile * kTileM : 0;
    const int past = first + work.tile_count * kTileM;
    const int key = work.key0 + thread % kChunks * 8;
    for (int head = work.key_head * work.group; head < (work.key_head + 1) * work.group; ++head)
      for (int i = thread / kChunks;; i += threads / kChunks) {
        const int row = i / kQueries * kTileM + rank() * kQueries + i % kQueries;
        if (row >= p.q_length) break;
        if (row >= first && row < past) continue;
        Out* const to = attention::element_pointer<Out>(
            args.problem.d_load, kCluster > 1 ? 0 : work.batch, head, row, key);
        if (key + 8 <= p.kv_length)
          *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        else
          for (int k = 0; key + k < p.kv_length; ++k) to[k].bits = 0;
      }
  }

 private:
  HEDDLE_DEVICE static u32 rank() { return kCluster > 1 ? ptx::cluster_rank() : 0; }
  HEDDLE_DEVICE static int warp() { return threadIdx.x / 32 - 4; }

  /// A step's cells have come.
  HEDDLE_DEVICE static u32 sent(u32 shared) { return shared + Main::kAt.exchange_sent; }
  /// All blocks have taken theirs: those of the next step may be sent.
  HEDDLE_DEVICE static u32 taken(u32 shared) { return shared + Main::kAt.exchange_sent + 8; }
  HEDDLE_DEVICE static void expect(u32 shared) {
    ptx::mbarrier_arrive_expect_tx(sent(shared), (kCluster - 1) * kQueries * kTileN * 2);
  }

  /// Where a warp has what the entry of that place among the others sends.
  HEDDLE_DEVICE u32 piece(int place, int number) const {
    return shared + Main::kAt.exchange + warp() * exchange_bytes(C::kValues) / kWarps +
           ((place * kPieces + number) * 32 + threadIdx.x % 32) * kPieceWords * 4;
  }

  HEDDLE_DEVICE void send(const u32 (&d_s)[kTileM / 16][4]) const {
    const int mine = rank();
#pragma unroll
    for (int other = 0; other < kCluster; ++other) {
      if (other == mine) continue;
      const u32 barrier = ptx::address_in(sent(shared), other);
      const int place = mine < other ? mine : mine - 1;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        u32 words[kPieceWords];
#pragma unroll
        for (int k = 0; k < kPieceWords; ++k)
          words[k] = word(d_s, other * kWords + i * kPieceWords + k);
        ptx::cluster_store(ptx::address_in(piece(place, i), other), barrier, words);
      }
    }
  }

  HEDDLE_DEVICE static u32 word(const u32 (&d_s)[kTileM / 16][4], int i) {
    return d_s[i / 4][i % 4];
  }

  HEDDLE_DEVICE void add_up(const u32 (&d_s)[kTileM / 16][4], u32 (&cells)[kWords]) const {
    const int mine = rank();
    u32 own[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      own[i] = word(d_s, i);
#pragma unroll
      for (int entry = 1; entry < kCluster; ++entry)
        if (entry == mine) own[i] = word(d_s, entry * kWords + i);
    }
    float sums[2 * kWords] = {};
#pragma unroll
    for (int entry = 0; entry < kCluster; ++entry) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        u32 words[kPieceWords];
        if (entry == mine) {
#pragma unroll
          for (int k = 0; k < kPieceWords; ++k) words[k] = own[i * kPieceWords + k];
        } else {
          ptx::load_shared(piece(entry < mine ? entry : entry - 1, i), words);
        }
#pragma unroll
        for (int k = 0; k < kPieceWords; ++k) {
          float low, high;
          ptx::unpack<T>(words[k], low, high);
          sums[2 * (i * kPieceWords + k)] += low;
          sums[2 * (i * kPieceWords + k) + 1] += high;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) cells[i] = gradient(sums[2 * i], sums[2 * i + 1]);
  }

  /// Two cells of dS as the operand's gradient.
  HEDDLE_DEVICE static u32 gradient(float low, float high) {
    return ptx::pack<Out>(low * Main::kOfLog2, high * Main::kOfLog2);
  }
  HEDDLE_DEVICE static u32 gradient(u32 cells) {
    if constexpr (is_same<Out, T> && !C::kInputIsLog2) return cells;
    float low, high;
    ptx::unpack<T>(cells, low, high);
    return gradient(low, high);
  }

  /// A thread has two queries of a key; turned, eight keys of a query.
  HEDDLE_DEVICE void turn(const u32 (&cells)[kWords]) const {
    const u32 lane = threadIdx.x % 16, chunk = threadIdx.x % 128 / 32 * 2 + lane / 8;
    const u32 line = shared + Main::kAt.share + (threadIdx.x / 128 - 1) * kBoxBytes +
                     lane % 8 * tile::kLineBytes + (chunk ^ lane % 8) * 16;
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i)
      ptx::store_matrix_x2_transposed(line + 8 * i * tile::kLineBytes, cells[2 * i],
                                      cells[2 * i + 1]);
  }
};

}  // namespace heddle::sm90
