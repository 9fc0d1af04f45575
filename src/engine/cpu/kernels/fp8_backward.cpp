#include "engine/cpu/kernels/fp8_attention.h"
#include "engine/cpu/kernels/fp8_tile.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {
namespace {

/// P and dS of query rows against a block of keys, made again for each of the three gradients: none
/// of them is then summed up in memory that grows with the sequences.
class Fp8Scores {
 public:
  Fp8Scores(const Fp8BackwardPass& pass, int64_t b, void* scratch)
      : pass_(pass), a_(pass.a), b_(b), memory_(pass.a, scratch), lengths_(lengths_of(pass.a, b)) {}

  const Fp8Memory& memory() const { return memory_; }
  Lengths lengths() const { return lengths_; }
  float* q() const { return memory_[memory_.at.q]; }
  float* d_o() const { return memory_[memory_.at.d_o]; }
  float* k() const { return memory_[memory_.at.k_rows]; }
  float* result() const { return memory_[memory_.at.result]; }

  void load_queries(int64_t h, int64_t first, int64_t rows) {
    h_ = h, i0_ = first, rows_ = rows;
    float* const o = memory_[memory_.at.o];
    float *const stats = memory_[memory_.at.max], *const row_dot = memory_[memory_.at.row_dot];
    load_rows(*a_.q, b_, h, first, rows, q());
    load_rows(*a_.o, b_, h, first, rows, o);
    load_rows(*pass_.d_o, b_, h, first, rows, d_o());
    for (int64_t i = 0; i < rows; ++i) {
      load_rows(*a_.stats, b_, h, first + i, 1, stats + i);
      float sum = 0;
      for (int64_t d = 0; d < a_.v_dim; ++d) sum += o[i * a_.v_dim + d] * d_o()[i * a_.v_dim + d];
      row_dot[i] = sum * pass_.d_descale;
    }
  }

  void load_keys(int64_t k_head, int64_t v_head, int64_t first, int64_t keys) {
    j0_ = first, keys_ = keys;
    float* const v = memory_[memory_.at.v_rows];
    load_rows(*a_.k, b_, k_head, first, keys, k());
    load_rows(*a_.v, b_, v_head, first, keys, v);
    load_columns(k(), a_.qk_dim, keys, memory_[memory_.at.k_columns]);
    load_columns(v, a_.v_dim, keys, memory_[memory_.at.v_columns]);
  }

  /// Keys of the block that row i sees; none where its weights are 0.
  Interval keys_of(int64_t i) const {
    return memory_[memory_.at.max][i] == -kInfinity ? Interval{0, 0}
                                                    : seen(a_, lengths_, i0_ + i, j0_, keys_);
  }

  /// P of row i, not yet held.
  float* weights(int64_t i) const {
    float* const p = memory_[memory_.at.s];
    const float stats = memory_[memory_.at.max][i];
    dots(q() + i * a_.qk_dim, memory_[memory_.at.k_columns], a_.qk_dim, p);
    // Rounded before the statistic is taken from it, as the forward's was: the row's largest score
    // weighs 1, however large. A product left to the compiler would be part of the difference.
    const SplitFactor scale = split(pass_.score_scale);
    for (int64_t j = 0; j < kFp8Keys; j += kLanes)
      store(p + j, exp(subtract(product(load(p + j), scale), all(stats))));
    return p;
  }

  /// dS of row i as it is held; amax is raised by what it is before.
  const float* gradients(int64_t i, Interval keys, uint32_t& amax) const {
    const float* const p = weights(i);
    float* const d_s = memory_[memory_.at.d_s];
    dots(d_o() + i * a_.v_dim, memory_[memory_.at.v_columns], a_.v_dim, d_s);
    const float row_dot = memory_[memory_.at.row_dot][i];
    for (int64_t j = 0; j < kFp8Keys; ++j)
      d_s[j] = p[j] * (d_s[j] * pass_.d_p_descale - row_dot) * pass_.attn_scale;
    amax = amax_of(d_s + keys.lo, keys.hi - keys.lo, amax);
    hold(pass_.d_s, d_s, kFp8Keys);
    return d_s;
  }

  /// Calls visit(first, count) for each tile of the keys, or of the query rows, that there are.
  template <class Visit>
  static void for_each_tile(int64_t length, int64_t tile, Visit&& visit) {
    for (int64_t first = 0; first < length; first += tile)
      visit(first, smaller(tile, length - first));
  }

