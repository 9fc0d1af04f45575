#include <algorithm>

#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

bool holds(std::span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

bool are_ascending(std::span<const int64_t> dims) {
  return std::adjacent_find(dims.begin(), dims.end(), std::greater_equal<>()) == dims.end();
}

// What gather and scatter share: index vectors lie along one dimension of the indices, each gives a
// position in the operand; batching dimensions of operand and indices run together.
Status expect_indices(const Instruction& x, const Shape& operand, const Shape& indices,
                      std::string_view map_name, std::string_view operand_batching_name,
                      std::string_view indices_batching_name) {
  const int64_t vector_dim = x.integer("index_vector_dim").value_or(-1);
  if (!is_integral(indices.type())) {
    return misfit(x, "takes integer indices, not {}", to_string_without_layout(indices));
  }
  if (vector_dim < 0 || vector_dim > indices.rank()) {
    return misfit(x, "needs an index_vector_dim of {}, or its rank, not {}",
                  to_string_without_layout(indices), vector_dim);
  }
  const int64_t length =
      vector_dim == indices.rank() ? 1 : indices.dim(static_cast<int>(vector_dim));
  const auto map = x.integers(map_name);
  const auto operand_batching = x.integers(operand_batching_name);
  const auto indices_batching = x.integers(indices_batching_name);
  std::vector<int64_t> used(map.begin(), map.end());
  used.insert(used.end(), operand_batching.begin(), operand_batching.end());
  if (static_cast<int64_t>(map.size()) != length ||
      !are_distinct_dimensions(used, operand.rank())) {
    return misfit(x, "{} {} does not take index vectors of length {} to dimensions of {}", map_name,
                  list(map), length, to_string_without_layout(operand));
  }
  bool fits = operand_batching.size() == indices_batching.size() &&
              are_distinct_dimensions(indices_batching, indices.rank()) &&
              !holds(indices_batching, vector_dim);
  for (size_t i = 0; fits && i < operand_batching.size(); ++i) {
    fits = operand.dim(static_cast<int>(operand_batching[i])) ==
           indices.dim(static_cast<int>(indices_batching[i]));
  }
  if (!fits) {
    return misfit(x, "{} {} and {} {} do not pair equal dimensions", operand_batching_name,
                  list(operand_batching), indices_batching_name, list(indices_batching));
  }
  return {};
}

// The dims of the indices that are not the index vector's, in order.
std::vector<int64_t> batch_sizes(const Instruction& x, const Shape& indices) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < indices.rank(); ++i) {
    if (i != x.integer("index_vector_dim")) sizes.push_back(indices.dim(i));
  }
  return sizes;
}

Result<Shape> infer_gather(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 2));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  const Shape& indices = x.operand(1)->shape();
  HEDDLE_TRY(expect_indices(x, operand, indices, "start_index_map", "operand_batching_dims",
                            "start_indices_batching_dims"));
  const auto sizes = x.integers("slice_sizes");
  const auto collapsed = x.integers("collapsed_slice_dims");
  const auto batching = x.integers("operand_batching_dims");
  std::vector<int64_t> dropped(collapsed.begin(), collapsed.end());
  dropped.insert(dropped.end(), batching.begin(), batching.end());
  bool fits = static_cast<int>(sizes.size()) == operand.rank() &&
              are_distinct_dimensions(dropped, operand.rank());
  std::vector<int64_t> window;
  for (int i = 0; fits && i < operand.rank(); ++i) {
    fits = sizes[i] >= 0 && sizes[i] <= operand.dim(i) && (!holds(dropped, i) || sizes[i] == 1);
    if (!holds(dropped, i)) window.push_back(sizes[i]);
  }
  if (!fits) {
    return misfit(x, "slice_sizes {} with collapsed_slice_dims {} do not fit into {}", list(sizes),
                  list(collapsed), to_string_without_layout(operand));
  }
  const std::vector<int64_t> batch = batch_sizes(x, indices);
  const auto offset_dims = x.integers("offset_dims");
  const int rank = static_cast<int>(batch.size() + window.size());
  if (rank > kMaxHloRank) return misfit(x, "gives more than {} dimensions", kMaxHloRank);
  if (offset_dims.size() != window.size() || !are_distinct_dimensions(offset_dims, rank) ||
      !are_ascending(offset_dims)) {
    return misfit(x, "needs {} ascending offset_dims below {}, not {}", window.size(), rank,
                  list(offset_dims));
  }
  std::vector<int64_t> dims;
  size_t next_window = 0;
  size_t next_batch = 0;
  for (int i = 0; i < rank; ++i) {
    dims.push_back(holds(offset_dims, i) ? window[next_window++] : batch[next_batch++]);
  }
  if (!checked_element_count(dims)) return misfit(x, "gives more than 2^48 elements");
  return Shape(operand.type(), dims);
}

