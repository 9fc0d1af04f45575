// The kernels of attention on fp8 operands of one instruction set.
#pragma once

#include "engine/cpu/fp8_arguments.h"
#include "engine/cpu/isa.h"

namespace heddle::engine::cpu {

/// Scratch of an Fp8Scratch.
struct Fp8Kernels {
  /// O of a tile of query rows.
  void (*forward)(const Fp8Pass&, const Fp8Task&, void* scratch);
  /// dQ of a tile of query rows, and the amax of dS.
  void (*query_gradient)(const Fp8BackwardPass&, const Fp8Task&, void* scratch);
  /// dK, or dV, of a tile of keys.
  void (*key_gradient)(const Fp8BackwardPass&, const Fp8Task&, void* scratch);
  void (*value_gradient)(const Fp8BackwardPass&, const Fp8Task&, void* scratch);
};

/// Those of an available level.
const Fp8Kernels& fp8_kernels_of(Isa isa);

}  // namespace heddle::engine::cpu
