#include <algorithm>
#include <bit>
#include <cmath>

#include "gqa/extents.h"

namespace heddle::gqa {
namespace {

using graph::CacheAppend;
using graph::Graph;
using graph::kNone;
using graph::PointwiseMode;
using graph::Sdpa;
using graph::Tensor;
using graph::TensorId;

class Builder {
 public:
  Builder(const Operator& op, const Extents& e) : op_(op), e_(e) {
    graph_.name = "group_query_attention";
    graph_.io_dtype = op[query].dtype;
    graph_.intermediate_dtype = graph_.compute_dtype = DataType::f32;
  }

  Graph build() {
    inputs();
    if (is_staged()) {
      const CacheAppend staged =
          with_query(append_to(staging("staged_key"), staging("staged_value")));
      graph_.nodes.push_back({"append_to_staging", staged});
      attend(staged, staged.present_k, staged.present_v);
      CacheAppend kept =
          append_to(present(present_key, "present_key"), present(present_value, "present_value"));
      kept.q_norm = kNone;
      graph_.nodes.push_back({"append", kept});
    } else if (e_.shares_cache) {
      CacheAppend none = with_query(append_);
      none.k_norm = kNone;
      graph_.nodes.push_back({"rotate", none});
      attend(none, past_k_, past_v_);
      hand_on();
    } else {
      const CacheAppend append = with_query(
          append_to(present(present_key, "present_key"), present(present_value, "present_value")));
      graph_.nodes.push_back({"append", append});
      attend(append, append.present_k, append.present_v);
    }
    return std::move(graph_);
  }

 private:
  bool is_ring() const { return op_.sliding_window_cache != 0; }
  /// Whether new rows would push keys out of a ring that the first of them still sees.
  bool is_staged() const {
    return is_ring() && !e_.shares_cache && e_.length > e_.past_rows - op_.local_window_size + 1;
  }

  /// An input seen with these dims and strides; kNone if the node has none.
  TensorId view(Input input, const char* name, Dims dims, std::optional<Dims> strides = {}) {
    if (!op_.has(input)) return kNone;
    Tensor tensor;
    tensor.uid = uid_of(input), tensor.name = name, tensor.dtype = op_[input].dtype;
    tensor.dims = dims, tensor.strides = strides ? *strides : *dense_strides(dims);
    return graph_.add(std::move(tensor));
  }
  TensorId made(const char* name, DataType dtype, Dims dims = {}) {
    Tensor tensor;
    tensor.name = name, tensor.dtype = dtype, tensor.is_virtual = true, tensor.dims = dims;
    return graph_.add(std::move(tensor));
  }
  TensorId constant(const char* name, double value) {
    Tensor tensor;
    tensor.name = name, tensor.constant = value;
    return graph_.add(std::move(tensor));
  }

  /// Heads side by side in a row of a token.
  Dims strides_of_heads(int64_t heads, int64_t rows) const {
    return {rows * heads * e_.head_size, e_.head_size, heads * e_.head_size, 1};
  }
  TensorId heads_of(Input input, const char* name, int64_t heads) {
    return view(input, name, {e_.batch, heads, e_.length, e_.head_size},
                strides_of_heads(heads, e_.length));
  }
  TensorId scales(Input input, const char* name, QuantType type) {
    if (type == QuantType::none) return kNone;
    const bool per_channel = type == QuantType::per_channel;
    return view(input, name, {1, per_channel ? e_.kv_heads : 1, 1, per_channel ? e_.head_size : 1});
  }
  TensorId cache(Input input, const char* name) {
    if (e_.past_rows == 0) return kNone;
    return view(input, name, {e_.batch, e_.kv_heads, e_.past_rows, e_.cache_columns()});
  }

