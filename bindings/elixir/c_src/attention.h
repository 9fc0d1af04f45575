// The two functions of fixed arguments: f32 attention of [batch, seq, heads, head_dim], every head
// and sequence alike, as graphs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace heddle::elixir {

struct AttentionSizes {
  int64_t batch, seq_len, num_heads, head_dim;
  bool causal;
};

/// The uids of both graphs; inputs below 10, outputs above, in the order in which they are
/// returned.
enum AttentionUid : int64_t {
  kQ = 1,
  kK = 2,
  kV = 3,
  kDO = 4,
  kO = 5,
  kLogSumExp = 6,
  kOutput = 11,
  kOutputLogSumExp = 12,
  kDQ = 13,
  kDK = 14,
  kDV = 15
};

std::string attention_text(const AttentionSizes& sizes);
std::string attention_backward_text(const AttentionSizes& sizes);

}  // namespace heddle::elixir
