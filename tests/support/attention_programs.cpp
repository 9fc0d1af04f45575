#include "support/attention_programs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>

#include "core/fp8.h"
#include "reference/attention.h"
#include "reference/evaluate.h"
#include "support/score_mods.h"
#include "support/streaming_programs.h"

namespace heddle::testing {

using graph::AttentionAttributes;
using graph::kNone;
using graph::TensorId;

namespace {

/// Draws one attention: extents first, then attributes, then memory.
class Draw {
 public:
  Draw(Random& random, const AttentionOptions& options, bool is_backward)
      : random_(random),
        structure_(random.structure()),
        options_(options),
        is_backward_(is_backward) {
    program_.seed = random.seed();
    program_.variant = random.variant();
    const auto& dtypes = options.dtypes;
    io_ =
        dtypes[static_cast<size_t>(structure_.integer(0, static_cast<int64_t>(dtypes.size()) - 1))];
    program_.graph.io_dtype = io_;
    program_.graph.intermediate_dtype = program_.graph.compute_dtype = DataType::f32;
    batch_ = random.integer(options.min_batch, options.max_batch);
    k_heads_ = v_heads_ = random.integer(1, options.max_key_heads);
    q_heads_ = k_heads_ * structure_.integer(1, options.max_group);
    if (wants(options.value_heads_differ)) {
      do v_heads_ = random.integer(1, q_heads_);
      while (q_heads_ % v_heads_ != 0);
    }
    const bool decodes = options.max_query_length > 0;
    q_length_ = wants(options.single_row)
                    ? 1
                    : random.integer(1, decodes ? options.max_query_length : options.max_length);
    kv_length_ = !decodes && wants(0.4) ? q_length_ : random.integer(1, options.max_length);
    // Bottom-right bounds want no more queries than keys: variants agree in that.
    const bool keys_suffice = random.is_variant() && wants(0.7);
    if (keys_suffice && q_length_ > kv_length_) std::swap(q_length_, kv_length_);
    kv_length_ = (kv_length_ + options.key_step - 1) / options.key_step * options.key_step;
    qk_dim_ = head_dim();
    v_dim_ = wants(0.6) ? qk_dim_ : head_dim();
    if (wants_rarely(options.more_key_columns)) qk_dim_ += 64;
    if (!is_backward && wants_rarely(options.values_in_keys)) {
      values_in_keys_ = true;
      v_heads_ = k_heads_;
      v_dim_ = std::min(v_dim_, qk_dim_);
    }
    // Large heads are few.
    while (options.max_work > 0 && work() > options.max_work && (batch_ > 1 || k_heads_ > 1)) {
      if (batch_ > 1) {
        --batch_;
        continue;
      }
      const int64_t group = q_heads_ / k_heads_;
      v_heads_ = v_heads_ == k_heads_ ? k_heads_ - 1 : std::gcd(v_heads_, group * (k_heads_ - 1));
      q_heads_ = group * --k_heads_;
    }
  }

  Program sdpa();
  Program sdpa_backward();

 private:
  double work() const {
    return static_cast<double>(batch_ * q_heads_ * q_length_ * kv_length_) *
           static_cast<double>(qk_dim_ + v_dim_);
  }
  int64_t head_dim() {
    if (wants_rarely(options_.any_head_dim)) return structure_.integer(1, options_.max_head_dim);
    const int64_t step = options_.head_dim_step;
    return step * structure_.integer(options_.min_head_dim / step, options_.max_head_dim / step);
  }
  bool wants(double chance) { return structure_.chance(chance); }
  // No draw without a chance: other tests' programs stay what they are.
  bool wants_rarely(double chance) { return chance > 0 && wants(chance); }
  DataType result_type() {
    return size_of(io_) == 2 && wants_rarely(options_.wide) ? DataType::f32 : io_;
  }
  /// Perhaps moves a tensor of one element to the host.
  void pass_by_value(TensorId id) {
    graph::Tensor& tensor = program_.graph[id];
    tensor.pass_by_value = element_count(tensor.dims) == 1 && wants_rarely(options_.by_value);
  }
  bool is_ragged(TensorId id) const { return program_.graph[id].ragged_offset != kNone; }
  TensorId scalar(const char* name, DataType dtype, double value);
  TensorId lengths(const char* name, int64_t extent, std::vector<int64_t>& lengths,
                   bool cumulative);
  TensorId attention_tensor(const char* name, DataType dtype, Dims dims, bool is_query_side,
                            TensorId ragged_as = kNone);
  TensorId input(const char* name, DataType dtype, Dims dims, bool is_query_side, double size = 1);
  TensorId broadcast(const char* name, DataType dtype);
  /// What a K or V holds: numbers, or codes and their scales.
  struct Elements {
    DataType dtype;
    int64_t columns;
    std::function<double()> draw;
  };
  Elements elements(const char* name, int64_t heads, int64_t columns, TensorId& scale);
  TensorId paged(const char* name, TensorId& table, int64_t heads, const Elements& of);
  TensorId first_columns(const char* name, TensorId of, int64_t columns);
  TensorId keys_or_values(const char* name, graph::Sdpa& op, int64_t heads, int64_t columns);
  void draw_angles(graph::Rope& rope, int64_t rows);
  TensorId rotated(const char* name, TensorId x);
  TensorId gradient(const char* name, TensorId of, bool is_query_side, DataType dtype,
                    TensorId ragged_as = kNone);
  TensorId through_rope(const char* name, const graph::Rope* rope, TensorId x, bool is_query_side);
  TensorId stats_gradient(TensorId statistic, const reference::Values& made);
  void draw_lengths(AttentionAttributes& a);
  void draw_scores(AttentionAttributes& a);
  void draw_dropout(AttentionAttributes& a);
  void hide_rows(TensorId bias);
  void undefine_rows(TensorId q);

