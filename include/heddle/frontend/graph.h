// The graph: ops are added, then it is validated, planned and executed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "heddle/frontend/attention_attributes.h"
#include "heddle/frontend/channel_norm_attributes.h"
#include "heddle/frontend/cuda_graph.h"
#include "heddle/frontend/declined_ops.h"
#include "heddle/frontend/device_properties.h"
#include "heddle/frontend/knobs.h"
#include "heddle/frontend/late_plans.h"
#include "heddle/frontend/op_attributes.h"

namespace heddle::frontend {

/// Kernels of all graphs are kept for the process, and on disk, whether or not one is given: it
/// holds nothing.
class KernelCache {
 public:
  error_t to_json(std::string& text) const { return text = kText, error_t(); }
  /// Takes what to_json gave.
  error_t from_json(const std::string& text) {
    if (text == kText) return {};
    return {error_code_t::INVALID_VALUE,
            "The text is that of no kernel cache, expected what to_json gave."};
  }

 private:
  static constexpr const char* kText = "{\"heddle_kernel_cache\": 1}";
};

namespace graph {

class Graph : public Declined_ops<Graph> {
 public:
  Graph& set_name(std::string value) { return name_ = std::move(value), *this; }
  Graph& set_io_data_type(DataType_t value) { return io_ = value, *this; }
  Graph& set_intermediate_data_type(DataType_t value) { return intermediate_ = value, *this; }
  Graph& set_compute_data_type(DataType_t value) { return compute_ = value, *this; }
  /// For planning without a handle: as on GPUs of this version (90), none of which has to be here.
  /// Such a plan runs nothing; an execution is planned for its handle's device.
  Graph& set_sm_version(int32_t value) { return sm_version_ = value, *this; }
  Graph& set_device_properties(std::shared_ptr<const DeviceProperties> value) {
    return set_sm_version(value ? value->get_sm_version() : 0);
  }
  /// Plans do not depend on it.
  Graph& set_sm_count(int32_t) { return *this; }
  Graph& set_kernel_cache(std::shared_ptr<KernelCache>) { return *this; }
  /// Every plan takes other shapes at an execution.
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
  /// column j + rope_dim / 2, which is not read. The last rope_dim columns of X are rotated, or the
  /// first.
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
  /// layernorm over the dims of X [N,C,...] behind the second: scale and bias are [1,C,1,...], the
  /// statistics, null in INFERENCE, FLOAT [N,C,1,...]. {Y, mean, inv_variance}; the bias may be
  /// null.
  std::array<Tensor, 3> instancenorm(Tensor x, Tensor scale, Tensor bias,
                                     Instancenorm_attributes attributes);
  /// {DX, Dscale, Dbias}.
  std::array<Tensor, 3> instancenorm_backward(Tensor dy, Tensor x, Tensor scale,
                                              Instancenorm_backward_attributes attributes);
  /// As in training: layernorm over all dims of X [N,C,...] but the second; the others are
  /// [1,C,1,...], statistics FLOAT. {Y, mean, inv_variance, next_running_mean, next_running_var};
  /// the latter two are null without previous ones, to whose addresses they may be bound.
  std::array<Tensor, 5> batchnorm(Tensor x, Tensor scale, Tensor bias,
                                  Batchnorm_attributes attributes);
  /// Y = scale (X - mean) inv_variance + bias, as pointwise ops.
  Tensor batchnorm_inference(Tensor x, Tensor mean, Tensor inv_variance, Tensor scale, Tensor bias,
                             Batchnorm_inference_attributes attributes);
  /// {DX, Dscale, Dbias}.
  std::array<Tensor, 3> batchnorm_backward(Tensor dy, Tensor x, Tensor scale,
                                           Batchnorm_backward_attributes attributes);
  /// Attention on FP8 operands (E4M3 or E5M2, each tensor its own) with FLOAT scalars that turn
  /// their codes into numbers (descale) and numbers into codes (scale); codes saturate. {O, Stats,
  /// Amax_S, Amax_O}, where an Amax, a FLOAT [1,1,1,1], is the largest magnitude before the scale.
  /// Stats is null unless generate_stats.
  std::array<Tensor, 4> sdpa_fp8(Tensor q, Tensor k, Tensor v, Tensor descale_q, Tensor descale_k,
                                 Tensor descale_v, Tensor descale_s, Tensor scale_s, Tensor scale_o,
                                 SDPA_fp8_attributes attributes);
  /// The weights held as the engine likes, O not scaled: {O, Stats, Amax_O}.
  std::array<Tensor, 3> sdpa_fp8(Tensor q, Tensor k, Tensor v, Tensor descale_q, Tensor descale_k,
                                 Tensor descale_v, SDPA_fp8_attributes attributes);
  /// {dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV, Amax_dP}; dP is the gradient of the scaled dot.
  std::array<Tensor, 7> sdpa_fp8_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor d_o,
                                          Tensor stats, Tensor descale_q, Tensor descale_k,
                                          Tensor descale_v, Tensor descale_o, Tensor descale_d_o,
                                          Tensor descale_s, Tensor descale_d_p, Tensor scale_s,
                                          Tensor scale_d_q, Tensor scale_d_k, Tensor scale_d_v,
                                          Tensor scale_d_p,
                                          SDPA_fp8_backward_attributes attributes);
  /// On MXFP8's operands, which is declined: {dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV}.
  std::array<Tensor, 6> sdpa_fp8_backward(Tensor q, Tensor q_t, Tensor k, Tensor k_t, Tensor v,
                                          Tensor o_f16, Tensor d_o_f16, Tensor d_o, Tensor d_o_t,
                                          Tensor stats, Tensor descale_q, Tensor descale_q_t,
                                          Tensor descale_k, Tensor descale_k_t, Tensor descale_v,
                                          Tensor descale_d_o, Tensor descale_d_o_t,
                                          SDPA_fp8_backward_attributes attributes);
  /// {Q, present K, present V, lengths of Q, lengths of K and V}, as sdpa takes them. Without k and
  /// v q holds all three; without a past the caller gives the caches their dims. Codes and lengths
  /// have types of their own: lengths are INT32 from the start.
  std::array<Tensor, 5> cache_append(Tensor q, Tensor k, Tensor v,
                                     Cache_append_attributes attributes);
  /// Element by element, where dims of 1 broadcast; GEN_INDEX takes of its tensor the dims alone.
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
  /// Without a handle the graph is planned for the SM version that is set, else for the GPU where
  /// there is one, else for the CPU.
  error_t build_operation_graph() { return validate(); }
  error_t build_operation_graph(const Handle& handle);
  /// Finds the plan: what no engine of the device runs is declined here, with each one's reason.
  error_t create_execution_plans(const std::vector<HeurMode_t>& modes);
  /// There is one engine, of index 0: whichever of the device's runs the graph. It has no knobs.
  error_t get_engine_count(int64_t& count);
  error_t get_knobs_for_engine(int64_t engine, std::vector<Knob>& knobs);
  /// 0 and none, of the plan at index 0: what create_execution_plan takes to find it again.
  error_t get_engine_and_knobs_at_index(int64_t index, int64_t& engine,
                                        std::unordered_map<KnobType_t, int64_t>& knobs) const;
  /// As create_execution_plans, of the engine 0 with no knobs.
  error_t create_execution_plan(int64_t engine,
                                const std::unordered_map<KnobType_t, int64_t>& knobs);
  /// Filters, before check_support.
  Graph& deselect_workspace_greater_than(int64_t bytes) { return workspace_limit_ = bytes, *this; }
  Graph& deselect_engines(const std::vector<std::string>& names) {
    return deselected_.insert(names.begin(), names.end()), *this;
  }
  Graph& select_behavior_notes(const std::vector<BehaviorNote_t>& notes) {
    return selected_notes_ = notes, *this;
  }
  Graph& deselect_behavior_notes(const std::vector<BehaviorNote_t>& notes) {
    return deselected_notes_ = notes, *this;
  }
  /// Plans do not tell these of themselves: what would need to be known is declined.
  Graph& select_numeric_notes(const std::vector<NumericalNote_t>& notes) {
    return selected_numerics_ = notes, *this;
  }
  Graph& deselect_numeric_notes(const std::vector<NumericalNote_t>& notes) {
    return deselected_numerics_ = notes, *this;
  }
  Graph& deselect_shared_mem_greater_than(int64_t bytes) {
    return shared_memory_limit_ = bytes, *this;
  }
  /// OK iff a plan was found and no filter is against it.
  error_t check_support();
  error_t check_support(const Handle& handle);
  error_t build_plans(BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE,
                      bool /*on_many_threads*/ = false) {
    return check_support();
  }
  error_t build_plans(const Handle& handle,
                      BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE,
                      bool /*on_many_threads*/ = false) {
    return check_support(handle);
  }
  /// There is one plan, of index 0.
  error_t build_plan_at_index(const Handle& handle, int64_t index);
  error_t build_plan_at_index(int64_t index);
  error_t build(const Handle& handle, const std::vector<HeurMode_t>& modes,
                BuildPlanPolicy_t = BuildPlanPolicy_t::HEURISTICS_CHOICE, bool = false);
  error_t build(const std::vector<HeurMode_t>& modes);
  /// A plan is ready for its first execution once it is built.
  error_t warmup(const Handle& handle) const;
  /// The fastest of one plan is found without a run.
  template <class Pack>
  error_t autotune(const Handle& handle, const Pack& /*pack*/, void* /*workspace*/,
                   void* /*implementation*/ = nullptr) const {
    return warmup(handle);
  }
  int64_t get_autotune_workspace_size() const { return get_workspace_size(); }

