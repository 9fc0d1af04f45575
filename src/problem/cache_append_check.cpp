#include <array>
#include <cmath>

#include "problem/check.h"
#include "problem/check_ids.h"
#include "problem/operand_check.h"
#include "problem/operands.h"

namespace heddle::problem {
namespace {

constexpr std::string_view kOp = "cache_append";

Status check_extents(const CacheAppendStructure& s, const CacheAppendSizes& z) {
  for (const auto& [label, extent] : {std::pair{"batch", z.batch},
                                      {"q_heads", z.q_heads},
                                      {"kv_heads", z.kv_heads},
                                      {"length", z.length},
                                      {"capacity", z.capacity}}) {
    if (extent < 0 || extent > INT32_MAX)
      return error(Code::invalid_value, "{}: {} is {}, but must be from 0 to {}", kOp, label,
                   extent, INT32_MAX);
  }
  for (const auto& [label, dim] :
       {std::pair{"qk_head_dim", s.qk_head_dim}, {"v_head_dim", s.v_head_dim}}) {
    if (dim < 1 || dim > 8192)
      return error(Code::invalid_value, "{}: {} is {}, but must be from 1 to 8192", kOp, label,
                   dim);
  }
  for (const auto& [label, epsilon] :
       {std::pair{"q_epsilon", z.q_epsilon}, {"k_epsilon", z.k_epsilon}}) {
    if (!(std::isfinite(epsilon) && epsilon >= 0))
      return error(Code::invalid_value, "{}: {} is {}, but must be a finite number not below 0",
                   kOp, label, epsilon);
  }
  if (z.total_offset >= -INT32_MAX && z.total_offset <= INT32_MAX) return {};
  return error(Code::invalid_value, "{}: total_offset is {}, but must have 32 bits", kOp,
               z.total_offset);
}

Status check_inputs(const OperandCheck& check, const CacheAppendStructure& s,
                    const CacheAppendSizes& z) {
  HEDDLE_TRY(check.is_present(s.q, "q"));
  if ((s.k == kAbsent) != (s.v == kAbsent) || (s.k_cache == kAbsent) != (s.v_cache == kAbsent))
    return error(Code::attribute_not_set, "{}: k and v, and their caches, come in pairs", kOp);
  if (s.k != kAbsent && !s.has_caches())
    return error(Code::attribute_not_set, "{}: k and v are given, but no caches for them", kOp);
  const int64_t packed = s.is_packed() ? 2 * z.kv_heads : 0;
  HEDDLE_TRY(check.is_tensor(s.q, "q", {z.batch, z.q_heads + packed, z.length, s.qk_head_dim},
                             /*has_lengths=*/false));
  if (s.is_packed() && s.qk_head_dim != s.v_head_dim)
    return error(Code::invalid_value, "{}: packed heads of q, k and v have {} and {} columns", kOp,
                 s.qk_head_dim, s.v_head_dim);
  if (s.k == kAbsent) return {};
  HEDDLE_TRY(check.is_tensor(s.k, "k", {z.batch, z.kv_heads, z.length, s.qk_head_dim}, false));
  return check.is_tensor(s.v, "v", {z.batch, z.kv_heads, z.length, s.v_head_dim}, false);
}

Status check_cache(const OperandCheck& check, const CacheAppendSizes& z, const char* label,
                   OperandId cache, OperandId past, int32_t columns) {
  if (cache == kAbsent) {
    if (past == kAbsent) return {};
    return error(Code::attribute_not_set, "{}: a past is given without {}", kOp, label);
  }
  HEDDLE_TRY(check.is_cache(cache, label, {z.batch, z.kv_heads, z.capacity, columns}, true));
  const OperandType& type = check.type(cache);
  if (past == kAbsent) {
    if (!type.storage.is_paged()) return {};
    return error(Code::attribute_not_set, "{}: {} is paged, which needs its past", kOp, label);
  }
  if (!(check.type(past) == type))
    return error(Code::invalid_value, "{}: {} and its past are not of one type and storage", kOp,
                 label);
  Dims expected = check.layout(cache).dims;
  if (!type.storage.is_paged()) expected[2] = check.layout(past).dims[2];
  return check.has_dims(past, "a past", expected);
}

Status check_rotation(const OperandCheck& check, const CacheAppendStructure& s,
                      const CacheAppendSizes& z) {
  if ((s.cosines == kAbsent) != (s.sines == kAbsent))
    return error(Code::attribute_not_set, "{}: cosines and sines come together", kOp);
  if (s.rope_dim < 0 || s.rope_dim % 2 != 0 || s.rope_dim > s.qk_head_dim)
    return error(Code::invalid_value, "{}: rope_dim is {}, expected an even number up to {}", kOp,
                 s.rope_dim, s.qk_head_dim);
  if (s.cosines == kAbsent) return {};
  const int64_t rows = check.layout(s.cosines).dims[0];
  if (rows < 1) return error(Code::invalid_value, "{}: tables to rotate by have no rows", kOp);
  for (const auto& [label, id] : {std::pair{"cosines", s.cosines}, {"sines", s.sines}})
    HEDDLE_TRY(check.has_dims(id, label, {rows, 1, 1, s.rope_dim / 2}));
  if (s.positions == kAbsent) return {};
  HEDDLE_TRY(check.is_integer(s.positions, "positions"));
  const int64_t batch = check.layout(s.positions).dims[0] == 1 ? 1 : z.batch;
  return check.has_dims(s.positions, "positions", {batch, 1, z.length, 1});
}

}  // namespace

Status check(const CacheAppendProblem& problem) {
  const CacheAppendStructure& s = problem.structure;
  const CacheAppendSizes& z = problem.sizes;
  HEDDLE_TRY(check_extents(s, z));
  const OperandCheck check(kOp, s.operands, z.layouts);
  HEDDLE_TRY(check.all_well_formed(4));
  HEDDLE_TRY(check_ids(check, s));
  HEDDLE_TRY(check_inputs(check, s, z));
  HEDDLE_TRY(check_cache(check, z, "the cache of k", s.k_cache, s.past_k, s.qk_head_dim));
  HEDDLE_TRY(check_cache(check, z, "the cache of v", s.v_cache, s.past_v, s.v_head_dim));
  if (s.has_caches() && check.type(s.k_cache).storage.is_ring() &&
      check.layout(s.k_cache).dims[2] != check.layout(s.v_cache).dims[2])
    return error(Code::invalid_value, "{}: rings of k and v have {} and {} rows, expected as many",
                 kOp, check.layout(s.k_cache).dims[2], check.layout(s.v_cache).dims[2]);
  if (s.q_out != kAbsent)
    HEDDLE_TRY(check.is_tensor(s.q_out, "rotated q", {z.batch, z.q_heads, z.length, s.qk_head_dim},
                               false));
  for (const auto& [label, id] : {std::pair{"new_lengths", s.new_lengths},
                                  {"total_lengths", s.total_lengths},
                                  {"lengths_q", s.lengths_q},
                                  {"lengths_kv", s.lengths_kv}}) {
    if (id == kAbsent) continue;
    HEDDLE_TRY(check.has_type(id, label, {DataType::i32, DataType::i64}));
    HEDDLE_TRY(check.has_dims(id, label, {z.batch, 1, 1, 1}));
  }
  for (const auto& [label, id] :
       {std::pair{"the norm weight of q", s.q_norm}, {"the norm weight of k", s.k_norm}}) {
    if (id != kAbsent) HEDDLE_TRY(check.has_dims(id, label, {1, 1, 1, s.qk_head_dim}));
  }
  return check_rotation(check, s, z);
}

}  // namespace heddle::problem
