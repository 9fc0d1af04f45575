// What the Hopper backward kernels share: the work of a block, the queries that meet its keys, and
// the gradients of its keys.
#pragma once

#include "../attention/row_statistics.cuh"
#include "../attention/visible.cuh"
#include "../ptx/math.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "../tile/fragment.cuh"
#include "../tile/shared_tile.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"
#include "fp8_backward_arguments.h"
#include "score_tile.cuh"

namespace heddle::sm90 {

/// kM queries a step, kN keys a block.
template <class Config, int kM, int kN>
struct BackwardBlock {
  struct C : Config {
    static constexpr bool kDrops = Config::kValues.drops();
    static constexpr bool kSequenceMaps = Config::kValues.sequence_maps();
  };
  using T = typename C::Element;
  static constexpr int kTileM = kM, kTileN = kN;
  static_assert(C::kQkDim % 8 == 0 && C::kVDim % 8 == 0, "TMA moves multiples of 16 bytes");
  /// Columns as products take them: where they are shared out, one's share.
  static constexpr int kQk = (C::kValues.share_of(C::kQkDim) + 15) / 16 * 16,
                       kVd = (C::kValues.share_of(C::kVDim) + 15) / 16 * 16;
  using QTile = tile::PlanesOf<kTileM, kQk, C::kPlanes>;
  using DoTile = tile::PlanesOf<kTileM, kVd, C::kPlanes>;
  static constexpr int kInPair = C::kCodes ? 2 : 1;  ///< tiles of codes hold two in an element
  using KTile = tile::PlanesOf<kTileN, kQk / kInPair, C::kPlanes>;
  using VTile = tile::PlanesOf<kTileN, kVd / kInPair, C::kPlanes>;
  using DsTile = tile::PlanesOf<kTileN, kTileM, C::kPlanes>;       // a row per key
  using Input = typename Choice<C::kPlanes == 1, T, float>::Type;  ///< as O and dO lie in memory
  using Gradient = typename C::Result;
  using Tiles = ScoreTile<Config, kTileM, kTileN>;
  static constexpr int kRowBytes = kTileM * 4;  ///< of a number for each row of a step
  static constexpr int kStatistics = C::kMaxAndSum ? 2 : 1, kLseBytes = kStatistics * kRowBytes;
  static constexpr int kDeltaBytes = C::kPlanes * kRowBytes;
  /// Factor that takes a score to the exponent of 2, and its derivative.
  static constexpr float kToLog2 = C::kInputIsLog2 ? 1.0f : attention::kLog2E;
  static constexpr float kOfLog2 = C::kInputIsLog2 ? attention::kLn2 : 1.0f;
  /// What takes sums of dS to dQ and dK, beside the scale.
  static constexpr float kOfSlope = kOfLog2 * C::kSlopeFactor;
  /// Of weight_exponent. Of dot products alone, and in log2 units, a maximum was rounded.
  template <class Score>
  static constexpr bool kMost = !Score::kIdentity && !C::kInputIsLog2;

  using Visible = attention::VisibleKeys<C::kLowerVaries, C::kUpperVaries>;
  /// A causal pass in a fixed order starts its blocks, and sums them, from the last key down: there
  /// each block's first query tile is one nobody else has yet to add to. But the longest blocks
  /// come last, which costs where they are long, with heads in groups. From the last query tile
  /// down the longest come first, and a block waits only for its turn at the start.
  static constexpr bool kDescending = C::kDeterministic && C::kUpperVaries && !C::kDownwards;
  using Step = BackwardStep<C::kDownwards>;

  HEDDLE_DEVICE static float scale_of(const BackwardArguments& args) {
    if constexpr (C::kCodes) return static_cast<const Fp8BackwardArguments&>(args).units->score;
    const attention::ForwardParameters& p = args.problem.forward;
    return p.scale_operand != nullptr ? *p.scale_operand : p.scale;
  }

  /// Factor on what dropout keeps.
  HEDDLE_DEVICE static float keep_scale_of(const BackwardArguments& args) {
    const attention::ForwardParameters& p = args.problem.forward;
    if constexpr (!C::kDrops) return 1.0f;
    return p.keep_scale_operand != nullptr ? *p.keep_scale_operand : p.keep_scale;
  }