  /// 0 until a plan is built.
  int64_t get_workspace_size() const {
    return static_cast<int64_t>(heddle_plan_workspace_bytes(plan_.get()));
  }
  error_t get_workspace_size(int64_t& bytes) const;
  /// What an execution with these shapes needs, which are larger than the graph's.
  error_t get_workspace_size(const Handle& handle, int64_t& bytes,
                             const std::vector<int64_t>& override_uids,
                             const std::vector<std::vector<int64_t>>& override_shapes,
                             const std::vector<std::vector<int64_t>>& override_strides) const;
  error_t get_workspace_size_plan_at_index(int64_t index, int64_t& bytes) const;
  int64_t get_workspace_size_plan_at_index(int64_t index) const {
    return index == 0 ? get_workspace_size() : 0;
  }
  /// 1 once the plan is found.
  int64_t get_execution_plan_count() const { return candidate_ ? 1 : 0; }
  error_t get_plan_name(std::string& name) const;
  error_t get_plan_name_at_index(int64_t index, std::string& name) const;
  error_t get_behavior_notes(std::vector<BehaviorNote_t>& notes) const;
  error_t get_behavior_notes_for_plan_at_index(int64_t index,
                                               std::vector<BehaviorNote_t>& notes) const;
  error_t query_tensor_attributes_of_uid(int64_t uid, Tensor_attributes& tensor) const;

