// The element-wise part of the Hopper backward: from a warp group's S^T (64 keys, a row each) to
// P^T, and on to dS^T.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/largest.cuh"
#include "../ptx/math.cuh"
#include "../ptx/shared.cuh"
#include "../tile/fragment.cuh"
#include "backward_block.cuh"

namespace heddle::sm90 {

/// A thread's view of a warp group's keys, and of the queries that see them.
template <class Block>
struct BackwardBand {
  using C = typename Block::C;
  static constexpr int kTileM = Block::kTileM, kTileN = Block::kTileN;
  /// Whether each step looks at q_length where parameters are: of a causal mask beside dropout a
  /// register for it spilled 16 bytes, and without a mask it is the other way round.
  static constexpr bool kEndsByParameter = C::kUpperVaries && !C::kLengths;
  static constexpr int kThreefryUnrolled = C::kPlanes > 1 ? 1 : 8;  ///< f32's spilled

  const BackwardArguments& args;
  const BackwardWork& work;
  const int thread;             ///< of the warp group
  const int first_key;          ///< of the thread's two; the other is 8 further
  int whole_begin, whole_end;   ///< tiles of queries within these rows need no selection
  int first_query, last_query;  ///< that see first_key, less the thread's first column
  u32 keys_seen;                ///< bit h: the thread's key h lies within the constant bounds
  const attention::DropoutKey dropout_key;

  /// `group_key` is the first of the group's 64 keys.
  HEDDLE_DEVICE BackwardBand(const BackwardArguments& args, const BackwardWork& work, int group_key)
      : args(args),
        work(work),
        thread(threadIdx.x % 128),
        first_key(group_key + tile::fragment_row(thread, 0)),
        dropout_key(args.problem.forward, C::kDropout) {
    const attention::BatchBounds& keys = work.keys;
    const bool keys_within = work.key0 >= keys.lower && work.key0 + kTileN <= keys.upper;
    whole_begin = C::kUpperVaries ? work.key0 + kTileN - keys.upper_diagonal : 0;
    whole_end = kEndsByParameter ? round_up(work.q_length, kTileM) : q_length();
    if constexpr (C::kLowerVaries)
      whole_end = min_of(whole_end, work.key0 - keys.lower_diagonal + 1);
    if (!keys_within) whole_end = 0;
    first_query = first_key - tile::fragment_column(thread) - keys.upper_diagonal + 1;
    last_query = first_key - tile::fragment_column(thread) - keys.lower_diagonal;
    keys_seen = 0;
    for (int h = 0; h < 2; ++h)
      if (first_key + 8 * h >= keys.lower && first_key + 8 * h < keys.upper) keys_seen |= 1 << h;
  }

  /// Whether all queries of the tile from row0 see all keys: it needs no selection.
  HEDDLE_DEVICE bool whole(int row0) const {
    return !(row0 < whole_begin || row0 + kTileM > whole_end) &&
           (!kEndsByParameter || row0 + kTileM <= q_length());
  }

  /// Value n of the fragment, for the tile of queries from row0: what cells past an end would load
  /// may not exist, they stand in for the last ones.
  HEDDLE_DEVICE GradientCell cell(float dot, int n, int row0, int head, float tiled) const {
    const int row = row0 + tile::fragment_column(thread) + tile::fragment_column_step(n);
    const int key = first_key + 8 * tile::fragment_half(n);
    return {dot,
            min_of(row, work.q_length - 1),
            min_of(key, work.kv_length - 1),
            work.batch,
            head,
            work.q_length,
            work.kv_length,
            args.problem.forward.loads,
            1.0f,
            tiled};
  }

  /// Without lengths a parameter, which takes no register.
  HEDDLE_DEVICE int q_length() const {
    return C::kLengths ? work.q_length : args.problem.forward.q_length;
  }