  void inputs() {
    const int64_t packed = e_.is_packed ? 2 * e_.kv_heads : 0;
    append_.q = heads_of(query, "query", e_.heads + packed);
    if (!e_.shares_cache) {
      append_.k = heads_of(key, "key", e_.kv_heads);
      append_.v = heads_of(value, "value", e_.kv_heads);
    }
    past_k_ = cache(past_key, "past_key"), past_v_ = cache(past_value, "past_value");
    append_.seq_len_kv = view(seqlens_k, "seqlens_k", {e_.batch, 1, 1, 1});
    append_.seq_len_kv_offset = 1;  // the input is the place of the last token
    append_.seq_len_q = view(query_seqlens, "query_seqlens", {e_.batch, 1, 1, 1});
    append_.q_norm = view(q_norm_weight, "q_norm_weight", {1, 1, 1, e_.head_size});
    append_.k_norm = view(k_norm_weight, "k_norm_weight", {1, 1, 1, e_.head_size});
    append_.q_epsilon = op_.q_norm_epsilon.value_or(op_.qk_norm_epsilon);
    append_.k_epsilon = op_.k_norm_epsilon.value_or(op_.qk_norm_epsilon);
    k_scale_ = scales(k_scale, "k_scale", e_.k_quant);
    v_scale_ = scales(v_scale, "v_scale", e_.v_quant);
    if (op_.do_rotary != 0) rotation();
  }

  void rotation() {
    const Dims& table = op_[cos_cache].dims;
    append_.cosines = view(cos_cache, "cos_cache", {table[0], 1, 1, table[1]});
    append_.sines = view(sin_cache, "sin_cache", {table[0], 1, 1, table[1]});
    if (op_.rotary_interleaved != 0) append_.pairing = graph::RopePairing::interleaved;
    if (!op_.has(position_ids)) return;
    const int64_t row = op_[position_ids].dims[1];
    append_.positions =
        view(position_ids, "position_ids", {e_.batch, 1, e_.length, 1}, Dims{row, row, 1, 1});
  }

  /// A cache with the new rows in it.
  TensorId present(Output which, const char* name) {
    Tensor tensor;
    tensor.name = name, tensor.dtype = e_.cache;
    tensor.dims = {e_.batch, e_.kv_heads, e_.present_rows, e_.cache_columns()};
    tensor.is_virtual = !op_.wanted[which];
    if (op_.wanted[which]) tensor.uid = uid_of(which);
    return graph_.add(std::move(tensor));
  }
  /// A ring that holds what the first new row sees, and all the new rows.
  TensorId staging(const char* name) {
    return made(name, e_.cache,
                {e_.batch, e_.kv_heads, op_.local_window_size - 1 + e_.length, e_.cache_columns()});
  }

  /// New rows behind those of the past.
  CacheAppend append_to(TensorId k, TensorId v) const {
    CacheAppend append = append_;
    append.past_k = past_k_, append.past_v = past_v_;
    append.present_k = k, append.present_v = v;
    append.k_scale = k_scale_, append.v_scale = v_scale_;
    append.ring = is_ring();
    return append;
  }
  /// Of a cache that is shared: present, after what reads the past, which may lie at its address.
  /// An append of no rows copies those that there are, wherever lengths are, or touches nothing.
  void hand_on() {
    if (!op_.wanted[present_key] && !op_.wanted[present_value]) return;
    CacheAppend copy =
        append_to(present(present_key, "present_key"), present(present_value, "present_value"));
    copy.q = copy.k = copy.v =
        index("rows_that_are_none", op_[query].dtype, {e_.batch, e_.kv_heads, 1, e_.head_size});
    copy.seq_len_q = index("no_new_rows", DataType::i32, {e_.batch, 1, 1, 1});
    copy.q_norm = copy.k_norm = copy.cosines = copy.sines = copy.positions = kNone;
    graph_.nodes.push_back({"hand_on", copy});
  }
  /// The index along the heads: zeros where there is one.
  TensorId index(const char* name, DataType dtype, Dims dims) {
    graph::PointwiseNode node{.mode = PointwiseMode::gen_index, .y = made(name, dtype, dims)};
    node.axis = 1;
    graph_.nodes.push_back({name, node});
    return node.y;
  }
  /// And what attends to them.
  CacheAppend with_query(CacheAppend append) {
    append.q_out = made("rotated_query", op_[query].dtype);
    append.lengths_q = made("lengths_q", DataType::i32);
    append.lengths_kv = made("lengths_kv", DataType::i32);
    return append;
  }

