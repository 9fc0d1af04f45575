// Attributes of the ops around attention: rotary embedding, norms, pointwise ops, of score
// expressions.
#pragma once

#include "heddle/frontend/node.h"

namespace heddle::frontend::graph {

template <class Self>
class Rope_attributes_base {
 public:
  Self& set_name(std::string value) { return name_ = std::move(value), self(); }
  Self& set_compute_data_type(DataType_t) { return self(); }
  /// Multiplies the result; the backward takes the forward's value.
  Self& set_output_scale(float value) { return output_scale_ = value, self(); }
  /// How many columns are rotated, the last ones; 0 means all.
  Self& set_rope_dim(int64_t value) { return rope_dim_ = value, self(); }
  /// Heddle's own: the first rope_dim columns in place of the last, GPT-J's pairs of neighbours,
  /// and positions, INT32 or INT64: a start per batch entry [B or 1,1,1,1], or one per row [B or
  /// 1,1,S,1].
  Self& set_leading(bool value) { return leading_ = value, self(); }
  Self& set_pairing(RopePairing_t value) { return pairing_ = value, self(); }
  Self& set_positions(Tensor value) { return positions_ = std::move(value), self(); }

 private:
  friend class Graph;
  Self& self() { return static_cast<Self&>(*this); }

  std::string name_;
  double output_scale_ = 1;
  int64_t rope_dim_ = 0;
  bool leading_ = false;
  RopePairing_t pairing_ = RopePairing_t::HALVES;
  Tensor positions_;
};

class RoPE_attributes : public Rope_attributes_base<RoPE_attributes> {};
class RoPE_backward_attributes : public Rope_attributes_base<RoPE_backward_attributes> {};

class Rmsnorm_attributes {
 public:
  Rmsnorm_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Rmsnorm_attributes& set_compute_data_type(DataType_t) { return *this; }
  /// TRAINING also gives inv_variance; must be said.
  Rmsnorm_attributes& set_forward_phase(NormFwdPhase_t value) { return phase_ = value, *this; }
  Rmsnorm_attributes& set_epsilon(Tensor value) { return epsilon_ = std::move(value), *this; }
  Rmsnorm_attributes& set_bias(Tensor value) { return bias_ = std::move(value), *this; }

 private:
  friend class Graph;
  std::string name_;
  NormFwdPhase_t phase_ = NormFwdPhase_t::NOT_SET;
  Tensor epsilon_, bias_;
};

class Rmsnorm_backward_attributes {
 public:
  Rmsnorm_backward_attributes& set_name(std::string value) {
    return name_ = std::move(value), *this;
  }
  Rmsnorm_backward_attributes& set_compute_data_type(DataType_t) { return *this; }
  /// Whether the forward had a bias; must be said.
  Rmsnorm_backward_attributes& has_dbias(bool value) { return has_dbias_ = value, *this; }

 private:
  friend class Graph;
  std::string name_;
  std::optional<bool> has_dbias_;
};

class Layernorm_attributes {
 public:
  Layernorm_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Layernorm_attributes& set_compute_data_type(DataType_t) { return *this; }
  /// TRAINING also gives mean and inv_variance; must be said.
  Layernorm_attributes& set_forward_phase(NormFwdPhase_t value) { return phase_ = value, *this; }
  /// A scalar tensor, or a number.
  Layernorm_attributes& set_epsilon(Tensor value) { return epsilon_ = std::move(value), *this; }
  Layernorm_attributes& set_epsilon(float value) {
    return set_epsilon(std::make_shared<Tensor_attributes>(value));
  }
  /// The scale stands for scale + 1.
  Layernorm_attributes& set_zero_centered_gamma(bool value) {
    return zero_centered_gamma_ = value, *this;
  }

 private:
  friend class Graph;
  std::string name_;
  NormFwdPhase_t phase_ = NormFwdPhase_t::NOT_SET;
  Tensor epsilon_;
  bool zero_centered_gamma_ = false;
};

class Layernorm_backward_attributes {
 public:
  Layernorm_backward_attributes& set_name(std::string value) {
    return name_ = std::move(value), *this;
  }
  Layernorm_backward_attributes& set_compute_data_type(DataType_t) { return *this; }
  /// What the forward made in training; must be set.
  Layernorm_backward_attributes& set_saved_mean_and_inv_variance(Tensor mean, Tensor inv_variance) {
    return mean_ = std::move(mean), inv_variance_ = std::move(inv_variance), *this;
  }

