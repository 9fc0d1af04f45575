#include "engine/cpu/kernels/fp8_attention.h"
#include "engine/cpu/kernels/fp8_tile.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {
namespace {

/// A tile of rows. P is held in fp8 once it is divided by its row's sum: keys are visited twice.
class Fp8ForwardTile {
 public:
  Fp8ForwardTile(const Fp8Pass& pass, const Fp8Task& task, void* scratch)
      : pass_(pass),
        a_(pass.a),
        task_(task),
        memory_(pass.a, scratch),
        lengths_(lengths_of(pass.a, task.b)),
        rows_(smaller(kFp8Rows, lengths_.q - task.first)),
        max_(memory_[memory_.at.max]),
        sum_(memory_[memory_.at.sum]),
        o_(memory_[memory_.at.result]) {}

  void run() {
    const int64_t first = task_.first, last = smaller(a_.q_length, first + kFp8Rows);
    const int64_t past = larger(first, smaller(last, lengths_.q));
    write_zeros_past(pass_.o.view, task_.b, task_.h, past, last);
    for (int64_t i = past; a_.stats && !a_.stats->ragged && i < last; ++i)
      write_row_of(*a_.stats, task_.b, task_.h, i, -kInfinity);
    if (rows_ <= 0) return;
    load_rows(*a_.q, task_.b, task_.h, first, rows_, memory_[memory_.at.q]);
    find_maxima();
    find_sums();
    add_values();
    write_result(pass_.o, o_, a_.v_dim, rows_, task_);
    for (int64_t i = 0; a_.stats && i < rows_; ++i) {
      const float stats = max_[i] == -kInfinity ? -kInfinity : max_[i] + __builtin_logf(sum_[i]);
      write_row_of(*a_.stats, task_.b, task_.h, first + i, stats);
    }
  }

 private:
  /// Calls visit(row, scores, keys seen, first key) for each row that sees some of a block of keys,
  /// block by block; before each block begin(first key, keys).
  template <class Begin, class Visit>
  void for_each_row(Begin&& begin, Visit&& visit) {
    const int64_t head = task_.h / (a_.q_heads / a_.k_heads);
    for (int64_t j0 = 0; j0 < lengths_.kv; j0 += kFp8Keys) {
      const int64_t keys = smaller(kFp8Keys, lengths_.kv - j0);
      if (!any_sees(j0, keys)) continue;
      float *const k = memory_[memory_.at.k_rows], *const columns = memory_[memory_.at.k_columns];
      load_rows(*a_.k, task_.b, head, j0, keys, k);
      load_columns(k, a_.qk_dim, keys, columns);
      begin(j0, keys);
      for (int64_t i = 0; i < rows_; ++i) {
        const Interval seen_keys = seen(a_, lengths_, task_.first + i, j0, keys);
        if (seen_keys.lo == seen_keys.hi) continue;
        float* const s = memory_[memory_.at.s];
        dots(memory_[memory_.at.q] + i * a_.qk_dim, columns, a_.qk_dim, s);
        for (int64_t j = 0; j < kFp8Keys; ++j) s[j] *= pass_.score_scale;
        visit(i, s, seen_keys);
      }
    }
  }

  bool any_sees(int64_t j0, int64_t keys) const {
    for (int64_t i = 0; i < rows_; ++i) {
      const Interval keys_seen = seen(a_, lengths_, task_.first + i, j0, keys);
      if (keys_seen.lo < keys_seen.hi) return true;
    }
    return false;
  }

  void find_maxima() {
    for (int64_t i = 0; i < rows_; ++i) max_[i] = -kInfinity;
    for_each_row([](int64_t, int64_t) {},
                 [&](int64_t i, const float* s, Interval keys) {
                   for (int64_t j = keys.lo; j < keys.hi; ++j)
                     max_[i] = s[j] > max_[i] || s[j] != s[j] ? s[j] : max_[i];
                 });
  }

  /// e^(s - max), 0 of keys that are not seen.
  void exponentiate(int64_t i, float* s, Interval keys) const {
    for (int64_t j = 0; j < keys.lo; ++j) s[j] = -kInfinity;
    for (int64_t j = keys.hi; j < kFp8Keys; ++j) s[j] = -kInfinity;
    for (int64_t j = 0; j < kFp8Keys; j += kLanes)
      store(s + j, exp(subtract(load(s + j), all(max_[i]))));
    for (int64_t j = 0; j < keys.lo; ++j) s[j] = 0;
    for (int64_t j = keys.hi; j < kFp8Keys; ++j) s[j] = 0;
  }

  void find_sums() {
    for (int64_t i = 0; i < rows_; ++i) sum_[i] = 0;
    for_each_row([](int64_t, int64_t) {},
                 [&](int64_t i, float* s, Interval keys) {
                   if (max_[i] == -kInfinity) return;  // saw scores of -inf alone
                   exponentiate(i, s, keys);
                   float sum = 0;  // of the block apart, so that a long row's small weights count
                   for (int64_t j = keys.lo; j < keys.hi; ++j) sum += s[j];
                   sum_[i] += sum;
                 });
  }

  void add_values() {
    for (int64_t n = 0; n < rows_ * a_.v_dim; ++n) o_[n] = 0;
    const int64_t head = task_.h / (a_.q_heads / a_.v_heads);
    float* const v = memory_[memory_.at.v_rows];
    uint32_t amax = 0;
    for_each_row([&](int64_t j0, int64_t keys) { load_rows(*a_.v, task_.b, head, j0, keys, v); },
                 [&](int64_t i, float* s, Interval keys) {
                   if (max_[i] == -kInfinity) return;
                   exponentiate(i, s, keys);
                   for (int64_t j = 0; j < kFp8Keys; ++j) s[j] /= sum_[i];
                   amax = amax_of(s + keys.lo, keys.hi - keys.lo, amax);
                   hold(pass_.p, s, kFp8Keys);
                   for (int64_t j = keys.lo; j < keys.hi; ++j)
                     add_row(s[j], v + j * a_.v_dim, a_.v_dim, o_ + i * a_.v_dim);
                 });
    raise(pass_.p.amax, amax);
  }

  const Fp8Pass& pass_;
  const AttentionArguments& a_;
  const Fp8Task& task_;
  const Fp8Memory memory_;
  const Lengths lengths_;
  const int64_t rows_;
  float *max_, *sum_, *o_;
};

}  // namespace

void fp8_forward(const Fp8Pass& pass, const Fp8Task& task, void* scratch) {
  Fp8ForwardTile(pass, task, scratch).run();
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
