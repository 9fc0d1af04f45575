// The values of a graph's tensors while it is evaluated: inputs are read from the caller's memory
// where they lie (any strides, ragged, paged), results are kept in f64 beside a mark of which
// elements the contract writes.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "reference/precision.h"

namespace heddle::reference {

/// Memory of the graph's tensors by uid. Results are never written here; see store_results.
using Buffers = std::unordered_map<int64_t, void*>;

/// A result: dense and row-major over the tensor's dims; elements that are not `written` (past the
/// ends of ragged sequences) keep whatever the caller's memory holds.
struct Array {
  Dims dims;
  std::vector<double> values;
  std::vector<uint8_t> written, kept;

  bool empty() const { return dims.empty(); }
};

class Values {
 public:
  Values(const graph::Graph& graph, const Buffers& buffers, Precision precision);

  const graph::Graph& graph() const { return graph_; }
  Precision precision() const { return precision_; }
  const graph::Tensor& tensor(graph::TensorId id) const { return graph_[id]; }

  /// Element (i0, i1, i2, i3) as a reader of the tensor's memory sees it, index 0 standing for any
  /// index in dims of 1.
  double read(graph::TensorId id, int64_t i0, int64_t i1 = 0, int64_t i2 = 0, int64_t i3 = 0) const;
  /// Row-major element `index` of a tensor of any rank.
  double read_linear(graph::TensorId id, int64_t index) const;
  /// The exact integer at (i0), for lengths, offsets, seeds.
  int64_t read_integer(graph::TensorId id, int64_t i0 = 0) const;
  /// Whether both are bound to one address.
  bool are_one(graph::TensorId a, graph::TensorId b) const;
  /// The first `count` rows of (b, h).
  Matrix rows(graph::TensorId id, int64_t b, int64_t h, int64_t count) const;

  /// Whether an element holds something: true of inputs, of results if a node wrote it or an input
  /// bound to the same memory has it.
  bool is_there(graph::TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const {
    const Array& array = result(id);
    if (array.empty()) return true;
    const size_t at = place(id, i0, i1, i2, i3);
    return array.written[at] != 0 || array.kept[at] != 0;
  }
  /// Makes `id` a result: nothing of it is written yet.
  void declare(graph::TensorId id);
  /// Sets or adds to an element of a result; nothing if `id` is kNone.
  void write(graph::TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
  /// What an element of a result holds that the contract does not write.
  void keep(graph::TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
  void add(graph::TensorId id, double value, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
  void write_linear(graph::TensorId id, double value, int64_t index);

  /// Readers of this result see it unrounded, as if it passed between ops without reaching memory.
  void keep_unrounded(graph::TensorId id) { unrounded_[static_cast<size_t>(id)] = true; }
  /// The tensor's result; empty if no node has produced it.
  const Array& result(graph::TensorId id) const { return results_[static_cast<size_t>(id)]; }
  /// Elements from the start of the tensor's memory to the element (row-major `index`).
  int64_t offset_of(graph::TensorId id, int64_t index) const;

 private:
  int64_t offset(graph::TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const;
  double rounded(graph::TensorId id, double value) const;
  size_t place(graph::TensorId id, int64_t i0, int64_t i1, int64_t i2, int64_t i3) const;

  const graph::Graph& graph_;
  const Buffers& buffers_;
  Precision precision_;
  std::vector<Array> results_;
  std::vector<bool> unrounded_;
};

}  // namespace heddle::reference
