// New rows of K and V put behind those that caches hold, on the way normalised, rotated and turned
// into codes, and Q normalised and rotated alike.
//
//   n[b] = new_lengths[b], or S;   t[b] = total_lengths[b] + total_offset, or n[b]
//   past[b] = max(t[b] - n[b], 0);   row s < n[b] goes to row past[b] + s of the cache
//   row = code(rotate(x * weight / sqrt(mean(x^2) + epsilon), position)),   of V: code(x)
//
// code(x) = x; or by its scale s: i8 clamp(rint(x / s), -128, 127), of 4 bits clamp(rint(x / s),
// -8, 7), f8e4m3 clamp(x / s, +-448) rounded; 0 where s is 0 or x is NaN.
#pragma once

#include "problem/attention.h"

namespace heddle::problem {

struct CacheAppendStructure : OperandTypes {
  /// [B,Hq,S,D], [B,Hk,S,D], [B,Hk,S,Dv]. Without k and v but beside caches, q has the heads of all
  /// three, those of Q first, then K's.
  OperandId q = kAbsent, k = kAbsent, v = kAbsent;
  /// Before and after; of one type and storage, and absent before: empty. Dense ones and rings
  /// [B,Hk,rows,D], containers of pages [blocks,Hk,block_size,D]. Where both have one address and
  /// one layout only new rows are written; else rows from the past are copied, and rows behind the
  /// new ones are zeros. Pages need one address.
  OperandId past_k = kAbsent, past_v = kAbsent, k_cache = kAbsent, v_cache = kAbsent;
  OperandId q_out = kAbsent;  ///< [B,Hq,S,D], 0 from row n[b] on
  int32_t qk_head_dim = 0, v_head_dim = 0;
  OperandId new_lengths = kAbsent, total_lengths = kAbsent;  ///< i32 or i64 [B,1,1,1]
  OperandId q_norm = kAbsent, k_norm = kAbsent;              ///< [1,1,1,D]
  /// The first rope_dim columns rotate by row `position`, the nearest there is, of tables
  /// [rows,1,1,rope_dim/2]: an entry of positions, i32 or i64 [B or 1,1,S,1], or past[b] + s.
  int32_t rope_dim = 0;
  Rope::Pairing pairing = Rope::Pairing::halves;
  OperandId cosines = kAbsent, sines = kAbsent, positions = kAbsent;
  /// i32 [B,1,1,1]: min(n, t), and t up to CacheAppendSizes::capacity; written if present.
  OperandId lengths_q = kAbsent, lengths_kv = kAbsent;

  bool has_caches() const { return k_cache != kAbsent; }
  bool is_packed() const { return has_caches() && k == kAbsent; }

  friend bool operator==(const CacheAppendStructure&, const CacheAppendStructure&) = default;
};

struct CacheAppendSizes : OperandLayouts {
  int64_t batch = 0, q_heads = 0, kv_heads = 0;
  int64_t length = 0;    ///< S
  int64_t capacity = 0;  ///< rows an entry may have
  int64_t total_offset = 0;
  double q_epsilon = 1e-6, k_epsilon = 1e-6;

  friend bool operator==(const CacheAppendSizes&, const CacheAppendSizes&) = default;
};

struct CacheAppendProblem {
  CacheAppendStructure structure;
  CacheAppendSizes sizes;
};

}  // namespace heddle::problem