  /// Calls each(i, visible) for the thread's scores of the tile from row0. Rows past the last one
  /// see nothing: their scores, of zeroes beside what scores read, may be NaN.
  template <class Each>
  HEDDLE_DEVICE void each_cell(int row0, Each each) const {
    int first[2], last[2];  // of the queries that see each key, from the thread's first column
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      first[h] = first_query + 8 * h - row0;
      last[h] = kTileM;
      if constexpr (C::kLowerVaries) last[h] = last_query + 8 * h - row0;
      last[h] = min_of(last[h], q_length() - 1 - row0 - tile::fragment_column(thread));
      if ((keys_seen >> h & 1) == 0) last[h] = -1;
    }
#pragma unroll
    for (int i = 0; i < kTileM / 2; ++i) {
      const int query = tile::fragment_column_step(i), h = tile::fragment_half(i);
      bool visible = query <= last[h];
      if constexpr (C::kUpperVaries) visible = visible && query >= first[h];
      each(i, visible);
    }
  }

  /// Calls use(k, kept) for the slices k of 16 queries of the tile: `kept` has 0xffff for values of
  /// the fragment, in the order of pack_fragment, that dropout keeps, and 0 for others.
  template <class Use>
  HEDDLE_DEVICE void each_kept(const typename Block::Step& at, Use use) const {
    const attention::ForwardParameters& p = args.problem.forward;
    const attention::DropoutBits<C::kDropout> bits(p, dropout_key, work.batch, at.head);
    const int first_row = at.tile * kTileM + tile::fragment_column(thread);
    if constexpr (C::kDropout == attention::Dropout::philox) {
      // An evaluation serves two rows and four keys, which two lanes hold. Each evaluates one of
      // the two queries it has of every eight, for both, and sends what the other's keys get.
      const bool odd = thread / 4 % 2 != 0;
      const u32 theirs = odd ? 0x5410 : 0x7632;
      const u32 join[2] = {odd ? 0x3254u : 0x5410u, odd ? 0x3276u : 0x7610u};
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        const attention::Words4 words = bits.words(first_row + 16 * k + odd, first_key & ~1);
        u32 own[4], kept[4];  // own: query half + 2 * key half, kept: key half + 2 * query half
#pragma unroll
        for (int i = 0; i < 4; ++i)
          own[i] = attention::kept_halves(p, bits.low_halves(words.word[i]));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 sent = __byte_perm(own[2 * half], own[2 * half + 1], theirs);
          const u32 got = __shfl_xor_sync(0xffffffffu, sent, 4);
          kept[half] = __byte_perm(own[2 * half], got, join[0]);
          kept[half + 2] = __byte_perm(own[2 * half + 1], got, join[1]);
        }
        use(k, kept);
      }
    } else if constexpr (C::kDropout == attention::Dropout::threefry) {
      u32 bit = 0;  // n: whether value n is kept
#pragma unroll kThreefryUnrolled
      for (int n = 0; n < kTileM / 2; n += 4) {
        u32 four = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (bits.keeps(first_row + tile::fragment_column_step(n) + i % 2,
                         first_key + 8 * (i / 2)))
            four |= 1u << i;
        bit |= four << n;
      }
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
        u32 kept[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 two = bit >> (8 * k + 2 * i);
          kept[i] = (two & 1 ? 0x0000ffffu : 0) | (two & 2 ? 0xffff0000u : 0);
        }
        use(k, kept);
      }
    }
  }
};

/// Takes scores of two queries side by side to the exponents of their weights.
template <class Block, class Score>
struct RowExponents {
  static constexpr bool kApart = Block::C::kMaxAndSum;
  static constexpr float kToLog2 = Block::kToLog2;
  /// -log-sum-exps in log2 units or, with kApart, what lies where the maximum and the sum do.
  float lse[2], log2_sum[2];

