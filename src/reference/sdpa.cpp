#include <cmath>
#include <limits>

#include "reference/attention.h"
#include "reference/ops.h"
#include "reference/softmax.h"

namespace heddle::reference {

using graph::kNone;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A row's statistics, where the caller wants them.
void write_statistics(const graph::Sdpa& op, const Softmax& row, int64_t b, int64_t h, int64_t i,
                      Values& values) {
  const double unit = op.stats_use_log2 ? std::log2(std::exp(1)) : 1;
  values.write(op.stats, row.log_sum_exp() * unit, b, h, i, 0);
  values.write(op.max, row.max, b, h, i, 0);
  values.write(op.sum_exp, row.sum, b, h, i, 0);
}

/// A row of what the softmax is of, or of its result; 0 of keys that weigh nothing.
void write_scores(const graph::Sdpa& op, const double* score, const Softmax& row, const Cell& cell,
                  int64_t keys, int64_t columns, Values& values) {
  if (op.scores == kNone) return;
  for (int64_t j = 0; j < columns; ++j) {
    const bool weighs = j < keys && score[j] != -kInfinity;
    const double value = !weighs                   ? 0
                         : op.scores_after_softmax ? row.probability[static_cast<size_t>(j)]
                                                   : score[j];
    values.write(op.scores, value, cell.b, cell.h, cell.i, j);
  }
}

bool is_ragged(graph::TensorId id, const Values& values) {
  return id != kNone && values.tensor(id).ragged_offset != kNone;
}

/// Rows past len_q: O = 0, Stats = Max = -inf, Sum_exp = 0; untouched where the tensor is ragged.
void write_padded_row(const graph::Sdpa& op, int64_t b, int64_t h, int64_t i, Values& values) {
  const auto write = [&](graph::TensorId id, double value) {
    if (id == kNone || is_ragged(id, values)) return;
    for (int64_t d = 0; d < values.tensor(id).dims[3]; ++d) values.write(id, value, b, h, i, d);
  };
  write(op.o, 0);
  write(op.stats, -kInfinity);
  write(op.max, -kInfinity);
  write(op.sum_exp, 0);
  write(op.scores, 0);
}

}  // namespace

void sdpa(const graph::Sdpa& op, Values& values) {
  const Attention a = attention(op, values);
  const Precision round = values.precision();
  for (int64_t b = 0; b < a.batch; ++b) {
    const Lengths lengths = lengths_of(a, b, values);
    for (int64_t h = 0; h < a.q_heads; ++h) {
      const Matrix q = values.rows(op.q, b, h, lengths.q);
      const Matrix k = rows_of(a.k, b, a.k_head(h), lengths.kv, values);
      const Matrix v = rows_of(a.v, b, a.v_head(h), lengths.kv, values);
      const Matrix score = scores_of(a, b, h, lengths, q, k, values).score;
      const bool has_sink = op.attention.sink != kNone;
      const double sink = has_sink ? values.read(op.attention.sink, 0, h) : -kInfinity;
      for (int64_t i = 0; i < lengths.q; ++i) {
        const Softmax row = softmax(score.row(i), lengths.kv, sink, round);
        // NaN of no keys too, beside a sink that is.
        std::vector<double> o(static_cast<size_t>(v.columns), std::isnan(row.sum) ? row.sum : 0);
        for (int64_t j = 0; j < lengths.kv; ++j) {
          if (row.probability[j] == 0) continue;
          const double p = round(row.probability[j] * dropout_factor(a, {b, h, i, j}, values));
          add_multiple(o.data(), p, v.row(j), v.columns, round);
        }
        for (int64_t d = 0; d < v.columns; ++d) values.write(op.o, o[d], b, h, i, d);
        write_statistics(op, row, b, h, i, values);
        write_scores(op, score.row(i), row, {b, h, i, 0}, lengths.kv, a.kv_length, values);
      }
      for (int64_t i = lengths.q; i < a.q_length; ++i) write_padded_row(op, b, h, i, values);
    }
  }
  write_rng_dump(a, values);
}

}  // namespace heddle::reference
