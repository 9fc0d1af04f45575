// Graph's ops: each call keeps a node. Part of graph.h.
#pragma once

namespace heddle::frontend::graph {

/// A plan of the graph without it is none of this graph's.
inline void Graph::add(Node node) {
  nodes_.push_back(std::move(node));
  candidate_.reset();
  plan_.reset();
}

inline std::array<Tensor, 2> Graph::sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes a) {
  Node node;
  node.op = "sdpa";
  a.fill(node);
  if (!a.generate_stats_) {
    node.fail(error_code_t::ATTRIBUTE_NOT_SET,
              "generate_stats is not set, expected set_generate_stats(true or false).");
  }
  if (a.softmax_precision_ != DataType_t::FLOAT) {
    node.fail(error_code_t::GRAPH_NOT_SUPPORTED, "softmax_precision is not FLOAT, expected FLOAT.");
  }
  const Tensor o = output(a.name_, "O");
  const Tensor stats = a.generate_stats_.value_or(false) ? output(a.name_, "Stats") : nullptr;
  node.tensor("q", q).tensor("k", k).tensor("v", v).tensor("o", o).tensor("stats", stats);
  node.tensor("max", a.logit_max_).tensor("sum_exp", a.sum_exp_);
  node.flag("stats_use_log2", a.stats_use_log2_).flag("attn_scale_prefolded", a.prefolded_);
  // Pages behind a length need not exist, whatever the score_mod does with scores there.
  const bool has_lengths = a.seq_len_q_ && a.seq_len_kv_;
  if (a.score_mod_ && (a.k_table_ || a.v_table_) && has_lengths && !a.padding_)
    node.flag("padding_mask", true);
  node.tensor("page_table_k", a.k_table_).tensor("page_table_v", a.v_table_);
  node.integer("paged_max_seq_len_kv", a.paged_max_);
  node.tensor("k_scale", a.k_scale_).tensor("v_scale", a.v_scale_);
  node.integer("max_seq_len_kv", a.most_keys_).flag("ring_kv", a.ring_);
  for (const Tensor& made : {a.logit_max_, a.sum_exp_}) {
    if (made) made->set_is_virtual(false);
  }
  add_score_expression(node, "score_mod", a.score_mod_);
  add(std::move(node));
  return {o, stats};
}

inline std::array<Tensor, 3> Graph::sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor o,
                                                  Tensor d_o, Tensor stats,
                                                  SDPA_backward_attributes a) {
  Node node;
  node.op = "sdpa_backward";
  a.fill(node);
  const std::array<Tensor, 3> gradients{output(a.name_, "dQ"), output(a.name_, "dK"),
                                        output(a.name_, "dV")};
  node.tensor("q", q)
      .tensor("k", k)
      .tensor("v", v)
      .tensor("o", o)
      .tensor("d_o", d_o)
      .tensor("stats", stats)
      .tensor("max", a.logit_max_)
      .tensor("sum_exp", a.sum_exp_)
      .tensor("d_stats", a.d_stats_);
  node.tensor("d_q", gradients[0]).tensor("d_k", gradients[1]).tensor("d_v", gradients[2]);
  node.tensor("d_bias", a.d_bias_)
      .tensor("d_sink", a.d_sink_)
      .tensor("dropout.scale_inv", a.scale_inv_);
  node.flag("deterministic", a.deterministic_).flag("whole_rows", a.whole_rows_);
  for (const Tensor& made : {a.d_bias_, a.d_sink_}) {
    if (made) made->set_is_virtual(false);
  }
  add_score_expression(node, "score_mod", a.score_mod_);
  add_score_expression(node, "score_mod_bprop", a.score_mod_bprop_);
  add(std::move(node));
  return gradients;
}