  Random &random_, &structure_;  ///< sizes and values; all that changes code
  const AttentionOptions& options_;
  bool is_backward_, is_ragged_ = false, values_in_keys_ = false;
  DataType io_;
  int64_t batch_, q_heads_, k_heads_, v_heads_, q_length_, kv_length_, qk_dim_, v_dim_;
  int64_t ring_rows_ = 0;
  std::vector<int64_t> q_lengths_, kv_lengths_;  ///< empty: all of the extent
  Program program_;
};

TensorId Draw::scalar(const char* name, DataType dtype, double value) {
  const TensorId id = program_.add(name, dtype, {1, 1, 1, 1});
  if (wants(0.3)) program_.graph[id].pass_by_value = true;
  program_.allocate(id);
  program_.set(id, value, 0);
  return id;
}

TensorId Draw::lengths(const char* name, int64_t extent, std::vector<int64_t>& lengths,
                       bool cumulative) {
  const bool draw = lengths.empty();
  lengths.resize(static_cast<size_t>(batch_));
  for (int64_t& n : lengths) {
    if (draw)
      n = random_.chance(0.15) ? 0 : random_.chance(0.2) ? extent : random_.integer(0, extent);
  }
  const auto dtype = cumulative ? random_.one_of({DataType::i32, DataType::i64}) : DataType::i32;
  const TensorId id = program_.add(name, dtype, {batch_ + (cumulative ? 1 : 0), 1, 1, 1});
  pass_by_value(id);
  program_.allocate(id);
  // Every other length beyond its range counts as the nearest within.
  const auto written = [&](int64_t b) {
    const int64_t n = lengths[static_cast<size_t>(b)];
    if (cumulative || b % 2 != 0) return n;
    return n == 0 ? -3 : n == extent ? extent + 5 : n;
  };
  int64_t sum = 0;
  for (int64_t b = 0; b < batch_; ++b) {
    program_.set_integer(id, cumulative ? sum : written(b), b);
    sum += written(b);
  }
  if (cumulative) program_.set_integer(id, sum, batch_);
  return id;
}

/// A tensor over [B,H,S,D]: padded, or packed with gaps between the sequences.
TensorId Draw::attention_tensor(const char* name, DataType dtype, Dims dims, bool is_query_side,
                                TensorId ragged_as) {
  const bool packed = ragged_as != kNone
                          ? is_ragged(ragged_as)
                          : is_ragged_ && !wants_rarely(options_.dense_beside_ragged);
  if (!packed) {
    const bool odd = dims[3] > 1 && wants(options_.odd_strides);
    const bool unaligned = odd && wants_rarely(options_.unaligned);
    const TensorId id =
        program_.add(name, dtype, dims, odd ? random_strides(random_, dims, unaligned) : Dims{});
    program_.allocate(id);
    return id;
  }
  const int64_t token = dims[1] * dims[3] + (dims[3] > 1 && random_.chance(0.3) ? 8 : 0);
  const TensorId id =
      program_.add(name, dtype, dims, {random_.integer(0, 1 << 20), dims[3], token, 1});
  const auto offset_type = random_.one_of({DataType::i32, DataType::i64});
  const TensorId offsets =
      program_.add(std::string(name) + "_offsets", offset_type, {batch_ + 1, 1, 1, 1});
  program_.allocate(offsets);
  const int64_t multiplier = wants(options_.row_offsets) ? token : 1;
  int64_t at = 0;
  for (int64_t b = 0; b <= batch_; ++b) {
    program_.set_integer(offsets, at * token / multiplier, b);
    if (b == batch_) break;
    at += (is_query_side ? q_lengths_ : kv_lengths_)[static_cast<size_t>(b)];
    if (random_.chance(0.3)) at += random_.integer(1, 5);
  }
  program_.graph[id].ragged_offset = offsets;
  program_.graph[id].ragged_offset_multiplier = multiplier;
  program_.allocate(id, at * token);
  return id;
}

TensorId Draw::input(const char* name, DataType dtype, Dims dims, bool is_query_side, double size) {
  const TensorId id = attention_tensor(name, dtype, dims, is_query_side);
  if (!is_query_side && !is_ragged(id) && wants_rarely(options_.shared_keys))
    program_.graph[id].strides[static_cast<int>(structure_.integer(0, 1))] = 0;
  const auto& lengths = is_query_side ? q_lengths_ : kv_lengths_;
  program_.fill(
      id, [&] { return size * random_.normal(); },
      [&](int64_t b) { return lengths.empty() ? dims[2] : lengths[static_cast<size_t>(b)]; });
  return id;
}

/// [1 or B, 1 or Hq, Sq, Skv], if narrow with one row or one column or both
TensorId Draw::broadcast(const char* name, DataType dtype) {
  Dims dims{wants(0.5) ? 1 : batch_, wants(0.5) ? 1 : q_heads_, q_length_, kv_length_};
  if (wants_rarely(options_.narrow)) {
    const int64_t which = structure_.integer(1, 3);
    if (which & 1) dims[2] = 1;
    if (which & 2) dims[3] = 1;
  }
  const TensorId id =
      program_.add(name, dtype, dims, random_.chance(0.3) ? random_strides(random_, dims) : Dims{});
  program_.allocate(id);
  return id;
}

Draw::Elements Draw::elements(const char* name, int64_t heads, int64_t columns, TensorId& scale) {
  if (is_backward_ || !wants_rarely(options_.codes))
    return {io_, columns, [&] { return random_.normal(); }};
  const auto dtype = structure_.one_of({DataType::i8, DataType::u8, DataType::f8e4m3});
  scale = program_.add(std::string(name) + "_scale", DataType::f32,
                       {1, wants(0.5) ? heads : 1, 1, wants(0.5) ? columns : 1});
  program_.allocate(scale);
  const double unit = dtype == DataType::u8 ? 0.25 : dtype == DataType::i8 ? 1.0 / 64 : 1.0 / 16;
  program_.fill(scale, [&] { return unit * random_.uniform(0.5, 1.5); });
  if (dtype == DataType::u8)
    return {dtype, columns / 2, [&] { return static_cast<double>(random_.integer(0, 255)); }};
  if (dtype == DataType::i8)
    return {dtype, columns, [&] { return static_cast<double>(random_.integer(-128, 127)); }};
  return {dtype, columns, [&] { return 16 * random_.normal(); }};
}

/// A tensor of another's rows, as far as so many columns.
TensorId Draw::first_columns(const char* name, TensorId of, int64_t columns) {
  const graph::Tensor whole = program_.graph[of];
  Dims dims = whole.dims;
  dims[3] = columns;
  const TensorId id = program_.add(name, io_, dims, whole.strides);
  program_.graph[id].ragged_offset = whole.ragged_offset;
  program_.graph[id].ragged_offset_multiplier = whole.ragged_offset_multiplier;
  program_.in_place[program_.graph[id].uid] = whole.uid;
  return id;
}

/// In pages, in a ring or in rows, of numbers or codes.
TensorId Draw::keys_or_values(const char* name, graph::Sdpa& op, int64_t heads, int64_t columns) {
  const bool is_k = std::string_view(name) == "k";
  if (!is_k && values_in_keys_ && op.k_scale == kNone) {
    op.page_table_v = op.page_table_k;
    return first_columns(name, op.k, columns);
  }
  const Elements of = elements(name, heads, columns, is_k ? op.k_scale : op.v_scale);
  const bool may_page = !is_backward_ && op.attention.padding_mask && !is_ragged_ && !op.ring_kv;
  if (may_page && wants(options_.paged)) {
    op.paged_max_seq_len_kv = kv_length_;
    return paged(name, is_k ? op.page_table_k : op.page_table_v, heads, of);
  }
  const int64_t rows = op.ring_kv ? ring_rows_ : kv_length_;
  const TensorId id = attention_tensor(name, of.dtype, {batch_, heads, rows, of.columns}, false);
  program_.fill(id, of.draw, [&](int64_t b) {
    return kv_lengths_.empty() ? rows : kv_lengths_[static_cast<size_t>(b)];
  });
  return id;
}

/// A container of blocks in random order, with blocks nobody names left poisoned. Of a page that
/// does not exist rows are zeros.
TensorId Draw::paged(const char* name, TensorId& table, int64_t heads, const Elements& of) {
  const int64_t columns = of.columns;
  const int64_t drawn = int64_t{1} << random_.integer(0, 4);
  const int64_t block = options_.page_rows > 0 ? options_.page_rows : drawn;
  const int64_t pages = (kv_length_ + block - 1) / block, blocks = batch_ * pages + 3;
  const Dims dims{blocks, heads, block, columns};
  const TensorId id = program_.add(name, of.dtype, dims, random_strides(random_, dims));
  program_.allocate(id);
  table = program_.add(std::string(name) + "_table", DataType::i32, {batch_, 1, pages, 1});
  program_.allocate(table);
  std::vector<int64_t> free(static_cast<size_t>(blocks));
  for (size_t n = 0; n < free.size(); ++n) free[n] = static_cast<int64_t>(n);
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t length = kv_lengths_[static_cast<size_t>(b)];
    for (int64_t page = 0; page * block < length; ++page) {
      const auto pick = random_.integer(0, static_cast<int64_t>(free.size()) - 1);
      const int64_t chosen = free[static_cast<size_t>(pick)];
      free.erase(free.begin() + pick);
      const bool is_missing = options_.missing_pages > 0 && random_.chance(options_.missing_pages);
      const int64_t entry =
          is_missing ? random_.one_of({int64_t{-1}, blocks, int64_t{1} << 30}) : chosen;
      program_.set(table, static_cast<double>(entry), b, 0, page);
      if (is_missing) continue;
      for (int64_t s = page * block; s < std::min(length, (page + 1) * block); ++s) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < columns; ++d) {
            program_.set(id, of.draw(), chosen, h, s % block, d);
          }
        }
      }
    }
  }
  return id;
}