  HEDDLE_DEVICE static BackwardWork work_of_block(const BackwardArguments& args) {
    const attention::ForwardParameters& p = args.problem.forward;
    // Heads come in groups that share the L2; within one, the first key tile of every head, then
    // the second: of a causal mask the longest first.
    const int tiles = ceil_div(p.kv_length, kTileN);
    // Or the cluster: of all batch entries' blocks, or of those that share columns.
    const int block = blockIdx.x / (C::kCluster * C::kRanks);
    const int first_head = block / (args.head_group * tiles) * args.head_group;
    const int place = block - first_head * tiles;
    const int width = min_of(args.head_group, p.batch / C::kCluster * p.k_heads - first_head);
    const int order = place / width, flat_head = first_head + place - order * width;

    BackwardWork w;
    const int entry = flat_head / p.k_heads;
    w.batch = C::kCluster > 1 ? blockIdx.x - block * C::kCluster : entry;
    w.key_head = flat_head - entry * p.k_heads;
    w.key0 = kTileN * (kDescending ? tiles - 1 - order : order);
    w.group = p.q_heads / p.k_heads;
    w.q_length = C::kLengths ? attention::length_of(p.q_lengths, w.batch) : p.q_length;
    w.kv_length = C::kLengths ? attention::length_of(p.kv_lengths, w.batch) : p.kv_length;
    // The rows that see any of the keys.
    w.keys = attention::resolve_bounds(p, w.q_length, w.kv_length);
    const attention::BatchBounds& keys = w.keys;
    int begin = 0, end = w.q_length;
    if constexpr (C::kUpperVaries) begin = max_of(begin, w.key0 - keys.upper_diagonal + 1);
    if constexpr (C::kLowerVaries) end = min_of(end, w.key0 + kTileN - keys.lower_diagonal);
    const bool any = begin < end && w.key0 < keys.upper && w.key0 + kTileN > keys.lower;
    const int first = begin / kTileM, last = ceil_div(end, kTileM) - 1;
    w.first_tile = C::kDownwards ? last : first;
    w.tile_count = any ? last + 1 - first : 0;
    return w;
  }

  /// Whether any of `rows` queries from `row` sees any of the block's keys.
  HEDDLE_DEVICE static bool sees(const BackwardWork& w, int row, int rows) {
    int begin = row, end = min_of(row + rows, w.q_length);
    if constexpr (C::kUpperVaries) begin = max_of(begin, w.key0 - w.keys.upper_diagonal + 1);
    if constexpr (C::kLowerVaries) end = min_of(end, w.key0 + kTileN - w.keys.lower_diagonal);
    return begin < end && w.key0 < w.keys.upper && w.key0 + kTileN > w.keys.lower;
  }

  // One thread finds the work, and each role reads what it needs from shared memory: values that
  // live through all roles would be spilled for the one that has the fewest registers.
  static constexpr int kWorkWords = BackwardLayout::kWorkBytes / 4;
  HEDDLE_DEVICE static void store_work(u32 address, const BackwardWork& w) {
    const int words[kWorkWords] = {w.batch,
                                   w.key_head,
                                   w.key0,
                                   w.first_tile,
                                   w.tile_count,
                                   w.group,
                                   w.q_length,
                                   w.kv_length,
                                   w.keys.lower,
                                   w.keys.upper,
                                   w.keys.lower_diagonal,
                                   w.keys.upper_diagonal};
#pragma unroll
    for (int i = 0; i < kWorkWords; ++i)
      ptx::store_shared(address + 4 * i, static_cast<u32>(words[i]));
  }
  HEDDLE_DEVICE static int load_batch(u32 address) {
    return static_cast<int>(ptx::load_shared_u32(address));
  }
  HEDDLE_DEVICE static BackwardWork load_work(u32 address) {
    int w[kWorkWords];
#pragma unroll
    for (int i = 0; i < kWorkWords; ++i)
      w[i] = static_cast<int>(ptx::load_shared_u32(address + 4 * i));
    return {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], {w[8], w[9], w[10], w[11]}};
  }

  /// How many blocks add to a query tile before this one.
  HEDDLE_DEVICE static int turn(const BackwardWork& w, int q_tile) {
    const Visible keys{w.keys};
    const u32 mine = static_cast<u32>(w.key0) / kTileN;
    if (!kDescending) return mine - static_cast<u32>(keys.lo(q_tile * kTileM)) / kTileN;
    const int last_row = min_of((q_tile + 1) * kTileM, w.q_length) - 1;
    return static_cast<u32>(keys.hi(last_row) - 1) / kTileN - mine;
  }

  /// The same of queries' rows.
  HEDDLE_DEVICE static int written_queries(const BackwardArguments& args,
                                           const BackwardWork& work) {
    return C::kLengths && args.problem.d_q.offsets != nullptr ? work.q_length
                                                              : args.problem.forward.q_length;
  }

  /// Rows past a dense length are written as zeros, past a ragged one left alone.
  HEDDLE_DEVICE static int written_rows(const attention::Tensor& out, const BackwardArguments& args,
                                        const BackwardWork& work) {
    return C::kLengths && out.offsets != nullptr ? work.kv_length : args.problem.forward.kv_length;
  }

