// Ops that Heddle's graphs do not have: programs with them compile, and their graphs are declined
// with a sentence at validate().
#pragma once

#include <array>

#include "heddle/frontend/attention_attributes.h"
#include "heddle/frontend/declined_attributes.h"

namespace heddle::frontend::graph {

/// Graph's own; Self has `Tensor declined(op, name, inputs, port)`, which adds the node.
template <class Self>
class Declined_ops {
 public:
  Tensor matmul(Tensor a, Tensor b, Matmul_attributes attributes) {
    return one("matmul", attributes, {a, b}, "C");
  }
  Tensor moe_grouped_matmul(Tensor token, Tensor weight, Tensor first_token_offset,
                            Tensor token_index, Tensor token_ks,
                            Moe_grouped_matmul_attributes attributes) {
    return one("moe_grouped_matmul", attributes,
               {token, weight, first_token_offset, token_index, token_ks}, "OUT_0");
  }
  Tensor reduction(Tensor x, Reduction_attributes attributes) {
    return one("reduction", attributes, {x}, "Y");
  }

  Tensor conv_fprop(Tensor x, Tensor w, Conv_fprop_attributes attributes) {
    return one("conv_fprop", attributes, {x, w}, "Y");
  }
  Tensor conv_dgrad(Tensor dy, Tensor w, Conv_dgrad_attributes attributes) {
    return one("conv_dgrad", attributes, {dy, w}, "DX");
  }
  Tensor conv_wgrad(Tensor dy, Tensor x, Conv_wgrad_attributes attributes) {
    return one("conv_wgrad", attributes, {dy, x}, "DW");
  }
  /// {SUM, SQ_SUM}
  std::array<Tensor, 2> genstats(Tensor x, Genstats_attributes attributes) {
    return many<2>("genstats", attributes, {x}, {"SUM", "SQ_SUM"});
  }
  /// {Y, Index}; the latter is null unless a maximum is trained through.
  std::array<Tensor, 2> resample(Tensor x, Resample_attributes attributes) {
    return many<2>("resample", attributes, {x}, {"Y", attributes.has_index() ? "Index" : nullptr});
  }

  /// {eq_scale, eq_bias, mean, inv_variance, next_running_mean, next_running_var}
  std::array<Tensor, 6> bn_finalize(Tensor sum, Tensor sq_sum, Tensor scale, Tensor bias,
                                    Tensor epsilon, Tensor accum_count,
                                    BN_finalize_attributes attributes) {
    const bool runs = attributes.has_running_stats();
    return many<6>("bn_finalize", attributes, {sum, sq_sum, scale, bias, epsilon, accum_count},
                   {"EQ_SCALE", "EQ_BIAS", "MEAN", "INV_VARIANCE",
                    runs ? "NEXT_RUNNING_MEAN" : nullptr, runs ? "NEXT_RUNNING_VAR" : nullptr});
  }
  /// {Dscale, Dbias, eq_scale_dy, eq_scale_x, eq_bias}
  std::array<Tensor, 5> dbn_weight(Tensor dy, Tensor x, Tensor mean, Tensor inv_variance,
                                   Tensor scale, DBN_weight_attributes attributes) {
    return many<5>("dbn_weight", attributes, {dy, x, mean, inv_variance, scale},
                   {"Dscale", "Dbias", "EQ_SCALE_DY", "EQ_SCALE_X", "EQ_BIAS"});
  }
  /// {Y, mean, inv_variance}; the latter two are null in INFERENCE.
  std::array<Tensor, 3> adalayernorm(Tensor x, Tensor scale, Tensor bias,
                                     AdaLayernorm_attributes attributes) {
    return phased("adalayernorm", attributes, {x, scale, bias});
  }
  std::array<Tensor, 3> adalayernorm_backward(Tensor dy, Tensor x, Tensor scale,
                                              AdaLayernorm_backward_attributes attributes) {
    return many<3>("adalayernorm_backward", attributes, {dy, x, scale}, kGradients);
  }

  Tensor reshape(Tensor x, Reshape_attributes attributes) {
    return one("reshape", attributes, {x}, "Y");
  }
  Tensor slice(Tensor x, Slice_attributes attributes) { return one("slice", attributes, {x}, "Y"); }
  Tensor transpose(Tensor x, Transpose_attributes attributes) {
    return one("transpose", attributes, {x}, "Y");
  }
  Tensor concatenate(std::vector<Tensor> x, Concatenate_attributes attributes) {
    return one("concatenate", attributes, std::move(x), "Y");
  }
  /// {Y, scale}
  std::array<Tensor, 2> block_scale_quantize(Tensor x, Block_scale_quantize_attributes attributes) {
    return many<2>("block_scale_quantize", attributes, {x}, {"Y", "scale"});
  }
  Tensor block_scale_dequantize(Tensor x, Tensor scale,
                                Block_scale_dequantize_attributes attributes) {
    return one("block_scale_dequantize", attributes, {x, scale}, "Y");
  }
  Tensor rng(Tensor seed, Tensor offset, Rng_attributes attributes) {
    return one("rng", attributes, {seed, offset}, "Y");
  }

 protected:
  /// MXFP8: {dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV}. Of q, k and dO the transposed are codes of
  /// their own, each with scales of blocks; o and dO in 16 bits are there beside them.
  std::array<Tensor, 6> mxfp8_backward(std::vector<Tensor> inputs, const std::string& name) {
    Named attributes;
    attributes.set_name(name);
    return many<6>("sdpa_mxfp8_backward", attributes, std::move(inputs),
                   {"dQ", "dK", "dV", "Amax_dQ", "Amax_dK", "Amax_dV"});
  }

 private:
  class Named : public Declined_attributes<Named> {};
  static constexpr std::array<const char*, 3> kGradients{"DX", "Dscale", "Dbias"};

  template <class Attributes>
  Tensor one(const char* op, const Attributes& attributes, std::vector<Tensor> inputs,
             const char* port) {
    return many<1>(op, attributes, std::move(inputs), {port})[0];
  }
  /// A port of null gives a null tensor.
  template <size_t count, class Attributes>
  std::array<Tensor, count> many(const char* op, const Attributes& attributes,
                                 std::vector<Tensor> inputs,
                                 const std::array<const char*, count>& ports) {
    const std::vector<Tensor> made = static_cast<Self*>(this)->declined(
        op, attributes.get_name(), inputs, {ports.begin(), ports.end()});
    std::array<Tensor, count> outputs;
    std::copy(made.begin(), made.end(), outputs.begin());
    return outputs;
  }
  template <class Attributes>
  std::array<Tensor, 3> phased(const char* op, const Attributes& attributes,
                               std::vector<Tensor> inputs) {
    const bool has = attributes.has_statistics();
    return many<3>(op, attributes, std::move(inputs),
                   {"Y", has ? "MEAN" : nullptr, has ? "INV_VARIANCE" : nullptr});
  }
};

}  // namespace heddle::frontend::graph