  /// Runs the plan on the pointers of the pack; uids it does not need are ignored. Thread-safe,
  /// each thread with its own workspace of get_workspace_size() bytes.
  error_t execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                  void* workspace) const;
  error_t execute(const Handle& handle, const std::unordered_map<Tensor, void*>& pack,
                  void* workspace) const;
  /// On other shapes: the tensors of these uids have these dims and strides (of another rank than
  /// the tensor's: the graph's) this time; outputs follow. Batch and lengths that are no larger
  /// than the graph's take the same plan (see heddle_plan_execute). Larger ones take another, which
  /// the first such execution makes, and the workspace that get_workspace_size says of them; shapes
  /// that break a rule are refused.
  error_t execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                  void* workspace, const std::vector<int64_t>& override_uids,
                  const std::vector<std::vector<int64_t>>& override_shapes,
                  const std::vector<std::vector<int64_t>>& override_strides) const;
  /// Pointers of all bound tensors, inputs and outputs together, in ascending uid.
  error_t execute(const Handle& handle, void* const* sorted, int64_t count, void* workspace) const;
  error_t execute_plan_at_index(const Handle& handle,
                                const std::unordered_map<int64_t, void*>& pack, void* workspace,
                                int64_t index) const;
  error_t execute_plan_at_index(const Handle& handle, const std::unordered_map<Tensor, void*>& pack,
                                void* workspace, int64_t index) const;

  // ---- CUDA graphs, of a driver of CUDA 12.3 or later ----

  /// Adds the launches of an execution to a CUgraph (CUDA's runtime calls it cudaGraph_t). The
  /// pack's memory and the workspace have to be there when it runs.
  template <class Pack>
  error_t populate_cuda_graph(const Handle& handle, const Pack& pack, void* workspace,
                              CUgraph_st* cuda_graph) const {
    return launch_into(cuda_graph, handle, pack, workspace, false);
  }
  /// Gives a CUgraph that populate_cuda_graph filled this pack's memory and this workspace.
  template <class Pack>
  error_t update_cuda_graph(const Handle& handle, const Pack& pack, void* workspace,
                            CUgraph_st* cuda_graph) const {
    return launch_into(cuda_graph, handle, pack, workspace, true);
  }

  // ---- Text ----

  /// The graph's text form (JSON); plans are made again when it is read.
  error_t serialize(std::string& text) const;
  error_t serialize(std::vector<uint8_t>& bytes, bool /*with_structure*/ = true) const;
  error_t deserialize(const std::string& text);
  /// Becomes the graph of a GroupQueryAttention node, bound by the uids that heddle.h gives; or
  /// says what is wrong with the node in the sentences of its users.
  error_t group_query_attention(const heddle_gqa& node);
  /// Reads the graph and builds its plan.
  error_t deserialize(const Handle& handle, const std::vector<uint8_t>& bytes);
  /// Equal for graphs that compute the same with the same plan; tensor names do not count.
  size_t key() const;

 private:
  friend class Declined_ops<Graph>;
  struct Free {
    void operator()(heddle_graph* graph) const { heddle_graph_free(graph); }
  };
  using Owned = std::unique_ptr<heddle_graph, Free>;

  Tensor output(const std::string& node, const char* port) {
    return tensor(
        Tensor_attributes().set_name(node.empty() ? "" : node + "::" + port).set_is_virtual(true));
  }
  void add(Node node);
  template <class Attributes>
  Tensor rope_node(const char* op, Tensor x, Tensor freqs, const Attributes& attributes);
  static constexpr const char* kNoPeers =
      "peer_stats are set, expected none: statistics are those of one GPU's batch.";
  template <class Attributes>
  std::array<Tensor, 3> channel_norm_backward(const char* op, Tensor dy, Tensor x, Tensor scale,
                                              const Attributes& attributes);
  Tensor pointwise_node(std::vector<Tensor> inputs, const Pointwise_attributes& attributes);
  std::vector<Tensor> declined(const char* op, const std::string& name,
                               const std::vector<Tensor>& inputs,
                               const std::vector<const char*>& ports);
  void add_score_expression(Node& node, const char* field, const Score_function& function);
  Node fp8_forward_node(const std::array<Tensor, 6>& operands, const SDPA_fp8_attributes& a,
                        const Tensor& o, const Tensor& stats);
  Tensor amax(const std::string& node, const char* port) {
    const Tensor made = output(node, port);
    made->set_data_type(DataType_t::FLOAT);
    return made;
  }

  void assign_uids() const;
  int64_t stand_in_for_zero() const;
  error_t make(Owned& graph, bool with_names, const std::vector<heddle_shape>& shapes = {}) const;
  error_t text(std::string& out, bool with_names) const;

  error_t plan_on(heddle_device device, const heddle_graph* graph, Plan& plan) const;
  error_t find_candidate();
  error_t filter(const heddle_plan* plan) const;
  error_t filter_by_numerics(const std::string& engine) const;
  std::vector<BehaviorNote_t> notes() const;
  error_t check_built() const;
  static error_t check_index(int64_t index);
  static error_t check_engine(int64_t engine);
  /// What a plan calls the tensor that the program calls 0, and the reverse.
  int64_t library_uid(int64_t uid) const { return uid ? uid : zero_; }
  int64_t own_uid(int64_t uid) const { return uid == zero_ ? 0 : uid; }
  static auto find_in(const std::unordered_map<int64_t, void*>& pack) {
    return [&pack](int64_t uid) {
      const auto found = pack.find(uid);
      return found == pack.end() ? std::nullopt : std::optional<void*>(found->second);
    };
  }
  error_t overrides(const std::vector<int64_t>& uids, const std::vector<std::vector<int64_t>>& dims,
                    const std::vector<std::vector<int64_t>>& strides,
                    std::vector<heddle_shape>& shapes) const;
  bool is_exceeded_by(const std::vector<heddle_shape>& shapes) const;
  error_t find_plan(heddle_device device, std::vector<heddle_shape>& shapes, Plan& plan) const;
  template <class Find>
  error_t execute_found(const Handle& handle, Find&& find, std::vector<heddle_shape> shapes,
                        void* workspace) const;
  template <class Pack>
  error_t launch_into(CUgraph_st* cuda_graph, const Handle& handle, const Pack& pack,
                      void* workspace, bool again) const;

  std::string name_;
  DataType_t io_ = DataType_t::NOT_SET, intermediate_ = DataType_t::NOT_SET,
             compute_ = DataType_t::NOT_SET;
  std::vector<Tensor> tensors_;
  std::vector<Node> nodes_;
  bool is_expression_ = false;             ///< the inner graph of a score expression
  std::vector<Pointwise_node> pointwise_;  ///< its ops
  std::string parsed_;                     ///< the text of a deserialized graph
  int64_t zero_ = 0;                       ///< of plan_ and parsed_: in the place of the uid 0
  std::optional<Handle> handle_;
  int32_t sm_version_ = 0;
  bool modes_given_ = false;
  int64_t workspace_limit_ = INT64_MAX;
  std::unordered_set<std::string> deselected_;
  std::vector<BehaviorNote_t> selected_notes_, deselected_notes_;
  std::vector<NumericalNote_t> selected_numerics_, deselected_numerics_;
  int64_t shared_memory_limit_ = INT64_MAX;
  /// Where candidate_ and plan_ run; nothing if that is an architecture.
  std::optional<heddle_device> device_;
  Plan candidate_, plan_;  ///< found, and once no filter is against it built
  std::shared_ptr<Late_plans> late_ = std::make_shared<Late_plans>();
};

}  // namespace graph
}  // namespace heddle::frontend

#include "heddle/frontend/graph_build.inl"
#include "heddle/frontend/graph_execute.inl"
#include "heddle/frontend/graph_ops.inl"
#include "heddle/frontend/graph_text.inl"
