// The currency of Heddle: a graph of composite ops over tensors, as every door builds it, with one
// text form (text.h), shape inference and validation (validate.h). It says what is to be computed
// and nothing of how. Ports, attributes and conventions are those of cuDNN's graph API. This
// contract is docs/graph-text-form.md; validate.h holds a graph to it, src/reference/ computes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace heddle::graph {

/// Index into Graph::tensors.
using TensorId = int32_t;
inline constexpr TensorId kNone = -1;

struct Tensor {
  int64_t uid =
      0;  ///< the caller's name for it at execution; unique; 0 until validate() assigns one
  std::string name;
  std::optional<DataType> dtype;   ///< unset: the graph's io type, or intermediate type if virtual
  Dims dims;                       ///< empty: inferred
  Dims strides;                    ///< in elements; empty: inferred
  bool is_virtual = false;         ///< an intermediate nobody binds
  bool pass_by_value = false;      ///< a scalar in host memory, read before execute returns
  std::optional<double> constant;  ///< a scalar known when the graph is built; never bound
  TensorId ragged_offset = kNone;  ///< [B+1,1,1,1] element offsets (THD packing)
  int64_t ragged_offset_multiplier = 1;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

enum class DiagonalAlignment : uint8_t { top_left, bottom_right };

/// Pointwise ops, of score expressions (score_mod) and standing alone; names as in the contract.
enum class PointwiseMode : uint8_t {
  identity,
  add,
  sub,
  mul,
  div,
  min,
  max,
  pow,
  mod,
  neg,
  abs,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  tanh_fwd,
  sigmoid_fwd,
  erf,
  sin,
  cos,
  tan,
  floor,
  ceil,
  // Activations, and their derivatives: of a gradient and the forward's input.
  relu_fwd,
  relu_bwd,
  tanh_bwd,
  sigmoid_bwd,
  elu_fwd,
  elu_bwd,
  gelu_fwd,
  gelu_bwd,
  gelu_approx_tanh_fwd,
  gelu_approx_tanh_bwd,
  softplus_fwd,
  softplus_bwd,
  swish_fwd,
  swish_bwd,
  cmp_eq,
  cmp_neq,
  cmp_lt,
  cmp_le,
  cmp_gt,
  cmp_ge,
  logical_and,
  logical_or,
  logical_not,
  binary_select,
  gen_index,
};

/// The numbers of activations, each set on no other mode than its own; unset they are the defaults.
struct ActivationNumbers {
  std::optional<double> relu_lower_clip;        ///< 0
  std::optional<double> relu_upper_clip;        ///< none
  std::optional<double> relu_lower_clip_slope;  ///< 0
  std::optional<double> elu_alpha;              ///< 1
  std::optional<double> softplus_beta;          ///< 1
  std::optional<double> swish_beta;             ///< 1

  friend bool operator==(const ActivationNumbers&, const ActivationNumbers&) = default;
};

/// One pointwise op of a score expression. Its tensors are the graph's own; inner results are
/// virtual. binary_select's inputs are condition, value if true, value if false. gen_index has no
/// inputs and yields the index along `axis` (0 batch, 1 head, 2 row, 3 column).
struct Pointwise {
  PointwiseMode mode = PointwiseMode::identity;
  std::vector<TensorId> inputs;
  TensorId output = kNone;
  int32_t axis = 0;
  std::string name;
  ActivationNumbers numbers;

  friend bool operator==(const Pointwise&, const Pointwise&) = default;
};

/// score_mod: ops from `score_in` (the scaled dot; a virtual tensor) to `score_out`.
struct ScoreModifier {
  TensorId score_in = kNone, score_out = kNone;
  std::vector<Pointwise> ops;

