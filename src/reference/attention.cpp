#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dropout_bits.h"
#include "graph/extents.h"
#include "graph/score_reads.h"

namespace heddle::reference {

using graph::AttentionAttributes;
using graph::kNone;
using graph::TensorId;

namespace {

bool is_ragged(TensorId id, const Values& values) {
  return id != kNone && values.tensor(id).ragged_offset != kNone;
}

/// One side's length: plain, from prefix sums, or the extent.
int64_t length(TensorId plain, TensorId cumulative, int64_t b, int64_t extent,
               const Values& values) {
  if (plain == kNone && cumulative == kNone) return extent;
  const int64_t begin = cumulative == kNone ? 0 : values.read_integer(cumulative, b);
  const int64_t end =
      cumulative == kNone ? values.read_integer(plain, b) : values.read_integer(cumulative, b + 1);
  if (end <= begin) return 0;
  // Without a sign the difference of any two prefix sums takes 64 bits at most.
  const uint64_t length = static_cast<uint64_t>(end) - static_cast<uint64_t>(begin);
  return static_cast<int64_t>(std::min(length, static_cast<uint64_t>(extent)));
}

/// Whether the generator keeps a cell's probability; core/dropout_bits.h says which word decides.
bool keeps(const Attention& a, const Cell& cell, const Values& values) {
  const graph::Dropout& dropout = a.attributes.dropout;
  const double p = dropout.probability.value_or(0);
  if (dropout.threefry) {
    const Dims& stride = dropout.threefry_strides;
    const int64_t index =
        cell.b * stride[0] + cell.h * stride[1] + cell.i * stride[2] + cell.j * stride[3];
    const auto key = [&](int64_t n) {
      return static_cast<uint32_t>(values.read_integer(dropout.seed, n));
    };
    return threefry_keeps({key(0), key(1)}, p, static_cast<uint64_t>(index));
  }
  const int64_t seed = values.read_integer(dropout.seed);
  const int64_t offset = dropout.offset != kNone ? values.read_integer(dropout.offset) : 0;
  const int64_t stream = dropout.streams == kNone
                             ? cell.b * a.q_heads + cell.h
                             : static_cast<int64_t>(values.read(dropout.streams, cell.b, cell.h));
  return philox_keeps(seed, offset, p, static_cast<uint32_t>(stream), static_cast<uint32_t>(cell.i),
                      static_cast<uint32_t>(cell.j));
}

}  // namespace

Attention attention(const graph::Sdpa& op, const Values& values) {
  const bool log2_input = op.attention.softmax_input_is_log2 || op.attn_scale_prefolded;
  const graph::AttentionExtents e = graph::extents(values.graph(), op);
  return {.attributes = op.attention,
          .q = op.q,
          .k = {op.k, op.page_table_k, op.k_scale, op.ring_kv},
          .v = {op.v, op.page_table_v, op.v_scale, op.ring_kv},
          .log2_input = log2_input,
          .batch = e.batch,
          .q_heads = e.q_heads,
          .k_heads = e.k_heads,
          .v_heads = e.v_heads,
          .q_length = e.q_length,
          .kv_length = e.kv_length};
}

Attention attention(const graph::SdpaBackward& op, const Values& values) {
  const graph::AttentionExtents e = graph::extents(values.graph(), op);
  const bool log2_input = op.attention.softmax_input_is_log2;
  return {.attributes = op.attention,
          .q = op.q,
          .k = {op.k},
          .v = {op.v},
          .log2_input = log2_input,
          .batch = e.batch,
          .q_heads = e.q_heads,
          .k_heads = e.k_heads,
          .v_heads = e.v_heads,
          .q_length = e.q_length,
          .kv_length = e.kv_length};
}

Lengths lengths_of(const Attention& a, int64_t b, const Values& values) {
  const AttentionAttributes& at = a.attributes;
  const bool ragged =
      is_ragged(a.q, values) || is_ragged(a.k.tensor, values) || is_ragged(a.v.tensor, values);
  // Beside a score_mod, lengths of dense tensors are there for its use and mask nothing.
  if (!at.padding_mask && !ragged) return {a.q_length, a.kv_length};
  return {length(at.seq_len_q, at.cu_seq_len_q, b, a.q_length, values),
          length(at.seq_len_kv, at.cu_seq_len_kv, b, a.kv_length, values)};
}

bool is_visible(const Attention& a, const Lengths& lengths, const Cell& cell,
                const Values& values) {
  const AttentionAttributes& at = a.attributes;
  const bool bottom_right = at.diagonal_alignment == graph::DiagonalAlignment::bottom_right;
  const int64_t diagonal = cell.i + (bottom_right ? lengths.kv - lengths.q : 0);
  if (at.right_bound && cell.j > diagonal + *at.right_bound) return false;
  if (at.left_bound && cell.j <= diagonal - *at.left_bound) return false;
  for (const Cache& cache : {a.k, a.v}) {
    if (cache.ring && cell.j < lengths.kv - values.tensor(cache.tensor).dims[2]) return false;
  }
  if (at.block_mask != kNone) {
    constexpr int64_t kTile = 128;
    const int64_t tile = cell.j / kTile;
    const double byte = values.read(at.block_mask, cell.b, cell.h, cell.i / kTile, tile / 8);
    return (static_cast<uint8_t>(byte) >> (tile % 8)) & 1;
  }
  return true;
}

double alibi_slope(int64_t head, int64_t heads) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  if (head < n) return std::exp2(-8.0 * (head + 1) / n);
  return std::exp2(-4.0 * (2 * (head - n) + 1) / n);
}

