#include <cmath>

#include "graph/validate_attention.h"

namespace heddle::graph {
namespace {

Status validate_threefry(const Rules& rules, const Dropout& dropout, const AttentionExtents& e) {
  if (dropout.offset != kNone) {
    return rules.fail(Code::invalid_value,
                      "Threefry dropout takes a key as its seed and no offset, but one is set");
  }
  if (dropout.streams != kNone) {
    return rules.fail(Code::invalid_value,
                      "Threefry dropout numbers no streams, but dropout streams are set");
  }
  HEDDLE_TRY(rules.dtype_is("seed", dropout.seed, {DataType::u32}));
  if (element_count(rules[dropout.seed].dims) != 2) {
    return error(Code::invalid_value, "{} has dims {}, expected the two words of a Threefry key.",
                 rules.subject("seed", dropout.seed), to_string(rules[dropout.seed].dims));
  }
  const Dims scores{e.batch, e.q_heads, e.q_length, e.kv_length};
  if (dropout.threefry_strides.rank() != 4 || !span_of(scores, dropout.threefry_strides)) {
    return rules.fail(
        Code::invalid_value,
        "threefry_strides is {}, expected a stride for each of batch, head, row and column, none "
        "negative, that keep the index of {} within 63 bits",
        to_string(dropout.threefry_strides), to_string(scores));
  }
  return {};
}

Status validate_philox(const Rules& rules, const Dropout& dropout, const AttentionExtents& e) {
  HEDDLE_TRY(rules.present("the dropout offset", dropout.offset));
  for (const auto& [port, id] : {std::pair{"seed", dropout.seed}, {"offset", dropout.offset}}) {
    HEDDLE_TRY(rules.is_scalar(port, id));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::i32, DataType::i64}));
  }
  if (dropout.streams == kNone) return {};
  HEDDLE_TRY(rules.dtype_is("dropout streams", dropout.streams, {DataType::i32}));
  return rules.dims_are("dropout streams", dropout.streams, {e.batch, e.q_heads, 1, 1});
}

Status validate_mask(const Rules& rules, const Dropout& dropout, const AttentionExtents& e,
                     DataType io) {
  HEDDLE_TRY(rules.present("the dropout scale", dropout.scale));
  HEDDLE_TRY(rules.broadcasts_to("dropout mask", dropout.mask,
                                 {e.batch, e.q_heads, e.q_length, e.kv_length}));
  HEDDLE_TRY(rules.dtype_is(
      "dropout mask", dropout.mask,
      {DataType::f16, DataType::bf16, DataType::f32, DataType::f64, DataType::boolean}));
  for (const auto& [port, id] :
       {std::pair{"dropout scale", dropout.scale}, {"dropout scale_inv", dropout.scale_inv}}) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.is_scalar(port, id));
    HEDDLE_TRY(rules.number_beside(port, id, io));
  }
  return {};
}

}  // namespace

Status validate_dropout(const Rules& rules, const Dropout& dropout, const AttentionExtents& e,
                        DataType io) {
  const bool generated = dropout.probability || dropout.seed != kNone || dropout.offset != kNone ||
                         dropout.streams != kNone || dropout.factor || dropout.threefry;
  if (generated && dropout.mask != kNone) {
    return rules.fail(Code::attribute_not_set,
                      "Using both, custom dropout mask and internal-mask generation using dropout "
                      "probability, is "
                      "ill-formed.");
  }
  if (dropout.mask == kNone && (dropout.scale != kNone || dropout.scale_inv != kNone)) {
    return rules.fail(Code::attribute_not_set,
                      "A dropout scale is set without a dropout mask to scale.");
  }
  if (dropout.mask != kNone) {
    if (dropout.rng_dump != kNone) {
      return rules.fail(Code::invalid_value,
                        "rng_dump is set, but the dropout mask is given and not drawn.");
    }
    return validate_mask(rules, dropout, e, io);
  }
  if (!generated) {
    if (dropout.rng_dump == kNone) return {};
    return rules.fail(Code::attribute_not_set, "rng_dump is set without dropout to dump.");
  }

  if (!dropout.probability)
    return rules.fail(Code::attribute_not_set, "The dropout probability is not set.");
  const double p = *dropout.probability;
  if (p == 1) {
    return rules.fail(
        Code::attribute_not_set,
        "Dropout probability cannot be 1 as corresponding scale wont be well formed.");
  }
  if (!(p >= 0 && p < 1)) {
    return rules.fail(Code::invalid_value,
                      "The dropout probability is {}, expected at least 0 and less than 1", p);
  }
  if (dropout.factor && !std::isfinite(*dropout.factor))
    return rules.fail(Code::invalid_value, "The dropout factor is {}, expected a finite number",
                      *dropout.factor);
  HEDDLE_TRY(rules.present("the dropout seed", dropout.seed));
  HEDDLE_TRY(dropout.threefry ? validate_threefry(rules, dropout, e)
                              : validate_philox(rules, dropout, e));
  if (dropout.rng_dump != kNone) {
    HEDDLE_TRY(rules.dtype_is("rng_dump", dropout.rng_dump, {DataType::f32}));
    HEDDLE_TRY(
        rules.makes("rng_dump", dropout.rng_dump, {e.batch, e.q_heads, e.q_length, e.kv_length}));
  }
  return {};
}

}  // namespace heddle::graph
