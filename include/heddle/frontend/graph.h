// The graph: ops are added, then it is validated, planned and executed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "heddle/frontend/attention_attributes.h"
#include "heddle/frontend/op_attributes.h"

namespace heddle::frontend {

/// Where a graph runs: the device, and on a GPU the CUstream to queue on.
struct Handle {
  heddle_device device = HEDDLE_CPU;
  void* stream = nullptr;
};

namespace graph {

class Graph {
 public:
  Graph& set_name(std::string value) { return name_ = std::move(value), *this; }
  Graph& set_io_data_type(DataType_t value) { return io_ = value, *this; }
  Graph& set_intermediate_data_type(DataType_t value) { return intermediate_ = value, *this; }
  Graph& set_compute_data_type(DataType_t value) { return compute_ = value, *this; }
  /// Device properties are asked of the device itself.
  Graph& set_sm_count(int32_t) { return *this; }
  Graph& set_sm_version(int32_t) { return *this; }
  /// Every plan takes smaller shapes at an execution; plans for larger ones share kernels.
  Graph& set_dynamic_shape_enabled(bool) { return *this; }
  Graph& set_override_shape_enabled(bool) { return *this; }

  // ---- Tensors ----

  Tensor tensor(const Tensor_attributes& attributes) {
    return tensors_.emplace_back(std::make_shared<Tensor_attributes>(attributes));
  }
  /// A constant.
  Tensor tensor(float value) { return tensor(Tensor_attributes(value)); }
  Tensor tensor(double value) { return tensor(Tensor_attributes(value)); }
  Tensor tensor(int32_t value) { return tensor(Tensor_attributes(value)); }
  Tensor tensor(int64_t value) { return tensor(Tensor_attributes(value)); }
  /// Same dims, strides and type, another identity.
  Tensor tensor_like(const Tensor& like, const std::string& name = {}) {
    return tensor(Tensor_attributes(*like).clear_uid().set_name(name).set_is_virtual(false));
  }

  // ---- Ops; outputs begin virtual ----

  /// {O, Stats}; Stats is null unless generate_stats. Q [B,Hq,Sq,D], K [B,Hk,Skv,D] and V
  /// [B,Hv,Skv,Dv] give O [B,Hq,Sq,Dv] and Stats, FLOAT [B,Hq,Sq,1], each row's log-sum-exp.
  std::array<Tensor, 2> sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes attributes);
  /// {dQ, dK, dV}. Stats is null where the attributes give the logit max and the sum of
  /// exponentials.
  std::array<Tensor, 3> sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor d_o,
                                      Tensor stats, SDPA_backward_attributes attributes);
  /// X [B,H,S,D] gives Y of its dims. freqs are angles in radians, FLOAT [Sf,1,1,rope_dim], a row
  /// for each position, Sf >= S without positions: pair j's in column j < rope_dim / 2, again in
  /// column j + rope_dim / 2, which is not read. The last rope_dim columns of X are rotated.
  Tensor rope(Tensor x, Tensor freqs, RoPE_attributes attributes) {
    return rope_node("rope", std::move(x), std::move(freqs), attributes);
  }
  /// The gradient of X: dY turned back by the forward's freqs and attributes.
  Tensor rope_backward(Tensor d_y, Tensor freqs, RoPE_backward_attributes attributes) {
    return rope_node("rope_backward", std::move(d_y), std::move(freqs), attributes);
  }
  /// {Y, inv_variance}; the latter is null in INFERENCE. The dims of scale that are not 1 are those
  /// that X is normalised over ([1,1,1,D] for X [B,H,S,D]); the bias has its dims, inv_variance,
  /// FLOAT, the others of X. epsilon is a scalar, FLOAT or DOUBLE.
  std::array<Tensor, 2> rmsnorm(Tensor x, Tensor scale, Rmsnorm_attributes attributes);
  /// {DX, Dscale, Dbias}; the latter is null without a bias.
  std::array<Tensor, 3> rmsnorm_backward(Tensor dy, Tensor x, Tensor scale, Tensor inv_variance,
                                         Rmsnorm_backward_attributes attributes);
  /// {Y, mean, inv_variance}; the latter two are null in INFERENCE. The bias may be null.
  std::array<Tensor, 3> layernorm(Tensor x, Tensor scale, Tensor bias,
                                  Layernorm_attributes attributes);
  /// {DX, Dscale, Dbias}.
  std::array<Tensor, 3> layernorm_backward(Tensor dy, Tensor x, Tensor scale,
                                           Layernorm_backward_attributes attributes);
  /// {Q, present K, present V, lengths of Q, lengths of K and V}, as sdpa takes them. Without k and
  /// v q holds all three; without a past the caller gives the caches their dims. Codes and lengths
  /// have types of their own: lengths are INT32 from the start.
  std::array<Tensor, 5> cache_append(Tensor q, Tensor k, Tensor v,
                                     Cache_append_attributes attributes);
  /// Inside a score expression only.
  Tensor pointwise(Tensor a, Pointwise_attributes attributes) {
    return pointwise_node({std::move(a)}, attributes);
  }
  Tensor pointwise(Tensor a, Tensor b, Pointwise_attributes attributes) {
    return pointwise_node({std::move(a), std::move(b)}, attributes);
  }
  /// BINARY_SELECT: a where the mask is true, else b.
  Tensor pointwise(Tensor a, Tensor b, Tensor mask, Pointwise_attributes attributes) {
    return pointwise_node({std::move(mask), std::move(a), std::move(b)}, attributes);
  }

