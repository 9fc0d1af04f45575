#include <cmath>
#include <limits>

#include "core/fp8.h"
#include "graph/without_scales.h"
#include "reference/attention.h"
#include "reference/ops.h"
#include "reference/softmax.h"

namespace heddle::reference {

using graph::kNone;
using graph::TensorId;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The largest magnitude so far; NaN once there is one.
class Amax {
 public:
  void see(double x) {
    if (std::isnan(x) || std::fabs(x) > largest_) largest_ = std::isnan(x) ? x : std::fabs(x);
  }
  void write(TensorId id, Values& values) const { values.write(id, largest_, 0, 0, 0, 0); }

 private:
  double largest_ = 0;
};

/// A number on the way as fp8 holds it. The definition keeps it as it is up to the largest that
/// there is.
double held(DataType type, double x, Precision round) {
  const double within = saturated(type, x);
  return round.is_exact() ? within : Precision::round_to(type, within);
}

double scale_of(TensorId id, const Values& values) { return id == kNone ? 1 : values.read(id, 0); }

/// The first `count` rows of (b, h), times the tensor's descale.
Matrix numbers(const Cache& tensor, TensorId descale, int64_t b, int64_t h, int64_t count,
               const Values& values) {
  Matrix rows = rows_of(tensor, b, h, count, values);
  const double factor = values.read(descale, 0);
  for (double& x : rows.values) x *= factor;
  return rows;
}

bool is_ragged(TensorId id, const Values& values) {
  return values.tensor(id).ragged_offset != kNone;
}

/// A result's row, scaled where it saturates.
void write_row(TensorId id, const double* row, double scale, int64_t b, int64_t h, int64_t i,
               Values& values) {
  const graph::Tensor& tensor = values.tensor(id);
  for (int64_t d = 0; d < tensor.dims[3]; ++d)
    values.write(id, saturated(*tensor.dtype, scale * row[d]), b, h, i, d);
}

/// Rows past a length, unless sequences lie behind one another.
void fill_rows(TensorId id, double value, int64_t b, int64_t h, int64_t first, Values& values) {
  if (id == kNone || is_ragged(id, values)) return;
  const Dims& dims = values.tensor(id).dims;
  for (int64_t i = first; i < dims[2]; ++i)
    for (int64_t d = 0; d < dims[3]; ++d) values.write(id, value, b, h, i, d);
}

/// A gradient as it is summed up: [heads][rows, columns].
using Heads = std::vector<Matrix>;

void write_gradient(TensorId id, TensorId scale, TensorId amax_id, Amax& amax, const Heads& sums,
                    int64_t b, Values& values) {
  if (id == kNone) return;
  for (size_t h = 0; h < sums.size(); ++h) {
    const auto head = static_cast<int64_t>(h);
    for (int64_t s = 0; s < sums[h].rows; ++s) {
      for (int64_t d = 0; d < sums[h].columns; ++d) amax.see(sums[h](s, d));
      write_row(id, sums[h].row(s), scale_of(scale, values), b, head, s, values);
    }
    fill_rows(id, 0, b, head, sums[h].rows, values);
  }
  amax.write(amax_id, values);
}

}  // namespace

void sdpa_fp8(const graph::SdpaFp8& op, Values& values) {
  const graph::Sdpa plain = graph::without_scales(op);
  const Attention a = attention(plain, values);
  const Precision round = values.precision();
  const DataType s_type = *values.tensor(op.q).dtype;
  const double scale_s = scale_of(op.scale_s, values);
  const double descale = scale_of(op.descale_s, values) * values.read(op.descale_v, 0);
  Amax amax_s, amax_o;
  for (int64_t b = 0; b < a.batch; ++b) {
    const Lengths lengths = lengths_of(a, b, values);
    for (int64_t h = 0; h < a.q_heads; ++h) {
      const Matrix q = numbers({op.q}, op.descale_q, b, h, lengths.q, values);
      const Matrix k = numbers(a.k, op.descale_k, b, a.k_head(h), lengths.kv, values);
      const Matrix v = rows_of(a.v, b, a.v_head(h), lengths.kv, values);
      const Matrix score = scores_of(a, b, h, lengths, q, k, values).score;
      for (int64_t i = 0; i < lengths.q; ++i) {
        const Softmax row = softmax(score.row(i), lengths.kv, -kInfinity, round);
        Matrix o(1, v.columns);
        for (int64_t j = 0; j < lengths.kv; ++j) {
          const double p = row.probability[static_cast<size_t>(j)];
          if (p == 0) continue;
          amax_s.see(p);
          const double weight = op.scale_s == kNone ? p : held(s_type, scale_s * p, round);
          add_multiple(o.row(0), weight, v.row(j), v.columns, round);
        }
        for (int64_t d = 0; d < v.columns; ++d) amax_o.see(o(0, d) *= descale);
        write_row(op.o, o.row(0), scale_of(op.scale_o, values), b, h, i, values);
        values.write(op.stats, row.log_sum_exp(), b, h, i, 0);
      }
      fill_rows(op.o, 0, b, h, lengths.q, values);
      fill_rows(op.stats, -kInfinity, b, h, lengths.q, values);
    }
  }
  amax_s.write(op.amax_s, values);
  amax_o.write(op.amax_o, values);
}