  /// Keys there may be, where the rows of the cache do not say it.
  std::optional<int64_t> most_keys(TensorId k) const {
    const int64_t rows = graph_[k].dims[2];
    if (op_.has(attention_bias) || op_.wanted[output_qk]) {
      if (is_ring() || op_.total_length < rows) return op_.total_length;
      return {};
    }
    // Ever longer sequences are to share a plan.
    constexpr uint64_t kLeast = 4096;
    if (is_ring())
      return static_cast<int64_t>(std::min<uint64_t>(
          std::bit_ceil(std::max<uint64_t>(static_cast<uint64_t>(op_.total_length), kLeast)),
          INT32_MAX));
    return {};
  }

  void soft_cap(Sdpa& sdpa) {
    graph::ScoreModifier cap;
    cap.score_in = made("score", DataType::f32);
    cap.score_out = made("capped", DataType::f32);
    const TensorId limit = constant("softcap", op_.softcap), scaled = made("scaled", DataType::f32),
                   bounded = made("bounded", DataType::f32);
    cap.ops.push_back({PointwiseMode::div, {cap.score_in, limit}, scaled, 0, "scaled"});
    cap.ops.push_back({PointwiseMode::tanh_fwd, {scaled}, bounded, 0, "bounded"});
    cap.ops.push_back({PointwiseMode::mul, {bounded, limit}, cap.score_out, 0, "capped"});
    sdpa.attention.score_mod = std::move(cap);
  }

  void attend(const CacheAppend& append, TensorId k, TensorId v) {
    Sdpa sdpa;
    sdpa.q = append.q_out, sdpa.k = k, sdpa.v = v;
    sdpa.k_scale = k_scale_, sdpa.v_scale = v_scale_;
    sdpa.ring_kv = is_ring();
    sdpa.max_seq_len_kv = most_keys(k);
    graph::AttentionAttributes& a = sdpa.attention;
    a.attn_scale = op_.scale != 0 ? op_.scale : 1 / std::sqrt(static_cast<double>(e_.head_size));
    a.padding_mask = true;
    a.seq_len_q = append.lengths_q, a.seq_len_kv = append.lengths_kv;
    a.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
    if (op_.causal != 0) a.right_bound = 0;
    if (op_.local_window_size > 0)
      a.left_bound = std::min<int64_t>(op_.local_window_size, INT32_MAX);
    if (op_.softcap > 0) soft_cap(sdpa);
    if (op_.has(attention_bias))
      a.bias = view(attention_bias, "attention_bias", op_[attention_bias].dims);
    if (op_.has(head_sink)) {
      a.sink = view(head_sink, "head_sink", {1, e_.heads, 1, 1});
    } else if (op_.smooth_softmax == 1) {
      a.sink = constant("smooth_softmax", 0);
    }
    if (op_.wanted[output_qk]) {
      Tensor scores;
      scores.uid = uid_of(output_qk), scores.name = "output_qk", scores.dtype = op_[query].dtype;
      sdpa.scores = graph_.add(std::move(scores));
      sdpa.scores_after_softmax = op_.qk_output == 2;
    }
    Tensor out;
    out.uid = uid_of(output), out.name = "output", out.dtype = op_[query].dtype;
    out.dims = {e_.batch, e_.heads, e_.length, e_.head_size};
    out.strides = strides_of_heads(e_.heads, e_.length);
    sdpa.o = graph_.add(std::move(out));
    graph_.nodes.push_back({"attention", std::move(sdpa)});
  }

  const Operator& op_;
  const Extents& e_;
  Graph graph_;
  CacheAppend append_;  ///< all but caches and results
  TensorId past_k_ = kNone, past_v_ = kNone, k_scale_ = kNone, v_scale_ = kNone;
};

}  // namespace

Result<Graph> graph_of(const Operator& op) {
  HEDDLE_ASSIGN(const Extents extents, extents_of(op));
  return Builder(op, extents).build();
}

}  // namespace heddle::gqa
