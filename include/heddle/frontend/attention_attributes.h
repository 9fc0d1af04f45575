// Attributes of sdpa and sdpa_backward.
#pragma once

#include <functional>

#include "heddle/frontend/node.h"

namespace heddle::frontend::graph {

/// Builds a score expression in the inner graph it is given: score in, score out.
using Score_function = std::function<Tensor(std::shared_ptr<Graph>, Tensor)>;

/// What sdpa and sdpa_backward share; `Self` is the class that the setters return.
template <class Self>
class Attention_attributes {
 public:
  Self& set_name(std::string value) { return name_ = std::move(value), self(); }
  Self& set_compute_data_type(DataType_t value) { return compute_data_type_ = value, self(); }
  /// Multiplies Q K^T before everything else; 1 if not set.
  Self& set_attn_scale(float value) { return attn_scale_ = value, self(); }
  Self& set_attn_scale(Tensor value) { return attn_scale_tensor_ = std::move(value), self(); }
  /// Additive, [1 or B, 1 or Hq, 1 or Sq, 1 or Skv].
  Self& set_bias(Tensor value) { return bias_ = std::move(value), self(); }
  Self& set_alibi_mask(bool value) { return alibi_ = value, self(); }
  Self& set_padding_mask(bool value) { return padding_ = value, self(); }
  Self& set_seq_len_q(Tensor value) { return seq_len_q_ = std::move(value), self(); }
  Self& set_seq_len_kv(Tensor value) { return seq_len_kv_ = std::move(value), self(); }
  Self& set_cu_seq_len_q(Tensor value) { return cu_seq_len_q_ = std::move(value), self(); }
  Self& set_cu_seq_len_kv(Tensor value) { return cu_seq_len_kv_ = std::move(value), self(); }
  Self& set_max_total_seq_len_q(int64_t value) { return max_total_q_ = value, self(); }
  Self& set_max_total_seq_len_kv(int64_t value) { return max_total_kv_ = value, self(); }
  Self& set_diagonal_alignment(DiagonalAlignment_t value) { return alignment_ = value, self(); }
  Self& set_diagonal_band_left_bound(int64_t value) { return left_ = value, self(); }
  Self& set_diagonal_band_right_bound(int64_t value) { return right_ = value, self(); }
  /// The older forms: top left with right bound 0, bottom right with right bound 0, a left bound.
  /// Beside an explicit bound or alignment that says otherwise they are an error.
  Self& set_causal_mask(bool value) { return causal_ = value, self(); }
  Self& set_causal_mask_bottom_right(bool value) { return causal_bottom_right_ = value, self(); }
  Self& set_sliding_window_length(int64_t value) { return window_ = value, self(); }
  Self& set_score_mod(Score_function value) { return score_mod_ = std::move(value), self(); }
  Self& set_block_mask(Tensor value) { return block_mask_ = std::move(value), self(); }
  /// Philox: weights are dropped with probability p, to 2^-16; seed and offset INT32 or INT64
  /// scalars.
  Self& set_dropout(float p, Tensor seed, Tensor offset) {
    return dropout_p_ = p, seed_ = std::move(seed), offset_ = std::move(offset), self();
  }
  /// By a mask, and a scale of one number: the one of the two that has one element is the scale,
  /// for programs that give it first.
  Self& set_dropout(Tensor mask, Tensor scale) {
    return dropout_mask_ = std::move(mask), dropout_scale_ = std::move(scale), self();
  }
  /// Threefry as JAX draws it: key UINT32 [2]; weight (b,h,i,j) has index b*s[0] + h*s[1] + i*s[2]
  /// + j*s[3].
  Self& set_dropout_threefry(double p, Tensor key, std::vector<int64_t> strides) {
    return dropout_p_ = p, seed_ = std::move(key), threefry_strides_ = std::move(strides), self();
  }
  /// Receives the exact 0/1 keep mask, FLOAT [B,Hq,Sq,Skv].
  Self& set_rng_dump(Tensor value) { return rng_dump_ = std::move(value), self(); }
  Self& set_sink_token(Tensor value) { return sink_ = std::move(value), self(); }
  /// Scores are in log2 units: the softmax is of score * ln 2. Must be equal in forward and
  /// backward.
  Self& set_softmax_input_is_log2(bool value) { return log2_input_ = value, self(); }
  /// A hint; results do not depend on it.
  Self& set_implementation(AttentionImplementation_t) { return self(); }

 protected:
  friend class Graph;

