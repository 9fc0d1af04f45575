#include "problem/pointwise.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace heddle::problem {
namespace {

constexpr int kRank = 4;
constexpr std::array kIndices{ScoreOp::batch, ScoreOp::head, ScoreOp::row, ScoreOp::column};

/// The dim along which a leaf is the index, or -1.
int dim_of(ScoreOp op) {
  const auto* const at = std::ranges::find(kIndices, op);
  return at == kIndices.end() ? -1 : static_cast<int>(at - kIndices.begin());
}

/// Puts the dims that were `order[0]`, `order[1]`, ... first, second, ...
void permute(PointwiseProblem& problem, const std::array<int, kRank>& order) {
  std::array<int, kRank> place{};
  for (int d = 0; d < kRank; ++d) place[static_cast<size_t>(order[static_cast<size_t>(d)])] = d;
  for (OperandLayout& layout : problem.sizes.layouts) {
    const OperandLayout was = layout;
    for (int d = 0; d < kRank; ++d) {
      layout.dims[d] = was.dims[order[static_cast<size_t>(d)]];
      layout.strides[d] = was.strides[order[static_cast<size_t>(d)]];
    }
  }
  for (ScoreNode& node : problem.structure.nodes) {
    if (const int d = dim_of(node.op); d >= 0)
      node.op = kIndices[static_cast<size_t>(place[static_cast<size_t>(d)])];
  }
}

/// Whether every operand goes from one step of dim d to the next as from the last of d + 1.
bool steps_as_one(const PointwiseProblem& problem, int d) {
  const Dims& dims = problem.dims();
  if (dims[d] == 1 || dims[d + 1] == 1) return true;
  return std::ranges::all_of(problem.sizes.layouts, [&](const OperandLayout& layout) {
    // Divided, as the product may overflow: a stride of 0 is a broadcast dim's, of 1 alone.
    const int64_t outer = layout.strides[d], inner = layout.strides[d + 1];
    return outer % dims[d + 1] == 0 && outer / dims[d + 1] == inner;
  });
}

/// Joins dim d to d + 1; those before it move up, and the first is 1.
void join(PointwiseProblem& problem, int d) {
  for (OperandLayout& layout : problem.sizes.layouts) {
    if (layout.dims[d + 1] == 1) layout.strides[d + 1] = layout.strides[d];
    layout.dims[d + 1] *= layout.dims[d];
    for (int outer = d; outer > 0; --outer) {
      layout.dims[outer] = layout.dims[outer - 1];
      layout.strides[outer] = layout.strides[outer - 1];
    }
    layout.dims[0] = 1, layout.strides[0] = 0;
  }
  for (ScoreNode& node : problem.structure.nodes) {
    if (const int at = dim_of(node.op); at >= 0 && at < d)
      node.op = kIndices[static_cast<size_t>(at) + 1];
  }
}

}  // namespace

PointwiseProblem in_memory_order(const PointwiseProblem& problem) {
  PointwiseProblem ordered = problem;
  const OperandLayout& y = problem.sizes.layout(problem.structure.results.front().y);
  std::array<int, kRank> order;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) {
    // Dims of 1 come first: their strides mean nothing.
    const auto key = [&](int d) { return y.dims[d] == 1 ? INT64_MAX : y.strides[d]; };
    return key(a) > key(b);
  });
  permute(ordered, order);
  const auto is_index = [&](int d) {
    return std::ranges::any_of(ordered.structure.nodes, [&](const ScoreNode& node) {
      return node.op == kIndices[static_cast<size_t>(d)];
    });
  };
  // After a join, dim d is the one that was before it.
  for (int d = kRank - 2, left = kRank - 1; left > 0; --left) {
    if (!is_index(d) && !is_index(d + 1) && steps_as_one(ordered, d)) {
      join(ordered, d);
    } else {
      d -= 1;
    }
    if (d < 0) break;
  }
  return ordered;
}

}  // namespace heddle::problem
