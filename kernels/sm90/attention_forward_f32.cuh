// Attention forward on Hopper in f32: attention_forward.cuh's block on pairs of f16
// (f16_pairs.cuh), every product of which is rounded to f32 step by step (stepwise_product.cuh).
//
// A consumer makes one product at a time: while it adds steps up in f32, or computes its softmax,
// the tensor core works for the other. Of wide heads consumers share rows, each with some of the
// columns of Q, K, V and O, and above 256 columns two blocks of a cluster do (shared_dots.cuh).
#pragma once

#include "../tile/stepwise_product.cuh"
#include "attention_forward.cuh"

namespace heddle::sm90 {

/// Score: forward_scores.cuh.
template <class Config, class Score = PlainScore>
struct AttentionForwardF32 : AttentionForward<Config, Score> {
  using Base = AttentionForward<Config, Score>;
  using Block = typename Base::Block;
  using typename Base::Epilogue;
  using typename Base::Output;
  using typename Base::Scores;
  using typename Base::Work;
  using typename Block::C;
  using typename Block::Softmax;
  using typename Block::T;
  static_assert(Block::kSplitF16 && !C::kTakeTurns && !C::kUpwards);
  using Weights = u32[2][Block::kPvSlices][4];

  /// One consumer warp group: 64 rows of each query tile.
  struct Consumer {
    const ForwardArguments& args;
    const int consumer;  ///< which, uniform in the warp group
    ForwardTiles<Block> tiles;
    ForwardScores<Block, Score> scores;
    SharedDots<Block> dots;

    HEDDLE_DEVICE Consumer(const ForwardArguments& args, u32 shared, int consumer)
        : args(args),
          consumer(consumer),
          tiles(shared, consumer),
          scores(args),
          dots(shared, consumer) {}

    /// The dot products with the keys at hand, over the consumer's own columns.
    HEDDLE_DEVICE void multiply_keys(Scores& s) {
      tiles.wait_k();
      tile::product_by_steps<T, Block::kTileN, Block::kQkSlices, 2>(
          s, tile::KMajor<typename Block::QTile::Plane>(tiles.operand(tiles.q())),
          tile::KMajor<typename Block::KTile::Plane>(tiles.operand(tiles.k())));
      tiles.release_k();
    }

    /// Weights of `key_tile` from its dot products; sums over earlier keys are brought to its
    /// maxima.
    template <bool kMasked>
    HEDDLE_DEVICE void weigh(const Work& work, int key_tile, Scores& s, Weights& weights,
                             Output& out, Softmax& softmax) {
      float correction[2];
      tiles.wait_tiled();
      scores.template exponentiate<kMasked>(s, work, consumer, key_tile, tiles.tiled(), softmax,
                                            correction);
      tiles.release_tiled();
      FragmentDropout<C::kDropout, Block::kTileN> dropout;
      scores.draw(dropout, work, consumer, key_tile);
      drop_weights(s, args.problem, dropout);
      Base::Consumer::correct_output(out, correction);
      tile::split_fragment<T, Block::kTileN>(weights, s, Block::kWeightUnit);
    }

    HEDDLE_DEVICE void multiply_values(Output& out, const Weights& weights) {
      tiles.wait_v();
      tile::add_product_by_steps<T, Block::kVColumns>(
          out, weights, tile::MnMajor<typename Block::VTile::Plane>(tiles.operand(tiles.v())));
      tiles.release_v();
    }

    template <bool kMasked>
    HEDDLE_DEVICE void step(const Work& work, int key_tile, Output& out, Softmax& softmax) {
      Scores s;
      Weights weights;
      if constexpr (Block::kSharesDots) {
        dots.take(s);
        weigh<kMasked>(work, key_tile, s, weights, out, softmax);
        // Those of the next keys are on their way to the others under the product with values.
        if (key_tile > work.key_begin) leave_dots();
      } else {
        multiply_keys(s);
        weigh<kMasked>(work, key_tile, s, weights, out, softmax);
      }
      multiply_values(out, weights);
    }

    HEDDLE_DEVICE void leave_dots() {
      Scores s;
      multiply_keys(s);
      dots.leave(s);
    }

    HEDDLE_DEVICE void run() {
      for (Work work = tiles.next_work(); work.q_tile >= 0; work = tiles.next_work()) {
        Output out;
        attention::clear(out);
        Softmax softmax;
        if (!work.empty()) scores.scale_for(work);
        scores.reset(softmax);
        tiles.wait_q();
        if (!work.empty()) {
          const int key_end = work.key_end_of(consumer);
          for (int passed = work.key_end - key_end; passed > 0; --passed) {
            tiles.skip_k(1);
            tiles.skip_v(1);
          }
          if constexpr (Block::kSharesDots) leave_dots();
          for (int key_tile = key_end - 1; key_tile >= work.key_begin; --key_tile) {
            // The last tile may reach past the keys.
            if (key_tile + 1 < key_end && work.all_visible(consumer, key_tile))
              step<false>(work, key_tile, out, softmax);
            else
              step<true>(work, key_tile, out, softmax);
          }
          tiles.release_q();
        }
        Epilogue::run(args, tiles, work, scores, out, softmax);
      }
    }
  };

  HEDDLE_DEVICE static void run(const ForwardArguments& args) {
    Base::template run_with<Consumer>(args);
  }
};

}  // namespace heddle::sm90