 private:
  friend class Graph;
  std::string name_;
  Tensor mean_, inv_variance_;
};

/// Heddle's own: of new rows put into caches (cache_append in docs/graph-text-form.md).
class Cache_append_attributes {
 public:
  Cache_append_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  /// The caches before; each may be bound to the address of the one made.
  Cache_append_attributes& set_past(Tensor k, Tensor v) {
    return past_k_ = std::move(k), past_v_ = std::move(v), *this;
  }
  Cache_append_attributes& set_page_tables(Tensor k, Tensor v) {
    return k_table_ = std::move(k), v_table_ = std::move(v), *this;
  }
  /// New rows of each entry; all of them if not set.
  Cache_append_attributes& set_seq_len_q(Tensor value) {
    return seq_len_q_ = std::move(value), *this;
  }
  /// Rows of each entry with the new ones, less the offset.
  Cache_append_attributes& set_seq_len_kv(Tensor value, int64_t offset = 0) {
    return seq_len_kv_ = std::move(value), offset_ = offset, *this;
  }
  /// Weights [1,1,1,D] of the norms of heads of Q and K.
  Cache_append_attributes& set_norms(Tensor q, Tensor k, double epsilon = 1e-6) {
    return q_norm_ = std::move(q), k_norm_ = std::move(k), epsilon_ = epsilon, *this;
  }
  /// Tables [rows,1,1,rotated columns / 2]; positions [B or 1,1,S,1], those behind the past if
  /// null.
  Cache_append_attributes& set_rotation(Tensor cosines, Tensor sines, Tensor positions = nullptr) {
    cosines_ = std::move(cosines), sines_ = std::move(sines), positions_ = std::move(positions);
    return *this;
  }
  Cache_append_attributes& set_pairing(RopePairing_t value) { return pairing_ = value, *this; }
  /// Of caches that hold codes.
  Cache_append_attributes& set_scales(Tensor k, Tensor v) {
    return k_scale_ = std::move(k), v_scale_ = std::move(v), *this;
  }
  Cache_append_attributes& set_ring(bool value) { return ring_ = value, *this; }

 private:
  friend class Graph;
  std::string name_;
  Tensor past_k_, past_v_, k_table_, v_table_, seq_len_q_, seq_len_kv_, q_norm_, k_norm_;
  Tensor cosines_, sines_, positions_, k_scale_, v_scale_;
  int64_t offset_ = 0;
  double epsilon_ = 1e-6;
  RopePairing_t pairing_ = RopePairing_t::HALVES;
  bool ring_ = false;
};

class Pointwise_attributes {
 public:
  Pointwise_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Pointwise_attributes& set_compute_data_type(DataType_t) { return *this; }
  Pointwise_attributes& set_mode(PointwiseMode_t value) { return mode_ = value, *this; }
  /// Of GEN_INDEX: of scores 0 batch, 1 head, 2 row, 3 column.
  Pointwise_attributes& set_axis(int64_t value) { return axis_ = value, *this; }
  /// Of activations and their derivatives: values up to this one lie on a line of the slope.
  Pointwise_attributes& set_relu_lower_clip(float value) {
    return number("relu_lower_clip", value);
  }
  /// Values from this one on are it.
  Pointwise_attributes& set_relu_upper_clip(float value) {
    return number("relu_upper_clip", value);
  }
  Pointwise_attributes& set_relu_lower_clip_slope(float value) {
    return number("relu_lower_clip_slope", value);
  }
  Pointwise_attributes& set_elu_alpha(float value) { return number("elu_alpha", value); }
  Pointwise_attributes& set_softplus_beta(float value) { return number("softplus_beta", value); }
  Pointwise_attributes& set_swish_beta(float value) { return number("swish_beta", value); }

 private:
  friend class Graph;
  Pointwise_attributes& number(const char* field, float value) {
    return numbers_.emplace_back(field, value), *this;
  }

  std::string name_;
  PointwiseMode_t mode_ = PointwiseMode_t::NOT_SET;
  int64_t axis_ = 0;
  std::vector<std::pair<std::string, double>> numbers_;
};

}  // namespace heddle::frontend::graph
