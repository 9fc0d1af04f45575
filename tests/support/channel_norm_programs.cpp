#include "support/channel_norm_programs.h"

#include <algorithm>
#include <numeric>

namespace heddle::testing {

using graph::TensorId;

namespace {

DataType random_float(Random& random) {
  return random.one_of({DataType::f32, DataType::bf16, DataType::f16, DataType::f64});
}

struct ChannelDraw {
  Random &random, &structure;
  Program program;
  Dims dims, channels, statistic;
  DataType io;

  ChannelDraw(Random& r, bool of_batch)
      : random(r), structure(r.structure()), io(random_float(structure)) {
    program.seed = r.seed();
    program.variant = r.variant();
    program.graph.io_dtype = io;
    program.graph.intermediate_dtype = DataType::f32;
    const int64_t rank = structure.integer(of_batch ? 2 : 3, 5);
    for (int64_t d = 0; d < rank; ++d) {
      // Channels of more than a block has side by side, and columns of several slices.
      const int64_t most = d == 1 ? (structure.chance(0.3) ? 70 : 9) : d == 2 ? 40 : 5;
      dims.push_back(structure.integer(1, most));
      channels.push_back(d == 1 ? dims.back() : 1);
      statistic.push_back(d == 1 || (d == 0 && !of_batch) ? dims.back() : 1);
    }
  }

  /// All dims nested in a random order, half of the time the channels innermost.
  Dims strides(const Dims& of) {
    std::vector<int> order(static_cast<size_t>(of.rank()));
    std::iota(order.begin(), order.end(), 0);
    for (size_t n = order.size(); n > 1; --n)
      std::swap(order[n - 1],
                order[static_cast<size_t>(structure.integer(0, static_cast<int64_t>(n) - 1))]);
    if (structure.chance(0.5)) std::swap(*std::ranges::find(order, 1), order.front());
    Dims result = of;
    int64_t span = 1;
    for (const int d : order) {
      result[d] = span;
      span = span * of[d] + (structure.chance(0.2) ? structure.integer(1, 3) : 0);
    }
    return result;
  }

  TensorId tensor(const char* name, DataType dtype, const Dims& of, bool is_input) {
    const bool odd = of == dims && structure.chance(0.8);
    const TensorId id = program.add(name, dtype, of, odd ? strides(of) : Dims{});
    program.allocate(id);
    if (is_input) program.fill(id, [&] { return random.normal(); });
    return id;
  }
  TensorId number(const char* name, double value) {
    const TensorId id = program.add(name, DataType::f32, {1, 1, 1, 1});
    if (structure.chance(0.5)) {
      program.graph[id].constant = value;
    } else {
      program.graph[id].pass_by_value = structure.chance(0.5);
      program.allocate(id);
      program.set(id, value, 0);
    }
    return id;
  }

  double far() const { return io == DataType::f32 ? 1e4 : 10; }
  bool is_far_from_0(TensorId x) {
    if (!structure.chance(0.4)) return false;
    program.fill(x, [&] { return far() + random.normal(); });
    return true;
  }
  DataType statistic_type() { return io == DataType::f64 ? DataType::f64 : DataType::f32; }
};

template <class Op>
Program random_channel_norm(Random& random) {
  constexpr bool kOfBatch = requires(Op op) { op.momentum; };
  ChannelDraw draw(random, kOfBatch);
  Op op;
  op.x = draw.tensor("x", draw.io, draw.dims, true);
  draw.is_far_from_0(op.x);
  op.scale = draw.tensor("scale", random_float(draw.structure), draw.channels, true);
  if (draw.structure.chance(0.7))
    op.bias = draw.tensor("bias", random_float(draw.structure), draw.channels, true);
  // Few numbers of 16 bits may have no variance, and one has none.
  op.epsilon = draw.number("epsilon", draw.structure.one_of({0.01, 0.5}));
  op.y = draw.tensor("y", draw.structure.chance(0.6) ? draw.io : random_float(draw.structure),
                     draw.dims, false);
  if (draw.structure.chance(0.6))
    op.mean = draw.tensor("mean", draw.statistic_type(), draw.statistic, false);
  if (draw.structure.chance(0.6))
    op.inv_variance = draw.tensor("inv_variance", draw.statistic_type(), draw.statistic, false);
  if constexpr (kOfBatch) {
    if (draw.structure.chance(0.6)) {
      op.momentum = draw.number("momentum", draw.structure.one_of({0.0, 0.1, 1.0}));
      op.running_mean = draw.tensor("running_mean", draw.statistic_type(), draw.channels, true);
      op.running_var = draw.tensor("running_var", draw.statistic_type(), draw.channels, true);
      op.next_mean = draw.tensor("next_mean", draw.statistic_type(), draw.channels, false);
      op.next_var = draw.tensor("next_var", draw.statistic_type(), draw.channels, false);
    }
  }
  draw.program.graph.nodes.push_back({"norm", op});
  return std::move(draw.program);
}

template <class Op>
Program random_channel_norm_backward(Random& random) {
  ChannelDraw draw(random, std::is_same_v<Op, graph::BatchNormBackward>);
  Op op;
  op.x = draw.tensor("x", draw.io, draw.dims, true);
  op.dy = draw.tensor("dY", draw.structure.chance(0.6) ? draw.io : random_float(draw.structure),
                      draw.dims, true);
  op.scale = draw.tensor("scale", random_float(draw.structure), draw.channels, true);
  op.mean = draw.tensor("mean", draw.statistic_type(), draw.statistic, false);
  const double mean = draw.is_far_from_0(op.x) ? draw.far() : 0;
  draw.program.fill(op.mean, [&] { return mean + 0.3 * random.normal(); });
  op.inv_variance = draw.tensor("inv_variance", draw.statistic_type(), draw.statistic, false);
  draw.program.fill(op.inv_variance, [&] { return random.uniform(0.5, 2); });
  if (draw.structure.chance(0.8)) op.dx = draw.tensor("dX", draw.io, draw.dims, false);
  if (op.dx == graph::kNone || draw.structure.chance(0.8))
    op.d_scale = draw.tensor("dScale", random_float(draw.structure), draw.channels, false);
  if (draw.structure.chance(0.4))
    op.d_bias = draw.tensor("dBias", random_float(draw.structure), draw.channels, false);
  draw.program.graph.nodes.push_back({"norm_backward", op});
  return std::move(draw.program);
}

}  // namespace

Program random_instance_norm(Random& random) {
  return random_channel_norm<graph::InstanceNorm>(random);
}
Program random_batch_norm(Random& random) { return random_channel_norm<graph::BatchNorm>(random); }
Program random_instance_norm_backward(Random& random) {
  return random_channel_norm_backward<graph::InstanceNormBackward>(random);
}
Program random_batch_norm_backward(Random& random) {
  return random_channel_norm_backward<graph::BatchNormBackward>(random);
}

}  // namespace heddle::testing
