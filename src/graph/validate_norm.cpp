// The rules of the norms: all but rms_norm also have means.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "graph/rules.h"

namespace heddle::graph {
namespace {

constexpr std::initializer_list<DataType> kFloats = {DataType::f16, DataType::bf16, DataType::f32,
                                                     DataType::f64};

/// instance_norm and batch_norm: scale and bias go by the second dim of X.
template <class Norm>
constexpr bool kOfChannels =
    std::is_same_v<Norm, InstanceNorm> || std::is_same_v<Norm, InstanceNormBackward> ||
    std::is_same_v<Norm, BatchNorm> || std::is_same_v<Norm, BatchNormBackward>;

Status validate_channels(const Rules& rules, TensorId x, TensorId scale, int least_rank) {
  const Dims& dims = rules[x].dims;
  if (dims.rank() < least_rank)
    return error(Code::invalid_value, "{} has dims {}, expected {} or more: entries, channels{}.",
                 rules.subject("X", x), to_string(dims), least_rank,
                 least_rank > 2 ? " and what is normalised" : "");
  Dims channels = dims;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (axis != 1) channels[axis] = 1;
  }
  return rules.dims_are("scale", scale, channels);
}

Status validate_normalised_dims(const Rules& rules, TensorId x, TensorId scale) {
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

/// X and the scale.
template <class Norm>
Status validate_normalised(const Rules& rules, const Norm& op) {
  HEDDLE_TRY(rules.present("X", op.x));
  HEDDLE_TRY(rules.present("scale", op.scale));
  HEDDLE_TRY(rules.dtype_is("X", op.x, kFloats));
  HEDDLE_TRY(rules.dtype_is("scale", op.scale, kFloats));
  if constexpr (kOfChannels<Norm>) {
    const bool by_entry = !is_normalised(op, rules[op.scale].dims, 0);
    return validate_channels(rules, op.x, op.scale, by_entry ? 3 : 2);
  } else {
    return validate_normalised_dims(rules, op.x, op.scale);
  }
}

template <class Norm>
Dims statistic_dims(const Rules& rules, const Norm& op) {
  Dims dims = rules[op.x].dims;
  for (int i = 0; i < dims.rank(); ++i) {
    if (is_normalised(op, rules[op.scale].dims, i)) dims[i] = 1;
  }
  return dims;
}

Status validate_statistic_type(const Rules& rules, const char* port, TensorId id, TensorId x) {
  const DataType wide = rules[x].dtype == DataType::f64 ? DataType::f64 : DataType::f32;
  return rules.dtype_is(port, id, {DataType::f32, wide});
}

template <class Norm>
Status validate_made_statistic(const Rules& rules, const char* port, TensorId id, const Norm& op) {
  if (id == kNone) return {};
  HEDDLE_TRY(rules.makes(port, id, statistic_dims(rules, op)));
  return validate_statistic_type(rules, port, id, op.x);
}

template <class Norm>
Status validate_given_statistic(const Rules& rules, const char* port, TensorId id, const Norm& op) {
  HEDDLE_TRY(rules.present(port, id));
  HEDDLE_TRY(rules.dims_are(port, id, statistic_dims(rules, op)));
  return validate_statistic_type(rules, port, id, op.x);
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

/// A number of the op: epsilon, or the momentum.
Status validate_number(const Rules& rules, const char* port, TensorId id) {
  HEDDLE_TRY(rules.present(port, id));
  HEDDLE_TRY(rules.is_scalar(port, id));
  return rules.dtype_is(port, id, {DataType::f32, DataType::f64});
}

Status validate_running(const Rules& rules, const BatchNorm& op) {
  const std::pair<const char*, TensorId> together[] = {{"momentum", op.momentum},
                                                       {"running_mean", op.running_mean},
                                                       {"running_var", op.running_var},
                                                       {"next_mean", op.next_mean},
                                                       {"next_var", op.next_var}};
  const auto is_given = [](const auto& port) { return port.second != kNone; };
  const auto* given = std::ranges::find_if(together, is_given);
  if (given == std::end(together)) return {};
  if (const auto* missing = std::ranges::find_if_not(together, is_given);
      missing != std::end(together))
    return rules.fail(Code::attribute_not_set,
                      "{} is given without {}, expected momentum, running_mean, running_var, "
                      "next_mean and next_var together or none of them",
                      given->first, missing->first);
  HEDDLE_TRY(validate_number(rules, "momentum", op.momentum));
  HEDDLE_TRY(validate_given_statistic(rules, "running_mean", op.running_mean, op));
  HEDDLE_TRY(validate_given_statistic(rules, "running_var", op.running_var, op));
  HEDDLE_TRY(validate_made_statistic(rules, "next_mean", op.next_mean, op));
  return validate_made_statistic(rules, "next_var", op.next_var, op);
}

template <class Norm>
Status validate_norm(const Rules& rules, const Norm& op) {
  HEDDLE_TRY(validate_normalised(rules, op));
  if (op.bias != kNone) {
    HEDDLE_TRY(rules.dims_are("bias", op.bias, rules[op.scale].dims));
    HEDDLE_TRY(rules.dtype_is("bias", op.bias, kFloats));
  }
  if constexpr (requires { op.residual; }) HEDDLE_TRY(validate_residual(rules, op));
  HEDDLE_TRY(validate_number(rules, "epsilon", op.epsilon));
  if (const std::optional<double>& epsilon = rules[op.epsilon].constant;
      epsilon && !(*epsilon >= 0)) {
    return rules.fail(Code::invalid_value, "epsilon is {}, expected a number not below 0",
                      *epsilon);
  }
  HEDDLE_TRY(rules.present("Y", op.y));
  HEDDLE_TRY(rules.makes("Y", op.y, rules[op.x].dims, op.x));
  HEDDLE_TRY(rules.dtype_is("Y", op.y, kFloats));
  if constexpr (requires { op.mean; })
    HEDDLE_TRY(validate_made_statistic(rules, "mean", op.mean, op));
  if constexpr (std::is_same_v<Norm, BatchNorm>) HEDDLE_TRY(validate_running(rules, op));
  return validate_made_statistic(rules, "inv_variance", op.inv_variance, op);
}

template <class NormBackward>
Status validate_norm_backward(const Rules& rules, const NormBackward& op) {
  HEDDLE_TRY(validate_normalised(rules, op));
  HEDDLE_TRY(rules.present("dY", op.dy));
  HEDDLE_TRY(rules.dims_are("dY", op.dy, rules[op.x].dims));
  HEDDLE_TRY(rules.dtype_is("dY", op.dy, kFloats));
  if constexpr (requires { op.mean; })
    HEDDLE_TRY(validate_given_statistic(rules, "mean", op.mean, op));
  HEDDLE_TRY(validate_given_statistic(rules, "inv_variance", op.inv_variance, op));
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
Status validate_instance_norm(const Rules& rules, InstanceNorm& op) {
  return validate_norm(rules, op);
}
Status validate_instance_norm_backward(const Rules& rules, InstanceNormBackward& op) {
  return validate_norm_backward(rules, op);
}
Status validate_batch_norm(const Rules& rules, BatchNorm& op) { return validate_norm(rules, op); }
Status validate_batch_norm_backward(const Rules& rules, BatchNormBackward& op) {
  return validate_norm_backward(rules, op);
}

}  // namespace heddle::graph
