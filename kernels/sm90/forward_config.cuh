// What a generated source says of a Hopper forward kernel: its configuration and its score.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/rope_parameters.h"
#include "../attention/score_functions.cuh"
#include "../ptx/types.cuh"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

using attention::Dropout;

/// What a score expression may read.
struct Cell {
  float dot;
  int row, column, batch, head, q_length, kv_length;
  const attention::Tensor* loads;
  float tiled;  ///< the operand that comes by tiles
};

/// Defaults a generated configuration derives from and overrides.
struct ForwardConfig {
  using Element = bf16;
  static constexpr int kPlanes = 1;  ///< 2: f32, which comes as pairs of f16 (f16_pairs.cuh)
  static constexpr int kQkDim = 128, kVDim = 128;  ///< multiples of 8, at most 256
  static constexpr int kTileN = 128;               ///< keys a step
  static constexpr int kConsumers = 2;             ///< warp groups of 64 query rows
  static constexpr int kStages = 2;                ///< of the K and V rings
  static constexpr int kQStages =
      2;  ///< 2: a query tile starts under the last product of the one before
  static constexpr bool kTakeTurns = false;       ///< consumers issue their products in turn
  static constexpr bool kUpwards = false;         ///< keys are visited from the first one on
  static constexpr bool kOutputAliasesQ = false;  ///< O is staged where Q was; needs kQStages = 1
  static constexpr int kOutputRounds = 1;         ///< 2: O is staged half by half
  static constexpr int kSlack = 8;                ///< see OnlineSoftmax; 0 if kRowMax
  // What the problem has.
  static constexpr bool kLowerVaries = false, kUpperVaries = false;  ///< diagonal bounds
  static constexpr bool kPositiveScale = true;
  static constexpr bool kLengths = false;  ///< actual lengths or ragged tensors
  static constexpr bool kSink = false;
  static constexpr bool kRowMax = false;  ///< `max` or `sum_exp` is wanted
  static constexpr bool kInputIsLog2 = false;
  static constexpr Dropout kDropout = Dropout::none;
  static constexpr Tiled kTiled = Tiled::none;  ///< what the score reads in every cell, by tiles
  using TiledElement = bf16;                    ///< of values: bf16, f16 or float
  static constexpr int kTiledStages = 2;
  static constexpr int kRopeDim = 0;  ///< > 0: Q is rotated on its way in (K comes rotated)
  static constexpr attention::RopePairing kRopePairing = attention::RopePairing::halves;
};

/// The scaled dot product itself.
struct PlainScore {
  static constexpr bool kIdentity = true, kHuge = false;
  static constexpr int kSideBySide = 0;
};

}  // namespace heddle::sm90
