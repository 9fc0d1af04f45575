// Attributes of instance norm and batch norm.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "heddle/frontend/enums.h"
#include "heddle/frontend/tensor.h"

namespace heddle::frontend::graph {

class Graph;

/// What all of them have; Self is the class.
template <class Self>
class Channel_norm_attributes {
 public:
  Self& set_name(std::string value) { return name_ = std::move(value), self(); }
  Self& set_compute_data_type(DataType_t) { return self(); }

 protected:
  Self& self() { return static_cast<Self&>(*this); }

 private:
  friend class Graph;
  std::string name_;
};

class Instancenorm_attributes : public Channel_norm_attributes<Instancenorm_attributes> {
 public:
  /// TRAINING also gives mean and inv_variance; must be said.
  Instancenorm_attributes& set_forward_phase(NormFwdPhase_t value) { return phase_ = value, *this; }
  /// A scalar tensor, or a number.
  Instancenorm_attributes& set_epsilon(Tensor value) { return epsilon_ = std::move(value), *this; }
  Instancenorm_attributes& set_epsilon(float value) {
    return set_epsilon(std::make_shared<Tensor_attributes>(value));
  }

 private:
  friend class Graph;
  NormFwdPhase_t phase_ = NormFwdPhase_t::NOT_SET;
  Tensor epsilon_;
};

class Batchnorm_attributes : public Channel_norm_attributes<Batchnorm_attributes> {
 public:
  /// FLOAT [1,C,1,...], which the next ones are made of, and a scalar.
  Batchnorm_attributes& set_previous_running_stats(Tensor mean, Tensor variance, Tensor momentum) {
    running_mean_ = std::move(mean), running_var_ = std::move(variance);
    return momentum_ = std::move(momentum), *this;
  }
  /// A scalar tensor, or a number.
  Batchnorm_attributes& set_epsilon(Tensor value) { return epsilon_ = std::move(value), *this; }
  Batchnorm_attributes& set_epsilon(float value) {
    return set_epsilon(std::make_shared<Tensor_attributes>(value));
  }
  /// Declined if there are some: statistics are those of one GPU's batch.
  Batchnorm_attributes& set_peer_stats(const std::vector<Tensor>& value) {
    return has_peers_ = !value.empty(), *this;
  }

 private:
  friend class Graph;
  Tensor running_mean_, running_var_, momentum_, epsilon_;
  bool has_peers_ = false;
};

class Batchnorm_inference_attributes
    : public Channel_norm_attributes<Batchnorm_inference_attributes> {};

/// Of a backward.
template <class Self>
class Channel_norm_backward_attributes : public Channel_norm_attributes<Self> {
 public:
  /// What the forward made in training; must be set.
  Self& set_saved_mean_and_inv_variance(Tensor mean, Tensor inv_variance) {
    mean_ = std::move(mean), inv_variance_ = std::move(inv_variance);
    return this->self();
  }
  /// Ignored: the saved inv_variance has it.
  Self& set_epsilon(Tensor) { return this->self(); }
  /// Declined if there are some.
  Self& set_peer_stats(const std::vector<Tensor>& value) {
    return has_peers_ = !value.empty(), this->self();
  }

 private:
  friend class Graph;
  Tensor mean_, inv_variance_;
  bool has_peers_ = false;
};
class Instancenorm_backward_attributes
    : public Channel_norm_backward_attributes<Instancenorm_backward_attributes> {};
class Batchnorm_backward_attributes
    : public Channel_norm_backward_attributes<Batchnorm_backward_attributes> {};

}  // namespace heddle::frontend::graph