void Draw::draw_lengths(AttentionAttributes& a) {
  a.padding_mask = true;
  is_ragged_ = wants(options_.ragged);
  const auto side = [&](const char* name, int64_t extent, std::vector<int64_t>& drawn,
                        TensorId& plain, TensorId& cumulative) {
    const bool prefix_sums = wants(options_.cumulative);
    (prefix_sums ? cumulative : plain) = lengths(name, extent, drawn, prefix_sums);
  };
  side("seq_len_q", q_length_, q_lengths_, a.seq_len_q, a.cu_seq_len_q);
  side("seq_len_kv", kv_length_, kv_lengths_, a.seq_len_kv, a.cu_seq_len_kv);
}

/// Every third row as programs mask one whole: by a finite number, which leaves its keys alike.
/// Log-sum-exps of f32 are defined for -1e30 alone.
void Draw::hide_rows(TensorId bias) {
  const Dims dims = program_.graph[bias].dims;
  for (int64_t b = 0; b < dims[0]; ++b)
    for (int64_t h = 0; h < dims[1]; ++h)
      for (int64_t i = 0; i < dims[2]; i += 3) {
        const double hidden =
            options_.max_and_sum == 1 ? random_.one_of({-1e30, -2e38, 1e30}) : -1e30;
        for (int64_t j = 0; j < dims[3]; ++j) program_.set(bias, hidden, b, h, i, j);
      }
}