void sdpa_fp8_backward(const graph::SdpaFp8Backward& op, Values& values) {
  const graph::SdpaBackward plain = graph::without_scales(op);
  const Attention a = attention(plain, values);
  const Precision round = values.precision();
  const DataType s_type = *values.tensor(op.q).dtype, d_p_type = *values.tensor(op.d_o).dtype;
  const auto number = [&](TensorId id) { return values.read(id, 0); };
  const double scale = attention_scale(a, values);
  const double descale_s = number(op.descale_s), descale_d_p = number(op.descale_d_p);
  Amax of_d_q, of_d_k, of_d_v, of_d_p;
  for (int64_t b = 0; b < a.batch; ++b) {
    const Lengths lengths = lengths_of(a, b, values);
    const auto zeros = [](int64_t heads, int64_t rows, int64_t columns) {
      return Heads(static_cast<size_t>(heads), Matrix(rows, columns));
    };
    const int64_t qk_columns = values.tensor(op.q).dims[3], columns = values.tensor(op.v).dims[3];
    Heads d_q = zeros(a.q_heads, lengths.q, qk_columns),
          d_k = zeros(a.k_heads, lengths.kv, qk_columns),
          d_v = zeros(a.v_heads, lengths.kv, columns);
    for (int64_t h = 0; h < a.q_heads; ++h) {
      const int64_t kh = a.k_head(h), vh = a.v_head(h);
      const Matrix q = numbers({op.q}, op.descale_q, b, h, lengths.q, values);
      const Matrix k = numbers({op.k}, op.descale_k, b, kh, lengths.kv, values);
      const Matrix v = numbers({op.v}, op.descale_v, b, vh, lengths.kv, values);
      const Matrix o = numbers({op.o}, op.descale_o, b, h, lengths.q, values);
      const Matrix d_o = numbers({op.d_o}, op.descale_d_o, b, h, lengths.q, values);
      const Matrix score = scores_of(a, b, h, lengths, q, k, values).score;
      for (int64_t i = 0; i < lengths.q; ++i) {
        const double stats = values.read(op.stats, b, h, i);
        const double big_d = round(dot(d_o.row(i), o.row(i), columns, round));
        for (int64_t j = 0; j < lengths.kv; ++j) {
          if (stats == -kInfinity || score(i, j) == -kInfinity) continue;
          const double p = round(std::exp(score(i, j) - stats));
          const double d_p = round(dot(d_o.row(i), v.row(j), columns, round));
          const double d_s = round(scale * p * (d_p - big_d));
          of_d_p.see(d_s);
          const double weight = descale_s * held(s_type, number(op.scale_s) * p, round);
          const double d_dot = descale_d_p * held(d_p_type, number(op.scale_d_p) * d_s, round);
          add_multiple(d_v[static_cast<size_t>(vh)].row(j), weight, d_o.row(i), columns, round);
          add_multiple(d_q[static_cast<size_t>(h)].row(i), d_dot, k.row(j), qk_columns, round);
          add_multiple(d_k[static_cast<size_t>(kh)].row(j), d_dot, q.row(i), qk_columns, round);
        }
      }
    }
    write_gradient(op.d_q, op.scale_d_q, op.amax_d_q, of_d_q, d_q, b, values);
    write_gradient(op.d_k, op.scale_d_k, op.amax_d_k, of_d_k, d_k, b, values);
    write_gradient(op.d_v, op.scale_d_v, op.amax_d_v, of_d_v, d_v, b, values);
  }
  of_d_p.write(op.amax_d_p, values);
}

}  // namespace heddle::reference
