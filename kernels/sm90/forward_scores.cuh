// The element-wise part of the Hopper forward: from a warp group's Q K^T (64 rows, a key tile's
// columns) to the weights of softmax, and which of them dropout keeps.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/online_softmax.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/fragment.cuh"
#include "../tile/stepwise_product.cuh"
#include "forward_arguments.h"
#include "forward_work.cuh"
#include "fragment_dropout.cuh"

namespace heddle::sm90 {

/// Score: kIdentity, or a static value(Cell) -> f32 score of one cell, in natural units (log2 units
/// with kInputIsLog2) or, with kDots, in those of dot products. kFiniteMaskRows: rows may be masked
/// whole by a huge finite number. kSideBySide: of how many cells it is written out, 4 or 8, code
/// that would take seconds to compile were it there for each cell that a thread has; 0: of all.
template <class Block, class Score>
struct ForwardScores {
  using C = typename Block::C;
  using Work = ForwardWork<Block>;
  static constexpr int kTileN = Block::kTileN;

  const ForwardArguments& args;
  const attention::DropoutKey dropout_key;
  const float problem_scale;
  /// Of the dot products at hand. With kSplitF16 it is the sum of both, and with kPlain too it
  /// takes them to their exponents.
  float scale, scale_rest = 0;
  float log2_scale[1];  ///< with kByFactor: of scores

  HEDDLE_DEVICE explicit ForwardScores(const ForwardArguments& args)
      : args(args),
        dropout_key(args.problem, C::kDropout),
        problem_scale(args.problem.scale_operand != nullptr ? *args.problem.scale_operand
                                                            : args.problem.scale),
        scale(problem_scale),
        log2_scale{Block::kDots ? args.dots.scale : Block::kToLog2} {
    // Of two constants that are selected from one has to be in a register, which it otherwise
    // comes to in every step.
    if constexpr (Block::kByFactor) ptx::pin(log2_scale);
  }

  /// With kSplitF16, to be called before the first scores of another query tile.
  HEDDLE_DEVICE void scale_for(const Work& work) {
    const tile::StepwiseScale exact = tile::stepwise_scale(
        problem_scale, Block::kPlain && !C::kInputIsLog2 ? tile::kLog2E : tile::kSame,
        unit_of(work));
    scale = exact.high;
    scale_rest = ptx::max(exact.rest, attention::kLeastRest);
  }