/// A NaN in every fifth row within the lengths.
void Draw::undefine_rows(TensorId q) {
  program_.may_be_undefined = true;
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t length = q_lengths_.empty() ? q_length_ : q_lengths_[static_cast<size_t>(b)];
    for (int64_t h = 0; h < q_heads_; ++h)
      for (int64_t i = 0; i < length; i += 5) program_.set(q, NAN, b, h, i, qk_dim_ / 2);
  }
}

/// Bounds, bias, ALiBi, score_mod and block mask, in combinations the contract allows.
void Draw::draw_scores(AttentionAttributes& a) {
  const bool has_mod = !a.padding_mask && !a.softmax_input_is_log2 && wants(options_.score_mod);
  if (has_mod) {
    a.score_mod =
        random_score_mod(random_, program_, {batch_, q_heads_, q_length_, kv_length_},
                         options_.boolean_mask, options_.hidden_rows, options_.score_functions);
  } else if (wants(options_.bounds)) {
    const bool fits = q_length_ <= kv_length_ || a.padding_mask;
    if (fits && wants(options_.bottom_right)) {
      a.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
    }
    if (wants(0.8)) a.right_bound = wants(0.6) ? 0 : random_.integer(0, kv_length_);
    if (fits && wants(0.4)) a.left_bound = random_.integer(1, kv_length_);
  }
  if (a.right_bound == 0 && wants(options_.alibi)) a.alibi_mask = true;
  if (wants(options_.bias)) {
    const bool wide = options_.wide_bias > 0 && wants(options_.wide_bias);
    a.bias = broadcast("bias", wide ? DataType::f32 : io_);
    pass_by_value(a.bias);
    const bool masks = random_.chance(0.3);  // some cells -inf, perhaps whole rows
    program_.fill(a.bias,
                  [&] { return masks && random_.chance(0.2) ? -INFINITY : random_.normal(); });
    if (options_.hidden_rows > 0 && wants(options_.hidden_rows)) hide_rows(a.bias);
  }
  if (wants(options_.block_mask)) {
    const int64_t columns = ((kv_length_ + 127) / 128 + 7) / 8;
    a.block_mask = program_.add("block_mask", DataType::u8,
                                {batch_, q_heads_, (q_length_ + 127) / 128, columns});
    program_.allocate(a.block_mask);
    program_.fill(a.block_mask, [&] { return static_cast<double>(random_.integer(0, 255)); });
  }
  if (wants(options_.sink)) {
    a.sink = program_.add("sink", options_.statistics_dtype, {1, q_heads_, 1, 1});
    pass_by_value(a.sink);
    program_.allocate(a.sink);
    program_.fill(a.sink, [&] { return random_.normal(); });
  }
}