inline Node Graph::fp8_forward_node(const std::array<Tensor, 6>& operands,
                                    const SDPA_fp8_attributes& a, const Tensor& o,
                                    const Tensor& stats) {
  Node node;
  node.op = "sdpa_fp8";
  a.fill(node);
  constexpr const char* kPorts[] = {"q", "k", "v", "descale_q", "descale_k", "descale_v"};
  for (size_t n = 0; n < operands.size(); ++n) node.tensor(kPorts[n], operands[n]);
  node.tensor("o", o).tensor("stats", stats);
  node.tensor("page_table_k", a.k_table_).tensor("page_table_v", a.v_table_);
  if (a.k_table_ || a.v_table_) node.integer("paged_max_seq_len_kv", a.paged_max_);
  add_score_expression(node, "score_mod", a.score_mod_);
  return node;
}

inline std::array<Tensor, 4> Graph::sdpa_fp8(Tensor q, Tensor k, Tensor v, Tensor descale_q,
                                             Tensor descale_k, Tensor descale_v, Tensor descale_s,
                                             Tensor scale_s, Tensor scale_o,
                                             SDPA_fp8_attributes a) {
  const Tensor o = output(a.name_, "O");
  const Tensor stats = a.generate_stats_ ? output(a.name_, "Stats") : nullptr;
  const Tensor amax_s = amax(a.name_, "Amax_S"), amax_o = amax(a.name_, "Amax_O");
  Node node = fp8_forward_node({q, k, v, descale_q, descale_k, descale_v}, a, o, stats);
  if (!descale_s || !scale_s || !scale_o)
    node.fail(error_code_t::ATTRIBUTE_NOT_SET,
              "One of descale_s, scale_s and scale_o is null, expected all three.");
  node.tensor("descale_s", descale_s).tensor("scale_s", scale_s).tensor("scale_o", scale_o);
  node.tensor("amax_s", amax_s).tensor("amax_o", amax_o);
  add(std::move(node));
  return {o, stats, amax_s, amax_o};
}

inline std::array<Tensor, 3> Graph::sdpa_fp8(Tensor q, Tensor k, Tensor v, Tensor descale_q,
                                             Tensor descale_k, Tensor descale_v,
                                             SDPA_fp8_attributes a) {
  const Tensor o = output(a.name_, "O");
  const Tensor stats = a.generate_stats_ ? output(a.name_, "Stats") : nullptr;
  const Tensor amax_o = amax(a.name_, "Amax_O");
  Node node = fp8_forward_node({q, k, v, descale_q, descale_k, descale_v}, a, o, stats);
  node.tensor("amax_o", amax_o);
  add(std::move(node));
  return {o, stats, amax_o};
}

inline std::array<Tensor, 7> Graph::sdpa_fp8_backward(
    Tensor q, Tensor k, Tensor v, Tensor o, Tensor d_o, Tensor stats, Tensor descale_q,
    Tensor descale_k, Tensor descale_v, Tensor descale_o, Tensor descale_d_o, Tensor descale_s,
    Tensor descale_d_p, Tensor scale_s, Tensor scale_d_q, Tensor scale_d_k, Tensor scale_d_v,
    Tensor scale_d_p, SDPA_fp8_backward_attributes a) {
  Node node;
  node.op = "sdpa_fp8_backward";
  a.fill(node);
  const std::array<Tensor, 7> made{output(a.name_, "dQ"),    output(a.name_, "dK"),
                                   output(a.name_, "dV"),    amax(a.name_, "Amax_dQ"),
                                   amax(a.name_, "Amax_dK"), amax(a.name_, "Amax_dV"),
                                   amax(a.name_, "Amax_dP")};
  if (!scale_d_q || !scale_d_k || !scale_d_v)
    node.fail(error_code_t::ATTRIBUTE_NOT_SET,
              "One of scale_dQ, scale_dK and scale_dV is null, expected all three.");
  node.tensor("q", q).tensor("k", k).tensor("v", v).tensor("o", o).tensor("d_o", d_o);
  node.tensor("stats", stats).tensor("descale_q", descale_q).tensor("descale_k", descale_k);
  node.tensor("descale_v", descale_v).tensor("descale_o", descale_o);
  node.tensor("descale_d_o", descale_d_o).tensor("descale_s", descale_s);
  node.tensor("descale_d_p", descale_d_p).tensor("scale_s", scale_s);
  node.tensor("scale_d_q", scale_d_q).tensor("scale_d_k", scale_d_k);
  node.tensor("scale_d_v", scale_d_v).tensor("scale_d_p", scale_d_p);
  node.tensor("d_q", made[0]).tensor("d_k", made[1]).tensor("d_v", made[2]);
  node.tensor("amax_d_q", made[3]).tensor("amax_d_k", made[4]).tensor("amax_d_v", made[5]);
  node.tensor("amax_d_p", made[6]).flag("deterministic", a.deterministic_);
  add_score_expression(node, "score_mod", a.score_mod_);
  add(std::move(node));
  return made;
}

