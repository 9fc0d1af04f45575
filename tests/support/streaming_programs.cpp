#include "support/streaming_programs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::testing {

using graph::kNone;
using graph::TensorId;

namespace {

DataType random_float(Random& random) {
  return random.one_of({DataType::f32, DataType::bf16, DataType::f16, DataType::f64});
}

/// X and a scale over its last dims, rows in a random nesting with gaps.
struct NormDraw {
  Random &random, &structure;
  Program program;
  Dims dims, normalised, statistic;
  int normalised_count = 1;
  DataType io = DataType::f32;
  bool aligned = false;

  NormDraw(Random& r, const NormOptions& options) : random(r), structure(r.structure()) {
    program.seed = r.seed();
    program.variant = r.variant();
    io = random_float(structure);
    program.graph.io_dtype = io;
    program.graph.intermediate_dtype = DataType::f32;
    aligned = options.aligned > 0 && structure.chance(options.aligned);
    normalised_count = !aligned && structure.chance(0.2) ? 2 : 1;
    const int64_t rank = structure.integer(normalised_count + 1, 4);
    for (int64_t d = 0; d < rank; ++d) {
      const bool is_row = d < rank - normalised_count;
      dims.push_back(is_row    ? r.integer(1, 9)
                     : aligned ? 8 * structure.integer(1, most_columns(options) / 8)
                               : structure.integer(2, structure.chance(0.3) ? 300 : 40));
      normalised.push_back(is_row ? 1 : dims.back());
      statistic.push_back(is_row ? dims.back() : 1);
    }
  }

  /// Every width, with few rows of the widest.
  int64_t most_columns(const NormOptions& options) {
    const int64_t shift = structure.integer(0, 8);
    return std::max<int64_t>(8, options.max_aligned_columns >> shift);
  }

  /// Columns dense; row dims nested in a random order, with gaps.
  Dims strides(const Dims& of) {
    Dims result = of;
    int64_t span = 1;
    for (int d = of.rank() - 1; d >= of.rank() - normalised_count; --d) {
      result[d] = span;
      span *= of[d];
    }
    std::vector<int> order;
    for (int d = 0; d < of.rank() - normalised_count; ++d) order.push_back(d);
    for (size_t n = order.size(); n > 1; --n) {
      std::swap(order[n - 1],
                order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(n) - 1))]);
    }
    for (int d : order) {
      if (random.chance(0.3)) span += random.integer(1, 9) * (aligned ? 8 : 1);
      result[d] = span;
      span *= of[d];
    }
    return result;
  }

  TensorId tensor(const char* name, DataType dtype, const Dims& of, bool is_input) {
    const bool odd = of == dims && structure.chance(0.7);
    const TensorId id = program.add(name, dtype, of, odd ? strides(of) : Dims{});
    program.allocate(id);
    if (is_input) program.fill(id, [&] { return random.normal(); });
    return id;
  }

  /// A number that rows lie around, many times their spread: as far as their type, or of f64 the
  /// definition in f64, still tells them apart.
  double far() const { return io == DataType::f32 ? 1e4 : 10; }
  /// Whether X, filled anew, has rows around that number.
  bool is_far_from_0(TensorId x) {
    if (!structure.chance(0.4)) return false;
    program.fill(x, [&] { return far() + random.normal(); });
    return true;
  }

  /// Statistics are f64 only beside an f64 x.
  DataType statistic_type() { return io == DataType::f64 ? DataType::f64 : DataType::f32; }
};