void Draw::draw_dropout(AttentionAttributes& a) {
  graph::Dropout& dropout = a.dropout;
  const double p = random_.one_of({0.1, 0.25, 0.5, 0.9});
  if (wants(0.3)) {
    dropout.mask = broadcast("dropout_mask", io_);
    program_.fill(dropout.mask, [&] { return random_.chance(p) ? 0 : 1; });
    dropout.scale = scalar("dropout_scale", DataType::f32, 1 / (1 - p));
    if (is_backward_) dropout.scale_inv = scalar("dropout_scale_inv", DataType::f32, 1 - p);
    return;
  }
  dropout.probability = p;
  if (wants(0.3)) dropout.factor = 1.1 / (1 - p);
  if (wants(0.3)) {
    dropout.threefry = true;
    dropout.seed = program_.add("key", DataType::u32, {2, 1, 1, 1});
    program_.allocate(dropout.seed);
    for (int64_t n = 0; n < 2; ++n)
      program_.set_integer(dropout.seed, random_.integer(0, 0xffffffff), n);
    dropout.threefry_strides = dense_strides({batch_, q_heads_, q_length_, kv_length_}).value();
  } else {
    const auto type = random_.one_of({DataType::i32, DataType::i64});
    const int64_t top = type == DataType::i32 ? INT32_MAX : INT64_MAX, least = -top - 1;
    dropout.seed = scalar("seed", type, 0);
    dropout.offset = scalar("offset", type, 0);
    program_.set_integer(dropout.seed, random_.integer(least, top));
    program_.set_integer(dropout.offset, random_.integer(least, top));
    if (wants(0.3)) {
      dropout.streams = program_.add("streams", DataType::i32, {batch_, q_heads_, 1, 1});
      program_.allocate(dropout.streams);
      program_.fill(dropout.streams, [&] { return random_.integer(0, 1000); });
    }
  }
  if (wants(options_.rng_dump)) {
    dropout.rng_dump =
        program_.add("rng_dump", DataType::f32, {batch_, q_heads_, q_length_, kv_length_});
    program_.allocate(dropout.rng_dump);
  }
}