template <class Attributes>
Tensor Graph::rope_node(const char* op, Tensor x, Tensor freqs, const Attributes& a) {
  Node node;
  node.op = op;
  node.name = a.name_;
  const Tensor y = output(a.name_, node.op == "rope" ? "OUTPUT" : "DX");
  node.tensor("x", x).tensor("freqs", freqs).tensor("positions", a.positions_).tensor("y", y);
  node.number("output_scale", a.output_scale_).integer("rope_dim", a.rope_dim_);
  node.flag("leading", a.leading_);
  node.choices.emplace_back("pairing",
                            a.pairing_ == RopePairing_t::HALVES ? "halves" : "interleaved");
  add(std::move(node));
  return y;
}

inline std::array<Tensor, 2> Graph::rmsnorm(Tensor x, Tensor scale, Rmsnorm_attributes a) {
  Node node;
  node.op = "rms_norm";
  node.name = a.name_;
  if (a.phase_ == NormFwdPhase_t::NOT_SET) {
    node.fail(error_code_t::ATTRIBUTE_NOT_SET, "Forward phase not set of rmsnorm node.");
  }
  const Tensor y = output(a.name_, "Y");
  const Tensor statistic =
      a.phase_ == NormFwdPhase_t::TRAINING ? output(a.name_, "INV_VARIANCE") : nullptr;
  node.tensor("x", x).tensor("scale", scale).tensor("bias", a.bias_).tensor("epsilon", a.epsilon_);
  node.tensor("y", y).tensor("inv_variance", statistic);
  add(std::move(node));
  return {y, statistic};
}

inline std::array<Tensor, 3> Graph::rmsnorm_backward(Tensor dy, Tensor x, Tensor scale,
                                                     Tensor inv_variance,
                                                     Rmsnorm_backward_attributes a) {
  Node node;
  node.op = "rms_norm_backward";
  node.name = a.name_;
  if (!a.has_dbias_) {
    node.fail(error_code_t::ATTRIBUTE_NOT_SET,
              "has_dbias is not set of rmsnorm backward node, expected true or false.");
  }
  const std::array<Tensor, 3> gradients{
      output(a.name_, "DX"), output(a.name_, "Dscale"),
      a.has_dbias_.value_or(false) ? output(a.name_, "Dbias") : nullptr};
  node.tensor("dy", dy).tensor("x", x).tensor("scale", scale).tensor("inv_variance", inv_variance);
  node.tensor("dx", gradients[0]).tensor("d_scale", gradients[1]).tensor("d_bias", gradients[2]);
  add(std::move(node));
  return gradients;
}

inline std::array<Tensor, 3> Graph::layernorm(Tensor x, Tensor scale, Tensor bias,
                                              Layernorm_attributes a) {
  Node node;
  node.op = "layer_norm";
  node.name = a.name_;
  if (a.phase_ == NormFwdPhase_t::NOT_SET) {
    node.fail(error_code_t::ATTRIBUTE_NOT_SET, "Forward phase not set of layernorm node.");
  }
  if (a.zero_centered_gamma_ && scale) {
    scale = pointwise(scale, tensor(1.0f), Pointwise_attributes().set_mode(PointwiseMode_t::ADD));
    scale->set_data_type(DataType_t::FLOAT);
  }
  const bool is_training = a.phase_ == NormFwdPhase_t::TRAINING;
  const std::array<Tensor, 3> made{output(a.name_, "Y"),
                                   is_training ? output(a.name_, "MEAN") : nullptr,
                                   is_training ? output(a.name_, "INV_VARIANCE") : nullptr};
  node.tensor("x", x).tensor("scale", scale).tensor("bias", bias).tensor("epsilon", a.epsilon_);
  node.tensor("y", made[0]).tensor("mean", made[1]).tensor("inv_variance", made[2]);
  add(std::move(node));
  return made;
}