Status expect_updates(const Instruction& x, const Shape& operand, const Shape& indices,
                      const Shape& updates) {
  const auto inserted = x.integers("inserted_window_dims");
  const auto batching = x.integers("input_batching_dims");
  std::vector<int64_t> dropped(inserted.begin(), inserted.end());
  dropped.insert(dropped.end(), batching.begin(), batching.end());
  const auto window_dims = x.integers("update_window_dims");
  const std::vector<int64_t> batch = batch_sizes(x, indices);
  if (!are_distinct_dimensions(dropped, operand.rank()) ||
      window_dims.size() + dropped.size() != static_cast<size_t>(operand.rank()) ||
      !are_distinct_dimensions(window_dims, updates.rank()) || !are_ascending(window_dims) ||
      updates.rank() != static_cast<int>(batch.size() + window_dims.size())) {
    return misfit(x, "update_window_dims {} and inserted_window_dims {} do not lay {} over {}",
                  list(window_dims), list(inserted), to_string_without_layout(updates),
                  to_string_without_layout(operand));
  }
  size_t next_batch = 0;
  int next_window = 0;
  for (int i = 0; i < updates.rank(); ++i) {
    bool fits = true;
    if (holds(window_dims, i)) {
      while (holds(dropped, next_window)) ++next_window;
      fits = updates.dim(i) <= operand.dim(next_window++);
    } else {
      fits = updates.dim(i) == batch[next_batch++];
    }
    if (!fits) {
      return misfit(x, "dimension {} of updates {} does not fit indices {} and operand {}", i,
                    to_string_without_layout(updates), to_string_without_layout(indices),
                    to_string_without_layout(operand));
    }
  }
  return {};
}

Result<Shape> infer_scatter(const Instruction& x) {
  HEDDLE_TRY(expect_array_operands(x));
  const int count = x.operand_count() / 2;
  if (count == 0 || x.operand_count() % 2 != 1) {
    return misfit(x, "takes arrays, indices and as many updates, not {} operands",
                  x.operand_count());
  }
  const Shape& first = x.operand(0)->shape();
  const Shape& indices = x.operand(count)->shape();
  HEDDLE_TRY(expect_indices(x, first, indices, "scatter_dims_to_operand_dims",
                            "input_batching_dims", "scatter_indices_batching_dims"));
  std::vector<Shape> results;
  for (int i = 0; i < count; ++i) {
    const Shape& operand = x.operand(i)->shape();
    const Shape& updates = x.operand(count + 1 + i)->shape();
    if (operand.dims() != first.dims() || updates.dims() != x.operand(count + 1)->shape().dims() ||
        !types_fit(operand.type(), updates.type())) {
      return misfit(x, "updates {} with {}, beside {} with {}", to_string_without_layout(operand),
                    to_string_without_layout(updates), to_string_without_layout(first),
                    to_string_without_layout(x.operand(count + 1)->shape()));
    }
    HEDDLE_TRY(expect_updates(x, operand, indices, updates));
    results.push_back(Shape(operand.type(), operand.dims()));
  }
  Shape result = count == 1 ? results[0] : Shape::tuple(std::move(results));
  HEDDLE_TRY(expect_reducer(x, result));
  return result;
}

}  // namespace

Result<Shape> infer_indexing(const Instruction& x) {
  return x.is(Opcode::gather) ? infer_gather(x) : infer_scatter(x);
}

}  // namespace heddle::hlo
