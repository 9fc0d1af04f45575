// Attributes of ops that Heddle's graphs do not have. They take what programs say and keep the name
// alone, for the sentence that declines the op.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "heddle/frontend/tensor.h"

namespace heddle::frontend {

enum class ReductionMode_t { NOT_SET, ADD, MUL, MIN, MAX, AMAX, AVG, NORM1, NORM2, MUL_NO_ZEROS };
enum class ConvolutionMode_t { NOT_SET, CONVOLUTION, CROSS_CORRELATION };
enum class ReshapeMode_t { VIEW_ONLY, LOGICAL };
enum class MoeGroupedMatmulMode_t { NONE, GATHER, SCATTER };
enum class RngDistribution_t { NOT_SET, BERNOULLI, UNIFORM, NORMAL };
enum class PaddingMode_t { NOT_SET, EDGE_VAL_PAD, NEG_INF_PAD, ZERO_PAD };
enum class ResampleMode_t {
  NOT_SET,
  AVGPOOL_EXCLUDE_PADDING,
  AVGPOOL_INCLUDE_PADDING,
  BILINEAR,
  NEAREST,
  MAXPOOL,
};

namespace graph {

using Numbers = std::vector<int64_t>;

template <class Self>
class Declined_attributes {
 public:
  Self& set_name(std::string value) { return name_ = std::move(value), self(); }
  Self& set_compute_data_type(DataType_t) { return self(); }
  const std::string& get_name() const { return name_; }

 protected:
  Self& self() { return static_cast<Self&>(*this); }

 private:
  std::string name_;
};

class Matmul_attributes : public Declined_attributes<Matmul_attributes> {
 public:
  Matmul_attributes& set_m_override(Tensor) { return *this; }
  Matmul_attributes& set_n_override(Tensor) { return *this; }
  Matmul_attributes& set_k_override(Tensor) { return *this; }
  Matmul_attributes& set_padding(double) { return *this; }
};

class Moe_grouped_matmul_attributes : public Declined_attributes<Moe_grouped_matmul_attributes> {
 public:
  Moe_grouped_matmul_attributes& set_mode(MoeGroupedMatmulMode_t) { return *this; }
  Moe_grouped_matmul_attributes& set_top_k(int32_t) { return *this; }
};

class Reduction_attributes : public Declined_attributes<Reduction_attributes> {
 public:
  Reduction_attributes& set_mode(ReductionMode_t) { return *this; }
  Reduction_attributes& set_is_deterministic(bool) { return *this; }
};

// ---- Convolutions, pooling

template <class Self>
class Convolution_attributes : public Declined_attributes<Self> {
 public:
  Self& set_padding(Numbers) { return this->self(); }
  Self& set_pre_padding(Numbers) { return this->self(); }
  Self& set_post_padding(Numbers) { return this->self(); }
  Self& set_stride(Numbers) { return this->self(); }
  Self& set_dilation(Numbers) { return this->self(); }
  Self& set_convolution_mode(ConvolutionMode_t) { return this->self(); }
};
class Conv_fprop_attributes : public Convolution_attributes<Conv_fprop_attributes> {};
class Conv_dgrad_attributes : public Convolution_attributes<Conv_dgrad_attributes> {};
class Conv_wgrad_attributes : public Convolution_attributes<Conv_wgrad_attributes> {};

class Genstats_attributes : public Declined_attributes<Genstats_attributes> {};

class Resample_attributes : public Declined_attributes<Resample_attributes> {
 public:
  Resample_attributes& set_resampling_mode(ResampleMode_t value) { return mode_ = value, *this; }
  Resample_attributes& set_padding_mode(PaddingMode_t) { return *this; }
  Resample_attributes& set_window(Numbers) { return *this; }
  Resample_attributes& set_stride(Numbers) { return *this; }
  Resample_attributes& set_pre_padding(Numbers) { return *this; }
  Resample_attributes& set_post_padding(Numbers) { return *this; }
  /// Of a maximum that is trained through, an index is made too.
  Resample_attributes& set_is_inference(bool value) { return is_inference_ = value, *this; }
  Resample_attributes& set_generate_index(bool value) { return set_is_inference(!value); }
  bool has_index() const { return mode_ == ResampleMode_t::MAXPOOL && !is_inference_; }

