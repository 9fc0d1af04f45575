// Elementary functions of vectors, and of the C library by the type of the number that they are
// given.
#pragma once

#if defined(HEDDLE_CPU_LEVEL_F64)
#include "engine/cpu/kernels/math_f64.h"
#else
#include "engine/cpu/kernels/math_f32.h"
#endif
#include "engine/cpu/kernels/libm.h"