/// The angles of a rope: freqs, or tables of their cosines and sines; perhaps with positions.
void Draw::draw_angles(graph::Rope& rope, int64_t rows) {
  const int64_t step = std::min(options_.rope_step, qk_dim_);
  rope.rope_dim = wants(0.5) ? qk_dim_ : step * structure_.integer(1, qk_dim_ / step);
  rope.leading = wants(0.5);
  const int64_t table_rows = rows + random_.integer(0, 5);
  const auto table = [&](const char* name, int64_t columns, double bound) {
    const TensorId id = program_.add(name, DataType::f32, {table_rows, 1, 1, columns});
    program_.allocate(id);
    program_.fill(id, [&] { return random_.uniform(-bound, bound); });
    return id;
  };
  if (wants(0.7)) {
    rope.freqs = table("freqs", rope.rope_dim, 100);
  } else {
    rope.cosines = table("cosines", rope.rope_dim / 2, 1);
    rope.sines = table("sines", rope.rope_dim / 2, 1);
  }
  if (wants(0.7)) return;
  const bool per_row = wants(0.5) && rows > 1;
  rope.positions = program_.add("positions", random_.one_of({DataType::i32, DataType::i64}),
                                {wants(0.5) ? 1 : batch_, 1, per_row ? rows : 1, 1});
  program_.allocate(rope.positions);
  const int64_t last = per_row ? table_rows - 1 : table_rows - rows;
  program_.fill(rope.positions, [&] { return random_position(random_, last); });
}

/// A rope node from x to a new tensor, bound or virtual.
TensorId Draw::rotated(const char* name, TensorId x) {
  graph::Rope rope;
  rope.x = x;
  draw_angles(rope, program_.graph[x].dims[2]);
  rope.output_scale = structure_.one_of({1.0, 0.5, 1.3});
  rope.pairing = structure_.one_of({graph::RopePairing::halves, graph::RopePairing::interleaved});
  // A rotated ragged tensor stays virtual: bound, it would hold what lies between the sequences.
  const bool is_virtual = is_ragged(x) || wants(0.5);
  const graph::Tensor from = program_.graph[x];
  const bool same_layout =
      is_ragged(x) || (wants(0.5) && !overlaps_itself(from.dims, from.strides));
  rope.y =
      program_.add(name, io_, from.dims, same_layout ? from.strides : *dense_strides(from.dims));
  graph::Tensor& to = program_.graph[rope.y];
  to.is_virtual = is_virtual;
  to.ragged_offset = from.ragged_offset;
  to.ragged_offset_multiplier = from.ragged_offset_multiplier;
  if (!is_virtual) program_.allocate(rope.y);
  program_.graph.nodes.push_back({std::string(name) + "_rope", rope});
  return rope.y;
}

Program Draw::sdpa() {
  graph::Sdpa op;
  AttentionAttributes& a = op.attention;
  // Scales of every mantissa, as well as the usual one.
  const double factor = kv_length_ % 4 == 0 ? 0.5 + static_cast<double>(kv_length_ % 97) / 97 : 1;
  const double scale = wants(0.1) ? -0.3 : factor / std::sqrt(static_cast<double>(qk_dim_));
  if (wants(options_.tensor_scale)) {
    a.attn_scale_tensor = scalar("attn_scale", DataType::f32, scale);
  } else if (wants(0.9)) {
    a.attn_scale = scale;
  }
  a.softmax_input_is_log2 = wants(options_.log2_input);
  if (wants(options_.padding)) draw_lengths(a);
  draw_scores(a);
  if (wants(options_.dropout)) draw_dropout(a);

  op.q = input("q", io_, {batch_, q_heads_, q_length_, qk_dim_}, true, options_.query_size);
  if (wants_rarely(options_.undefined_rows)) undefine_rows(op.q);
  if (!is_backward_ && !is_ragged_ && wants_rarely(options_.rings)) {
    op.ring_kv = true;
    op.max_seq_len_kv = kv_length_;
    ring_rows_ = random_.integer(1, kv_length_);
  }
  op.k = keys_or_values("k", op, k_heads_, qk_dim_);
  op.v = keys_or_values("v", op, v_heads_, v_dim_);
  if (wants(options_.rope) && qk_dim_ % 2 == 0) {
    const bool may_rotate_keys = op.page_table_k == kNone && !op.ring_kv && op.k_scale == kNone;
    const auto sides = structure_.integer(1, may_rotate_keys ? 3 : 1);
    if (sides & 1) op.q = rotated("q_rotated", op.q);
    if (sides & 2) op.k = rotated("k_rotated", op.k);
  }
  op.o = attention_tensor("o", result_type(), {batch_, q_heads_, q_length_, v_dim_}, true);
  const Dims row{batch_, q_heads_, q_length_, 1};
  const bool apart = is_backward_ && wants_rarely(options_.max_and_sum);
  if (apart) {
    op.max = attention_tensor("max", options_.statistics_dtype, row, true);
    op.sum_exp = attention_tensor("sum_exp", options_.statistics_dtype, row, true);
  } else if (is_backward_ || wants(0.7 * options_.statistics)) {
    op.stats = attention_tensor("stats", options_.statistics_dtype, row, true);
  }
  if (!is_backward_ && op.stats != kNone) op.stats_use_log2 = wants(0.2);
  if (!is_backward_ && wants(0.3 * options_.statistics))
    op.max = attention_tensor("max", options_.statistics_dtype, row, true);
  if (!is_backward_ && wants(0.3 * options_.statistics)) {
    op.sum_exp = attention_tensor("sum_exp", options_.statistics_dtype, row, true);
  }
  if (!is_backward_ && wants_rarely(options_.scores)) {
    const Dims cells{batch_, q_heads_, q_length_, kv_length_};
    op.scores = program_.add("scores", wants(0.5) ? io_ : DataType::f32, cells,
                             wants(0.5) ? random_strides(random_, cells) : Dims{});
    program_.allocate(op.scores);
    op.scores_after_softmax = wants(0.5);
  }
  program_.graph.nodes.push_back({"attention", op});
  return std::move(program_);
}

