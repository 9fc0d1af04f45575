#include "gpu/attention_program.h"

#include <cmath>

#include "reference/evaluate.h"

namespace heddle::testing {

using graph::TensorId;

std::ostream& operator<<(std::ostream& out, const AttentionShape& shape) {
  return out << name(shape.dtype) << ", " << shape.heads << " heads, " << shape.rows << " rows, "
             << shape.keys << " keys, head_dim " << shape.head_dim
             << (shape.backward ? ", backward" : "");
}

Program attention_program(const AttentionShape& shape, const Change& change, const Value& value,
                          bool statistics) {
  Program program;
  program.graph.io_dtype = shape.dtype;
  program.graph.intermediate_dtype = program.graph.compute_dtype = DataType::f32;
  Random random(static_cast<uint64_t>(shape.keys));
  const Dims queries = shape.queries(), keys{1, shape.heads, shape.keys, shape.head_dim};
  const auto add = [&](const char* name, DataType dtype, const Dims& dims) {
    const TensorId id = program.add(name, dtype, dims);
    program.allocate(id);
    return id;
  };
  const auto input = [&](const char* name, Input which, const Dims& dims) {
    const TensorId id = add(name, shape.dtype, dims);
    for (int64_t h = 0; h < dims[1]; ++h)
      for (int64_t i = 0; i < dims[2]; ++i)
        for (int64_t j = 0; j < dims[3]; ++j) {
          const double normal = random.normal();
          program.set(id, value ? value(which, i, normal) : normal, 0, h, i, j);
        }
    return id;
  };
  graph::Sdpa op;
  op.attention.attn_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (change) change(program, op.attention);
  op.q = input("q", Input::q, queries);
  op.k = input("k", Input::k, keys);
  op.v = input("v", Input::v, keys);
  op.o = add("o", shape.dtype, queries);
  if (statistics) op.stats = add("stats", DataType::f32, {1, shape.heads, shape.rows, 1});
  program.graph.nodes.push_back({"attention", op});
  if (!shape.backward) return program;

  const reference::Buffers buffers = program.buffers();
  reference::store_results(reference::evaluate(program.graph, buffers).value(), buffers);
  graph::SdpaBackward gradient;
  gradient.q = op.q, gradient.k = op.k, gradient.v = op.v, gradient.o = op.o;
  gradient.stats = op.stats;
  gradient.attention = op.attention;
  gradient.d_o = input("dO", Input::d_o, queries);
  gradient.d_q = add("dQ", shape.dtype, queries);
  gradient.d_k = add("dK", shape.dtype, keys);
  gradient.d_v = add("dV", shape.dtype, keys);
  if (op.attention.sink != graph::kNone)
    gradient.d_sink = add("dSink", DataType::f32, {1, shape.heads, 1, 1});
  program.graph.nodes = {{"gradient", gradient}};
  return program;
}

ScoreSteps::ScoreSteps(Program& program, const Dims& cells) : program_(program), cells_(cells) {
  modifier_.score_in = cell();
}

TensorId ScoreSteps::cell() {
  const TensorId id = program_.add("score", DataType::f32, cells_);
  program_.graph[id].is_virtual = true;
  return id;
}

TensorId ScoreSteps::constant(double value) {
  const TensorId id = program_.add("constant", DataType::f32, {1, 1, 1, 1});
  program_.graph[id].constant = value;
  return id;
}

TensorId ScoreSteps::apply(graph::PointwiseMode mode, std::vector<TensorId> inputs) {
  modifier_.score_out = cell();
  modifier_.ops.push_back({mode, std::move(inputs), modifier_.score_out, 0, ""});
  return modifier_.score_out;
}

}  // namespace heddle::testing
