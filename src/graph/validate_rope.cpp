#include <cfloat>
#include <cmath>

#include "graph/rules.h"

namespace heddle::graph {
namespace {

/// Angles [Sf,1,1,rope_dim], or cosines and sines [Sf,1,1,rope_dim/2].
Status validate_table(const Rules& rules, const char* port, TensorId id, const Rope& op,
                      int64_t rope_dim, int64_t columns) {
  const Dims& x = rules[op.x].dims;
  const Dims& table = rules[id].dims;
  if (table.rank() != 4 || table[1] != 1 || table[2] != 1 || table[3] != columns) {
    const bool full = table.rank() == 4 && columns != x[3] && table[3] == x[3];
    return error(Code::invalid_value, "{} has dims {}, expected [Sf, 1, 1, {}]{}.",
                 rules.subject(port, id), to_string(table), columns,
                 full ? fmt::format(": its last dim is D = {}, where rope_dim = {} calls for {}",
                                    x[3], rope_dim, columns)
                      : "");
  }
  if (op.positions == kNone && table[0] < x[2]) {
    return error(Code::invalid_value,
                 "{} has {} rows, expected at least {}, the sequence length of {}.",
                 rules.subject(port, id), table[0], x[2], op.backward ? "dY" : "X");
  }
  return {};
}

}  // namespace

Status validate_rope(const Rules& rules, Rope& op) {
  const char* in = op.backward ? "DY" : "INPUT";
  const char* out = op.backward ? "DX" : "OUTPUT";
  if (op.x == kNone) {
    return rules.fail(Code::attribute_not_set, "{}",
                      op.backward ? "RoPE backward node requires DY (input gradient) tensor."
                                  : "RoPE node requires INPUT tensor.");
  }
  const bool tables = op.cosines != kNone || op.sines != kNone;
  if (op.freqs == kNone && !tables) {
    return rules.fail(Code::attribute_not_set, "{}",
                      op.backward ? "RoPE backward node requires FREQS tensor."
                                  : "RoPE node requires FREQS tensor.");
  }
  if (op.freqs != kNone && tables) {
    return rules.fail(Code::invalid_value,
                      "FREQS and tables of cosines and sines are both set, expected one form");
  }
  if (tables && (op.cosines == kNone || op.sines == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} are set without {}",
                      op.cosines != kNone ? "cosines" : "sines",
                      op.cosines != kNone ? "sines" : "cosines");
  }

  HEDDLE_TRY(rules.rank4(in, op.x));
  HEDDLE_TRY(
      rules.dtype_is(in, op.x, {DataType::f16, DataType::bf16, DataType::f32, DataType::f64}));
  HEDDLE_TRY(rules.unit_last_stride(in, op.x));
  const Dims& x = rules[op.x].dims;
  if (x[3] % 2 != 0) {
    return rules.fail(Code::invalid_value, "{} has head dim {}, expected an even one", in, x[3]);
  }
  if (op.rope_dim < 0 || op.rope_dim % 2 != 0 || op.rope_dim > x[3]) {
    return rules.fail(Code::invalid_value,
                      "rope_dim is {}, expected an even number from 0 (all) to the head dim {}",
                      op.rope_dim, x[3]);
  }
  // It is computed with in f32 but beside f64, where infinity times a column of 0 would be NaN.
  const bool is_f64 = *rules[op.x].dtype == DataType::f64;
  if (!(std::fabs(op.output_scale) <= (is_f64 ? DBL_MAX : FLT_MAX))) {
    return rules.fail(Code::invalid_value, "output_scale is {}, expected a finite number{}",
                      op.output_scale, is_f64 ? "" : " of f32");
  }

  const int64_t rope_dim = op.rope_dim == 0 ? x[3] : op.rope_dim;
  if (op.freqs != kNone) {
    HEDDLE_TRY(validate_table(rules, "FREQS", op.freqs, op, rope_dim, rope_dim));
    HEDDLE_TRY(rules.number_beside("FREQS", op.freqs, *rules[op.x].dtype));
  } else {
    for (const auto& [port, id] : {std::pair{"cosines", op.cosines}, {"sines", op.sines}}) {
      HEDDLE_TRY(validate_table(rules, port, id, op, rope_dim, rope_dim / 2));
      HEDDLE_TRY(rules.number_beside(port, id, *rules[op.x].dtype));
    }
    HEDDLE_TRY(rules.dims_are("sines", op.sines, rules[op.cosines].dims));
  }
  if (op.positions != kNone) {
    HEDDLE_TRY(rules.broadcasts_to("positions", op.positions, {x[0], 1, x[2], 1}));
    HEDDLE_TRY(rules.dtype_is("positions", op.positions, {DataType::i32, DataType::i64}));
  }

  HEDDLE_TRY(rules.present(out, op.y));
  HEDDLE_TRY(rules.makes(out, op.y, x, op.x));
  HEDDLE_TRY(rules.dtype_is(out, op.y, {*rules[op.x].dtype, DataType::f32}));
  return rules.unit_last_stride(out, op.y);
}

}  // namespace heddle::graph