/// A gradient's tensor, shaped as `of`.
TensorId Draw::gradient(const char* name, TensorId of, bool is_query_side, DataType dtype,
                        TensorId ragged_as) {
  return attention_tensor(name, dtype, program_.graph[of].dims, is_query_side, ragged_as);
}

/// Where sdpa_backward leaves the gradient of a rotated tensor; a rope_backward node takes it to
/// the gradient of x.
TensorId Draw::through_rope(const char* name, const graph::Rope* rope, TensorId x,
                            bool is_query_side) {
  const DataType dtype = result_type();
  const TensorId d_x = gradient(name, x, is_query_side, dtype);
  if (rope == nullptr) return d_x;
  graph::Rope inverse = *rope;
  inverse.backward = true;
  // A rope's result is of its operand's type, or f32.
  inverse.x = gradient((std::string(name) + "_rotated").c_str(), x, is_query_side,
                       dtype == DataType::f32 ? result_type() : io_, d_x);
  inverse.y = d_x;
  if (wants(0.6)) {
    program_.graph[inverse.x].is_virtual = true;
    program_.memory.erase(program_.graph[inverse.x].uid);
  }
  program_.graph.nodes.push_back({std::string(name) + "_rope", inverse});
  return inverse.x;
}

/// dL/d(log-sum-exp), infinite of rows that see no key: they have no gradients all the same.
TensorId Draw::stats_gradient(TensorId statistic, const reference::Values& made) {
  const Dims rows{batch_, q_heads_, q_length_, 1};
  const TensorId id = input("dStats", options_.statistics_dtype, rows, true);
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t length = q_lengths_.empty() ? q_length_ : q_lengths_[static_cast<size_t>(b)];
    for (int64_t h = 0; h < q_heads_; ++h)
      for (int64_t i = 0; i < length; ++i)
        if (made.read(statistic, b, h, i) == -INFINITY) program_.set(id, INFINITY, b, h, i);
  }
  return id;
}