  void resolve_diagonal(Node& node) const {
    DiagonalAlignment_t alignment = alignment_.value_or(DiagonalAlignment_t::TOP_LEFT);
    std::optional<int64_t> left = left_, right = right_;
    const auto causal = [&](DiagonalAlignment_t wanted, const char* setter) {
      if (right && *right != 0) {
        node.fail(error_code_t::INVALID_VALUE,
                  std::string(setter) + " is set beside a right bound of " +
                      std::to_string(*right) + ", expected one of the two.");
      }
      if (alignment_ && *alignment_ != wanted) {
        node.fail(error_code_t::INVALID_VALUE,
                  std::string(setter) +
                      " is set beside the other diagonal alignment, expected one of the two.");
      }
      right = 0;
      alignment = wanted;
    };
    if (causal_ && causal_bottom_right_) {
      node.fail(error_code_t::INVALID_VALUE,
                "set_causal_mask and set_causal_mask_bottom_right are both set, expected one of "
                "the two.");
    }
    if (causal_) causal(DiagonalAlignment_t::TOP_LEFT, "set_causal_mask");
    if (causal_bottom_right_)
      causal(DiagonalAlignment_t::BOTTOM_RIGHT, "set_causal_mask_bottom_right");
    if (window_) {
      if (left && *left != *window_) {
        node.fail(error_code_t::INVALID_VALUE,
                  "set_sliding_window_length is " + std::to_string(*window_) +
                      " beside a left bound of " + std::to_string(*left) +
                      ", expected one of the two.");
      }
      left = window_;
    }
    node.integer("left_bound", left).integer("right_bound", right);
    node.choices.emplace_back("diagonal_alignment", alignment == DiagonalAlignment_t::TOP_LEFT
                                                        ? "top_left"
                                                        : "bottom_right");
  }

  void fill(Node& node) const {
    node.name = name_;
    node.number("attn_scale", attn_scale_)
        .tensor("attn_scale_tensor", attn_scale_tensor_)
        .tensor("bias", bias_);
    node.flag("alibi_mask", alibi_)
        .flag("padding_mask", padding_)
        .flag("softmax_input_is_log2", log2_input_);
    node.tensor("seq_len_q", seq_len_q_).tensor("seq_len_kv", seq_len_kv_);
    node.tensor("cu_seq_len_q", cu_seq_len_q_).tensor("cu_seq_len_kv", cu_seq_len_kv_);
    node.integer("max_total_seq_len_q", max_total_q_)
        .integer("max_total_seq_len_kv", max_total_kv_);
    node.tensor("block_mask", block_mask_).tensor("sink", sink_);
    node.number("dropout.probability", dropout_p_)
        .tensor("dropout.seed", seed_)
        .tensor("dropout.offset", offset_);
    const auto is_one = [](const Tensor& t) {
      return t && (t->get_constant() || (!t->get_dim().empty() && t->get_volume() == 1));
    };
    const bool swapped = is_one(dropout_mask_) && !is_one(dropout_scale_);
    node.tensor("dropout.mask", swapped ? dropout_scale_ : dropout_mask_)
        .tensor("dropout.scale", swapped ? dropout_mask_ : dropout_scale_);
    node.tensor("dropout.rng_dump", rng_dump_);
    if (!threefry_strides_.empty()) {
      node.flag("dropout.threefry", true);
      node.dims.emplace_back("dropout.threefry_strides", threefry_strides_);
    }
    // Outputs that the caller made.
    if (rng_dump_) rng_dump_->set_is_virtual(false);
    resolve_diagonal(node);
  }

  std::string name_;

 private:
  Self& self() { return static_cast<Self&>(*this); }

  DataType_t compute_data_type_ = DataType_t::NOT_SET;
  std::optional<double> attn_scale_, dropout_p_;
  Tensor attn_scale_tensor_, bias_, seq_len_q_, seq_len_kv_, cu_seq_len_q_, cu_seq_len_kv_,
      block_mask_, seed_, offset_, dropout_mask_, dropout_scale_, rng_dump_, sink_;
  bool alibi_ = false, padding_ = false, causal_ = false, causal_bottom_right_ = false,
       log2_input_ = false;
  std::optional<int64_t> max_total_q_, max_total_kv_, left_, right_, window_;
  std::optional<DiagonalAlignment_t> alignment_;
  std::vector<int64_t> threefry_strides_;
  Score_function score_mod_;
};

class SDPA_attributes : public Attention_attributes<SDPA_attributes> {
 public:
  /// Whether Stats (log-sum-exp, FLOAT [B,Hq,Sq,1]) are wanted; must be said.
  SDPA_attributes& set_generate_stats(bool value) { return generate_stats_ = value, *this; }
  SDPA_attributes& set_is_inference(bool value) { return set_generate_stats(!value); }
  SDPA_attributes& set_stats_use_log2(bool value) { return stats_use_log2_ = value, *this; }
  /// Caller-made outputs, FLOAT [B,Hq,Sq,1]: the row's maximum and its sum of exponentials.
  SDPA_attributes& set_logit_max(Tensor value) { return logit_max_ = std::move(value), *this; }
  SDPA_attributes& set_score_sum_exp(Tensor value) { return sum_exp_ = std::move(value), *this; }
  SDPA_attributes& set_paged_attention_k_table(Tensor value) {
    return k_table_ = std::move(value), *this;
  }
  SDPA_attributes& set_paged_attention_v_table(Tensor value) {
    return v_table_ = std::move(value), *this;
  }
  SDPA_attributes& set_paged_attention_max_seq_len_kv(int64_t value) {
    return paged_max_ = value, *this;
  }
  /// Heddle's own: K and V are codes (INT8, UINT8 of two, FP8_E4M3) of these FLOAT scales, [1, 1 or
  /// heads, 1, 1 or head dim]; keys there are at most; rings, where key j is in row j % rows.
  SDPA_attributes& set_scales(Tensor k, Tensor v) {
    return k_scale_ = std::move(k), v_scale_ = std::move(v), *this;
  }
  SDPA_attributes& set_max_seq_len_kv(int64_t value) { return most_keys_ = value, *this; }
  SDPA_attributes& set_ring_kv(bool value) { return ring_ = value, *this; }
  /// Q already carries attn_scale * log2(e).
  SDPA_attributes& set_attn_scale_prefolded(bool value) { return prefolded_ = value, *this; }
  /// How one product of the softmax is rounded: taken, within its error either way.
  SDPA_attributes& set_unfuse_fma(bool) { return *this; }
  /// Declined by name unless it is FLOAT.
  SDPA_attributes& set_softmax_precision(DataType_t value) {
    return softmax_precision_ = value, *this;
  }

