#include <algorithm>

#include "graph/rules.h"
#include "graph/validate_activation.h"

namespace heddle::graph {
namespace {

constexpr std::initializer_list<DataType> kElements = {DataType::f32, DataType::f16, DataType::bf16,
                                                       DataType::i32, DataType::boolean};
constexpr const char* kInputs[] = {"A", "B", "C"};
constexpr int kMostRank = 4;

/// Of one element: broadcast to a result of any rank.
bool is_one(const Tensor& tensor) { return element_count(tensor.dims) == 1; }

bool is_integer(const Tensor& tensor) {
  return tensor.dtype == DataType::i32 || tensor.dtype == DataType::boolean;
}

Status validate_operand(const Rules& rules, const char* port, TensorId id) {
  HEDDLE_TRY(rules.dtype_is(port, id, kElements));
  const Tensor& tensor = rules[id];
  if (tensor.ragged_offset != kNone)
    return error(Code::graph_not_supported, "{} has a ragged offset, expected a dense tensor.",
                 rules.subject(port, id));
  if (tensor.dims.rank() <= kMostRank) return {};
  return error(Code::graph_not_supported, "{} has dims {}, expected a rank of at most {}.",
               rules.subject(port, id), to_string(tensor.dims), kMostRank);
}

/// The inputs' dims broadcast together; empty if there are none.
Result<Dims> broadcast_dims(const Rules& rules, const PointwiseNode& op) {
  Dims dims;
  TensorId widest = kNone;
  for (const TensorId id : op.inputs()) {
    if (id == kNone || (is_one(rules[id]) && !dims.empty())) continue;
    const Dims& given = rules[id].dims;
    if (dims.empty() || is_one(rules[widest])) {
      dims = given, widest = id;
      continue;
    }
    bool fits = given.rank() == dims.rank();
    for (int i = 0; fits && i < dims.rank(); ++i) {
      fits = given[i] == dims[i] || given[i] == 1 || dims[i] == 1;
      dims[i] = std::max(dims[i], given[i]);
    }
    if (!fits)
      return error(Code::invalid_value,
                   "{} has an input of dims {} beside one of dims {}, expected as many dims, each "
                   "the same or 1.",
                   rules.op(), to_string(given), to_string(rules[widest].dims));
  }
  return dims;
}

/// Whether results are whole numbers: indices, truth values, and what whole numbers become.
bool makes_integers(const Rules& rules, const PointwiseNode& op) {
  using Mode = PointwiseMode;
  const auto is_whole = [&](TensorId id) { return is_integer(rules[id]); };
  switch (op.mode) {
    case Mode::gen_index:
    case Mode::floor:
    case Mode::ceil:
      return true;
    case Mode::identity:
    case Mode::neg:
    case Mode::abs:
      return is_whole(op.a);
    case Mode::add:
    case Mode::sub:
    case Mode::mul:
    case Mode::min:
    case Mode::max:
    case Mode::mod:
      return is_whole(op.a) && is_whole(op.b);
    case Mode::binary_select:
      return is_whole(op.b) && is_whole(op.c);
    default:
      return is_predicate(op.mode);
  }
}

Status validate_result_type(const Rules& rules, const PointwiseNode& op) {
  const DataType type = *rules[op.y].dtype;
  if (type == DataType::boolean && !is_predicate(op.mode))
    return error(Code::invalid_value,
                 "{} has data type boolean, expected another: {} makes numbers.",
                 rules.subject("Y", op.y), name(op.mode));
  if (type == DataType::i32 && !makes_integers(rules, op))
    return error(Code::invalid_value,
                 "{} has data type i32, expected f32, f16 or bf16: what {} makes of these inputs "
                 "need not be whole.",
                 rules.subject("Y", op.y), name(op.mode));
  return {};
}

}  // namespace

Status validate_pointwise(const Rules& rules, PointwiseNode& op) {
  const bool is_index = op.mode == PointwiseMode::gen_index;
  const int wanted = arity(op.mode);
  for (int n = 0; n < 3; ++n) {
    const TensorId id = op.inputs()[static_cast<size_t>(n)];
    if (id == kNone && n < wanted)
      return rules.fail(Code::attribute_not_set, "{} lacks its input {}", name(op.mode),
                        kInputs[n]);
    if (id == kNone) continue;
    if (n >= wanted && !(is_index && n == 0))
      return rules.fail(Code::invalid_value, "{} has an input {}, expected {} inputs",
                        name(op.mode), kInputs[n], wanted);
    HEDDLE_TRY(validate_operand(rules, kInputs[n], id));
  }
  HEDDLE_TRY(rules.present("Y", op.y));
  HEDDLE_ASSIGN(Dims dims, broadcast_dims(rules, op));
  if (dims.empty()) dims = rules[op.y].dims;
  if (dims.empty())
    return rules.fail(Code::attribute_not_set, "gen_index has neither an input nor a Y with dims");
  const std::array<TensorId, 3> inputs = op.inputs();
  const auto whole = std::ranges::find_if(
      inputs, [&](TensorId id) { return id != kNone && rules[id].dims == dims; });
  HEDDLE_TRY(rules.makes("Y", op.y, dims, whole == inputs.end() ? kNone : *whole));
  HEDDLE_TRY(validate_operand(rules, "Y", op.y));
  if (op.axis < 0 || op.axis >= (is_index ? dims.rank() : 1))
    return rules.fail(
        Code::invalid_value, "{} has axis {}, expected {}", name(op.mode), op.axis,
        is_index ? fmt::format("0 to {}", dims.rank() - 1) : "none: only gen_index has one");
  HEDDLE_TRY(validate_activation(rules, op.mode, op.numbers));
  return validate_result_type(rules, op);
}

}  // namespace heddle::graph