  // ---- Lifecycle ----

  /// Checks every rule and infers what is unset, into the tensors. Idempotent; no device work.
  error_t validate();
  error_t build_operation_graph(const Handle& handle = {}) { return handle_ = handle, validate(); }
  error_t create_execution_plans(const std::vector<HeurMode_t>& modes);
  /// Filters, before check_support.
  Graph& deselect_workspace_greater_than(int64_t bytes) { return workspace_limit_ = bytes, *this; }
  Graph& deselect_engines(const std::vector<std::string>& names) {
    return deselected_.insert(names.begin(), names.end()), *this;
  }
  /// OK iff the device's engines can run the graph and no filter is against it; else each engine's
  /// reason.
  error_t check_support();
  error_t check_support(const Handle& handle) { return handle_ = handle, check_support(); }
  error_t build_plans(BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE) {
    return check_support();
  }
  error_t build_plans(const Handle& handle,
                      BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE) {
    return check_support(handle);
  }
  error_t build_plan_at_index(const Handle& handle, int64_t index);
  error_t build(const Handle& handle, const std::vector<HeurMode_t>& modes,
                BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE);

  /// 0 until a plan is built.
  int64_t get_workspace_size() const {
    return static_cast<int64_t>(heddle_plan_workspace_bytes(plan_.get()));
  }
  error_t get_workspace_size(int64_t& bytes) const;
  int64_t get_execution_plan_count() const { return plan_ ? 1 : 0; }
  error_t get_plan_name(std::string& name) const;
  error_t query_tensor_attributes_of_uid(int64_t uid, Tensor_attributes& tensor) const;

  /// Runs the plan on the pointers of the pack; uids it does not need are ignored. Thread-safe,
  /// each thread with its own workspace of get_workspace_size() bytes.
  error_t execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                  void* workspace) const;
  error_t execute(const Handle& handle, const std::unordered_map<Tensor, void*>& pack,
                  void* workspace) const;
  /// The same plan on other shapes: the tensors of these uids have these dims and strides (empty:
  /// the graph's) this time. Batch and lengths may be less than the graph's; shapes that break a
  /// rule are refused. See heddle_plan_execute.
  error_t execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                  void* workspace, const std::vector<int64_t>& override_uids,
                  const std::vector<std::vector<int64_t>>& override_shapes,
                  const std::vector<std::vector<int64_t>>& override_strides) const;
  /// Pointers of all bound tensors, inputs and outputs together, in ascending uid.
  error_t execute(const Handle& handle, void* const* sorted, int64_t count, void* workspace) const;
  error_t execute_plan_at_index(const Handle& handle,
                                const std::unordered_map<int64_t, void*>& pack, void* workspace,
                                int64_t index) const;

  // ---- Text ----

  /// The graph's text form (JSON); plans are made again when it is read.
  error_t serialize(std::string& text) const;
  error_t serialize(std::vector<uint8_t>& bytes) const;
  error_t deserialize(const std::string& text);
  /// Becomes the graph of a GroupQueryAttention node, bound by the uids that heddle.h gives; or
  /// says what is wrong with the node in the sentences of its users.
  error_t group_query_attention(const heddle_gqa& node);
  /// Reads the graph and builds its plan.
  error_t deserialize(const Handle& handle, const std::vector<uint8_t>& bytes);
  /// Equal for graphs that compute the same with the same plan; tensor names do not count.
  size_t key() const;

 private:
  struct Free {
    void operator()(heddle_graph* graph) const { heddle_graph_free(graph); }
  };
  using Owned = std::unique_ptr<heddle_graph, Free>;

  Tensor output(const std::string& node, const char* port) {
    return tensor(
        Tensor_attributes().set_name(node.empty() ? "" : node + "::" + port).set_is_virtual(true));
  }
  template <class Attributes>
  Tensor rope_node(const char* op, Tensor x, Tensor freqs, const Attributes& attributes);
  Tensor pointwise_node(std::vector<Tensor> inputs, const Pointwise_attributes& attributes);
  void add_score_expression(Node& node, const char* field, const Score_function& function);
  void assign_uids() const;
  error_t make(Owned& graph, bool with_names) const;
  error_t text(std::string& out, bool with_names) const;
  using Plan = std::shared_ptr<heddle_plan>;
  static auto find_in(const std::unordered_map<int64_t, void*>& pack) {
    return [&pack](int64_t uid) {
      const auto found = pack.find(uid);
      return found == pack.end() ? std::nullopt : std::optional<void*>(found->second);
    };
  }
  template <class Find>
  error_t execute_found(const Handle& handle, Find&& find, const std::vector<heddle_shape>& shapes,
                        void* workspace) const;

  std::string name_;
  DataType_t io_ = DataType_t::NOT_SET, intermediate_ = DataType_t::NOT_SET,
             compute_ = DataType_t::NOT_SET;
  std::vector<Tensor> tensors_;
  std::vector<Node> nodes_;
  std::vector<Pointwise_node> pointwise_;  ///< of an inner graph, or misplaced
  std::string parsed_;                     ///< the text of a deserialized graph
  Handle handle_;
  bool modes_given_ = false;
  int64_t workspace_limit_ = INT64_MAX;
  std::unordered_set<std::string> deselected_;
  Plan plan_;
};

}  // namespace graph
}  // namespace heddle::frontend

#include "heddle/frontend/graph_execute.inl"
#include "heddle/frontend/graph_ops.inl"
#include "heddle/frontend/graph_text.inl"