Program Draw::sdpa_backward() {
  program_ = sdpa();
  graph::Graph& graph = program_.graph;
  const reference::Buffers buffers = program_.buffers();
  const reference::Values made = reference::evaluate(graph, buffers).value();
  reference::store_results(made, buffers);
  const auto forward = std::get<graph::Sdpa>(graph.nodes.back().op);
  std::vector<graph::Node> nodes = std::move(graph.nodes);
  nodes.pop_back();
  graph.nodes.clear();
  graph::SdpaBackward op;
  op.q = forward.q;
  op.k = forward.k;
  op.v = forward.v;
  op.o = forward.o;
  op.stats = forward.stats, op.max = forward.max, op.sum_exp = forward.sum_exp;
  op.attention = forward.attention;
  op.deterministic = wants(options_.deterministic);
  if (op.attention.score_mod && wants(0.3)) {
    op.score_mod_bprop = random_score_mod_bprop(random_, program_, *op.attention.score_mod);
  }
  for (int64_t b = 0; b < batch_ && !q_lengths_.empty() && !is_ragged(op.o); ++b) {
    for (int64_t i = q_lengths_[static_cast<size_t>(b)]; i < q_length_; ++i) {
      for (int64_t n = 0; n < q_heads_ * v_dim_; ++n) {
        program_.set(op.o, NAN, b, n / v_dim_, i, n % v_dim_);
      }
    }
  }
  op.d_o = input("dO", result_type(), graph[op.o].dims, true);
  if (wants_rarely(options_.stats_gradient))
    op.d_stats = stats_gradient(op.stats != kNone ? op.stats : op.max, made);
  const graph::Rope *q_rope = nullptr, *k_rope = nullptr;
  for (const graph::Node& node : nodes) {
    const auto& rope = std::get<graph::Rope>(node.op);
    (rope.y == op.q ? q_rope : k_rope) = &rope;
    // A rotated tensor that was saved is an input; else it is rotated once more here.
    const bool is_saved = !graph[rope.y].is_virtual;
    if (is_saved && wants(0.5)) continue;
    if (is_saved) program_.memory.at(graph[rope.y].uid).poison();
    graph.nodes.push_back(node);
  }
  const size_t before = graph.nodes.size();
  if (wants(0.9)) op.d_q = through_rope("dQ", q_rope, op.q, true);
  if (wants(0.9)) op.d_k = through_rope("dK", k_rope, op.k, false);
  if (op.d_q == kNone || wants(0.9)) op.d_v = gradient("dV", op.v, false, result_type());
  if (op.attention.bias != kNone && wants(0.7)) {
    Dims dims = graph[op.attention.bias].dims;
    // Not over keys: the gradients of a whole row add up to what rounding leaves of 0.
    if (structure_.chance(0.2)) {
      const Dims scores{batch_, q_heads_, q_length_};
      for (int i = 0; i < 3; ++i) dims[i] = structure_.chance(0.5) ? 1 : scores[i];
    }
    const bool odd = random_.chance(0.3);
    const DataType dtype = *graph[op.attention.bias].dtype;
    op.d_bias = program_.add("dBias", dtype, dims, odd ? random_strides(random_, dims) : Dims{});
    program_.allocate(op.d_bias);
  }
  if (op.attention.sink != kNone && wants(0.7)) {
    op.d_sink = program_.add("dSink", options_.statistics_dtype, {1, q_heads_, 1, 1});
    program_.allocate(op.d_sink);
  }
  if (op.attention.dropout.rng_dump != kNone) {
    program_.memory.at(graph[op.attention.dropout.rng_dump].uid).poison();
  }
  op.whole_rows = wants(options_.whole_rows);
  graph.nodes.insert(graph.nodes.begin() + static_cast<std::ptrdiff_t>(before),
                     {"attention_backward", op});
  return std::move(program_);
}

}  // namespace

Program random_sdpa(Random& random, const AttentionOptions& options) {
  return Draw(random, options, false).sdpa();
}

Program random_sdpa_backward(Random& random, const AttentionOptions& options) {
  return Draw(random, options, true).sdpa_backward();
}

Program random_training_step(Random& random, const AttentionOptions& options) {
  AttentionOptions drawn = options;
  drawn.score_mod = drawn.rope = 0;
  Program program = random_sdpa_backward(random, drawn);
  std::vector<graph::Node>& nodes = program.graph.nodes;
  const auto place = std::find_if(nodes.begin(), nodes.end(), [](const graph::Node& node) {
    return std::holds_alternative<graph::SdpaBackward>(node.op);
  });
  const auto& op = std::get<graph::SdpaBackward>(place->op);
  graph::Sdpa forward{.q = op.q, .k = op.k, .v = op.v, .o = op.o};
  forward.stats = op.stats, forward.max = op.max, forward.sum_exp = op.sum_exp;
  forward.attention = op.attention;
  forward.attention.dropout.rng_dump = kNone;  // the backward's
  for (const TensorId id : {op.o, op.stats, op.max, op.sum_exp})
    if (id != kNone) program.memory.at(program.graph[id].uid).poison();
  nodes.insert(place, {"attention", forward});
  return program;
}

DataType io_dtype(const Program& program) {
  const DataType io = *program.graph.io_dtype;
  if (!is_fp8(io)) return io;
  const auto* forward = std::get_if<graph::SdpaFp8>(&program.graph.nodes.front().op);
  return forward && forward->scale_s == kNone ? DataType::f16 : DataType::f32;
}

}  // namespace heddle::testing
