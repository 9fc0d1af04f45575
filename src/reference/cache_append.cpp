#include <algorithm>
#include <cmath>

#include "reference/codes.h"
#include "reference/ops.h"

namespace heddle::reference {

using graph::CacheAppend;
using graph::kNone;
using graph::TensorId;

namespace {

/// Rows of batch entry b: those before, the new ones, all.
struct Counts {
  int64_t past, added, total;
};

Counts counts_of(const CacheAppend& op, int64_t b, int64_t rows, const Values& values) {
  const auto read = [&](TensorId id) {
    return std::clamp<int64_t>(values.read_integer(id, b), INT32_MIN, INT32_MAX);
  };
  const int64_t added =
      op.seq_len_q == kNone ? rows : std::clamp<int64_t>(read(op.seq_len_q), 0, rows);
  const int64_t total = op.seq_len_kv == kNone
                            ? added
                            : std::max<int64_t>(0, read(op.seq_len_kv) + op.seq_len_kv_offset);
  return {std::max<int64_t>(0, total - added), added, total};
}

/// x * weight / sqrt(mean(x^2) + epsilon).
void normalise(TensorId weight, double epsilon, std::vector<double>& x, const Values& values) {
  if (weight == kNone) return;
  double squares = 0;
  for (double one : x) squares += one * one;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (size_t d = 0; d < x.size(); ++d)
    x[d] *= inverse * values.read(weight, 0, 0, 0, static_cast<int64_t>(d));
}

/// Pairs of the first columns turned by the angle of a position.
void rotate(const CacheAppend& op, double position, std::vector<double>& x, const Values& values) {
  if (op.cosines == kNone) return;
  const Dims& table = values.tensor(op.cosines).dims;
  const double last = static_cast<double>(table[0] - 1);
  const auto at = static_cast<int64_t>(std::clamp(position, 0.0, last));
  const int64_t half = table[3];
  const bool interleaved = op.pairing == graph::RopePairing::interleaved;
  for (int64_t j = 0; j < half; ++j) {
    double& lo = x[static_cast<size_t>(interleaved ? 2 * j : j)];
    double& hi = x[static_cast<size_t>(interleaved ? 2 * j + 1 : half + j)];
    const double cosine = values.read(op.cosines, at, 0, 0, j);
    const double sine = values.read(op.sines, at, 0, 0, j);
    const double turned = lo * cosine - hi * sine;
    hi = hi * cosine + lo * sine;
    lo = turned;
  }
}

std::vector<double> row(TensorId id, int64_t b, int64_t h, int64_t s, const Values& values) {
  std::vector<double> x(static_cast<size_t>(values.tensor(id).dims[3]));
  for (size_t d = 0; d < x.size(); ++d) x[d] = values.read(id, b, h, s, static_cast<int64_t>(d));
  return x;
}

/// What present holds before any row is there: zeros, or what the past does where both are one.
void begin(const Cache& past, const Cache& present, Values& values) {
  const Dims& dims = values.tensor(present.tensor).dims;
  const bool in_place = present.table != kNone || values.are_one(past.tensor, present.tensor);
  for (int64_t b = 0; b < dims[0]; ++b) {
    for (int64_t h = 0; h < dims[1]; ++h) {
      for (int64_t s = 0; s < dims[2]; ++s) {
        for (int64_t d = 0; d < dims[3]; ++d) {
          if (in_place) {
            values.keep(present.tensor, values.read(past.tensor, b, h, s, d), b, h, s, d);
          } else {
            values.write(present.tensor, 0, b, h, s, d);
          }
        }
      }
    }
  }
}

void copy_past(const Cache& past, const Cache& present, int64_t b, int64_t count, Values& values) {
  if (past.tensor == kNone || present.table != kNone || values.are_one(past.tensor, present.tensor))
    return;
  const Dims &from = values.tensor(past.tensor).dims, &to = values.tensor(present.tensor).dims;
  const int64_t rows = std::min(from[2], to[2]);
  const int64_t first = past.ring ? std::max<int64_t>(0, count - rows) : 0;
  for (int64_t s = first; s < (past.ring ? count : std::min(count, rows)); ++s) {
    const int64_t i = row_of(past, b, s, values).i2, o = row_of(present, b, s, values).i2;
    for (int64_t h = 0; h < to[1]; ++h) {
      for (int64_t d = 0; d < to[3]; ++d)
        values.write(present.tensor, values.read(past.tensor, b, h, i, d), b, h, o, d);
    }
  }
}

/// Rows that an entry may have; of a ring any number.
int64_t capacity_of(const Cache& k, const Cache& v, const Values& values) {
  int64_t capacity = INT32_MAX;
  for (const Cache& cache : {k, v}) {
    if (cache.tensor == kNone || cache.ring) continue;
    const int64_t pages = cache.table == kNone ? 1 : values.tensor(cache.table).dims[2];
    capacity = std::min(capacity, values.tensor(cache.tensor).dims[2] * pages);
  }
  return capacity;
}

}  // namespace

void cache_append(const CacheAppend& op, Values& values) {
  const Dims& q = values.tensor(op.q).dims;
  const bool has_caches = op.present_k != kNone, is_packed = has_caches && op.k == kNone;
  const int64_t kv_heads = has_caches ? values.tensor(op.present_k).dims[1] : 0;
  const int64_t q_heads = q[1] - (is_packed ? 2 * kv_heads : 0);
  const Cache past_k{op.past_k, op.page_table_k, op.k_scale, op.ring},
      past_v{op.past_v, op.page_table_v, op.v_scale, op.ring},
      k{op.present_k, op.page_table_k, op.k_scale, op.ring},
      v{op.present_v, op.page_table_v, op.v_scale, op.ring};
  if (has_caches) {
    begin(past_k, k, values);
    begin(past_v, v, values);
  }
  const int64_t capacity = capacity_of(k, v, values);
  for (int64_t b = 0; b < q[0]; ++b) {
    const auto [past, added, total] = counts_of(op, b, q[2], values);
    values.write(op.lengths_q, static_cast<double>(std::min(added, total)), b, 0, 0, 0);
    values.write(op.lengths_kv, static_cast<double>(std::min(total, capacity)), b, 0, 0, 0);
    if (has_caches) {
      copy_past(past_k, k, b, past, values);
      copy_past(past_v, v, b, past, values);
    }
    for (int64_t s = 0; s < q[2]; ++s) {
      const double position = op.positions == kNone ? static_cast<double>(past + s)
                                                    : values.read(op.positions, b, 0, s);
      for (int64_t h = 0; op.q_out != kNone && h < q_heads; ++h) {
        std::vector<double> x = row(op.q, b, h, s, values);
        normalise(op.q_norm, op.q_epsilon, x, values);
        rotate(op, position, x, values);
        for (size_t d = 0; d < x.size(); ++d)
          values.write(op.q_out, s < added ? x[d] : 0, b, h, s, static_cast<int64_t>(d));
      }
      for (int64_t h = 0; s < added && h < kv_heads; ++h) {
        std::vector<double> x =
            row(is_packed ? op.q : op.k, b, is_packed ? q_heads + h : h, s, values);
        normalise(op.k_norm, op.k_epsilon, x, values);
        rotate(op, position, x, values);
        if (const CacheRow at = row_of(k, b, past + s, values); at.exists)
          write_row(k, at, h, x, values);
        x = row(is_packed ? op.q : op.v, b, is_packed ? q_heads + kv_heads + h : h, s, values);
        if (const CacheRow at = row_of(v, b, past + s, values); at.exists)
          write_row(v, at, h, x, values);
      }
    }
  }
}

}  // namespace heddle::reference