 private:
  friend class Graph;
  DataType_t softmax_precision_ = DataType_t::FLOAT;
  std::optional<bool> generate_stats_;
  bool stats_use_log2_ = false, prefolded_ = false, ring_ = false;
  Tensor logit_max_, sum_exp_, k_table_, v_table_, k_scale_, v_scale_;
  std::optional<int64_t> paged_max_, most_keys_;
};

class SDPA_backward_attributes : public Attention_attributes<SDPA_backward_attributes> {
 public:
  using Attention_attributes::set_dropout;
  SDPA_backward_attributes& set_dropout(Tensor mask, Tensor scale, Tensor scale_inv) {
    scale_inv_ = std::move(scale_inv);
    return set_dropout(std::move(mask), std::move(scale));
  }
  /// The forward's statistics apart, in place of Stats (then null): both. They hold what a row
  /// weighs however large its scores are, Stats only up to the precision of a FLOAT.
  SDPA_backward_attributes& set_logit_max(Tensor value) {
    return logit_max_ = std::move(value), *this;
  }
  SDPA_backward_attributes& set_score_sum_exp(Tensor value) {
    return sum_exp_ = std::move(value), *this;
  }
  /// An input, FLOAT [B,Hq,Sq,1]: the gradient of each row's natural log-sum-exp, sink included,
  /// beside that of O; not set, the loss does not depend on it but through O.
  SDPA_backward_attributes& set_dstats(Tensor value) { return d_stats_ = std::move(value), *this; }
  /// Caller-made output: the gradient of the bias, summed over the dims where it has 1; of the
  /// bias's dims if it has none.
  SDPA_backward_attributes& set_dbias(Tensor value) { return d_bias_ = std::move(value), *this; }
  SDPA_backward_attributes& set_dsink_token(Tensor value) {
    return d_sink_ = std::move(value), *this;
  }
  /// Bitwise-equal reruns, for every output.
  SDPA_backward_attributes& set_deterministic_algorithm(bool value) {
    return deterministic_ = value, *this;
  }
  /// The statistics are those of these keys (and the sink) and of no others, as they are where a
  /// forward over the same keys made them: what rounding leaves of the sum of a row's score
  /// gradients may be taken off.
  SDPA_backward_attributes& set_whole_rows(bool value) { return whole_rows_ = value, *this; }
  /// The caller's own derivative of score_mod; derived symbolically if not set.
  SDPA_backward_attributes& set_score_mod_bprop(Score_function value) {
    return score_mod_bprop_ = std::move(value), *this;
  }

 private:
  friend class Graph;
  Tensor scale_inv_, d_bias_, d_sink_, logit_max_, sum_exp_, d_stats_;
  bool deterministic_ = false, whole_rows_ = false;
  Score_function score_mod_bprop_;
};

/// Of attention on FP8 operands: scale, padding and diagonal bounds; the others are declined.
class SDPA_fp8_attributes : public Attention_attributes<SDPA_fp8_attributes> {
 public:
  SDPA_fp8_attributes& set_generate_stats(bool value) { return generate_stats_ = value, *this; }
  SDPA_fp8_attributes& set_is_inference(bool value) { return set_generate_stats(!value); }
  /// As SDPA_attributes'.
  SDPA_fp8_attributes& set_paged_attention_k_table(Tensor value) {
    return k_table_ = std::move(value), *this;
  }
  SDPA_fp8_attributes& set_paged_attention_v_table(Tensor value) {
    return v_table_ = std::move(value), *this;
  }
  SDPA_fp8_attributes& set_paged_attention_max_seq_len_kv(int64_t value) {
    return paged_max_ = value, *this;
  }

 private:
  friend class Graph;
  bool generate_stats_ = false;
  Tensor k_table_, v_table_;
  std::optional<int64_t> paged_max_;
};

class SDPA_fp8_backward_attributes : public Attention_attributes<SDPA_fp8_backward_attributes> {
 public:
  SDPA_fp8_backward_attributes& set_deterministic_algorithm(bool value) {
    return deterministic_ = value, *this;
  }

 private:
  friend class Graph;
  bool deterministic_ = false;
};

}  // namespace heddle::frontend::graph
