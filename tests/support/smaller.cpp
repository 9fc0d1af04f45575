#include "support/smaller.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <type_traits>

#include "graph/extents.h"
#include "graph/ports.h"

namespace heddle::testing {

using graph::kNone;
using graph::TensorId;

namespace {

struct Sizes {
  int64_t batch, q_length, kv_length;
};

/// Where a dim of `from` is what is to be replaced. A dim of 1 is any size, and stays.
void replace(int64_t& dim, int64_t from, int64_t to) {
  if (dim == from && from > 1) dim = to;
}

class Shrinking {
 public:
  Shrinking(Program& program, const Sizes& from, const Sizes& to)
      : program_(program), from_(from), to_(to) {}

  /// An attention's ports.
  void attention(const graph::Node& node) {
    for (const graph::Port& port : graph::ports(node)) {
      if (port.inner && port.output) {
        program_.graph[port.tensor].dims = {};  // inferred
      } else if (is_one_of(port.name,
                           {"q", "o", "stats", "max", "sum_exp", "d_stats", "d_o", "d_q"})) {
        rows(port.tensor, true);
      } else if (is_one_of(port.name, {"k", "v", "d_k", "d_v"})) {
        rows(port.tensor, false);
      } else if (port.name == "block_mask") {
        block_mask(port.tensor);
      } else if (is_one_of(port.name, {"seq_len_q", "seq_len_kv"})) {
        lengths(port.tensor, port.name == "seq_len_q" ? to_.q_length : to_.kv_length);
      } else if (is_one_of(port.name, {"cu_seq_len_q", "cu_seq_len_kv"})) {
        prefix_sums(port.tensor);
      } else if (port.name.starts_with("page_table")) {
        program_.graph[port.tensor].dims[0] = to_.batch;
      } else if (!program_.graph[port.tensor].is_virtual) {
        scores(port.tensor);
      }
    }
  }

  /// A rope between x and y, of which a neighbour already has its dims.
  void rope(const graph::Rope& op) {
    const bool is_query = queries_.contains(op.x) || queries_.contains(op.y);
    rows(op.x, is_query);
    rows(op.y, is_query);
    if (op.positions == kNone) return;
    Dims& dims = program_.graph[op.positions].dims;
    replace(dims[0], from_.batch, to_.batch);
    if (is_query) replace(dims[2], from_.q_length, to_.q_length);
    if (!is_query) replace(dims[2], from_.kv_length, to_.kv_length);
  }

  /// Containers of pages stay as they are.
  void keep(TensorId id) { kept_.insert(id); }

 private:
  static bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  void rows(TensorId id, bool is_query) {
    if (is_query) queries_.insert(id);
    if (!kept_.insert(id).second) return;
    Dims& dims = program_.graph[id].dims;
    dims[0] = to_.batch;
    dims[2] = is_query ? to_.q_length : to_.kv_length;
    if (const TensorId offsets = program_.graph[id].ragged_offset; offsets != kNone)
      prefix_sums(offsets);
  }

  void scores(TensorId id) {
    if (!kept_.insert(id).second) return;
    Dims& dims = program_.graph[id].dims;
    replace(dims[0], from_.batch, to_.batch);
    replace(dims[2], from_.q_length, to_.q_length);
    replace(dims[3], from_.kv_length, to_.kv_length);
  }

  void block_mask(TensorId id) {
    Dims& dims = program_.graph[id].dims;
    replace(dims[0], from_.batch, to_.batch);
    dims[2] = (to_.q_length + 127) / 128;
    dims[3] = ((to_.kv_length + 127) / 128 + 7) / 8;
  }

  void lengths(TensorId id, int64_t most) {
    graph::Tensor& tensor = program_.graph[id];
    if (!kept_.insert(id).second) return;
    tensor.dims[0] = to_.batch;
    for (int64_t b = 0; b < to_.batch; ++b) {
      const auto* const memory = program_.memory.at(tensor.uid).data();
      const auto given = static_cast<int64_t>(load(*tensor.dtype, memory, b * tensor.strides[0]));
      program_.set_integer(id, std::min(given, most), b);
    }
  }

  void prefix_sums(TensorId id) { program_.graph[id].dims[0] = to_.batch + 1; }