  friend bool operator==(const ScoreModifier&, const ScoreModifier&) = default;
};

struct Dropout {
  std::optional<double> probability;  ///< philox form
  TensorId seed = kNone, offset = kNone;
  TensorId mask = kNone, scale = kNone, scale_inv = kNone;  ///< mask form
  TensorId rng_dump = kNone;
  /// threefry form (JAX's default generator): key is `seed` (u32 [2]); the keep bit of (b,h,i,j) is
  /// drawn at linear index b*s0 + h*s1 + i*s2 + j*s3.
  bool threefry = false;
  Dims threefry_strides;
  /// philox form: i32 [B,Hq,1,1], the number of the stream that each head draws from; unset, head h
  /// of batch entry b has b*Hq + h. A part of a larger attention draws the bits it has in the
  /// whole.
  TensorId streams = kNone;
  /// Of what the philox and threefry forms keep; unset: 1 / (1 - probability). Programs in 16 bits
  /// round that.
  std::optional<double> factor;

  friend bool operator==(const Dropout&, const Dropout&) = default;
};

/// Attributes shared by sdpa and sdpa_backward; both must be given the same values (contract 1.3).
struct AttentionAttributes {
  std::optional<double> attn_scale;  ///< unset: 1
  TensorId attn_scale_tensor = kNone;
  TensorId bias = kNone;
  bool alibi_mask = false;
  bool padding_mask = false;
  TensorId seq_len_q = kNone, seq_len_kv = kNone;
  TensorId cu_seq_len_q = kNone, cu_seq_len_kv = kNone;
  std::optional<int64_t> max_total_seq_len_q, max_total_seq_len_kv;
  DiagonalAlignment diagonal_alignment = DiagonalAlignment::top_left;
  std::optional<int64_t> left_bound, right_bound;
  std::optional<ScoreModifier> score_mod;
  TensorId block_mask = kNone;
  Dropout dropout;
  TensorId sink = kNone;
  bool softmax_input_is_log2 = false;

  friend bool operator==(const AttentionAttributes&, const AttentionAttributes&) = default;
};

struct Sdpa {
  TensorId q = kNone, k = kNone, v = kNone, o = kNone;
  TensorId stats = kNone, max = kNone, sum_exp = kNone;  ///< kNone: not wanted
  bool stats_use_log2 = false;
  /// [B,Hq,Sq,Skv]: what the softmax is of, in natural units, 0 in place of -inf; or its result.
  TensorId scores = kNone;
  bool scores_after_softmax = false;
  bool attn_scale_prefolded = false;
  TensorId page_table_k = kNone, page_table_v = kNone;
  std::optional<int64_t> paged_max_seq_len_kv;
  /// f32 [1, 1 or H, 1, 1 or D]: what codes of K and V are multiplied by, where these are i8, u8
  /// (two codes of 4 bits a byte, the first of them low, 8 above their numbers) or f8e4m3.
  TensorId k_scale = kNone, v_scale = kNone;
  /// Keys there are at most; unset: rows of K. Needed beside rings.
  std::optional<int64_t> max_seq_len_kv;
  /// K and V are rings: key j lies in row j % rows, so only the last so many of the keys are there.
  bool ring_kv = false;
  AttentionAttributes attention;

  friend bool operator==(const Sdpa&, const Sdpa&) = default;
};

struct SdpaBackward {
  TensorId q = kNone, k = kNone, v = kNone, o = kNone, d_o = kNone;
  /// The rows' statistics: stats, or the pair, which also holds what rows of huge scores weigh.
  TensorId stats = kNone, max = kNone, sum_exp = kNone;
  /// dL/d(log-sum-exp) of each row, natural and with the sink, whichever form its statistics have;
  /// kNone: 0.
  TensorId d_stats = kNone;
  TensorId d_q = kNone, d_k = kNone, d_v = kNone;  ///< kNone: not wanted
  TensorId d_bias = kNone, d_sink = kNone;
  bool deterministic = false;
  /// The statistics are those of these keys, with the sink, and of no others, as a forward over
  /// them leaves them: weights of a row add up to 1 and gradients of its scores to what d_stats and
  /// the sink say. An engine may take off what rounding leaves beside that.
  bool whole_rows = false;
  AttentionAttributes attention;
  /// The caller's own derivative of score_mod (score_in is then dL/dS). Unset: derived
  /// symbolically.
  std::optional<ScoreModifier> score_mod_bprop;

