// Rules that sdpa and sdpa_backward share. Internal to validation.
#pragma once

#include "graph/extents.h"
#include "graph/rules.h"

namespace heddle::graph {

/// Q, K and V (K and V may be containers of pages): rank, data type, last stride, heads, head
/// sizes.
struct QueryKeyValue {
  TensorId q = kNone, k = kNone, v = kNone;
  bool paged_k = false, paged_v = false;
  bool may_hold_codes = false;  ///< K and V
  bool is_fp8 = false;          ///< each of an fp8 type
};
Status validate_query_key_value(const Rules& rules, const QueryKeyValue& qkv);
/// Page tables, where there are some, and the containers that they are of.
Status validate_paging(const Rules& rules, const Sdpa& op, const AttentionExtents& e);
/// The scales of a cache: there if and only if it holds codes, f32 [1, 1 or heads, 1, 1 or D].
Status validate_scales(const Rules& rules, const char* cache_port, TensorId cache,
                       const char* scale_port, TensorId scale);
/// A row statistic beside a Q of type `io`, [B,Hq,Sq,1].
Status validate_row_statistic(const Rules& rules, const char* port, TensorId id,
                              const AttentionExtents& e, DataType io);

/// Everything in AttentionAttributes but dropout and the score expression, which have files of
/// their own. `rows` are the op's tensors that may be ragged, Q first, for the rules that packing
/// brings.
Status validate_attention(const Rules& rules, AttentionAttributes& a, const AttentionExtents& e,
                          std::initializer_list<TensorId> rows);
Status validate_dropout(const Rules& rules, const Dropout& dropout, const AttentionExtents& e,
                        DataType io);

/// A score expression: infers its values' types and dims, checks that each op's inputs exist before
/// it, fit it and broadcast to [B,Hq,Sq,Skv]. `known` are values of an expression it may also read.
Status validate_score_modifier(const Rules& rules, const char* port, const ScoreModifier& modifier,
                               const AttentionExtents& e, const ScoreModifier* known = nullptr);

}  // namespace heddle::graph