/// Op is RmsNorm or LayerNorm, which alone has means.
template <class Op>
Program random_norm(Random& random, const NormOptions& options) {
  NormDraw draw(random, options);
  constexpr bool kCentred = requires(Op op) { op.mean; };
  Op op;
  op.x = draw.tensor("x", draw.io, draw.dims, true);
  const bool is_far = kCentred && draw.is_far_from_0(op.x);
  op.scale = draw.tensor("scale", random_float(draw.structure), draw.normalised, true);
  if (draw.structure.chance(kCentred ? 0.7 : 0.3))
    op.bias = draw.tensor("bias", random_float(draw.structure), draw.normalised, true);
  if (options.residual > 0 && draw.structure.chance(options.residual)) {
    const auto type = [&] {
      return draw.structure.chance(0.6) ? draw.io : random_float(draw.structure);
    };
    op.residual = draw.tensor("residual", type(), draw.dims, true);
    if (draw.structure.chance(0.5))
      op.residual_bias = draw.tensor("residual_bias", type(), draw.normalised, true);
    if (draw.structure.chance(0.6)) op.sum = draw.tensor("sum", type(), draw.dims, false);
  }
  op.epsilon = draw.program.add("epsilon", DataType::f32, {1, 1, 1, 1});
  // Rows of few 16-bit numbers may have no variance.
  const bool may_vanish = kCentred && (is_far || size_of(draw.io) == 2);
  const double epsilon = draw.structure.one_of({may_vanish ? 0.01 : 0.0, 1e-5, 0.5});
  if (draw.structure.chance(0.5)) {
    draw.program.graph[op.epsilon].constant = epsilon;
  } else {
    draw.program.graph[op.epsilon].pass_by_value = draw.structure.chance(0.5);
    draw.program.allocate(op.epsilon);
    draw.program.set(op.epsilon, epsilon, 0);
  }
  op.y = draw.tensor("y", draw.structure.chance(0.6) ? draw.io : random_float(draw.structure),
                     draw.dims, false);
  if constexpr (kCentred) {
    if (draw.structure.chance(0.6))
      op.mean = draw.tensor("mean", draw.statistic_type(), draw.statistic, false);
  }
  if (draw.structure.chance(0.6)) {
    op.inv_variance = draw.tensor("inv_variance", draw.statistic_type(), draw.statistic, false);
  }
  draw.program.graph.nodes.push_back({"norm", op});
  return std::move(draw.program);
}

template <class Op>
Program random_norm_backward(Random& random, const NormOptions& options) {
  NormDraw draw(random, options);
  Op op;
  op.x = draw.tensor("x", draw.io, draw.dims, true);
  op.dy = draw.tensor("dY", draw.structure.chance(0.6) ? draw.io : random_float(draw.structure),
                      draw.dims, true);
  op.scale = draw.tensor("scale", random_float(draw.structure), draw.normalised, true);
  if constexpr (requires { op.mean; }) {
    op.mean = draw.tensor("mean", draw.statistic_type(), draw.statistic, false);
    const double mean = draw.is_far_from_0(op.x) ? draw.far() : 0;
    draw.program.fill(op.mean, [&] { return mean + 0.3 * random.normal(); });
  }
  op.inv_variance = draw.tensor("inv_variance", draw.statistic_type(), draw.statistic, false);
  draw.program.fill(op.inv_variance, [&] { return random.uniform(0.5, 2); });
  if (draw.structure.chance(0.8)) op.dx = draw.tensor("dX", draw.io, draw.dims, false);
  if (op.dx == kNone || draw.structure.chance(0.8)) {
    op.d_scale = draw.tensor("dScale", random_float(draw.structure), draw.normalised, false);
  }
  if (draw.structure.chance(0.4)) {
    op.d_bias = draw.tensor("dBias", random_float(draw.structure), draw.normalised, false);
  }
  draw.program.graph.nodes.push_back({"norm_backward", op});
  return std::move(draw.program);
}

}  // namespace

Program random_rms_norm(Random& random) { return random_rms_norm(random, {}); }
Program random_rms_norm(Random& random, const NormOptions& options) {
  return random_norm<graph::RmsNorm>(random, options);
}
Program random_rms_norm_backward(Random& random) { return random_rms_norm_backward(random, {}); }
Program random_rms_norm_backward(Random& random, const NormOptions& options) {
  return random_norm_backward<graph::RmsNormBackward>(random, options);
}
Program random_layer_norm(Random& random) { return random_layer_norm(random, {}); }
Program random_layer_norm(Random& random, const NormOptions& options) {
  return random_norm<graph::LayerNorm>(random, options);
}
Program random_layer_norm_backward(Random& random) {
  return random_layer_norm_backward(random, {});
}
Program random_layer_norm_backward(Random& random, const NormOptions& options) {
  return random_norm_backward<graph::LayerNormBackward>(random, options);
}

