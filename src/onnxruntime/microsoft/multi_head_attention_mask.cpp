#include "onnxruntime/microsoft/multi_head_attention_mask.h"

namespace heddle::onnxruntime::mha {

bool Mask::is_hidden(const Shapes& s, int64_t row, int64_t key) const {
  return is_causal && row + 1 < s.q.rows && key > s.past + row;
}
bool Mask::is_causal_by_mask(const Shapes& s) const {
  return is_causal && s.q.rows > 1 && s.q.rows != s.k.rows;
}

bool Mask::is_written(Inputs inputs, const Shapes& s) const {
  return inputs[kMask].is_given() || is_causal_by_mask(s);
}
int64_t Mask::rows(Inputs inputs, const Shapes& s) const {
  return is_causal_by_mask(s) || inputs[kMask].dims.rank() == 3 ? s.q.rows : 1;
}

double Mask::added(Inputs inputs, const Shapes& s, int64_t b, int64_t i, int64_t j) const {
  const Value& mask = inputs[kMask];
  if (!mask.is_given()) return 0;
  const auto* const data = static_cast<const int32_t*>(mask.data);
  switch (mask.dims.rank()) {
    case 1:
      return j < data[b] ? 0 : filter;
    case 2:
      return data[b * s.total() + j] > 0 ? 0 : filter;
    default:
      return data[(b * s.q.rows + i) * s.total() + j] > 0 ? 0 : filter;
  }
}

}  // namespace heddle::onnxruntime::mha
