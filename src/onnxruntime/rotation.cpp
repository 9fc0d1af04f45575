#include "onnxruntime/rotation.h"

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {

Status set_heads(Rotation& rotation, const Dims& x, int64_t heads) {
  if (x.rank() == 4) {
    rotation.dims = x;
    rotation.strides = {x[1] * x[2] * x[3], x[2] * x[3], x[3], 1};
    return {};
  }
  if (heads < 1 || x[2] % heads != 0) {
    return error(Code::invalid_value,
                 "The hidden size must be a multiple of the number of heads. Got {} and {}", x[2],
                 heads);
  }
  const int64_t columns = x[2] / heads;
  rotation.dims = {x[0], heads, x[1], columns};
  rotation.strides = {x[1] * x[2], columns, x[2], 1};
  return {};
}

Result<Recipe> recipe_of(const Rotation& rotation, Inputs inputs) {
  const Value& x = inputs[static_cast<size_t>(rotation.x)];
  const Dims& dims = rotation.dims;
  Recipe recipe;
  recipe.outputs = {{x.dims, *x.dtype}};
  if (element_count(x.dims) == 0) return recipe;
  if (rotation.by == Rotation::Positions::in_order &&
      rotation.positions > GraphBuilder::kMostWhole) {
    return error(Code::graph_not_supported,
                 "cos_cache has {} rows, and without position_ids {} are counted",
                 rotation.positions, GraphBuilder::kMostWhole);
  }

  GraphBuilder graph("rotary_embedding");
  const int64_t in = graph.bound(uid_of_input(rotation.x), "X", *x.dtype, dims, rotation.strides),
                out = graph.bound(uid_of_output(0), "Y", *x.dtype, dims, rotation.strides);
  const auto table = [&](int input, const char* name) {
    return graph.bound(uid_of_input(input), name, *inputs[static_cast<size_t>(input)].dtype,
                       {rotation.positions, 1, 1, rotation.half});
  };
  const int64_t batch = dims[0], rows = dims[2], cosines = table(rotation.cosines, "cos_cache"),
                sines = table(rotation.sines, "sin_cache");
  const auto ids = [&](const Dims& of, const Dims& strides) {
    return graph.bound(uid_of_input(rotation.ids), "position_ids", DataType::i64, of, strides);
  };
  int64_t positions = 0, start = 0;
  switch (rotation.by) {
    case Rotation::Positions::given:
      positions = ids({batch, 1, rows, 1}, {});
      break;
    case Rotation::Positions::from_start:
      start = ids({batch, 1, 1, 1}, {0, 1, 1, 1});
      break;
    case Rotation::Positions::in_order: {
      const int64_t length = graph.constant("rows", static_cast<double>(rows)),
                    before = graph.elementwise("mul", {graph.index(0, batch), length},
                                               graph.made("rows_before", {batch, 1, 1, 1}));
      positions = graph.elementwise("floor",
                                    {graph.elementwise("add", {before, graph.index(2, rows)},
                                                       graph.made("row", {batch, 1, rows, 1}))},
                                    graph.made("positions", {batch, 1, rows, 1}, DataType::i32));
      break;
    }
  }
  graph.node("cache_append");
  graph.tensor("q", in), graph.tensor("q_out", out);
  graph.tensor("cosines", cosines), graph.tensor("sines", sines);
  if (positions != 0) {
    graph.tensor("positions", positions);
  } else {  // the rows that there are before these are as many as the start's position
    graph.tensor("seq_len_kv", start);
    graph.integer("seq_len_kv_offset", rows);
  }
  graph.choice("pairing", rotation.is_interleaved ? "interleaved" : "halves");
  HEDDLE_ASSIGN(recipe.graph, graph.finish());
  return recipe;
}

Status check_position(int64_t id, int64_t index, int64_t positions) {
  if (id >= 0 && id < positions) return {};
  return error(Code::invalid_value, "position_ids value {} at index {} is out of range [0, {})", id,
               index, positions);
}

Status check_positions(const Value& ids, int64_t positions) {
  const auto* const values = static_cast<const int64_t*>(ids.data);
  const int64_t count = *element_count(ids.dims);
  for (int64_t n = 0; n < count; ++n) HEDDLE_TRY(check_position(values[n], n, positions));
  return {};
}

}  // namespace heddle::onnxruntime
