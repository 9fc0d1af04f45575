#include <unordered_set>

#include "graph/names.h"
#include "graph/validate_activation.h"
#include "graph/validate_attention.h"

namespace heddle::graph {
namespace {

/// A value of an expression: broadcast dims, and a truth value or a number.
void infer_value(const Rules& rules, TensorId id, const Dims& dims, bool predicate) {
  Tensor& tensor = rules.graph()[id];
  if (!tensor.dtype) tensor.dtype = predicate ? DataType::boolean : DataType::f32;
  rules.infer(id, dims);
}

Status validate_value(const Rules& rules, const char* port, const Pointwise& op, TensorId id,
                      const Dims& scores) {
  const Tensor& tensor = rules[id];
  if (!tensor.dtype || tensor.dims.empty()) {
    return rules.fail(Code::attribute_not_set, "{}: {} reads the {}, which has no {}", port,
                      name(op.mode), describe(tensor), tensor.dtype ? "dims" : "data type");
  }
  const std::string what = fmt::format("{}: input of {}", port, name(op.mode));
  return rules.broadcasts_to(what.c_str(), id, scores);
}

}  // namespace

Status validate_score_modifier(const Rules& rules, const char* port, const ScoreModifier& modifier,
                               const AttentionExtents& e, const ScoreModifier* known) {
  const Dims scores{e.batch, e.q_heads, e.q_length, e.kv_length};
  if (modifier.score_in == kNone || modifier.score_out == kNone) {
    return rules.fail(Code::attribute_not_set, "{} has no {}", port,
                      modifier.score_in == kNone ? "score to begin with" : "result");
  }
  // The expression's own values, and those of them (and of the one it may read) that exist so far.
  std::unordered_set<TensorId> own{modifier.score_in}, made{modifier.score_in};
  for (const Pointwise& op : modifier.ops) own.insert(op.output);
  if (known) {
    made.insert(known->score_in);
    for (const Pointwise& op : known->ops) made.insert(op.output);
  }
  infer_value(rules, modifier.score_in, scores, false);
  HEDDLE_TRY(rules.dims_are(fmt::format("{}: score", port).c_str(), modifier.score_in, scores));

  for (const Pointwise& op : modifier.ops) {
    if (static_cast<int>(op.inputs.size()) != arity(op.mode)) {
      return rules.fail(Code::invalid_value, "{}: {} has {} inputs, expected {}", port,
                        name(op.mode), op.inputs.size(), arity(op.mode));
    }
    if (op.output == kNone)
      return rules.fail(Code::attribute_not_set, "{}: {} has no output", port, name(op.mode));
    if (op.mode == PointwiseMode::gen_index && (op.axis < 0 || op.axis > 3)) {
      return rules.fail(
          Code::invalid_value,
          "{}: gen_index has axis {}, expected 0 (batch), 1 (head), 2 (row) or 3 (column)", port,
          op.axis);
    }
    HEDDLE_TRY(validate_activation(rules, op.mode, op.numbers));
    Dims dims = op.mode == PointwiseMode::gen_index ? scores : Dims{1, 1, 1, 1};
    for (TensorId id : op.inputs) {
      if (id == kNone)
        return rules.fail(Code::attribute_not_set, "{}: {} lacks an input", port, name(op.mode));
      if (own.contains(id) && !made.contains(id)) {
        return rules.fail(Code::invalid_value, "{}: {} reads the {} before it is made", port,
                          name(op.mode), describe(rules[id]));
      }
      HEDDLE_TRY(validate_value(rules, port, op, id, scores));
      for (int i = 0; i < 4; ++i) dims[i] = std::max(dims[i], rules[id].dims[i]);
    }
    infer_value(rules, op.output, dims, is_predicate(op.mode));
    HEDDLE_TRY(rules.dims_are(fmt::format("{}: result of {}", port, name(op.mode)).c_str(),
                              op.output, dims));
    made.insert(op.output);
  }
  if (!made.contains(modifier.score_out)) {
    return rules.fail(Code::invalid_value, "{}: its result, the {}, is made by none of its ops",
                      port, describe(rules[modifier.score_out]));
  }
  return {};
}

}  // namespace heddle::graph
