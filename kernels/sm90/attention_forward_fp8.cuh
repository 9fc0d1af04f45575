// Attention forward on Hopper of fp8 (e4m3) operands: attention_forward.cuh's block, whose tiles of
// 16-bit elements hold pairs of fp8, and fp8_values.cuh's values.
//
// The tensor core's sums of fp8 products keep about 14 bits. A score is one sum of at most 128
// terms; of P V each key tile is a sum of its own, which is added to O in f32 (as many instructions
// as correcting O for a new maximum takes anyway: both are one FFMA).
//
// Weights are held as 2^kLift times what they are beside their row's maximum so far: below the
// largest e4m3, and normal numbers down to 2^-14 of the maximum. So scale_s and descale_s are but
// factors of O, and no weight saturates.
#pragma once

#include "../attention/largest.cuh"
#include "../ptx/wgmma_fp8.cuh"
#include "attention_forward.cuh"
#include "fp8_arguments.h"
#include "fp8_rows.cuh"

namespace heddle::sm90 {

/// Config: element f8e4m3, qk_dim and v_dim in pairs of fp8 of a row of K and of a value tile.
template <class Config, int kVDim>
struct AttentionForwardFp8 : AttentionForward<Config> {
  using Base = AttentionForward<Config>;
  static constexpr int kLift = 8;
  struct Block : Base::Block {
    using Softmax = attention::OnlineSoftmax<0, false, true, kLift>;
    static constexpr bool kLog2References = true;
  };
  using C = typename Block::C;
  using Softmax = typename Block::Softmax;
  using Epilogue = ForwardEpilogue<Block>;
  using Work = ForwardWork<Block>;
  static constexpr int kTileN = Block::kTileN;
  static_assert(kTileN == kFp8Keys && C::kVDim == kFp8Keys / 2 && kVDim <= kFp8ValueRows);
  static_assert(Block::kPlain && C::kQStages == 1 && C::kTakeTurns && !C::kUpwards);

  using Scores = float[kTileN / 2];
  using Output = float[kVDim / 2];
  using Weights = u32[kTileN / 32][4];

  /// One consumer warp group: 64 rows of each query tile.
  struct Consumer {
    const Fp8ForwardArguments& args;
    const int consumer;  ///< which, uniform in the warp group
    ForwardTiles<Block> tiles;
    float scale;         ///< from dots of codes to scores in log2 units
    bool scales_scores;  ///< if not positive and normal, before the maximum is taken
    bool may_be_large;   ///< scores, of the largest codes

    HEDDLE_DEVICE Consumer(const ForwardArguments& forward, u32 shared, int consumer)
        : args(static_cast<const Fp8ForwardArguments&>(forward)),
          consumer(consumer),
          tiles(shared, consumer) {
      const attention::ForwardParameters& p = args.problem;
      scale = (p.scale_operand != nullptr ? *p.scale_operand : p.scale) * attention::kLog2E *
              (*args.descale_q * *args.descale_k);
      // Of a subnormal one an FFMA takes 0, and of a hidden key -inf times that.
      scales_scores = !(scale >= 0x1p-126f);
      constexpr float kLargestDot = 2 * C::kQkDim * ptx::kLargestE4m3 * ptx::kLargestE4m3;
      may_be_large = !(fabsf(scale) * kLargestDot < Softmax::kLargestRounded - kLift);
    }

    /// From scores as the softmax has them to log2 units.
    HEDDLE_DEVICE float score_unit() const { return scales_scores ? 1.0f : scale; }

    HEDDLE_DEVICE void wait_turn() const { ptx::barrier_sync(Block::kTurnBarrier + consumer, 256); }
    HEDDLE_DEVICE void pass_turn() const {
      ptx::barrier_arrive(Block::kTurnBarrier + (consumer + 1 == C::kConsumers ? 0 : consumer + 1),
                          256);
    }

    /// s = Q K^T of codes, for the tiles at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_scores(Scores& s) const {
      const tile::KMajor<typename Block::QTile> q(tiles.q());
      const tile::KMajor<typename Block::KTile> k(tiles.k());
      ptx::wgmma_fence();
#pragma unroll
      for (int n = 0; n < Block::kQkSlices; ++n)
        ptx::WgmmaE4m3<kTileN>::ss(s, q.slice(n), k.slice(n), n > 0);
      ptx::wgmma_commit();
    }

    /// part = P V of codes, for the V tile at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_part(Output& part, const Weights& weights) const {
      const tile::KMajor<typename Block::VTile> v(tiles.v());
      ptx::wgmma_fence();
#pragma unroll
      for (int n = 0; n < kTileN / 32; ++n)
        ptx::WgmmaE4m3<kVDim>::rs(part, weights[n], v.slice(n), n > 0);
      ptx::wgmma_commit();
    }