inline std::array<Tensor, 3> Graph::layernorm_backward(Tensor dy, Tensor x, Tensor scale,
                                                       Layernorm_backward_attributes a) {
  Node node;
  node.op = "layer_norm_backward";
  node.name = a.name_;
  const std::array<Tensor, 3> gradients{output(a.name_, "DX"), output(a.name_, "Dscale"),
                                        output(a.name_, "Dbias")};
  node.tensor("dy", dy).tensor("x", x).tensor("scale", scale);
  node.tensor("mean", a.mean_).tensor("inv_variance", a.inv_variance_);
  node.tensor("dx", gradients[0]).tensor("d_scale", gradients[1]).tensor("d_bias", gradients[2]);
  add(std::move(node));
  return gradients;
}

inline std::array<Tensor, 3> Graph::instancenorm(Tensor x, Tensor scale, Tensor bias,
                                                 Instancenorm_attributes a) {
  Node node;
  node.op = "instance_norm";
  node.name = a.name_;
  if (a.phase_ == NormFwdPhase_t::NOT_SET) {
    node.fail(error_code_t::ATTRIBUTE_NOT_SET, "Forward phase not set of instancenorm node.");
  }
  const bool is_training = a.phase_ == NormFwdPhase_t::TRAINING;
  const std::array<Tensor, 3> made{output(a.name_, "Y"),
                                   is_training ? output(a.name_, "MEAN") : nullptr,
                                   is_training ? output(a.name_, "INV_VARIANCE") : nullptr};
  node.tensor("x", x).tensor("scale", scale).tensor("bias", bias).tensor("epsilon", a.epsilon_);
  node.tensor("y", made[0]).tensor("mean", made[1]).tensor("inv_variance", made[2]);
  add(std::move(node));
  return made;
}

inline std::array<Tensor, 5> Graph::batchnorm(Tensor x, Tensor scale, Tensor bias,
                                              Batchnorm_attributes a) {
  Node node;
  node.op = "batch_norm";
  node.name = a.name_;
  if (a.has_peers_) node.fail(error_code_t::GRAPH_NOT_SUPPORTED, kNoPeers);
  const bool runs = a.running_mean_ || a.running_var_ || a.momentum_;
  const std::array<Tensor, 5> made{output(a.name_, "Y"), output(a.name_, "MEAN"),
                                   output(a.name_, "INV_VARIANCE"),
                                   runs ? output(a.name_, "NEXT_RUNNING_MEAN") : nullptr,
                                   runs ? output(a.name_, "NEXT_RUNNING_VAR") : nullptr};
  node.tensor("x", x).tensor("scale", scale).tensor("bias", bias).tensor("epsilon", a.epsilon_);
  node.tensor("momentum", a.momentum_);
  node.tensor("running_mean", a.running_mean_).tensor("running_var", a.running_var_);
  node.tensor("y", made[0]).tensor("mean", made[1]).tensor("inv_variance", made[2]);
  node.tensor("next_mean", made[3]).tensor("next_var", made[4]);
  add(std::move(node));
  return made;
}

inline Tensor Graph::batchnorm_inference(Tensor x, Tensor mean, Tensor inv_variance, Tensor scale,
                                         Tensor bias, Batchnorm_inference_attributes a) {
  Tensor y = std::move(x);
  for (const auto& [mode, other] : {std::pair{PointwiseMode_t::SUB, mean},
                                    {PointwiseMode_t::MUL, inv_variance},
                                    {PointwiseMode_t::MUL, scale}})
    y = pointwise(y, other, Pointwise_attributes().set_mode(mode));
  return pointwise(y, bias,
                   Pointwise_attributes().set_mode(PointwiseMode_t::ADD).set_name(a.name_));
}

