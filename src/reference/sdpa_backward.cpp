#include <cmath>
#include <limits>
#include <optional>

#include "core/lost_weights.h"
#include "graph/score_reads.h"
#include "reference/attention.h"
#include "reference/ops.h"

namespace heddle::reference {

using graph::kNone;

namespace {

/// Zero over the whole tensor, except past the ends of ragged sequences, which are not written.
void write_zeros(graph::TensorId id, const Attention& a, Values& values, bool is_query_side) {
  if (id == kNone) return;
  const graph::Tensor& tensor = values.tensor(id);
  for (int64_t b = 0; b < tensor.dims[0]; ++b) {
    const Lengths lengths = lengths_of(a, b, values);
    const int64_t length = is_query_side ? lengths.q : lengths.kv;
    const int64_t rows = tensor.ragged_offset != kNone ? length : tensor.dims[2];
    for (int64_t h = 0; h < tensor.dims[1]; ++h) {
      for (int64_t s = 0; s < rows; ++s) {
        for (int64_t d = 0; d < tensor.dims[3]; ++d) values.write(id, 0, b, h, s, d);
      }
    }
  }
}

/// What the forward pass left of one row: its largest score and the sum of exponentials beside it.
struct RowStatistics {
  double max, sum;

  double probability(double score) const { return std::exp(score - max) / sum; }
};

/// Nothing for a row whose P is 0: no key is visible, or Stats cannot tell what its keys weigh.
std::optional<RowStatistics> statistics_of(const graph::SdpaBackward& op, int64_t b, int64_t h,
                                           int64_t i, const Values& values) {
  const bool pair = op.stats == kNone;
  const double largest = values.read(pair ? op.max : op.stats, b, h, i);
  if (largest == -std::numeric_limits<double>::infinity()) return {};
  if (pair) return RowStatistics{largest, values.read(op.sum_exp, b, h, i)};
  const bool in_f64 = values.tensor(op.stats).dtype == DataType::f64;
  const bool plain_scores =
      !op.attention.score_mod && op.attention.bias == kNone && !op.attention.alibi_mask;
  if (!plain_scores && weights_are_lost(largest, in_f64)) return {};
  return RowStatistics{largest, 1};
}

/// dL/d(attn_scale Q K^T) of a cell from dL/d(score), in natural units.
double through_score_mod(const graph::SdpaBackward& op, double d_score, double scaled_dot,
                         const Cell& cell, const Values& values) {
  const auto& forward = op.attention.score_mod;
  if (op.score_mod_bprop) {
    return given_score_gradient(*op.score_mod_bprop, forward ? &*forward : nullptr, scaled_dot,
                                d_score, cell, values);
  }
  if (!forward) return d_score;
  return modified_score_gradient(*forward, forward->score_in, scaled_dot, d_score, cell, values);
}

double through_bias(const graph::SdpaBackward& op, double d_score, double scaled_dot,
                    const Cell& cell, const Values& values) {
  const graph::AttentionAttributes& a = op.attention;
  if (!graph::score_mod_reads_bias(a)) return d_score;
  return modified_score_gradient(*a.score_mod, a.bias, scaled_dot, d_score, cell, values);
}

}  // namespace

void sdpa_backward(const graph::SdpaBackward& op, Values& values) {
  const Attention a = attention(op, values);
  const Precision round = values.precision();
  write_zeros(op.d_q, a, values, true);
  write_zeros(op.d_k, a, values, false);
  write_zeros(op.d_v, a, values, false);
  if (op.d_bias != kNone) {
    const int64_t count = element_count(values.tensor(op.d_bias).dims).value_or(0);
    for (int64_t n = 0; n < count; ++n) values.write_linear(op.d_bias, 0, n);
  }
  // A log2 input makes the score ln 2 * (attn_scale Q K^T), so its gradient carries ln 2.
  const double scale = attention_scale(a, values) * (a.log2_input ? std::log(2) : 1);
  for (int64_t h = 0; h < a.q_heads; ++h) {
    values.write(op.d_sink, 0, 0, h, 0, 0);
    for (int64_t b = 0; b < a.batch; ++b) {
      const Lengths lengths = lengths_of(a, b, values);
      const int64_t kh = a.k_head(h), vh = a.v_head(h);
      const Matrix q = values.rows(op.q, b, h, lengths.q), k = values.rows(op.k, b, kh, lengths.kv),
                   v = values.rows(op.v, b, vh, lengths.kv), o = values.rows(op.o, b, h, lengths.q),
                   d_o = values.rows(op.d_o, b, h, lengths.q);
      const Scores scores = scores_of(a, b, h, lengths, q, k, values);
      Matrix d_q(lengths.q, q.columns), d_k(lengths.kv, k.columns), d_v(lengths.kv, v.columns);
      for (int64_t i = 0; i < lengths.q; ++i) {
        const std::optional<RowStatistics> row = statistics_of(op, b, h, i, values);
        if (!row) continue;
        // d(log-sum-exp)/dS = P, as d(log-sum-exp)/d(sink) is the sink's.
        const double d_stats = op.d_stats == kNone ? 0 : values.read(op.d_stats, b, h, i);
        const double big_d = round(dot(d_o.row(i), o.row(i), o.columns, round) - d_stats);
        if (op.d_sink != kNone) {
          const double sink = values.read(op.attention.sink, 0, h);
          values.add(op.d_sink, -row->probability(sink) * big_d, 0, h, 0, 0);
        }
        for (int64_t j = 0; j < lengths.kv; ++j) {
          const Cell cell{b, h, i, j};
          const double p = round(row->probability(scores.score(i, j)));
          if (p == 0) continue;
          const double keep = dropout_factor(a, cell, values);
          const double d_p = round(keep * round(dot(d_o.row(i), v.row(j), v.columns, round)));
          const double d_score = round(p * (d_p - big_d));
          values.add(op.d_bias, through_bias(op, d_score, scores.scaled_dot(i, j), cell, values), b,
                     h, i, j);
          const double d_dot =
              round(scale * through_score_mod(op, d_score, scores.scaled_dot(i, j), cell, values));
          add_multiple(d_q.row(i), d_dot, k.row(j), q.columns, round);
          add_multiple(d_k.row(j), d_dot, q.row(i), q.columns, round);
          add_multiple(d_v.row(j), round(p * keep), d_o.row(i), v.columns, round);
        }
      }
      const auto accumulate = [&](graph::TensorId id, const Matrix& m, int64_t head) {
        for (int64_t s = 0; s < m.rows; ++s) {
          for (int64_t d = 0; d < m.columns; ++d) values.add(id, round(m(s, d)), b, head, s, d);
        }
      };
      accumulate(op.d_q, d_q, h);
      accumulate(op.d_k, d_k, kh);
      accumulate(op.d_v, d_v, vh);
    }
  }
  write_rng_dump(a, values);
}

}  // namespace heddle::reference