  Program& program_;
  const Sizes from_, to_;
  std::set<TensorId> kept_, queries_;
};

/// Prefix sums and offsets say where sequences lie that are as long as they are.
bool has_fixed_lengths(const graph::Graph& graph) {
  for (const graph::Node& node : graph.nodes) {
    for (const graph::Port& port : graph::ports(node)) {
      if (port.name.starts_with("cu_seq_len") || graph[port.tensor].ragged_offset != kNone)
        return true;
    }
  }
  return false;
}

template <class Op>
concept Attention = requires(Op op) {
  op.attention;
};

/// The sizes of an attention in `program`, and with it of the ropes around it.
template <Attention Op>
void shrink(Random& random, const Program& program, const graph::Node& node, const Op& op,
            Program& less) {
  const graph::AttentionExtents e = extents(program.graph, op);
  const Sizes from{e.batch, e.q_length, e.kv_length};
  Sizes to = from;
  to.batch = random.integer(1, from.batch);
  bool is_paged = false;
  if constexpr (std::is_same_v<Op, graph::Sdpa>)
    is_paged = op.page_table_k != kNone || op.page_table_v != kNone;
  if (!has_fixed_lengths(program.graph)) {
    to.q_length = random.integer(1, from.q_length);
    if (!is_paged) to.kv_length = random.integer(1, from.kv_length);
  }
  Shrinking shrinking(less, from, to);
  if constexpr (std::is_same_v<Op, graph::Sdpa>) {
    if (op.page_table_k != kNone) shrinking.keep(op.k);
    if (op.page_table_v != kNone) shrinking.keep(op.v);
  }
  shrinking.attention(node);
  for (const graph::Node& other : program.graph.nodes) {
    if (const auto* rope = std::get_if<graph::Rope>(&other.op)) shrinking.rope(*rope);
  }
}

/// One that stands alone.
void shrink(Random& random, const Program& program, const graph::Node&, const graph::Rope& op,
            Program& less) {
  if (program.graph.nodes.size() > 1) return;
  const Dims& x = program.graph[op.x].dims;
  const Sizes from{x[0], x[2], x[2]};
  Sizes to{random.integer(1, x[0]), 0, x[2]};
  if (!has_fixed_lengths(program.graph)) to.kv_length = random.integer(1, x[2]);
  Shrinking(less, from, to).rope(op);
}

/// Fewer entries and new rows; caches keep their rows.
void shrink(Random& random, const Program& program, const graph::Node&,
            const graph::CacheAppend& op, Program& less) {
  const Dims& q = program.graph[op.q].dims;
  const int64_t batch = random.integer(1, q[0]), rows = random.integer(1, q[2]);
  for (TensorId id : {op.q, op.k, op.v, op.q_out, op.positions}) {
    if (id != kNone) replace(less.graph[id].dims[2], q[2], rows);
  }
  for (TensorId id : {op.q, op.k, op.v, op.q_out, op.positions, op.seq_len_q, op.seq_len_kv,
                      op.lengths_q, op.lengths_kv, op.page_table_k, op.page_table_v}) {
    if (id != kNone) replace(less.graph[id].dims[0], q[0], batch);
  }
  for (TensorId id : {op.past_k, op.past_v, op.present_k, op.present_v}) {
    if (id != kNone && op.page_table_k == kNone) replace(less.graph[id].dims[0], q[0], batch);
  }
}

/// Of pointwise ops alone: any dim of all tensors.
void shrink(Random& random, const Program& program, const graph::Node& node,
            const graph::PointwiseNode& op, Program& less) {
  if (&node != &program.graph.nodes.front()) return;
  const int rank = program.graph[op.y].dims.rank();
  for (int d = 0; d < rank; ++d) {
    int64_t from = 1;
    for (const graph::Tensor& tensor : program.graph.tensors)
      if (tensor.dims.rank() == rank) from = std::max(from, tensor.dims[d]);
    const int64_t to = random.integer(1, from);
    for (graph::Tensor& tensor : less.graph.tensors)
      if (tensor.dims.rank() == rank) replace(tensor.dims[d], from, to);
  }
}

/// The dims of x that `scale` has not.
template <class Norm>
void shrink(Random& random, const Program& program, const graph::Node& node, const Norm& op,
            Program& less) {
  const Dims scale = program.graph[op.scale].dims;
  for (int d = 0; d < scale.rank(); ++d) {
    if (scale[d] != 1) continue;
    const int64_t from = program.graph[op.x].dims[d], to = random.integer(1, from);
    for (const graph::Port& port : graph::ports(node)) {
      Dims& dims = less.graph[port.tensor].dims;
      if (d < dims.rank()) replace(dims[d], from, to);
    }
  }
}

}  // namespace

Program smaller(Random& random, const Program& program) {
  Program less = program;
  for (const graph::Node& node : program.graph.nodes) {
    std::visit([&](const auto& op) { shrink(random, program, node, op, less); }, node.op);
  }
  return less;
}

}  // namespace heddle::testing
