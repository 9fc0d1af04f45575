#include "support/fp8_programs.h"

#include <gtest/gtest.h>

#include "core/fp8.h"
#include "core/rounding.h"
#include "graph/validate.h"
#include "reference/evaluate.h"

namespace heddle::testing {
namespace {

using graph::TensorId;

class Draw {
 public:
  Draw(Random& random, const Fp8Options& options, bool backward)
      : random_(random), for_hopper_(options.for_hopper), backward_(backward) {
    program_.seed = random.seed();
    program_.variant = random.variant();
    program_.graph.io_dtype = fp8();
    program_.graph.intermediate_dtype = DataType::f32;
    batch_ = random_.integer(1, 3);
    k_heads_ = random_.integer(1, 2), v_heads_ = random_.chance(0.7) ? k_heads_ : 1;
    q_heads_ = 2 * random_.integer(1, 2);
    q_length_ = random_.integer(1, 150), kv_length_ = random_.integer(1, 280);
    dim_ = head_dim(), v_dim_ = random_.chance(0.5) ? dim_ : head_dim();
    attributes();
  }

  Program forward() && {
    graph::SdpaFp8 op = operands();
    const bool scales_weights = random_.chance(0.8);
    if (scales_weights) op.scale_s = scalar(300), op.descale_s = scalar(1.0 / 300);
    if (random_.chance(0.7)) op.scale_o = scalar(random_.uniform(0.5, 40));
    op.o = tensor("o", result(), q_heads_, q_length_, v_dim_);
    if (random_.chance(0.7)) op.stats = tensor("stats", DataType::f32, q_heads_, q_length_, 1);
    if (random_.chance(0.7)) op.amax_s = one();
    if (random_.chance(0.7)) op.amax_o = one();
    program_.graph.nodes.push_back({"fp8", op});
    return std::move(program_);
  }

  /// Given what the definition of the forward makes.
  Program backward() && {
    const graph::SdpaFp8 plain = operands();
    graph::SdpaFp8 made = plain;
    made.scale_o = scalar(16);
    made.o = tensor("o", fp8(), q_heads_, q_length_, v_dim_);
    made.stats = tensor("stats", DataType::f32, q_heads_, q_length_, 1);
    program_.graph.nodes.push_back({"forward", made});
    Program before = program_;
    const Status valid = graph::validate(before.graph);
    EXPECT_TRUE(valid.is_ok()) << valid.message();
    const auto values = reference::evaluate(before.graph, before.buffers());
    EXPECT_TRUE(values.is_ok()) << values.status().message();
    if (values.is_ok()) reference::store_results(*values, program_.buffers());
    graph::SdpaFp8Backward op;
    op.q = plain.q, op.k = plain.k, op.v = plain.v, op.o = made.o, op.stats = made.stats;
    op.d_o = tensor("d_o", fp8(), q_heads_, q_length_, v_dim_);
    fill(op.d_o, q_lengths_);
    op.descale_q = plain.descale_q, op.descale_k = plain.descale_k, op.descale_v = plain.descale_v;
    op.descale_o = scalar(1.0 / 16), op.descale_d_o = scalar(0.02);
    op.scale_s = scalar(300), op.descale_s = scalar(1.0 / 300);
    op.scale_d_p = scalar(60), op.descale_d_p = scalar(1.0 / 60);
    op.d_q = tensor("d_q", result(), q_heads_, q_length_, dim_);
    op.d_k = tensor("d_k", result(), k_heads_, kv_length_, dim_);
    if (random_.chance(0.7)) op.d_v = tensor("d_v", result(), v_heads_, kv_length_, v_dim_);
    if (random_.chance(0.7)) op.scale_d_q = scalar(random_.uniform(0.5, 9));
    if (random_.chance(0.7)) op.scale_d_k = scalar(random_.uniform(0.5, 9));
    for (TensorId* amax : {&op.amax_d_q, &op.amax_d_k, &op.amax_d_p})
      if (random_.chance(0.7)) *amax = one();
    if (op.d_v != graph::kNone && random_.chance(0.7)) {
      op.scale_d_v = scalar(random_.uniform(0.5, 9));
      op.amax_d_v = one();
    }
    op.attention = attributes_;
    program_.graph.nodes = {{"backward", op}};
    return std::move(program_);
  }

