// Flash attention backward with warp-level matrix products: every feature, deterministic by
// construction, memory linear in sequence length.
//
// Two sweeps and no atomics: one kernel owns key tiles and sums dK and dV over the queries, the
// other owns query tiles and sums dQ over the keys. Each recomputes P from the statistics; that is
// 7 matrix products where a single sweep needs 5, and in return no f32 dQ buffer, no clearing, no
// order to keep.
//
// With P = exp(S - stats), dP = keep * scale_keep * (dO V^T), delta = rowsum(dO * O) - dL/d(stats):
//   dS = P * (dP - delta),  dDot = Derivative(dS) * scale,
//   dV = (P keep)^T dO,  dK = dDot^T Q,  dQ = dDot K.
//
// The generated source gives Config (as for the forward, with kTileM query rows a step, kWantDk and
// kWantDv), Score and Derivative.
#pragma once

#include "backward_keys.cuh"
#include "backward_load.cuh"
#include "backward_queries.cuh"
#include "backward_rows.cuh"