template <class Attributes>
std::array<Tensor, 3> Graph::channel_norm_backward(const char* op, Tensor dy, Tensor x,
                                                   Tensor scale, const Attributes& a) {
  Node node;
  node.op = op;
  node.name = a.name_;
  if (a.has_peers_) node.fail(error_code_t::GRAPH_NOT_SUPPORTED, kNoPeers);
  const std::array<Tensor, 3> gradients{output(a.name_, "DX"), output(a.name_, "Dscale"),
                                        output(a.name_, "Dbias")};
  node.tensor("dy", dy).tensor("x", x).tensor("scale", scale);
  node.tensor("mean", a.mean_).tensor("inv_variance", a.inv_variance_);
  node.tensor("dx", gradients[0]).tensor("d_scale", gradients[1]).tensor("d_bias", gradients[2]);
  add(std::move(node));
  return gradients;
}

inline std::array<Tensor, 3> Graph::instancenorm_backward(Tensor dy, Tensor x, Tensor scale,
                                                          Instancenorm_backward_attributes a) {
  return channel_norm_backward("instance_norm_backward", std::move(dy), std::move(x),
                               std::move(scale), a);
}

inline std::array<Tensor, 3> Graph::batchnorm_backward(Tensor dy, Tensor x, Tensor scale,
                                                       Batchnorm_backward_attributes a) {
  return channel_norm_backward("batch_norm_backward", std::move(dy), std::move(x), std::move(scale),
                               a);
}

inline std::array<Tensor, 5> Graph::cache_append(Tensor q, Tensor k, Tensor v,
                                                 Cache_append_attributes a) {
  Node node;
  node.op = "cache_append";
  node.name = a.name_;
  const std::array<Tensor, 5> made{output(a.name_, "Q"), output(a.name_, "present_K"),
                                   output(a.name_, "present_V"), output(a.name_, "lengths_Q"),
                                   output(a.name_, "lengths_KV")};
  for (const Tensor& lengths : {made[3], made[4]}) lengths->set_data_type(DataType_t::INT32);
  for (const auto& [before, present] : {std::pair{a.past_k_, made[1]}, {a.past_v_, made[2]}})
    if (before) present->set_data_type(before->get_data_type());
  node.tensor("q", q).tensor("k", k).tensor("v", v);
  node.tensor("past_k", a.past_k_).tensor("past_v", a.past_v_);
  node.tensor("page_table_k", a.k_table_).tensor("page_table_v", a.v_table_);
  node.tensor("seq_len_q", a.seq_len_q_).tensor("seq_len_kv", a.seq_len_kv_);
  node.integer("seq_len_kv_offset", a.offset_);
  node.tensor("q_norm", a.q_norm_).tensor("k_norm", a.k_norm_);
  node.number("q_epsilon", a.epsilon_).number("k_epsilon", a.epsilon_);
  node.tensor("cosines", a.cosines_).tensor("sines", a.sines_).tensor("positions", a.positions_);
  node.choices.emplace_back("pairing",
                            a.pairing_ == RopePairing_t::HALVES ? "halves" : "interleaved");
  node.tensor("k_scale", a.k_scale_).tensor("v_scale", a.v_scale_).flag("ring", a.ring_);
  node.tensor("q_out", made[0]).tensor("present_k", made[1]).tensor("present_v", made[2]);
  node.tensor("lengths_q", made[3]).tensor("lengths_kv", made[4]);
  add(std::move(node));
  return made;
}

