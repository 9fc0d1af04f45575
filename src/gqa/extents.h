// The rules of the operator, and the sizes that its inputs agree in. Internal to the room.
#pragma once

#include "gqa/operator.h"

namespace heddle::gqa {

enum class QuantType : uint8_t { none, per_tensor, per_channel };

struct Extents {
  int64_t batch = 0, length = 0;  ///< new tokens
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  bool is_packed = false;
  bool shares_cache = false;                ///< nothing is appended
  int64_t past_rows = 0, present_rows = 0;  ///< of the buffers
  DataType cache = DataType::f32;           ///< type of past and present
  QuantType k_quant = QuantType::none, v_quant = QuantType::none;

  bool is_quantised() const { return k_quant != QuantType::none; }
  /// Elements of a cache's row.
  int64_t cache_columns() const { return cache == DataType::u8 ? head_size / 2 : head_size; }
};

/// Fails with the sentence of the first rule that `op` breaks.
Result<Extents> extents_of(const Operator& op);

}  // namespace heddle::gqa
