// The scores of an attention, or their probabilities before dropout, written to memory: beside
// attention_forward.cuh, of whose blocks these are, for who asks for that matrix itself.
//
// Probabilities want a row's maximum and sum first, so keys are passed by twice; twice alike, so
// that no weight is above 1.
#pragma once

#include "attention_forward.cuh"

namespace heddle::sm80 {

/// T is what is written.
template <class Config, class Score, typename T, bool kAfterSoftmax>
struct ScoreOutput : AttentionForward<Config, Score> {
  using Base = AttentionForward<Config, Score>;
  using Base::batch;
  using Base::first_row;
  using Base::head;
  using Base::key;
  using Base::kv_length;
  using Base::lane;
  using Base::p;
  using Base::q_length;
  using Base::rows;
  using Base::warp;
  using typename Base::Queries;
  using typename Base::Scores;
  using typename Base::Seen;
  using typename Base::Softmax;

  static_assert(Base::kParts == 1, "there are no sums to have columns of");

  HEDDLE_DEVICE ScoreOutput(const ForwardParameters& parameters, u32 shared)
      : Base(parameters, shared) {}

  /// A tile's, by all threads.
  HEDDLE_DEVICE void compute(Scores& s, int tile, const Queries& queries, const Seen& seen) const {
    __syncthreads();
    this->load_keys(tile);
    ptx::copy_async_wait<0>();
    __syncthreads();
    this->multiply_keys(s, queries, key);
    this->score(s, tile * Base::kTileN, seen);
  }

  /// Of those that are in memory, keys past a length too.
  HEDDLE_DEVICE void store(const Scores& s, int tile) const {
    const int column0 = tile * Base::kTileN + tile::fragment_column(lane);
#pragma unroll
    for (int n = 0; n < Base::kTileN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = rows[i / 2], column = column0 + 8 * n + i % 2;
        if (row >= p.q_length || column >= p.kv_length) continue;
        T* const target = attention::element_pointer<T>(p.scores, batch, head, row, column);
        if constexpr (is_same<T, float>)
          *target = s[n][i];
        else
          target->bits = static_cast<u16>(ptx::pack<T>(s[n][i], 0.0f));
      }
    }
  }

  HEDDLE_DEVICE void run(int* interval_lo) const {
    this->load_queries();
    const Seen seen(p, interval_lo, first_row, warp, q_length, kv_length);
    ptx::copy_async_wait<0>();
    __syncthreads();
    Queries queries;
    this->fetch(queries);
    float top[2], factor[2];
    if constexpr (kAfterSoftmax) {
      Softmax softmax;
      softmax.reset();
      for (int tile = this->computed_from(seen.begin, seen.end); tile < seen.end;
           tile = this->computed_from(tile + 1, seen.end)) {
        Scores s = {};
        float correction[2];
        compute(s, tile, queries, seen);
        softmax.update(flat(s), Base::kToLog2, correction);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half] = softmax.reference[half];
        factor[half] = attention::end_row<Base::kExact, Config::kInputIsLog2>(
                           p, batch, head, rows[half], rows[half] < q_length, false,
                           {top[half], softmax.total(half)})
                           .factor;
      }
    }
    const int tiles = ceil_div(p.kv_length, Base::kTileN);
    int computed = this->computed_from(seen.begin, seen.end);
    for (int tile = 0; tile < tiles; ++tile) {
      Scores s = {};
      if (tile == computed && tile < seen.end) {
        compute(s, tile, queries, seen);
        computed = this->computed_from(tile + 1, seen.end);
        to_values(s, top, factor);
      }
      store(s, tile);
    }
  }

 private:
  /// Scores as they are written: natural ones, or probabilities; 0 of what no row sees.
  HEDDLE_DEVICE void to_values(Scores& s, const float (&top)[2], const float (&factor)[2]) const {
#pragma unroll
    for (int n = 0; n < Base::kTileN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[n][i];
        // Rows past the sequence come along with a whole tile.
        const bool counts = x != kMinusInfinity && rows[i / 2] < q_length;
        if constexpr (kAfterSoftmax)
          x = ptx::exp2((x - top[i / 2]) * Base::kToLog2) * factor[i / 2];
        else if constexpr (Config::kInputIsLog2)
          x *= kLn2;
        if (!counts) x = 0;
      }
    }
  }
};

template <class Config, class Score, typename T, bool kAfterSoftmax>
HEDDLE_DEVICE void score_output(const ForwardParameters& p) {
  extern __shared__ __align__(1024) u8 shared[];
  using Output = ScoreOutput<Config, Score, T, kAfterSoftmax>;
  Output(p, shared_address(shared)).run(reinterpret_cast<int*>(shared + Output::kAt.intervals));
}

}  // namespace heddle::sm80