    template <bool kMasked>
    HEDDLE_DEVICE void exponentiate(Scores& s, const Work& work, int key_tile, Softmax& softmax,
                                    float (&correction)[2]) const {
      if (scales_scores) {
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i) s[i] *= scale;
      }
      if constexpr (kMasked) {
        const int thread = threadIdx.x % 128;
        const int first_key = key_tile * kTileN + tile::fragment_column(thread);
        int lo[2], hi[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = work.first_row(consumer) + tile::fragment_row(thread, h);
          lo[h] = work.keys.lo(row) - first_key;
          hi[h] = (Block::kRowsEnd && row >= work.q_length ? 0 : work.keys.hi(row)) - first_key;
        }
        attention::mask_scores(s, lo, hi, C::kLowerVaries || work.keys.bounds.lower > 0);
      }
      softmax.update_dots(s, score_unit(), correction, may_be_large);
    }

    /// A thread's pairs of columns of each 8 become runs of four: fp8_values.cuh.
    HEDDLE_DEVICE static void pack(Weights& weights, const Scores& s) {
#pragma unroll
      for (int n = 0; n < kTileN / 32; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const at = s + 16 * n + i / 2 * 8 + i % 2 * 2;
          weights[n][i] = ptx::pack_e4m3(at[0], at[1]) | ptx::pack_e4m3(at[4], at[5]) << 16;
        }
      }
    }

    /// A sum of a key tile's own is added to O, which its weights' maximum corrects.
    HEDDLE_DEVICE static void add(Output& out, const Output& part, const float (&correction)[2]) {
#pragma unroll
      for (int i = 0; i < kVDim / 2; ++i)
        out[i] = ptx::fma(out[i], correction[tile::fragment_half(i)], part[i]);
    }

    /// Weights of the first key tile, with nothing to hide them behind.
    HEDDLE_DEVICE void start(const Work& work, Weights& weights, Softmax& softmax,
                             float (&correction)[2]) {
      Scores s;
      tiles.skip_k(work.others(consumer));
      tiles.wait_k();
      issue_scores(s);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      tiles.release_k();
      exponentiate<true>(s, work, work.first_key_tile(consumer), softmax, correction);
      pack(weights, s);
      tiles.skip_v(work.others(consumer));
    }

    /// The previous key tile's P V, and the weights of `key_tile`. A consumer has the tensor core
    /// to itself until both products are there: its softmax then runs under the other's products.
    template <bool kMasked>
    HEDDLE_DEVICE void step(const Work& work, int key_tile, Output& out, Weights& weights,
                            Softmax& softmax, float (&correction)[2]) {
      Scores s;
      Output part;
      tiles.wait_k();
      tiles.wait_v();
      wait_turn();
      issue_scores(s);
      issue_part(part, weights);
      ptx::wgmma_wait<0>();
      pass_turn();
      ptx::pin(s);
      ptx::pin(part);
      tiles.release_k();
      tiles.release_v();
      add(out, part, correction);
      exponentiate<kMasked>(s, work, key_tile, softmax, correction);
      pack(weights, s);
    }

    HEDDLE_DEVICE void meet(const Work& work, Output& out, Softmax& softmax) {
      Weights weights;
      float correction[2];
      start(work, weights, softmax, correction);
      const int past = work.past_key_tile(consumer);
      for (int key_tile = work.first_key_tile(consumer) - 1; key_tile != past; --key_tile) {
        if (work.all_visible(consumer, key_tile))
          step<false>(work, key_tile, out, weights, softmax, correction);
        else
          step<true>(work, key_tile, out, weights, softmax, correction);
      }
      tiles.release_q();
      Output part;
      tiles.wait_v();
      issue_part(part, weights);
      ptx::wgmma_wait<0>();
      ptx::pin(part);
      tiles.release_v();
      add(out, part, correction);
    }

    HEDDLE_DEVICE void run() {
      if (consumer == C::kConsumers - 1) pass_turn();  // the first turn is consumer 0's
      for (Work work = tiles.next_work(); work.q_tile >= 0; work = tiles.next_work()) {
        Output out;
        attention::clear(out);
        Softmax softmax;
        softmax.reset();
        tiles.wait_q();
        if (work.empty()) {
          __syncwarp();  // a lane that still waits would miss the next tile but one
          tiles.release_q();
        } else {
          meet(work, out, softmax);
        }
        finish(work, out, softmax);
      }
    }

    /// As ForwardScores has it: what a row's terms came to, `sum` in all.
    HEDDLE_DEVICE attention::RowTerms terms_of(const Work&, const Softmax& softmax, int h,
                                               float sum) const {
      if (sum == 0.0f) return {attention::minus_infinity(), 0.0f};
      return {ptx::fma(softmax.reference[h], score_unit(), -kLift), sum};
    }

    /// Writes the row statistics and O, and raises the largest magnitudes.
    HEDDLE_DEVICE void finish(const Work& work, Output& out, const Softmax& softmax) const {
      float factor[2];
      Epilogue::finish(args, work, consumer, *this, softmax, factor);
      const float descale =
          scale_at(args.scale_s) * scale_at(args.descale_s) * scale_at(args.descale_v);
      const float scale_o = scale_at(args.scale_o);
      const int thread = threadIdx.x % 128;
      u32 most_p = 0, most_o = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = work.first_row(consumer) + tile::fragment_row(thread, h);
        const bool exists = row < args.problem.q_length;
        if (exists)
          most_p = attention::larger(most_p, attention::magnitude(factor[h] * (1 << kLift)));
#pragma unroll
        for (int i = 2 * h; i < kVDim / 2; i += 4) {
#pragma unroll
          for (int j = i; j < i + 2; ++j) {
            // Not multiplied by 0: a value that the row does not see may be no number.
            out[j] = factor[h] == 0.0f ? 0.0f : out[j] * factor[h] * descale;
            if (exists) most_o = attention::larger(most_o, attention::magnitude(out[j]));
          }
        }
        u8* const to =
            attention::element_pointer<u8>(args.problem.o, work.batch, work.head, row, 0);
        store_fp8_row<kVDim>(to, exists, out, h, scale_o);
      }
      attention::raise(args.amax_s, most_p);
      attention::raise(args.amax_o, most_o);
    }
  };

  HEDDLE_DEVICE static void run(const Fp8ForwardArguments& args) {
    Base::template run_with<Consumer>(args);
  }
};

}  // namespace heddle::sm90