double attention_scale(const Attention& a, const Values& values) {
  if (a.attributes.attn_scale_tensor != kNone)
    return values.read(a.attributes.attn_scale_tensor, 0);
  return a.attributes.attn_scale.value_or(1);
}

Scores scores_of(const Attention& a, int64_t b, int64_t h, const Lengths& lengths, const Matrix& q,
                 const Matrix& k, const Values& values) {
  const AttentionAttributes& at = a.attributes;
  const Precision round = values.precision();
  const double scale = attention_scale(a, values) * (a.log2_input ? std::log(2) : 1);
  const double slope = at.alibi_mask ? alibi_slope(h, a.q_heads) : 0;
  Scores scores{Matrix(lengths.q, lengths.kv, -std::numeric_limits<double>::infinity()),
                Matrix(lengths.q, lengths.kv)};
  for (int64_t i = 0; i < lengths.q; ++i) {
    for (int64_t j = 0; j < lengths.kv; ++j) {
      const Cell cell{b, h, i, j};
      if (!is_visible(a, lengths, cell, values)) continue;
      double s = round(scale * round(dot(q.row(i), k.row(j), q.columns, round)));
      scores.scaled_dot(i, j) = s;
      if (at.score_mod) s = round(modified_score(*at.score_mod, s, cell, values));
      if (at.bias != kNone && !graph::score_mod_reads_bias(at))
        s = round(s + values.read(at.bias, b, h, i, j));
      if (at.alibi_mask) s = round(s + slope * static_cast<double>(j - i));
      scores.score(i, j) = s;
    }
  }
  return scores;
}

double dropout_factor(const Attention& a, const Cell& cell, const Values& values) {
  const graph::Dropout& dropout = a.attributes.dropout;
  if (dropout.mask != kNone) {
    const double scale = dropout.scale != kNone ? values.read(dropout.scale, 0) : 1;
    return scale * values.read(dropout.mask, cell.b, cell.h, cell.i, cell.j);
  }
  const double p = dropout.probability.value_or(0);
  return p > 0 && !keeps(a, cell, values) ? 0 : dropout.factor.value_or(1 / (1 - p));
}

void write_rng_dump(const Attention& a, Values& values) {
  const TensorId dump = a.attributes.dropout.rng_dump;
  if (dump == kNone) return;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.q_heads; ++h) {
      for (int64_t i = 0; i < a.q_length; ++i) {
        for (int64_t j = 0; j < a.kv_length; ++j) {
          values.write(dump, keeps(a, {b, h, i, j}, values), b, h, i, j);
        }
      }
    }
  }
}

}  // namespace heddle::reference