  friend bool operator==(const SdpaBackward&, const SdpaBackward&) = default;
};

/// Attention on fp8 operands, each a tensor of f8e4m3 or f8e5m2 and an f32 [1,1,1,1] that it is
/// multiplied by, its descale; numbers on the way and results are multiplied by a scale before they
/// are rounded to fp8, where they saturate. Their largest magnitudes before that are results, too.
///
///   P = softmax(attn_scale * descale_q * descale_k * Q K^T), masked
///   O = fp8(scale_o * (descale_s * descale_v * fp8(scale_s * P) V))
///
/// P is held in the type of q. An engine may hold it finer.
struct SdpaFp8 {
  TensorId q = kNone, k = kNone, v = kNone;
  TensorId descale_q = kNone, descale_k = kNone, descale_v = kNone;
  TensorId descale_s = kNone, scale_s = kNone;  ///< both or neither: then P is an engine's own
  TensorId scale_o = kNone;                     ///< kNone: 1
  TensorId o = kNone;                           ///< fp8, or a wider type, which is scaled as well
  TensorId stats = kNone;                       ///< kNone: not wanted
  TensorId amax_s = kNone, amax_o = kNone;      ///< f32 [1,1,1,1], each written if wanted
  TensorId page_table_k = kNone, page_table_v = kNone;  ///< as Sdpa's
  std::optional<int64_t> paged_max_seq_len_kv;
  AttentionAttributes attention;

  friend bool operator==(const SdpaFp8&, const SdpaFp8&) = default;
};

/// Its gradients: of the forward's P,
///   D = rowsum(descale_o O * descale_d_o dO)
///   dS = attn_scale * P * (descale_d_o * descale_v * dO V^T - D)
///   dV = fp8(scale_d_v * (descale_s * descale_d_o * fp8(scale_s * P)^T dO))
///   dQ = fp8(scale_d_q * (descale_d_p * descale_k * fp8(scale_d_p * dS) K)), dK alike
/// dS is held in the type of dO. amax_d_p is that of dS. O is fp8, or a wider type, as it was made.
struct SdpaFp8Backward {
  TensorId q = kNone, k = kNone, v = kNone, o = kNone, d_o = kNone, stats = kNone;
  TensorId descale_q = kNone, descale_k = kNone, descale_v = kNone, descale_o = kNone,
           descale_d_o = kNone, descale_s = kNone, descale_d_p = kNone;
  TensorId scale_s = kNone, scale_d_p = kNone;
  TensorId scale_d_q = kNone, scale_d_k = kNone, scale_d_v = kNone;  ///< kNone: 1
  TensorId d_q = kNone, d_k = kNone, d_v = kNone;                    ///< kNone: not wanted
  TensorId amax_d_q = kNone, amax_d_k = kNone, amax_d_v = kNone, amax_d_p = kNone;
  bool deterministic = false;
  AttentionAttributes attention;

  friend bool operator==(const SdpaFp8Backward&, const SdpaFp8Backward&) = default;
};

enum class RopePairing : uint8_t { halves, interleaved };

/// rope and rope_backward: y = output_scale * R(+-angle) x.
struct Rope {
  TensorId x = kNone, freqs = kNone, y = kNone;  ///< backward: x is dY, y is dX
  bool backward = false;
  double output_scale = 1;
  int64_t rope_dim = 0;  ///< 0: all of D
  bool leading = false;  ///< of the columns the first rope_dim, else the last
  RopePairing pairing = RopePairing::halves;
  /// Heddle's extensions: a start offset per batch entry [B or 1,1,1,1], or a position per row
  /// [B or 1,1,S,1]; and tables of cosines and sines [Sf,1,1,rope_dim/2] in place of freqs.
  TensorId positions = kNone;
  TensorId cosines = kNone, sines = kNone;

