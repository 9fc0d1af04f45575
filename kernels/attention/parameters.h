// What every attention kernel is given at launch: read by the kernel and by the host that fills it
// in, so it holds plain types only. Strides count elements.
//
// Kernels differ in what they read, and a new set of arguments costs the host 0.4 to 0.7 us a KB
// (H200, driver 580). So a kernel's source says what its arguments have room for,
// HEDDLE_ARGUMENT_LAYOUT; what they have none for has a name nevertheless, and is nothing. The
// host's have room for all, and a kernel is passed its own part of them.
#pragma once

namespace heddle::attention {

/// A tensor [batch, head, row, column]. With `offsets`, sequence b starts at element
/// offsets[b] * multiplier and stride[0] is not used.
struct Tensor {
  void* data;
  long long stride[4];
  const void* offsets;
  long long multiplier;
  int offsets_are_64_bit;
};

/// Lengths per batch entry, plain [B] or prefix sums [B+1]; `data` null means `full` everywhere.
struct Lengths {
  const void* data;
  int full;
  int is_64_bit;
  int cumulative;
};

/// problem::Anchor's values, in its order.
enum class Anchor : int { start, kv_end, top_left, bottom_right };

/// problem::Dropout::Kind's values, in its order.
enum class Dropout : int { none, philox, threefry, mask };

struct Bound {
  Anchor anchor;
  int upper;
  long long constant;
};

/// Bounds of a batch entry are kept within this, either way; a row or a key and a diagonal one then
/// add up within 32 bits, of up to so many rows and keys less a few tiles.
inline constexpr int kFarthestBound = 1 << 30;
inline constexpr int kMaxBounds = 8;
inline constexpr int kMaxLoads = 12;

/// What a kernel's arguments have room for.
struct ArgumentLayout {
  int bounds = 0, loads = 0;
  bool operands = false, output = false;  ///< q, k and v; o
  bool row_sums = false;                  ///< max and sum_exp
  bool dropout = false;
  bool sparse = false;  ///< block mask, page tables and rows of rings
  /// Of a backward: dO and dQ, dK and dV, and the gradient of what the score reads.
  bool row_gradients = false, key_gradients = false, load_gradient = false;
  /// Of Hopper's kernels: maps of whole tensors, the operand that comes by tiles, pairs of f16 and
  /// rotations of queries.
  bool maps = false, tiled = false, pairs = false, rope = false;
  bool stats_gradient = false;    ///< of a backward: dL/d(log-sum-exp)
  bool largest_gradient = false;  ///< of a backward: the largest dL/d(dot)
  bool codes = false;             ///< scales of K's and V's codes
  bool scores = false;            ///< written beside the output
  bool tiled_gradient = false;    ///< of a Hopper backward: the map of the gradient of tiles
};
inline constexpr ArgumentLayout kWholeLayout{kMaxBounds, kMaxLoads, true, true, true, true, true,
                                             true,       true,      true, true, true, true, true,
                                             true,       true,      true, true, true};
#ifdef HEDDLE_ARGUMENT_LAYOUT
inline constexpr ArgumentLayout kArgumentLayout = HEDDLE_ARGUMENT_LAYOUT;
#else
inline constexpr ArgumentLayout kArgumentLayout = kWholeLayout;
#endif

/// A one-element operand in device or pass-by-value memory.
struct Scalar {
  const void* data;
  long long value;
  int is_64_bit;
};

template <bool kThere>
struct Operands {
  Tensor q, k, v;
};
template <>
struct Operands<false> {
  static constexpr Tensor q{}, k{}, v{};
};

template <bool kThere>
struct Output {
  Tensor o;
};
template <>
struct Output<false> {
  static constexpr Tensor o{};
};

template <bool kThere>
struct RowSums {
  Tensor max, sum_exp;  ///< f32, written where data is not null
};
template <>
struct RowSums<false> {
  static constexpr Tensor max{}, sum_exp{};
};

template <bool kThere>
struct ScoreResult {
  Tensor scores;
};
template <>
struct ScoreResult<false> {
  static constexpr Tensor scores{};
};

template <bool kThere>
struct DropoutParameters {
  Tensor dropout_streams, dropout_mask, dropout_dump;
  Scalar seed, offset;
  unsigned dropout_threshold;  ///< random bits are low below it
  unsigned dropout_inverts;    ///< 0 if low bits mean to keep, all ones if to drop
  float keep_scale;            ///< factor on kept weights
  const float* keep_scale_operand;
  long long threefry_stride[4];
};
template <>
struct DropoutParameters<false> {
  static constexpr Tensor dropout_streams{}, dropout_mask{}, dropout_dump{};
  static constexpr Scalar seed{}, offset{};
  static constexpr unsigned dropout_threshold = 0, dropout_inverts = 0;
  static constexpr float keep_scale = 1;
  static constexpr const float* keep_scale_operand = nullptr;
  static constexpr long long threefry_stride[4]{};
};

/// How the rows of K or of V lie in memory: problem::Storage's kinds.
enum class KeyRows : int { dense, paged, ring };

/// Which blocks hold an operand's rows [batch, 1, page, 1], how many there are, and how many rows a
/// block has; or how many a ring has.
struct Pages {
  Tensor table;
  int log_rows;  ///< log2
  int ring_rows;
  int blocks;
};

/// What codes are multiplied by, of each head and column.
struct Scales {
  const float* data;
  long long stride[2];
};

template <bool kThere>
struct SparseOperands {
  Tensor block_mask;
  Pages pages_k, pages_v;
};
template <>
struct SparseOperands<false> {
  static constexpr Tensor block_mask{};
  static constexpr Pages pages_k{}, pages_v{};
};

template <bool kThere>
struct CodeScales {
  Scales k_scales, v_scales;
};
template <>
struct CodeScales<false> {
  static constexpr Scales k_scales{}, v_scales{};
};

template <int kCount>
struct Loads {
  Tensor loads[kCount];  ///< what the score expression reads, in its order
};
template <>
struct Loads<0> {
  static constexpr const Tensor* loads = nullptr;
};

template <int kCount>
struct Bounds {
  int bound_count;
  Bound bounds[kCount];
};
template <>
struct Bounds<0> {
  static constexpr int bound_count = 0;
  static constexpr const Bound* bounds = nullptr;
};

/// What every kernel has.
struct CommonParameters {
  Tensor stats;  ///< f32, written where data is not null
  Lengths q_lengths, kv_lengths;
  int batch, q_heads, k_heads, v_heads, q_length, kv_length;
  int first_batch;  ///< batch entry of a grid's first layer
  float scale;
  int stats_log2;
  const float* scale_operand;  ///< if not null, read instead of `scale`
  const float* sink;           ///< [q_heads] or null
  /// Of f32 on Hopper, else null: set by the kernels that make pairs if pairs cannot hold q, k, v
  /// or dO, and by those that multiply them if they cannot hold dS. Then the general kernels
  /// compute, else the Hopper ones; the others leave at once.
  unsigned* fallback;
};

struct ForwardParameters : Operands<kArgumentLayout.operands>,
                           Output<kArgumentLayout.output>,
                           CommonParameters,
                           RowSums<kArgumentLayout.row_sums>,
                           ScoreResult<kArgumentLayout.scores>,
                           DropoutParameters<kArgumentLayout.dropout>,
                           SparseOperands<kArgumentLayout.sparse>,
                           CodeScales<kArgumentLayout.codes>,
                           Loads<kArgumentLayout.loads>,
                           Bounds<kArgumentLayout.bounds> {};

/// rowsum(dO * O), less dL/d(log-sum-exp), as the sum of two f32: dP - delta is the small
/// difference of large sums.
struct RowDelta {
  float high, rest;
};

/// Of one broadcast operand, by the kernel planned for it.
template <bool kThere>
struct LoadGradient {
  Tensor d_load;
  int d_load_dims[4];
};
template <>
struct LoadGradient<false> {
  static constexpr Tensor d_load{};
  static constexpr int d_load_dims[4]{};
};

template <bool kThere>
struct RowGradients {
  Tensor d_o, d_q;
};
template <>
struct RowGradients<false> {
  static constexpr Tensor d_o{}, d_q{};
};

template <bool kThere>
struct KeyGradients {
  Tensor d_k, d_v;
};
template <>
struct KeyGradients<false> {
  static constexpr Tensor d_k{}, d_v{};
};

template <bool kThere>
struct StatsGradient {
  Tensor d_stats;  ///< f32, dL/d(log-sum-exp)
};
template <>
struct StatsGradient<false> {
  static constexpr Tensor d_stats{};
};

template <bool kThere>
struct LargestGradient {
  unsigned* largest_d_dot;  ///< bits of an f32 that began as 0
};
template <>
struct LargestGradient<false> {
  static constexpr unsigned* largest_d_dot = nullptr;
};

struct BackwardParameters : RowGradients<kArgumentLayout.row_gradients>,
                            KeyGradients<kArgumentLayout.key_gradients>,
                            LoadGradient<kArgumentLayout.load_gradient>,
                            StatsGradient<kArgumentLayout.stats_gradient>,
                            LargestGradient<kArgumentLayout.largest_gradient> {
  ForwardParameters forward;  ///< o and stats are inputs here
  RowDelta* delta;            ///< workspace [batch, q_heads, q_length]
  float* d_sink;              ///< [q_heads]
};

}  // namespace heddle::attention
