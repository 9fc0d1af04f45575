// Ready-made score expressions, for a score_mod that makes use of them.
#pragma once

#include <limits>

#include "heddle/frontend/graph.h"

namespace heddle::frontend::graph::attn::score_modifiers {

namespace detail {

using Inner = std::shared_ptr<Graph>;

inline Tensor apply(const Inner& graph, PointwiseMode_t mode, Tensor a, Tensor b) {
  return graph->pointwise(std::move(a), std::move(b), Pointwise_attributes().set_mode(mode));
}
inline Tensor index(const Inner& graph, const Tensor& score, int64_t axis) {
  return graph->pointwise(
      score, Pointwise_attributes().set_mode(PointwiseMode_t::GEN_INDEX).set_axis(axis));
}
inline Tensor row(const Inner& graph, const Tensor& score) { return index(graph, score, 2); }
inline Tensor column(const Inner& graph, const Tensor& score) { return index(graph, score, 3); }
/// The score where it is kept, else -inf.
inline Tensor where(const Inner& graph, const Tensor& kept, const Tensor& score) {
  return graph->pointwise(score, graph->tensor(-std::numeric_limits<float>::infinity()), kept,
                          Pointwise_attributes().set_mode(PointwiseMode_t::BINARY_SELECT));
}
inline Tensor length(const Inner& graph, const Tensor& given, int64_t otherwise) {
  return given ? given : graph->tensor(static_cast<int32_t>(otherwise));
}

}  // namespace detail

/// score + bias, which is broadcast.
inline Tensor bias(std::shared_ptr<Graph> graph, Tensor score, Tensor bias) {
  return detail::apply(graph, PointwiseMode_t::ADD, std::move(score), std::move(bias));
}

/// Keeps (row, column) iff column - row - offset is at most the right bound and more than minus the
/// left one, where they are. The offset is 0 for TOP_LEFT, for BOTTOM_RIGHT the length of keys less
/// that of queries, which are the tensors, or where they are null the numbers.
inline Tensor sliding_window_mask(std::shared_ptr<Graph> graph, Tensor score,
                                  DiagonalAlignment_t alignment, std::optional<int64_t> left_bound,
                                  std::optional<int64_t> right_bound, int64_t s_q, int64_t s_kv,
                                  Tensor seq_len_q, Tensor seq_len_kv) {
  using detail::apply;
  Tensor distance =
      apply(graph, PointwiseMode_t::SUB, detail::column(graph, score), detail::row(graph, score));
  if (alignment == DiagonalAlignment_t::BOTTOM_RIGHT) {
    const Tensor offset =
        apply(graph, PointwiseMode_t::SUB, detail::length(graph, seq_len_kv, s_kv),
              detail::length(graph, seq_len_q, s_q));
    distance = apply(graph, PointwiseMode_t::SUB, distance, offset);
  }
  const auto keep = [&](PointwiseMode_t mode, int64_t bound) {
    const Tensor number = graph->tensor(static_cast<int32_t>(bound));
    score = detail::where(graph, apply(graph, mode, distance, number), score);
  };
  if (right_bound) keep(PointwiseMode_t::CMP_LE, *right_bound);
  if (left_bound) keep(PointwiseMode_t::CMP_GT, -*left_bound);
  return score;
}

inline Tensor causal_mask(std::shared_ptr<Graph> graph, Tensor score) {
  return sliding_window_mask(std::move(graph), std::move(score), DiagonalAlignment_t::TOP_LEFT,
                             std::nullopt, 0, 0, 0, nullptr, nullptr);
}

inline Tensor causal_mask_bottom_right(std::shared_ptr<Graph> graph, Tensor score, int64_t s_q,
                                       int64_t s_kv, Tensor seq_len_q, Tensor seq_len_kv) {
  return sliding_window_mask(std::move(graph), std::move(score), DiagonalAlignment_t::BOTTOM_RIGHT,
                             std::nullopt, 0, s_q, s_kv, std::move(seq_len_q),
                             std::move(seq_len_kv));
}

/// Keeps rows and columns below their lengths, [B,1,1,1] of INT32.
inline Tensor padding_mask(std::shared_ptr<Graph> graph, Tensor score, Tensor seq_len_kv,
                           Tensor seq_len_q) {
  using detail::apply;
  const Tensor rows =
      apply(graph, PointwiseMode_t::CMP_LT, detail::row(graph, score), std::move(seq_len_q));
  const Tensor columns =
      apply(graph, PointwiseMode_t::CMP_LT, detail::column(graph, score), std::move(seq_len_kv));
  return detail::where(graph, apply(graph, PointwiseMode_t::LOGICAL_AND, rows, columns), score);
}

/// cap * tanh(score / cap); `backward` takes the gradient through the same object's `forward`.
class Softcap {
 public:
  Tensor forward(std::shared_ptr<Graph> graph, Tensor score, Tensor cap) {
    capped_ = detail::apply(graph, PointwiseMode_t::DIV, std::move(score), cap);
    const Tensor tanh =
        graph->pointwise(capped_, Pointwise_attributes().set_mode(PointwiseMode_t::TANH_FWD));
    return detail::apply(graph, PointwiseMode_t::MUL, tanh, cap);
  }
  Tensor backward(std::shared_ptr<Graph> graph, Tensor gradient, Tensor cap) {
    const Tensor scaled = detail::apply(graph, PointwiseMode_t::MUL, std::move(gradient), cap);
    const Tensor through = detail::apply(graph, PointwiseMode_t::TANH_BWD, scaled, capped_);
    return detail::apply(graph, PointwiseMode_t::DIV, through, std::move(cap));
  }

 private:
  Tensor capped_;
};

}  // namespace heddle::frontend::graph::attn::score_modifiers
