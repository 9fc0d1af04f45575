#include "onnxruntime/microsoft/multi_head_attention_copies.h"

#include <cstring>

namespace heddle::onnxruntime::mha {
namespace {

void copy_row(DataType type, const char* from, const char* bias, int64_t columns, char* to) {
  if (!bias) {
    std::memcpy(to, from, static_cast<size_t>(columns * size_of(type)));
  } else if (type == DataType::f32) {
    const auto *x = reinterpret_cast<const float*>(from),
               *added = reinterpret_cast<const float*>(bias);
    for (int64_t c = 0; c < columns; ++c) reinterpret_cast<float*>(to)[c] = x[c] + added[c];
  } else {
    for (int64_t c = 0; c < columns; ++c)
      store(type, to, c, load(type, from, c) + load(type, bias, c));
  }
}

}  // namespace

void copy_rows(Inputs inputs, const Shapes& s, const Part& part, void* to, const Dims& strides) {
  const DataType type = *inputs[kQuery].dtype;
  const auto bytes = static_cast<int64_t>(size_of(type));
  const auto* const from = static_cast<const char*>(inputs[part.input].data) + part.first * bytes;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const char* const bias = part.bias < 0 ? nullptr
                                             : static_cast<const char*>(inputs[kBias].data) +
                                                   (part.bias + h * part.columns) * bytes;
      for (int64_t i = 0; i < part.rows; ++i) {
        const int64_t read = b * part.strides[0] + h * part.strides[1] + i * part.strides[2];
        const int64_t write = b * strides[0] + h * strides[1] + i * strides[2];
        copy_row(type, from + read * bytes, bias, part.columns,
                 static_cast<char*>(to) + write * bytes);
      }
    }
  }
}

Status gather(Inputs inputs, const Shapes& s, const Part& part, size_t past, void* to) {
  const DataType type = *inputs[kQuery].dtype;
  const Value& from = inputs[past];
  const Value& beams = inputs[kIndirection];
  const int64_t columns = part.columns, total = s.total(), bytes = size_of(type);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t j = 0; j < s.past; ++j) {
      int64_t source = b;
      if (beams.is_given()) {
        const int64_t count = beams.dims[1];
        const int64_t beam = static_cast<const int32_t*>(beams.data)[b * beams.dims[2] + j];
        if (beam < 0 || beam >= count)
          return error(Code::invalid_value,
                       "cache_indirection beam index out of range. Expected [0, {}), got {} at "
                       "flattened batch_beam index {}, sequence position {}",
                       count, beam, b, j);
        source = b / count * count + beam;
      }
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t read = ((source * s.heads + h) * s.capacity + j) * columns,
                      write = ((b * s.heads + h) * total + j) * columns;
        std::memcpy(static_cast<char*>(to) + write * bytes,
                    static_cast<const char*>(from.data) + read * bytes,
                    static_cast<size_t>(columns * bytes));
      }
    }
  }
  copy_rows(inputs, s, part, static_cast<char*>(to) + s.past * columns * bytes,
            {s.heads * total * columns, total * columns, columns, 1});
  return {};
}

}  // namespace heddle::onnxruntime::mha