  HEDDLE_DEVICE void load(u32 address) {
    ptx::load_shared(address, lse[0], lse[1]);
    if constexpr (kApart) ptx::load_shared(address + Block::kRowBytes, log2_sum[0], log2_sum[1]);
  }
  HEDDLE_DEVICE float of_dot(float dot, float scale, int e) const {
    if constexpr (!kApart) return ptx::fma(dot, scale * kToLog2, lse[e]);
    return of_score(__fmul_rn(dot, scale), e);
  }
  HEDDLE_DEVICE float of_score(float score, int e) const {
    if constexpr (!kApart) return ptx::fma(score, kToLog2, lse[e]);
    return attention::weight_exponent<Block::template kMost<Score>>(score + lse[e], kToLog2,
                                                                    log2_sum[e]);
  }
  /// What a score adds to is rounded, as by the forward: fused, it would be another score.
  HEDDLE_DEVICE static float scaled(float dot, float scale) {
    if constexpr (kApart) return __fmul_rn(dot, scale);
    return dot * scale;
  }
};

/// The scores of a warp group's keys. Score: kIdentity, or a static value(Cell) -> f32 score
/// of one cell, in natural units (log2 units with kInputIsLog2). Derivative: a static
/// value(GradientCell), dL/d(scaled dot), linear in `gradient`.
template <class Block, class Score, class Derivative>
struct BackwardScores : BackwardBand<Block> {
  using Band = BackwardBand<Block>;
  using Band::args;
  using Band::first_key;
  using Band::kTileM;
  using Band::thread;
  using Band::work;
  using typename Band::C;
  using T = typename Block::T;
  /// Whether each P is rounded as it is computed or all at the end: as ptxas finds registers.
  static constexpr bool kPackEarly = (!Score::kIdentity || C::kDrops) && kTileM == 64;
  /// Whether dS has another factor than dV: P o slope, before dropout.
  static constexpr bool kWeighs = !C::kUnitSlope || C::kDrops;
  static_assert(!C::kDrops || (kTileM == 64 && C::kUnitSlope));

  const float scale;
  float s[kTileM / 2];
  u32 probability[kTileM / 16][4];
  u32 weight[kWeighs ? kTileM / 16 : 1][4];  ///< P o slope

  /// `group_key` is the first of the group's 64 keys.
  HEDDLE_DEVICE BackwardScores(const BackwardArguments& args, const BackwardWork& work,
                               int group_key)
      : Band(args, work, group_key), scale(Block::scale_of(args)) {}

  /// Zeroes what the mask hides of P^T for the queries from row0.
  HEDDLE_DEVICE void select(int row0) {
    this->each_cell(row0, [&](int i, bool visible) {
      const u32 mask = visible ? 0xffffffffu : i % 2 ? 0x0000ffffu : 0xffff0000u;
      if constexpr (kPackEarly)
        probability[i / 8][i % 8 / 2] &= mask;
      else
        s[i] = visible ? s[i] : 0.0f;
      if constexpr (kWeighs) weight[i / 8][i % 8 / 2] &= mask;
    });
  }

