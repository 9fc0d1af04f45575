// Attributes of the ops around attention: rotary embedding, RMS norm, pointwise ops of score
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
  /// Trailing columns that are rotated; 0 means all.
  Self& set_rope_dim(int64_t value) { return rope_dim_ = value, self(); }
  /// Heddle's own: GPT-J's pairs of neighbours, and positions, INT32 or INT64: a start per batch
  /// entry [B or 1,1,1,1], or one per row [B or 1,1,S,1].
  Self& set_pairing(RopePairing_t value) { return pairing_ = value, self(); }
  Self& set_positions(Tensor value) { return positions_ = std::move(value), self(); }

 private:
  friend class Graph;
  Self& self() { return static_cast<Self&>(*this); }

  std::string name_;
  double output_scale_ = 1;
  int64_t rope_dim_ = 0;
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

class Pointwise_attributes {
 public:
  Pointwise_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Pointwise_attributes& set_compute_data_type(DataType_t) { return *this; }
  Pointwise_attributes& set_mode(PointwiseMode_t value) { return mode_ = value, *this; }
  /// Of GEN_INDEX: 0 batch, 1 head, 2 row, 3 column.
  Pointwise_attributes& set_axis(int64_t value) { return axis_ = value, *this; }

 private:
  friend class Graph;
  std::string name_;
  PointwiseMode_t mode_ = PointwiseMode_t::NOT_SET;
  int64_t axis_ = 0;
};

}  // namespace heddle::frontend::graph
