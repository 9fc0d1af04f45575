// The SIMD vocabulary every kernel is written in, for the instruction set this file is compiled
// for. Each header defines, in its own namespace: Float (a vector of kLanes numbers), Mask, kShape
// and one line wrappers over the machine's instructions. Kernels are generic over these. Numbers
// are f32, and f64 where HEDDLE_CPU_LEVEL_F64 says so.
//
// Translation units that include this are compiled with instruction-set flags, so they share no
// inline function or template with the rest of the program: the linker keeps one copy of such a
// function and could keep the one that the machine cannot run.
#pragma once

#if defined(HEDDLE_CPU_LEVEL_F64)
#include "engine/cpu/kernels/vector_f64.h"
#elif defined(HEDDLE_CPU_LEVEL_AVX512)
#include "engine/cpu/kernels/vector_avx512.h"
#elif defined(HEDDLE_CPU_LEVEL_AVX2)
#include "engine/cpu/kernels/vector_avx2.h"
#else
#include "engine/cpu/kernels/vector_portable.h"
#endif

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

#if defined(HEDDLE_CPU_LEVEL_F64)
using Real = double;
#else
using Real = float;
#endif
static_assert(sizeof(Float) == kLanes * sizeof(Real));
inline constexpr int kPanelRows = kShape.panel_rows;
/// Columns of C that one call of a microkernel computes, and the width of packed panels of B.
inline constexpr int kPanelColumns = kShape.panel_columns;
static_assert(kPanelColumns == 2 * kLanes);
inline constexpr int64_t kBackwardRows = kShape.backward_rows;
inline constexpr int64_t kBackwardKeys = kShape.backward_keys;

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