  /// S^T to P^T, rounded to operands. `lse` is where the step's statistics lie, `tiled` (if
  /// kTiled) what the score reads of its cells. With kSigns factors that dropout drops get a sign.
  template <bool kSigns = false>
  HEDDLE_DEVICE void exponentiate(u32 lse, const typename Block::Step& at,
                                  typename Block::Tiles::ColumnReader* tiled = nullptr) {
    const int row0 = at.tile * kTileM;
    lse += tile::fragment_column(thread) * 4;
#pragma unroll
    for (int k = 0; k < kTileM / 16; ++k) {
      if constexpr (Block::Tiles::kThere) tiled->take(k);
      RowExponents<Block, Score> rows;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i % 2 == 0) rows.load(lse + 64 * k + 16 * i);
        float slope[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int n = 8 * k + 2 * i + e;
          if constexpr (Score::kIdentity) {
            s[n] = ptx::exp2(rows.of_dot(s[n], scale, e));
          } else {
            const GradientCell cell = this->cell(rows.scaled(s[n], scale), n, row0, at.head,
                                                 Block::Tiles::kThere ? tiled->at(n) : 0.0f);
            const float x = Score::value(cell);
            if constexpr (!C::kUnitSlope) slope[e] = Derivative::value(cell);
            s[n] = ptx::exp2(rows.of_score(x, e));
          }
        }
        const float p0 = s[8 * k + 2 * i], p1 = s[8 * k + 2 * i + 1];
        if constexpr (kPackEarly) probability[k][i] = ptx::pack<T>(p0, p1);
        if constexpr (!C::kUnitSlope)
          weight[k][i] = ptx::pack<T>(p0 * slope[0], p1 * slope[1]);
        else if constexpr (kWeighs)
          weight[k][i] = probability[k][i];
      }
    }
    if (!this->whole(row0)) select(row0);
    if constexpr (!kPackEarly) tile::pack_fragment<T, kTileM>(probability, s);
    // The factor on what dropout keeps is for the end.
    this->each_kept(at, [&](int k, const u32(&kept)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        probability[k][i] &= kept[i];
        if constexpr (kSigns) weight[k][i] |= ~kept[i] & 0x80008000;
      }
    });
  }

  /// Slice k of P o slope: what dP - delta is multiplied with.
  HEDDLE_DEVICE const u32 (&factor(int k) const)[4] {
    if constexpr (kWeighs)
      return weight[k];
    else
      return probability[k];
  }
};

/// dS of a pair of cells, in f32: factor o (dP - delta). With dropout `factor` is P as softmax left
/// it and `probability` what is left of it; keep_scale is the factor on that.
template <class Config>
HEDDLE_DEVICE void differentiate_pair(float (&d_s)[2], u32 factor, u32 probability, float d_p0,
                                      float d_p1, const float (&delta)[2], float keep_scale) {
  using T = typename Config::Element;
  float p0, p1;
  ptx::unpack<T>(factor, p0, p1);
  if constexpr (Config::kDrops) {
    float kept0, kept1;
    ptx::unpack<T>(probability, kept0, kept1);
    d_s[0] = ptx::fma(kept0, d_p0 * keep_scale, -p0 * delta[0]);
    d_s[1] = ptx::fma(kept1, d_p1 * keep_scale, -p1 * delta[1]);
  } else {
    d_s[0] = p0 * (d_p0 - delta[0]);
    d_s[1] = p1 * (d_p1 - delta[1]);
  }
}

/// Slice k of dS, as an operand. `delta` is where the step's deltas lie; `largest` grows to its
/// largest magnitude, if somebody asks.
template <class Config, int kCount>
HEDDLE_DEVICE void differentiate_slice(u32 (&d_s)[4], const u32 (&factor)[4],
                                       const u32 (&probability)[4], const float (&d_p)[kCount],
                                       u32 delta, int k, float keep_scale, u32& largest) {
  float row_delta[2], pair[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i % 2 == 0) ptx::load_shared(delta + 64 * k + 16 * i, row_delta[0], row_delta[1]);
    differentiate_pair<Config>(pair, factor[i], probability[i], d_p[8 * k + 2 * i],
                               d_p[8 * k + 2 * i + 1], row_delta, keep_scale);
    if constexpr (attention::kArgumentLayout.largest_gradient)
      largest = attention::larger(
          largest, attention::larger(attention::magnitude(pair[0]), attention::magnitude(pair[1])));
    d_s[i] = ptx::pack<typename Config::Element>(pair[0], pair[1]);
  }
}

/// Of dS of a warp, to that of dL/d(Q K^T) of all.
template <class Block>
HEDDLE_DEVICE void raise_largest(const BackwardArguments& args, u32 largest) {
  if constexpr (attention::kArgumentLayout.largest_gradient)
    attention::raise(
        args.problem.largest_d_dot,
        attention::magnitude(__uint_as_float(largest) * Block::scale_of(args) * Block::kOfSlope));
}

}  // namespace heddle::sm90