 private:
  ResampleMode_t mode_ = ResampleMode_t::NOT_SET;
  bool is_inference_ = true;
};

// ---- Norms over a batch, of an instance, with a scale for each entry

/// What the forward made.
template <class Self>
class Saved_statistics_attributes : public Declined_attributes<Self> {
 public:
  Self& set_saved_mean_and_inv_variance(Tensor, Tensor) { return this->self(); }
  Self& set_epsilon(Tensor) { return this->self(); }
  Self& set_peer_stats(std::vector<Tensor>) { return this->self(); }
};
class AdaLayernorm_backward_attributes
    : public Saved_statistics_attributes<AdaLayernorm_backward_attributes> {};

/// In inference mean and inv_variance are null.
template <class Self>
class Phased_norm_attributes : public Declined_attributes<Self> {
 public:
  Self& set_forward_phase(NormFwdPhase_t value) { return phase_ = value, this->self(); }
  Self& set_epsilon(Tensor) { return this->self(); }
  bool has_statistics() const { return phase_ != NormFwdPhase_t::INFERENCE; }

 private:
  NormFwdPhase_t phase_ = NormFwdPhase_t::NOT_SET;
};
class AdaLayernorm_attributes : public Phased_norm_attributes<AdaLayernorm_attributes> {};

/// Running statistics are made where there are previous ones.
template <class Self>
class Running_statistics_attributes : public Declined_attributes<Self> {
 public:
  Self& set_previous_running_stats(Tensor mean, Tensor variance, Tensor /*momentum*/) {
    return has_running_stats_ = mean && variance, this->self();
  }
  Self& set_epsilon(Tensor) { return this->self(); }
  Self& set_peer_stats(std::vector<Tensor>) { return this->self(); }
  bool has_running_stats() const { return has_running_stats_; }

 private:
  bool has_running_stats_ = false;
};
class BN_finalize_attributes : public Running_statistics_attributes<BN_finalize_attributes> {};
class DBN_weight_attributes : public Declined_attributes<DBN_weight_attributes> {};

// ---- Memory, scales of blocks, random numbers

class Reshape_attributes : public Declined_attributes<Reshape_attributes> {
 public:
  Reshape_attributes& set_reshape_mode(ReshapeMode_t) { return *this; }
};

class Slice_attributes : public Declined_attributes<Slice_attributes> {
 public:
  Slice_attributes& set_slices(std::vector<std::pair<int64_t, int64_t>>) { return *this; }
  Slice_attributes& set_strides(Numbers) { return *this; }
};

class Transpose_attributes : public Declined_attributes<Transpose_attributes> {
 public:
  Transpose_attributes& set_permutation(Numbers) { return *this; }
};

class Concatenate_attributes : public Declined_attributes<Concatenate_attributes> {
 public:
  Concatenate_attributes& set_axis(int64_t) { return *this; }
  Concatenate_attributes& set_in_place_index(int64_t) { return *this; }
};

class Block_scale_quantize_attributes
    : public Declined_attributes<Block_scale_quantize_attributes> {
 public:
  Block_scale_quantize_attributes& set_block_size(int32_t) { return *this; }
  Block_scale_quantize_attributes& set_axis(int64_t) { return *this; }
  Block_scale_quantize_attributes& set_transpose(bool) { return *this; }
};

class Block_scale_dequantize_attributes
    : public Declined_attributes<Block_scale_dequantize_attributes> {
 public:
  Block_scale_dequantize_attributes& set_block_size(int32_t) { return *this; }
  Block_scale_dequantize_attributes& set_block_size(std::vector<int32_t>) { return *this; }
  Block_scale_dequantize_attributes& set_is_negative_scale(bool) { return *this; }
};

class Rng_attributes : public Declined_attributes<Rng_attributes> {
 public:
  Rng_attributes& set_distribution(RngDistribution_t) { return *this; }
  Rng_attributes& set_bernoulli_probability(double) { return *this; }
  Rng_attributes& set_seed(int64_t) { return *this; }
};

}  // namespace graph
}  // namespace heddle::frontend