Program with_no_numbers(Random& random, Program program) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  program.may_be_undefined = true;
  const auto fill = [&](const auto& op) {
    if constexpr (requires { op.x; })
      program.fill(op.x, [&] {
        const bool is_number = random.chance(0.98);
        return is_number ? random.normal() : random.one_of({std::nan(""), kInfinity, -kInfinity});
      });
  };
  std::visit(fill, program.graph.nodes.front().op);
  return program;
}

double random_position(Random& random, int64_t last) {
  if (random.chance(0.95)) return static_cast<double>(random.integer(0, last));
  return random.one_of({-0x1p63, -3.0, static_cast<double>(last) + 1e3, 0x1p63});
}

Program random_rope(Random& random) {
  Program program;
  Random& structure = random.structure();
  program.seed = random.seed();
  program.variant = random.variant();
  const DataType io = random_float(structure);
  program.graph.io_dtype = io;
  program.graph.intermediate_dtype = DataType::f32;
  // Half of the time head dims as models have them, of 16 columns each.
  const int64_t unit = structure.chance(0.5) ? 16 : 2;
  const Dims dims{random.integer(1, 3), random.integer(1, 5), random.integer(1, 90),
                  unit * structure.integer(1, unit == 2 ? 40 : 8)};
  const auto tensor = [&](const char* name, DataType dtype, const Dims& of, bool is_odd) {
    const TensorId id = program.add(name, dtype, of, is_odd ? random_strides(random, of) : Dims{});
    program.allocate(id);
    return id;
  };
  graph::Rope op;
  op.backward = structure.chance(0.5);
  op.output_scale = structure.one_of({1.0, 0.25, -1.7});
  op.pairing = structure.one_of({graph::RopePairing::halves, graph::RopePairing::interleaved});
  op.rope_dim = structure.chance(0.5) ? 0 : unit * structure.integer(1, dims[3] / unit);
  op.leading = structure.chance(0.5);
  op.x = tensor("x", io, dims, structure.chance(0.7));
  program.fill(op.x, [&] { return random.normal(); });
  op.y = tensor("y", structure.chance(0.8) ? io : DataType::f32, dims, structure.chance(0.7));
  const int64_t columns = op.rope_dim > 0 ? op.rope_dim : dims[3];
  const int64_t rows = dims[2] + random.integer(0, 20);
  if (structure.chance(0.5)) {
    op.freqs = tensor("freqs", DataType::f32, {rows, 1, 1, columns}, false);
    const double bound = random.one_of({1.0, 1e3, 6e4, 1e7});  // as positions grow
    program.fill(op.freqs, [&] { return random.uniform(-bound, bound); });
  } else {
    op.cosines = tensor("cosines", DataType::f32, {rows, 1, 1, columns / 2}, false);
    op.sines = tensor("sines", DataType::f32, {rows, 1, 1, columns / 2}, false);
    for (TensorId id : {op.cosines, op.sines}) {
      program.fill(id, [&] { return random.uniform(-1, 1); });
    }
  }
  if (structure.chance(0.5)) {
    const bool per_row = structure.chance(0.5) && dims[2] > 1;
    op.positions =
        tensor("positions", structure.one_of({DataType::i32, DataType::i64}),
               {structure.chance(0.5) ? 1 : dims[0], 1, per_row ? dims[2] : 1, 1}, false);
    const int64_t last = per_row ? rows - 1 : rows - dims[2];
    program.fill(op.positions, [&] { return random_position(random, last); });
  }
  program.graph.nodes.push_back({"rope", op});
  return program;
}

}  // namespace heddle::testing
