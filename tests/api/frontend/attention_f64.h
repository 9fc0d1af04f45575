// Attention and its derivative in f64, spelled out: what programs of the builder are held against.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace heddle::testing {

/// [B,H,S,D] row major; K and V have heads of their own, which divide those of Q.
struct AttentionF64 {
  int64_t batch, q_heads, kv_heads, q_length, kv_length, dim;
  std::vector<float> q, k, v, d_o;
  double scale = 1;

  struct Cell {
    int64_t b, h, i, j;
  };
  /// Of a cell and q . k * scale; -inf hides a key.
  std::function<double(const Cell&, double)> score = [](const Cell&, double s) { return s; };
  /// The derivative of `score` by q . k * scale.
  std::function<double(const Cell&, double)> slope = [](const Cell&, double) { return 1; };
  /// What a weight is multiplied with after the softmax.
  std::function<double(const Cell&)> kept = [](const Cell&) { return 1; };
  /// Told dL/dscore of every cell that is seen.
  std::function<void(const Cell&, double)> note = [](const Cell&, double) {};

  std::vector<double> o, stats, d_q, d_k, d_v;

  AttentionF64(int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t skv, int64_t d)
      : batch(b), q_heads(hq), kv_heads(hkv), q_length(sq), kv_length(skv), dim(d) {
    q = random(b * hq * sq * d, 1), d_o = random(b * hq * sq * d, 4);
    k = random(b * hkv * skv * d, 2), v = random(b * hkv * skv * d, 3);
  }

  static std::vector<float> random(int64_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(generator);
    return values;
  }

  void compute() {
    o.assign(q.size(), 0), d_q = o;
    d_k.assign(k.size(), 0), d_v = d_k;
    stats.assign(static_cast<size_t>(batch * q_heads * q_length), -INFINITY);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < q_heads; ++h)
        for (int64_t i = 0; i < q_length; ++i) row(b, h, i);
  }

 private:
  void row(int64_t b, int64_t h, int64_t i) {
    const size_t at = static_cast<size_t>(((b * q_heads + h) * q_length + i) * dim);
    const auto key = [&](int64_t j) {
      const int64_t head = h / (q_heads / kv_heads);
      return static_cast<size_t>(((b * kv_heads + head) * kv_length + j) * dim);
    };
    std::vector<double> dots, scores;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < kv_length; ++j) {
      double dot = 0;
      for (size_t d = 0; d < static_cast<size_t>(dim); ++d)
        dot += double(q[at + d]) * k[key(j) + d];
      dots.push_back(dot * scale);
      scores.push_back(score({b, h, i, j}, dots.back()));
      most = std::max(most, scores.back());
    }
    if (most == -INFINITY) return;
    for (double s : scores) sum += std::exp(s - most);
    stats[at / static_cast<size_t>(dim)] = most + std::log(sum);
    double total = 0;  // of dO . O
    std::vector<double> weights, through;
    for (int64_t j = 0; j < kv_length; ++j) {
      weights.push_back(std::exp(scores[static_cast<size_t>(j)] - most) / sum);
      double d_weight = 0;
      for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
        const double weight = weights.back() * kept({b, h, i, j});
        o[at + d] += weight * v[key(j) + d];
        d_v[key(j) + d] += weight * d_o[at + d];
        d_weight += double(d_o[at + d]) * v[key(j) + d];
      }
      through.push_back(d_weight * kept({b, h, i, j}));
      total += weights.back() * through.back();
    }
    for (int64_t j = 0; j < kv_length; ++j) {
      const size_t n = static_cast<size_t>(j);
      if (weights[n] == 0) continue;
      const double d_score = weights[n] * (through[n] - total);
      note({b, h, i, j}, d_score);
      const double d_dot = d_score * slope({b, h, i, j}, dots[n]) * scale;
      for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
        d_q[at + d] += d_dot * k[key(j) + d];
        d_k[key(j) + d] += d_dot * q[at + d];
      }
    }
  }
};

}  // namespace heddle::testing