 private:
  const Fp8BackwardPass& pass_;
  const AttentionArguments& a_;
  const int64_t b_;
  const Fp8Memory memory_;
  const Lengths lengths_;
  int64_t h_ = 0, i0_ = 0, rows_ = 0, j0_ = 0, keys_ = 0;
};

/// Visits what the keys of a tile have from every query row of the heads that share them.
template <class Visit>
void for_each_query(const Fp8BackwardPass& pass, const Fp8Task& task, int64_t heads, int64_t keys,
                    Fp8Scores& scores, Visit&& visit) {
  const AttentionArguments& a = pass.a;
  const int64_t group = a.q_heads / heads;
  for (int64_t h = task.h * group; h < (task.h + 1) * group; ++h) {
    scores.load_keys(h / (a.q_heads / a.k_heads), h / (a.q_heads / a.v_heads), task.first, keys);
    Fp8Scores::for_each_tile(scores.lengths().q, kFp8Rows, [&](int64_t first, int64_t rows) {
      scores.load_queries(h, first, rows);
      for (int64_t i = 0; i < rows; ++i) {
        const Interval seen_keys = scores.keys_of(i);
        if (seen_keys.lo < seen_keys.hi) visit(i, seen_keys);
      }
    });
  }
}

/// A gradient of a tile of keys, and zeros behind a length.
template <class Add>
void key_side_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, const Fp8Result& result,
                       int64_t heads, int64_t columns, void* scratch, Add&& add) {
  Fp8Scores scores(pass, task.b, scratch);
  const int64_t last = smaller(pass.a.kv_length, task.first + kFp8Keys);
  const int64_t past = larger(task.first, smaller(last, scores.lengths().kv));
  write_zeros_past(result.view, task.b, task.h, past, last);
  const int64_t keys = past - task.first;
  if (keys == 0) return;
  float* const sums = scores.result();
  for (int64_t n = 0; n < keys * columns; ++n) sums[n] = 0;
  for_each_query(pass, task, heads, keys, scores,
                 [&](int64_t i, Interval seen_keys) { add(scores, i, seen_keys, sums); });
  write_result(result, sums, columns, keys, task);
}

}  // namespace

void fp8_query_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch) {
  const AttentionArguments& a = pass.a;
  Fp8Scores scores(pass, task.b, scratch);
  const int64_t last = smaller(a.q_length, task.first + kFp8Rows);
  const int64_t past = larger(task.first, smaller(last, scores.lengths().q));
  write_zeros_past(pass.d_q.view, task.b, task.h, past, last);
  const int64_t rows = past - task.first;
  if (rows == 0) return;
  float* const sums = scores.result();
  for (int64_t n = 0; n < rows * a.qk_dim; ++n) sums[n] = 0;
  scores.load_queries(task.h, task.first, rows);
  uint32_t amax = 0;
  Fp8Scores::for_each_tile(scores.lengths().kv, kFp8Keys, [&](int64_t first, int64_t keys) {
    scores.load_keys(task.h / (a.q_heads / a.k_heads), task.h / (a.q_heads / a.v_heads), first,
                     keys);
    for (int64_t i = 0; i < rows; ++i) {
      const Interval seen_keys = scores.keys_of(i);
      if (seen_keys.lo == seen_keys.hi) continue;
      const float* const d_s = scores.gradients(i, seen_keys, amax);
      for (int64_t j = seen_keys.lo; j < seen_keys.hi; ++j)
        add_row(d_s[j], scores.k() + j * a.qk_dim, a.qk_dim, sums + i * a.qk_dim);
    }
  });
  raise(pass.d_s.amax, amax);
  if (pass.d_q.view) write_result(pass.d_q, sums, a.qk_dim, rows, task);
}

void fp8_key_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch) {
  const int64_t columns = pass.a.qk_dim;
  uint32_t amax = 0;
  key_side_gradient(pass, task, pass.d_k, pass.a.k_heads, columns, scratch,
                    [&](const Fp8Scores& scores, int64_t i, Interval keys, float* sums) {
                      const float* const d_s = scores.gradients(i, keys, amax);
                      for (int64_t j = keys.lo; j < keys.hi; ++j)
                        add_row(d_s[j], scores.q() + i * columns, columns, sums + j * columns);
                    });
}

void fp8_value_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch) {
  const int64_t columns = pass.a.v_dim;
  key_side_gradient(pass, task, pass.d_v, pass.a.v_heads, columns, scratch,
                    [&](const Fp8Scores& scores, int64_t i, Interval keys, float* sums) {
                      float* const p = scores.weights(i);
                      hold(pass.p, p, kFp8Keys);
                      for (int64_t j = keys.lo; j < keys.hi; ++j)
                        add_row(p[j], scores.d_o() + i * columns, columns, sums + j * columns);
                    });
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