  friend bool operator==(const Rope&, const Rope&) = default;
};

struct RmsNorm {
  TensorId x = kNone, scale = kNone, bias = kNone, epsilon = kNone, y = kNone;
  /// What is normalised is sum = x + residual + residual_bias, of the dims of x, x and scale.
  TensorId residual = kNone, residual_bias = kNone, sum = kNone;
  TensorId inv_variance = kNone;  ///< 1/rms per row; wanted in training

  friend bool operator==(const RmsNorm&, const RmsNorm&) = default;
};

struct RmsNormBackward {
  TensorId dy = kNone, x = kNone, scale = kNone, inv_variance = kNone;
  TensorId dx = kNone, d_scale = kNone, d_bias = kNone;

  friend bool operator==(const RmsNormBackward&, const RmsNormBackward&) = default;
};

/// y = scale (x - mean) / sqrt(variance + epsilon) + bias.
struct LayerNorm {
  TensorId x = kNone, scale = kNone, bias = kNone, epsilon = kNone, y = kNone;
  TensorId residual = kNone, residual_bias = kNone, sum = kNone;  ///< as RmsNorm's
  TensorId mean = kNone, inv_variance = kNone;  ///< of each row; wanted in training

  friend bool operator==(const LayerNorm&, const LayerNorm&) = default;
};

struct LayerNormBackward {
  TensorId dy = kNone, x = kNone, scale = kNone, mean = kNone, inv_variance = kNone;
  TensorId dx = kNone, d_scale = kNone, d_bias = kNone;

  friend bool operator==(const LayerNormBackward&, const LayerNormBackward&) = default;
};

/// layer_norm over the dims of x [N,C,...] behind the second, each entry's channels by themselves:
/// scale and bias are [1,C,1,...], the statistics [N,C,1,...].
struct InstanceNorm {
  TensorId x = kNone, scale = kNone, bias = kNone, epsilon = kNone, y = kNone;
  TensorId mean = kNone, inv_variance = kNone;  ///< wanted in training

  friend bool operator==(const InstanceNorm&, const InstanceNorm&) = default;
};

struct InstanceNormBackward {
  TensorId dy = kNone, x = kNone, scale = kNone, mean = kNone, inv_variance = kNone;
  TensorId dx = kNone, d_scale = kNone, d_bias = kNone;

  friend bool operator==(const InstanceNormBackward&, const InstanceNormBackward&) = default;
};

/// layer_norm over all dims of x [N,C,...] but the second, as in training: scale, bias and the
/// statistics are [1,C,1,...]. Of n elements a channel
///   next_mean = (1 - momentum) running_mean + momentum mean
///   next_var = (1 - momentum) running_var + momentum variance n / (n - 1)
/// where n / (n - 1) of one element is 1.
struct BatchNorm {
  TensorId x = kNone, scale = kNone, bias = kNone, epsilon = kNone, y = kNone;
  TensorId mean = kNone, inv_variance = kNone;
  /// All of them or none; next ones may be bound to the running ones' addresses.
  TensorId momentum = kNone, running_mean = kNone, running_var = kNone;
  TensorId next_mean = kNone, next_var = kNone;

  friend bool operator==(const BatchNorm&, const BatchNorm&) = default;
};

struct BatchNormBackward {
  TensorId dy = kNone, x = kNone, scale = kNone, mean = kNone, inv_variance = kNone;
  TensorId dx = kNone, d_scale = kNone, d_bias = kNone;

