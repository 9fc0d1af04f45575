#include "onnxruntime/microsoft/group_query_attention_contents.h"

#include <algorithm>

#include "heddle/heddle.h"
#include "onnxruntime/rotation.h"

namespace heddle::onnxruntime::gqa {
namespace {

/// An entry's tokens: those before the new ones, and all.
struct Tokens {
  int64_t past, total;
};

const int32_t* integers(const Value& value) { return static_cast<const int32_t*>(value.data); }

int64_t past_rows(Inputs inputs) {
  const Value& past = inputs[HEDDLE_GQA_PAST_KEY];
  return past.is_given() ? past.dims[2] : 0;
}

/// Total lengths that an entry may have.
int64_t most_tokens(Inputs inputs, const Reading& reading) {
  const int64_t total = *integers(inputs[HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH]);
  if (reading.is_ring || reading.has_columns) return total;
  return std::max(total, past_rows(inputs));
}

bool shares_cache(Inputs inputs) {
  const Value& key = inputs[HEDDLE_GQA_KEY];
  return key.is_given() && key.dims[1] == 0;
}

Result<Tokens> tokens_of(Inputs inputs, const Reading& reading, int64_t b) {
  const int64_t last = integers(inputs[HEDDLE_GQA_SEQLENS_K])[b],
                rows = inputs[HEDDLE_GQA_QUERY].dims[1];
  const Value& query_lengths = inputs[HEDDLE_GQA_QUERY_SEQLENS];
  int64_t added = rows, least = 0;
  if (query_lengths.is_given()) {
    added = integers(query_lengths)[b];
    least = added == 0 ? -1 : 0;  // of no tokens, the last is before the first
  }
  const int64_t most = most_tokens(inputs, reading);
  if (last < least || last >= most)
    return error(Code::invalid_value, "seqlens_k[{}] = {} is out of range [{}, {})", b, last, least,
                 most);
  if (query_lengths.is_given() && (added < 0 || added > std::min(rows, last + 1)))
    return error(Code::invalid_value,
                 "query_seqlens[{}] = {} must be in [0, min(sequence_length, seqlens_k[{}] + 1)] = "
                 "[0, {}].",
                 b, added, b, std::min(rows, last + 1));
  return Tokens{std::max<int64_t>(last + 1 - added, 0), last + 1};
}

Status check_past(Inputs inputs, const Reading& reading, int64_t b, const Tokens& tokens) {
  if (reading.is_ring || shares_cache(inputs) || tokens.past <= past_rows(inputs)) return {};
  return error(
      Code::invalid_value,
      "seqlens_k[{}] = {} requires {} past KV rows, which exceeds the past buffer sequence "
      "length {}.",
      b, tokens.total - 1, tokens.past, past_rows(inputs));
}

Status check_positions(Inputs inputs, int64_t b, const Tokens& tokens) {
  const int64_t positions = inputs[HEDDLE_GQA_COS_CACHE].dims[0],
                rows = inputs[HEDDLE_GQA_QUERY].dims[1];
  const Value& ids = inputs[HEDDLE_GQA_POSITION_IDS];
  if (ids.is_given()) {
    const int64_t first = b * ids.dims[1], count = std::min(tokens.total - tokens.past, rows);
    for (int64_t n = first; n < first + count; ++n)
      HEDDLE_TRY(check_position(static_cast<const int64_t*>(ids.data)[n], n, positions));
  } else if (tokens.total > positions) {
    return error(Code::invalid_value,
                 "seqlens_k[{}] = {} is out of range for rotary cache dimension 0 ({})", b,
                 tokens.total - 1, positions);
  }
  return {};
}

}  // namespace

Status check_contents(Inputs inputs, const Reading& reading) {
  for (int64_t b = 0; b < inputs[HEDDLE_GQA_QUERY].dims[0]; ++b) {
    HEDDLE_ASSIGN(const Tokens tokens, tokens_of(inputs, reading, b));
    HEDDLE_TRY(check_past(inputs, reading, b, tokens));
    if (reading.rotates) HEDDLE_TRY(check_positions(inputs, b, tokens));
  }
  return {};
}

}  // namespace heddle::onnxruntime::gqa