  /// Makes scores of `key_tile`'s dot products, masks and exponentiates them; what they do to
  /// earlier terms is in `correction`. `tiled` is where what they read of their cells lies.
  template <bool kMasked>
  HEDDLE_DEVICE void exponentiate(float (&s)[kTileN / 2], const Work& work, int consumer,
                                  int key_tile, u32 tiled, typename Block::Softmax& softmax,
                                  float (&correction)[2]) const {
    const int thread = threadIdx.x % 128;
    const int first_key = key_tile * kTileN + tile::fragment_column(thread);
    const int rows[2] = {work.first_row(consumer) + tile::fragment_row(thread, 0),
                         work.first_row(consumer) + tile::fragment_row(thread, 1)};
    int lo[2], hi[2];  // visible columns, from the thread's first
    if constexpr (kMasked) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool past = Block::kRowsEnd && rows[h] >= work.q_length;
        lo[h] = work.keys.lo(rows[h]) - first_key;
        hi[h] = (past ? 0 : work.keys.hi(rows[h])) - first_key;
      }
    }
    if constexpr (!Block::kDots) {
#pragma unroll
      for (int i = 0; i < kTileN / 2; ++i)
        s[i] = Block::kSplitF16 ? ptx::fma(s[i], scale, s[i] * scale_rest) : scaled(s[i]);
    }
    if constexpr (!Score::kIdentity)
      evaluate<kMasked>(s, work, rows, first_key, tiled, 64 * consumer);
    // A constant lower bound other than 0 needs the test too.
    if constexpr (kMasked)
      attention::mask_scores(s, lo, hi, C::kLowerVaries || work.keys.bounds.lower > 0);
    if constexpr (Block::kByFactor)
      softmax.update(s, units(), correction, scale_rest);
    else
      softmax.update(s, unit(), correction);
  }

  HEDDLE_DEVICE void reset(typename Block::Softmax& softmax) const {
    if constexpr (Block::kByFactor)
      softmax.reset(units());
    else
      softmax.reset();
  }

  /// What the scores of a row of `work` came to, `sum` in all.
  HEDDLE_DEVICE attention::RowTerms terms_of(const Work& work,
                                             const typename Block::Softmax& softmax, int h,
                                             float sum) const {
    const float reference = softmax.reference[h];
    if (sum == 0.0f) return {attention::minus_infinity(), 0.0f};
    if constexpr (!Block::kByFactor) {
      return {reference, sum};
    } else if constexpr (!Block::kDots) {
      return {reference, sum, 0, softmax.excess(h, units())};
    } else if constexpr (Block::kSplitF16) {
      const tile::StepwiseScale unit =
          tile::stepwise_scale(problem_scale, tile::kSame, unit_of(work));
      const float top = ptx::fma(reference, unit.high, reference * unit.rest);
      return {top, sum, ptx::fma(reference, unit.high, -top) + reference * unit.rest,
              softmax.excess(h, units())};
    } else {
      const float top = __fmul_rn(reference, scale);
      return {top, sum, ptx::fma(reference, scale, -top), softmax.excess(h, units())};
    }
  }

  /// Finds which weights of `key_tile` dropout keeps.
  HEDDLE_DEVICE void draw(FragmentDropout<C::kDropout, kTileN>& dropout, const Work& work,
                          int consumer, int key_tile) const {
    if constexpr (C::kDropout != Dropout::none) {
      const int thread = threadIdx.x % 128;
      const attention::DropoutBits<C::kDropout> bits(args.problem, dropout_key, work.batch,
                                                     work.head);
      dropout.draw(bits, work.first_row(consumer) + tile::fragment_row(thread, 0),
                   key_tile * kTileN + tile::fragment_column(thread));
    }
  }

 private:
  /// Of dot products of pairs.
  HEDDLE_DEVICE float unit_of(const Work& work) const {
    return work.unit_of(args.q_pairs, args.problem.q_heads) *
           work.unit_of(args.k_pairs, args.problem.q_heads);
  }
  /// Of other scores, in log2 units.
  HEDDLE_DEVICE float unit() const {
    if constexpr (Block::kInLog2) return 1.0f;
    return Block::kToLog2;
  }
  /// Of dot products at hand, or of other scores, with kByFactor.
  HEDDLE_DEVICE attention::DotUnits units() const {
    if constexpr (!Block::kDots) return {log2_scale[0], 1.0f, C::kSlack / Block::kToLog2};
    if constexpr (Block::kSplitF16) return {scale, attention::power_near(scale), 0.0f};
    return {log2_scale[0], args.dots.power, args.dots.slack};
  }

  /// Rounded, where a backward makes the score again, before what the score adds: fused by the
  /// compiler here and not there, the two would differ.
  HEDDLE_DEVICE float scaled(float dot) const {
    if constexpr (C::kRowMax) return __fmul_rn(dot, scale);
    return dot * scale;
  }

  template <bool kMasked>
  HEDDLE_DEVICE void evaluate(float (&s)[kTileN / 2], const Work& work, const int (&rows)[2],
                              int first_key, u32 tile, int tile_row) const {
    using Tiles = typename Block::ScoreTiles;
    typename Tiles::RowReader tiled(tile, tile_row);
    // Beside the rotation of Q, or a lower bound of the keys, at head dims above 192, the addresses
    // of what all cells read spilled.
    constexpr bool kLoop =
        Score::kSideBySide > 0 || ((C::kRopeDim > 0 || C::kLowerVaries) && C::kVDim > 192 &&
                                   attention::kArgumentLayout.loads > 0);
    // What comes by tiles comes in slices of 8 cells.
    constexpr int kCells = Score::kSideBySide > 0 && !Tiles::kThere ? Score::kSideBySide : 8;
#pragma unroll(kLoop ? 1 : kTileN / 2 / kCells)
    for (int first = 0; first < kTileN / 2; first += kCells) {
      if constexpr (Tiles::kThere) tiled.take(first / 8);
#pragma unroll
      for (int place = 0; place < kCells; ++place) {
        // Beside a bound of the keys each place has a test of its own.
        const int i = kLoop || kMasked ? place : Tiles::RowReader::in_turn(first + place) - first;
        int row = rows[tile::fragment_half(first + i)];
        int key = first_key + tile::fragment_column_step(first + i);
        if constexpr (kMasked) {
          // What cells past an end would load may not exist: they stand in for the last ones.
          row = min_of(row, work.q_length - 1);
          key = min_of(key, work.kv_length - 1);
        }
        float& score = s[kLoop ? i : first + i];
        score =
            Score::value(Cell{score, row, key, work.batch, work.head, work.q_length, work.kv_length,
                              args.problem.loads, Tiles::kThere ? tiled.at(first + i) : 0.0f});
        if constexpr (Block::kInLog2)
          score = attention::in_log2<Block::kSplitF16>(score, Block::kToLog2);
      }
      if constexpr (kLoop) tile::rotate<kCells>(s);
    }
  }
};

}  // namespace heddle::sm90