  friend bool operator==(const BatchNormBackward&, const BatchNormBackward&) = default;
};

/// Which axes of x a norm with this scale normalises together: of rms_norm and layer_norm those
/// where the scale's dim is not 1.
template <class Norm>
bool is_normalised(const Norm&, const Dims& scale, int axis) {
  return scale[axis] != 1;
}
inline bool is_normalised(const InstanceNorm&, const Dims&, int axis) { return axis > 1; }
inline bool is_normalised(const InstanceNormBackward&, const Dims&, int axis) { return axis > 1; }
inline bool is_normalised(const BatchNorm&, const Dims&, int axis) { return axis != 1; }
inline bool is_normalised(const BatchNormBackward&, const Dims&, int axis) { return axis != 1; }

/// New rows of keys and values put behind those that caches hold already, on the way normalised,
/// rotated and turned into codes; and the queries normalised and rotated alike.
///
/// Entry b has n[b] new rows (seq_len_q; without it S, all) and t[b] rows with them (seq_len_kv
/// plus its offset; without it n[b]). They go behind the past[b] = max(t[b] - n[b], 0) rows there
/// are: row s to past[b] + s, or nowhere if the cache has no such row. Before them present holds
/// what past does, behind them zeros; where both are bound to one address, what is not new is not
/// touched.
struct CacheAppend {
  /// [B,Hq,S,D], [B,Hk,S,D], [B,Hk,S,Dv]. q alone beside caches holds all three: heads of Q, then
  /// those of K, then those of V. Without caches it is Q alone.
  TensorId q = kNone, k = kNone, v = kNone;
  /// Caches [B,Hk,P,D], of q's type, or codes as sdpa reads them; kNone: empty ones.
  TensorId past_k = kNone, past_v = kNone;
  /// Past and present are then containers of pages, bound to one address.
  TensorId page_table_k = kNone, page_table_v = kNone;
  TensorId seq_len_q = kNone, seq_len_kv = kNone;  ///< [B,1,1,1]
  int64_t seq_len_kv_offset = 0;
  TensorId q_norm = kNone, k_norm = kNone;  ///< [1,1,1,D]: weights of the RMSNorm of each head
  double q_epsilon = 1e-6, k_epsilon = 1e-6;
  /// [rows,1,1,rope_dim/2]: the first rope_dim columns are rotated by row `position`, the nearest
  /// there is, of these tables: positions[b,s], or past[b] + s.
  TensorId cosines = kNone, sines = kNone, positions = kNone;
  RopePairing pairing = RopePairing::halves;
  TensorId k_scale = kNone, v_scale = kNone;  ///< f32 [1, 1 or H, 1, 1 or D], of codes
  bool ring = false;                          ///< of past and present: row r is in r % their rows

  TensorId q_out = kNone;                          ///< [B,Hq,S,D], 0 from row n[b] on
  TensorId present_k = kNone, present_v = kNone;   ///< [B,Hk,C,D]
  TensorId lengths_q = kNone, lengths_kv = kNone;  ///< i32 [B,1,1,1]: min(n, t); t, at most C

  friend bool operator==(const CacheAppend&, const CacheAppend&) = default;
};

/// A pointwise op standing alone: y = mode(a, b, c), element by element, where dims of 1 broadcast;
/// in f32, rounded where y is in memory. Takes as many of a, b and c as the mode has inputs.
/// binary_select's are condition, value if true, value if false. gen_index yields the index along
/// `axis` of y, whose dims are those of `a` if that is given; it reads no element of it.
struct PointwiseNode {
  PointwiseMode mode = PointwiseMode::identity;
  TensorId a = kNone, b = kNone, c = kNone, y = kNone;
  int64_t axis = 0;
  ActivationNumbers numbers;

  std::array<TensorId, 3> inputs() const { return {a, b, c}; }

  friend bool operator==(const PointwiseNode&, const PointwiseNode&) = default;
};

struct Node {
  std::string name;
  std::variant<Sdpa, SdpaBackward, SdpaFp8, SdpaFp8Backward, Rope, RmsNorm, RmsNormBackward,
               LayerNorm, LayerNormBackward, InstanceNorm, InstanceNormBackward, BatchNorm,
               BatchNormBackward, CacheAppend, PointwiseNode>
      op;

  friend bool operator==(const Node&, const Node&) = default;
};

struct Graph {
  std::string name;
  std::optional<DataType> io_dtype, intermediate_dtype, compute_dtype;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  ///< in dependency order after validate()

  TensorId add(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(tensors.size()) - 1;
  }
  Tensor& operator[](TensorId id) { return tensors[static_cast<size_t>(id)]; }
  const Tensor& operator[](TensorId id) const { return tensors[static_cast<size_t>(id)]; }

  friend bool operator==(const Graph&, const Graph&) = default;
};

}  // namespace heddle::graph