  /// Writes a warp group's 64 rows of an f32 gradient, if it is wanted, from key0 and first_column
  /// on; the four lanes of a quad fill a sector of 32 bytes.
  template <int kHeadDim, int kColumns>
  HEDDLE_DEVICE static void store_f32_gradient(const float (&d)[kColumns / 2], float scale,
                                               const attention::Tensor& out,
                                               const BackwardArguments& args,
                                               const BackwardWork& work, int key0,
                                               int first_column = 0) {
    if (out.data == nullptr) return;
    const int thread = threadIdx.x % 128, written = written_rows(out, args, work);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = key0 + tile::fragment_row(thread, h);
      if (key >= written) continue;
      float* to = attention::element_pointer<float>(out, work.batch, work.key_head, key,
                                                    first_column + tile::fragment_column(thread));
#pragma unroll
      for (int i = 2 * h; i < kColumns / 2; i += 4) {
        if (first_column + tile::fragment_column_step(i - 2 * h) < kHeadDim)
          *reinterpret_cast<float2*>(to + tile::fragment_column_step(i)) =
              make_float2(d[i] * scale, d[i + 1] * scale);
      }
    }
  }

  /// Writes a warp's 16 rows of a gradient, if it is wanted, from warp_row of the block's keys and
  /// first_column on: 16-bit ones through its own rows of a tile that is no longer read.
  template <class Tile, int kHeadDim, int kColumns>
  HEDDLE_DEVICE static void store_gradient(const float (&d)[kColumns / 2], float scale,
                                           u32 tile_address, int warp_row,
                                           const attention::Tensor& out,
                                           const BackwardArguments& args, const BackwardWork& work,
                                           int first_column = 0) {
    if constexpr (is_same<Gradient, float>) {
      store_f32_gradient<kHeadDim, kColumns>(d, scale, out, args, work,
                                             work.key0 + warp_row / 64 * 64, first_column);
      return;
    }
    if (out.data == nullptr) return;
    store_rows<Tile, kColumns>(
        d, scale, tile_address, warp_row,
        attention::element_pointer<T>(out, work.batch, work.key_head, work.key0, first_column),
        out.stride[2], written_rows(out, args, work) - work.key0, kHeadDim - first_column);
  }

  /// Writes a warp's 16 rows of a 16-bit tile, from warp_row of the rows at `base` on, of which
  /// there are `rows` and in each `columns`, through its own rows of `tile_address`.
  template <class Tile, int kColumns>
  HEDDLE_DEVICE static void store_rows(const float (&d)[kColumns / 2], float scale,
                                       u32 tile_address, int warp_row, T* base, i64 stride,
                                       int rows, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      u32 slice[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        slice[i] = ptx::pack<T>(d[8 * k + 2 * i] * scale, d[8 * k + 2 * i + 1] * scale);
      tile::store_slice<Tile>(tile_address, warp_row, k, slice);
    }
    __syncwarp();
    constexpr int kChunks = kColumns / 8;
#pragma unroll 4
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const int row = warp_row + i / kChunks, chunk = i % kChunks;
      u32 x[4];
      ptx::load_shared(tile_address + Tile::chunk_offset(row, chunk), x);
      if (row < rows && chunk * 8 < columns)
        *reinterpret_cast<uint4*>(base + row * stride + chunk * 8) =
            make_uint4(x[0], x[1], x[2], x[3]);
    }
  }

  /// Queries that see no key have zero gradients: those of the tiles that are no step. Called by
  /// `threads` threads, of which this is number `thread`.
  HEDDLE_DEVICE static void store_zero_queries(const BackwardArguments& args,
                                               const BackwardWork& work, int thread, int threads) {
    const attention::Tensor& out = args.problem.d_q;
    if (out.data == nullptr) return;
    constexpr int kChunks = C::kQkDim / 8;
    const int rows = written_queries(args, work);
    const int first = work.tile_count > 0 ? work.first_tile * kTileM : 0;
    const int past = first + work.tile_count * kTileM;
    for (int head = work.key_head * work.group; head < (work.key_head + 1) * work.group; ++head) {
      T* base = attention::element_pointer<T>(out, work.batch, head, 0, 0);
      for (int i = thread; i < rows * kChunks; i += threads) {
        const int row = i / kChunks;
        if (row < first || row >= past)
          *reinterpret_cast<uint4*>(base + row * out.stride[2] + i % kChunks * 8) =
              make_uint4(0, 0, 0, 0);
      }
    }
  }

  /// Keys that no query sees have zero gradients.
  template <int kHeadDim>
  HEDDLE_DEVICE static void store_zeros(const attention::Tensor& out, const BackwardArguments& args,
                                        const BackwardWork& work) {
    if (out.data == nullptr) return;
    constexpr int kPerChunk = 16 / sizeof(Gradient), kChunks = kHeadDim / kPerChunk;
    auto* base = attention::element_pointer<Gradient>(out, work.batch, work.key_head, work.key0, 0);
    const int rows = min_of(kTileN, written_rows(out, args, work) - work.key0);
    for (int i = threadIdx.x; i < rows * kChunks; i += blockDim.x)
      *reinterpret_cast<uint4*>(base + i / kChunks * out.stride[2] + i % kChunks * kPerChunk) =
          make_uint4(0, 0, 0, 0);
  }
};

}  // namespace heddle::sm90
