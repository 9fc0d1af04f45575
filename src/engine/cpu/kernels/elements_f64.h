// Elements of every type as f64, and back. Results are f64, but for what a program asks for beside
// them: rows of all other types go through here one element at a time.
#pragma once

#include "core/dtype.h"
#include "engine/cpu/arguments.h"
#include "engine/cpu/kernels/bytes.h"
#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

inline constexpr Element kRealElement = Element::f64;

inline double number_at(Element element, const char* p) {
  switch (element) {
    case Element::f64:
      return read_as<double>(p);
    case Element::f32:
      return read_as<float>(p);
    case Element::boolean:
      return read_as<uint8_t>(p) != 0;
    default:
      return heddle::load(static_cast<DataType>(element), p, 0);
  }
}

inline void write_number_at(Element element, char* p, double x) {
  if (element == Element::f64) {
    __builtin_memcpy(p, &x, sizeof x);
  } else {
    heddle::store(static_cast<DataType>(element), p, 0, x);
  }
}

/// out[0 .. n) = the n elements from p, `stride` elements apart.
inline void read_row(Element element, const char* p, int64_t stride, int64_t bytes, int64_t n,
                     double* out) {
  if (stride == 1 && element == Element::f64) {
    __builtin_memcpy(out, p, static_cast<size_t>(n) * sizeof *out);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = number_at(element, p + i * stride * bytes);
}

/// The n elements from p, `stride` elements apart, = in[0 .. n) * factor, rounded once.
inline void write_row(Element element, char* p, int64_t stride, int64_t bytes, int64_t n,
                      const double* in, double factor) {
  for (int64_t i = 0; i < n; ++i) write_number_at(element, p + i * stride * bytes, in[i] * factor);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