inline Tensor Graph::pointwise_node(std::vector<Tensor> inputs, const Pointwise_attributes& a) {
  if (a.mode_ == PointwiseMode_t::ADD_SQUARE) {
    if (inputs.size() == 2)
      inputs[1] = pointwise_node({inputs[1], inputs[1]},
                                 Pointwise_attributes().set_mode(PointwiseMode_t::MUL));
    return pointwise_node(std::move(inputs),
                          Pointwise_attributes(a).set_mode(PointwiseMode_t::ADD));
  }
  const Tensor out = output(a.name_, "OUT_0");
  if (is_expression_) {
    // GEN_INDEX's tensor is its shape's, which in an expression is that of scores.
    if (a.mode_ == PointwiseMode_t::GEN_INDEX) inputs.clear();
    pointwise_.push_back(
        {"", a.mode_, std::move(inputs), out, static_cast<int32_t>(a.axis_), a.numbers_});
    return out;
  }
  constexpr const char* kInputs[] = {"a", "b", "c"};
  Node node;
  node.op = "pointwise";
  node.name = a.name_;
  for (size_t n = 0; n < inputs.size(); ++n) node.tensor(kInputs[n], inputs[n]);
  node.tensor("y", out).integer("axis", a.axis_);
  node.numbers = a.numbers_;
  node.choices.emplace_back("mode", detail::name(a.mode_));
  add(std::move(node));
  return out;
}

inline std::vector<Tensor> Graph::declined(const char* op, const std::string& name,
                                           const std::vector<Tensor>& inputs,
                                           const std::vector<const char*>& ports) {
  Node node;
  node.op = op;
  node.name = name;
  for (const Tensor& input : inputs) node.tensor("input", input);
  std::vector<Tensor> made;
  for (const char* port : ports) {
    made.push_back(port ? output(name, port) : nullptr);
    node.tensor("output", made.back());
  }
  const bool is_mxfp8 = node.op == "sdpa_mxfp8_backward";
  node.fail(error_code_t::GRAPH_NOT_SUPPORTED,
            std::string("The op ") + op + " is not supported: " +
                (is_mxfp8 ? "MXFP8 operands take instructions of NVIDIA's Blackwell GPUs (SM100), "
                            "which Heddle has no kernels for."
                          : "Heddle's graphs hold attention, rope, norms and pointwise ops."));
  add(std::move(node));
  return made;
}

inline std::array<Tensor, 6> Graph::sdpa_fp8_backward(
    Tensor q, Tensor q_t, Tensor k, Tensor k_t, Tensor v, Tensor o_f16, Tensor d_o_f16, Tensor d_o,
    Tensor d_o_t, Tensor stats, Tensor descale_q, Tensor descale_q_t, Tensor descale_k,
    Tensor descale_k_t, Tensor descale_v, Tensor descale_d_o, Tensor descale_d_o_t,
    SDPA_fp8_backward_attributes a) {
  Node named;
  a.fill(named);
  return mxfp8_backward(
      {q, q_t, k, k_t, v, o_f16, d_o_f16, d_o, d_o_t, stats, descale_q, descale_q_t, descale_k,
       descale_k_t, descale_v, descale_d_o, descale_d_o_t},
      named.name);
}

inline void Graph::add_score_expression(Node& node, const char* field,
                                        const Score_function& function) {
  if (!function) return;
  auto inner = std::make_shared<Graph>();
  inner->is_expression_ = true;
  const Tensor score = inner->output("", "");
  const Tensor result = function(inner, score);
  if (!result)
    return node.fail(error_code_t::ATTRIBUTE_NOT_SET, std::string(field) + " returned no tensor.");
  node.tensor((std::string(field) + ".score_in").c_str(), score);
  node.tensor((std::string(field) + ".score_out").c_str(), result);
  for (Pointwise_node& op : inner->pointwise_) {
    op.expression = field;
    for (const Tensor& input : op.inputs) {
      if (!input) {
        return node.fail(error_code_t::ATTRIBUTE_NOT_SET,
                         std::string(field) + " has the pointwise op " + detail::name(op.mode) +
                             " of a null tensor, expected tensors.");
      }
    }
    node.pointwise.push_back(std::move(op));
  }
}

}  // namespace heddle::frontend::graph