 private:
  DataType fp8() {
    if (for_hopper_) return DataType::f8e4m3;
    return random_.one_of({DataType::f8e4m3, DataType::f8e5m2});
  }
  DataType result() {
    if (for_hopper_) return DataType::f8e4m3;
    return random_.one_of(
        {DataType::f32, DataType::bf16, DataType::f16, DataType::f8e4m3, DataType::f8e5m2});
  }
  int64_t head_dim() {
    if (!for_hopper_) return random_.integer(1, 70);
    return backward_ ? 128 : random_.one_of({int64_t{64}, int64_t{128}});
  }

  TensorId tensor(const char* name, DataType type, int64_t heads, int64_t rows, int64_t columns) {
    const Dims dims{batch_, heads, rows, columns};
    const bool aligned = for_hopper_ && is_fp8(type);
    const Dims strides = aligned ? aligned_strides(dims) : random_strides(random_, dims, true);
    const TensorId id = program_.add(name, type, dims, strides);
    program_.allocate(id);
    return id;
  }
  /// Multiples of 16 elements, of a byte each.
  Dims aligned_strides(Dims dims) {
    dims[3] /= 2;
    Dims strides = random_strides(random_, dims);
    for (int axis = 0; axis < 3; ++axis) strides[axis] = round_up(2 * strides[axis], 16);
    return strides;
  }
  TensorId one() {
    const TensorId id = program_.add("one", DataType::f32, {1, 1, 1, 1});
    program_.allocate(id);
    return id;
  }
  TensorId scalar(double value) {
    const TensorId id = one();
    program_.set(id, value, 0);
    return id;
  }
  void fill(TensorId id, const std::vector<int64_t>& lengths) {
    program_.fill(
        id, [&] { return 20 * random_.normal(); },
        [&](int64_t b) { return lengths[static_cast<size_t>(b)]; });
  }

  void attributes() {
    q_lengths_.assign(static_cast<size_t>(batch_), q_length_);
    kv_lengths_.assign(static_cast<size_t>(batch_), kv_length_);
    attributes_.attn_scale = random_.one_of({1.0, 0.1, -0.3});
    if (!(for_hopper_ && backward_) && random_.chance(0.5)) {
      attributes_.padding_mask = true;
      attributes_.seq_len_q = lengths(q_length_, q_lengths_);
      attributes_.seq_len_kv = lengths(kv_length_, kv_lengths_);
    }
    const bool may_be_longer = attributes_.padding_mask || q_length_ <= kv_length_;
    if (may_be_longer && random_.chance(0.5))
      attributes_.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
    if (may_be_longer && random_.chance(0.4)) attributes_.left_bound = random_.integer(1, 90);
    if (random_.chance(0.5)) attributes_.right_bound = random_.integer(0, 9);
  }
  TensorId lengths(int64_t most, std::vector<int64_t>& values) {
    const TensorId id = program_.add("lengths", DataType::i32, {batch_, 1, 1, 1});
    program_.allocate(id);
    for (size_t b = 0; b < values.size(); ++b) {
      values[b] = random_.integer(0, most);
      program_.set_integer(id, values[b], static_cast<int64_t>(b));
    }
    return id;
  }

  graph::SdpaFp8 operands() {
    graph::SdpaFp8 op;
    op.q = tensor("q", fp8(), q_heads_, q_length_, dim_);
    op.k = tensor("k", fp8(), k_heads_, kv_length_, dim_);
    op.v = tensor("v", fp8(), v_heads_, kv_length_, v_dim_);
    fill(op.q, q_lengths_), fill(op.k, kv_lengths_), fill(op.v, kv_lengths_);
    op.descale_q = scalar(0.05), op.descale_k = scalar(random_.uniform(0.01, 0.05));
    op.descale_v = scalar(0.05);
    op.attention = attributes_;
    return op;
  }

  Random& random_;
  const bool for_hopper_, backward_;
  Program program_;
  int64_t batch_, q_heads_, k_heads_, v_heads_, q_length_, kv_length_, dim_, v_dim_;
  std::vector<int64_t> q_lengths_, kv_lengths_;
  graph::AttentionAttributes attributes_;
};

}  // namespace

Program random_sdpa_fp8(Random& random, const Fp8Options& options) {
  return Draw(random, options, false).forward();
}
Program random_sdpa_fp8_backward(Random& random, const Fp8Options& options) {
  return Draw(random, options, true).backward();
}

}  // namespace heddle::testing
