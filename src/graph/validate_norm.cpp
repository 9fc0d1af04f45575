// The rules of both norms: layer_norm also has the rows' means.
#include "graph/rules.h"

namespace heddle::graph {
namespace {

constexpr std::initializer_list<DataType> kFloats = {DataType::f16, DataType::bf16, DataType::f32,
                                                     DataType::f64};

/// X and the scale; the normalised dims are those where the scale's dim is not 1.
Status validate_normalised(const Rules& rules, TensorId x, TensorId scale) {
  HEDDLE_TRY(rules.present("X", x));
  HEDDLE_TRY(rules.present("scale", scale));
  HEDDLE_TRY(rules.dtype_is("X", x, kFloats));
  HEDDLE_TRY(rules.dtype_is("scale", scale, kFloats));
  const Dims &dims = rules[x].dims, &normalised = rules[scale].dims;
  bool any = false, fits = dims.rank() == normalised.rank();
  for (int i = 0; fits && i < dims.rank(); ++i) {
    fits = normalised[i] == 1 || normalised[i] == dims[i];
    any |= normalised[i] != 1;
  }
  if (!fits) {
    return error(Code::invalid_value, "{} has dims {}, expected each to be 1 or that of X, {}.",
                 rules.subject("scale", scale), to_string(normalised), to_string(dims));
  }
  if (!any) {
    return error(Code::invalid_value,
                 "{} has dims {}, which normalise none of X, {}: expected a dim that is not 1.",
                 rules.subject("scale", scale), to_string(normalised), to_string(dims));
  }
  return {};
}

Dims statistic_dims(const Rules& rules, TensorId x, TensorId scale) {
  Dims dims = rules[x].dims;
  for (int i = 0; i < dims.rank(); ++i) {
    if (rules[scale].dims[i] != 1) dims[i] = 1;
  }
  return dims;
}

Status validate_statistic_type(const Rules& rules, const char* port, TensorId id, TensorId x) {
  const DataType wide = rules[x].dtype == DataType::f64 ? DataType::f64 : DataType::f32;
  return rules.dtype_is(port, id, {DataType::f32, wide});
}

Status validate_made_statistic(const Rules& rules, const char* port, TensorId id, TensorId x,
                               TensorId scale) {
  if (id == kNone) return {};
  HEDDLE_TRY(rules.makes(port, id, statistic_dims(rules, x, scale)));
  return validate_statistic_type(rules, port, id, x);
}

Status validate_given_statistic(const Rules& rules, const char* port, TensorId id, TensorId x,
                                TensorId scale) {
  HEDDLE_TRY(rules.present(port, id));
  HEDDLE_TRY(rules.dims_are(port, id, statistic_dims(rules, x, scale)));
  return validate_statistic_type(rules, port, id, x);
}

/// What is added to X before it is normalised, and the sum.
template <class Norm>
Status validate_residual(const Rules& rules, const Norm& op) {
  if (op.residual == kNone) {
    if (op.residual_bias == kNone && op.sum == kNone) return {};
    return rules.fail(Code::attribute_not_set,
                      "{} is given without a residual, expected both or none of them",
                      op.sum == kNone ? "residual_bias" : "sum");
  }
  HEDDLE_TRY(rules.dims_are("residual", op.residual, rules[op.x].dims));
  HEDDLE_TRY(rules.dtype_is("residual", op.residual, kFloats));
  if (op.residual_bias != kNone) {
    HEDDLE_TRY(rules.dims_are("residual_bias", op.residual_bias, rules[op.scale].dims));
    HEDDLE_TRY(rules.dtype_is("residual_bias", op.residual_bias, kFloats));
  }
  if (op.sum == kNone) return {};
  HEDDLE_TRY(rules.makes("sum", op.sum, rules[op.x].dims, op.x));
  return rules.dtype_is("sum", op.sum, kFloats);
}

template <class Norm>
Status validate_norm(const Rules& rules, const Norm& op) {
  HEDDLE_TRY(validate_normalised(rules, op.x, op.scale));
  if (op.bias != kNone) {
    HEDDLE_TRY(rules.dims_are("bias", op.bias, rules[op.scale].dims));
    HEDDLE_TRY(rules.dtype_is("bias", op.bias, kFloats));
  }
  HEDDLE_TRY(validate_residual(rules, op));
  HEDDLE_TRY(rules.present("epsilon", op.epsilon));
  HEDDLE_TRY(rules.is_scalar("epsilon", op.epsilon));
  HEDDLE_TRY(rules.dtype_is("epsilon", op.epsilon, {DataType::f32, DataType::f64}));
  if (const std::optional<double>& epsilon = rules[op.epsilon].constant;
      epsilon && !(*epsilon >= 0)) {
    return rules.fail(Code::invalid_value, "epsilon is {}, expected a number not below 0",
                      *epsilon);
  }
  HEDDLE_TRY(rules.present("Y", op.y));
  HEDDLE_TRY(rules.makes("Y", op.y, rules[op.x].dims, op.x));
  HEDDLE_TRY(rules.dtype_is("Y", op.y, kFloats));
  if constexpr (requires { op.mean; })
    HEDDLE_TRY(validate_made_statistic(rules, "mean", op.mean, op.x, op.scale));
  return validate_made_statistic(rules, "inv_variance", op.inv_variance, op.x, op.scale);
}

template <class NormBackward>
Status validate_norm_backward(const Rules& rules, const NormBackward& op) {
  HEDDLE_TRY(validate_normalised(rules, op.x, op.scale));
  HEDDLE_TRY(rules.present("dY", op.dy));
  HEDDLE_TRY(rules.dims_are("dY", op.dy, rules[op.x].dims));
  HEDDLE_TRY(rules.dtype_is("dY", op.dy, kFloats));
  if constexpr (requires { op.mean; })
    HEDDLE_TRY(validate_given_statistic(rules, "mean", op.mean, op.x, op.scale));
  HEDDLE_TRY(validate_given_statistic(rules, "inv_variance", op.inv_variance, op.x, op.scale));
  if (op.dx == kNone && op.d_scale == kNone && op.d_bias == kNone) {
    return rules.fail(Code::attribute_not_set,
                      "None of DX, Dscale and Dbias is wanted, expected at least one");
  }
  if (op.dx != kNone) {
    HEDDLE_TRY(rules.makes("DX", op.dx, rules[op.x].dims, op.x));
    HEDDLE_TRY(rules.dtype_is("DX", op.dx, kFloats));
  }
  for (const auto& [port, id] : {std::pair{"Dscale", op.d_scale}, {"Dbias", op.d_bias}}) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.makes(port, id, rules[op.scale].dims));
    HEDDLE_TRY(rules.dtype_is(port, id, kFloats));
  }
  return {};
}

}  // namespace

Status validate_rms_norm(const Rules& rules, RmsNorm& op) { return validate_norm(rules, op); }
Status validate_rms_norm_backward(const Rules& rules, RmsNormBackward& op) {
  return validate_norm_backward(rules, op);
}
Status validate_layer_norm(const Rules& rules, LayerNorm& op) { return validate_norm(rules, op); }
Status validate_layer_norm_backward(const Rules& rules, LayerNormBackward& op) {
  return validate_norm_backward(rules, op);
}

}  // namespace heddle::graph
