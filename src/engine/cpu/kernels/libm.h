// The C library's functions, by the type of their arguments.
#pragma once

#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace libm {
inline float exp(float x) { return __builtin_expf(x); }
inline double exp(double x) { return __builtin_exp(x); }
inline float expm1(float x) { return __builtin_expm1f(x); }
inline double expm1(double x) { return __builtin_expm1(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }
inline float log1p(float x) { return __builtin_log1pf(x); }
inline double log1p(double x) { return __builtin_log1p(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline double tanh(double x) { return __builtin_tanh(x); }
inline float erf(float x) { return __builtin_erff(x); }
inline double erf(double x) { return __builtin_erf(x); }
inline float sin(float x) { return __builtin_sinf(x); }
inline double sin(double x) { return __builtin_sin(x); }
inline float cos(float x) { return __builtin_cosf(x); }
inline double cos(double x) { return __builtin_cos(x); }
inline float tan(float x) { return __builtin_tanf(x); }
inline double tan(double x) { return __builtin_tan(x); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
inline double pow(double x, double y) { return __builtin_pow(x, y); }
inline float fmod(float x, float y) { return __builtin_fmodf(x, y); }
inline double fmod(double x, double y) { return __builtin_fmod(x, y); }
}  // namespace libm

/// Applies a libm function lane by lane.
template <class Function>
inline Float each_lane(Float x, Function function) {
  Real lanes[kLanes];
  store(lanes, x);
  for (Real& lane : lanes) lane = function(lane);
  return load(lanes);
}
template <class Function>
inline Float each_lane(Float x, Float y, Function function) {
  Real a[kLanes], b[kLanes];
  store(a, x);
  store(b, y);
  for (int i = 0; i < kLanes; ++i) a[i] = function(a[i], b[i]);
  return load(a);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
