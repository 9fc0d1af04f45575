// The make of a block of the Hopper forward: its warp groups, its tiles, and where shared memory
// holds what.
#pragma once

#include "../attention/dot_softmax.cuh"
#include "../attention/online_softmax.cuh"
#include "../attention/visible.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"
#include "forward_config.cuh"
#include "score_tile.cuh"

namespace heddle::sm90 {

template <class Config, class Score>
struct ForwardBlock {
  struct C : Config {
    static constexpr bool kSequenceMaps = Config::kValues.sequence_maps();
  };
  using T = typename C::Element;
  static_assert(C::kHasScore == !Score::kIdentity);
  static constexpr int kTileM = C::kValues.tile_m();
  static constexpr int kTileN = C::kTileN;
  static_assert(kTileN % 16 == 0 && kTileN <= 256,
                "P's slices are 16 keys, a box 256 rows at most");
  static_assert(C::kQkDim % 8 == 0 && C::kVDim % 8 == 0, "TMA moves multiples of 16 bytes");
  static_assert(!(C::kRowMax && C::kSlack > 0), "a lagging reference is no maximum");
  static_assert(C::kDropout != Dropout::mask, "keep masks are the general kernel's");

  /// Consumers that share rows have some of the columns each, of Q and K, too.
  static constexpr bool kSharesDots = C::kValues.shares_dots();
  static constexpr int kShares = C::kValues.shares();
  static constexpr int kDotCells = kTileN / 2;  ///< of a thread
  static constexpr int kQkColumns = C::kValues.share_of(C::kQkDim);
  static constexpr int kQkSlices = (kQkColumns + 15) / 16;
  static constexpr int kPvSlices = kTileN / 16;
  static constexpr bool kPlain = C::kValues.is_plain(), kDots = C::kValues.has_dots();
  /// Cells of rows past the end must not be evaluated where what they load does not exist. What
  /// comes by tiles has zeros there.
  static constexpr bool kRowsEnd = C::kLengths || C::kValues.loads_rows;
  static constexpr float kToLog2 = C::kInputIsLog2 ? 1.f : attention::kLog2E;
  /// f32 is made of two planes of f16. It leaves from registers, and is summed in f32 from key tile
  /// to key tile: in products of f32's own precision it would show that tensor cores cut sums off
  /// instead of rounding them.
  static constexpr bool kSplitF16 = C::kPlanes > 1;
  /// Exponents are differences of scores: a row maximum that is written is one, as the backward
  /// makes it again, and f32 has no registers for other ways.
  static constexpr bool kNatural = !kDots && !C::kInputIsLog2 && (C::kRowMax || kSplitF16);
  /// Scores are taken to log2 units before their maxima are found. One FFMA from a huge score to
  /// its exponent would leave what rounding its product leaves, and that is huge too. (Differences
  /// of natural scores do as well, and took a bias at d 128 2 % more time.)
  static constexpr bool kInLog2 = Score::kFiniteMaskRows && !kNatural;

  /// A factor takes scores to their exponents.
  static constexpr bool kByFactor = kDots || !(kNatural || kInLog2 || C::kInputIsLog2);

  /// References are in log2 units.
  static constexpr bool kLog2References = C::kInputIsLog2 || kInLog2;

  /// From one key tile to the next that is visited.
  static constexpr int kKeyStep = C::kUpwards ? 1 : -1;
  // The next Q comes in behind this tile's last keys. A consumer that is done lets one of them pass
  // after it has waited for Q; with two, each would wait for the other.
  static_assert(!C::kUpwards || kTileN >= kTileM - 64, "consumers end at most one key tile apart");

  using QTile = tile::PlanesOf<64, kQkColumns, C::kPlanes>;  // one consumer's rows
  using KTile = tile::PlanesOf<kTileN, kQkColumns, C::kPlanes>;
  static constexpr int kTiles = C::kValues.tiles();  ///< of a stage
  /// Columns of O that a consumer has.
  static constexpr int kVColumns = C::kValues.part_columns();
  static constexpr int kRowGroups = C::kValues.row_groups();
  static_assert(C::kParts == 1 || !C::kOutputAliasesQ, "the other part may still read Q");
  static_assert(C::kRanks == 1 || kSharesDots, "else blocks have nothing to tell each other");
  using VTile = tile::PlanesOf<kTileN, C::kValues.v_columns(), C::kPlanes>;
  using OTile = tile::SharedTile<64, C::kVDim>;
  using ScoreTiles = ScoreTile<C, kTileM, kTileN>;  // all consumers' rows
  static_assert(!(C::kUpwards && ScoreTiles::kThere), "these come from the last keys on");
  /// Weights times this keep two planes of f16 in range down to 2^-17.
  static constexpr float kWeightUnit = 128;
  static_assert(!kSplitF16 || (is_same<T, f16> && C::kRopeDim == 0));
  static_assert(!C::kOutputAliasesQ || OTile::kBytes <= QTile::kBytes, "O must fit where Q was");
  static constexpr bool kCrossTiles = C::kQStages > 1;
  static_assert(!(kCrossTiles && C::kOutputAliasesQ), "the next Q would wait for this O's store");
  /// The only stage of Q is released after its last step, unless O's store holds it. (Within that
  /// step, right after its last product, costs every step a branch: -4 % at S 8192.)
  static constexpr bool kEarlyRelease = C::kQStages == 1 && !C::kOutputAliasesQ;

  static constexpr int kRowRotations = attention::rotations_of(C::kRopeDim);
  static constexpr int kRotationBytes = attention::kRotationRows * 4 * kRowRotations;
  static constexpr bool kStagedRotations = C::kValues.stages_rotations();
  static constexpr bool kRotators = C::kValues.has_rotators();
  static constexpr int kThreads = C::kValues.threads();
  // 65536 registers; with 24 for the producer and 240 each for two consumers the producer spilled.
  static constexpr int kProducerRegisters = C::kBlocks > 2                    ? 24
                                            : kRotators || C::kConsumers == 3 ? 32
                                                                              : 40;
  static constexpr int kRotatorRegisters = 64;
  /// Of a thread, as launched; what the producer leaves of a block's is its consumers'.
  static constexpr int kLaunchedRegisters = 65536 / (C::kBlocks * kThreads) / 8 * 8;
  static constexpr int kConsumerRegisters =
      kRotators ? 208
                : min_of(240, ((1 + C::kConsumers) * kLaunchedRegisters - kProducerRegisters) /
                                  C::kConsumers / 8 * 8);

  static constexpr ForwardLayout kAt = layout_of(C::kValues);
  static constexpr int kSharedBytes = kAt.bytes;
  using KvRing = tile::Ring<C::kStages>;
  using ItemRing = tile::Ring<ForwardLayout::kItemStages>;
  using QRing = tile::Ring<C::kQStages>;  // one a consumer
  /// Of staged rotations, one a consumer. Full: they are there. Empty: they are used up, or O is
  /// there.
  using StagingRing = tile::Ring<1>;
  static_assert(kSharedBytes <= 227 * 1024, "shared memory of a block");

  // Named barriers: 0 is __syncthreads.
  static constexpr int kTurnBarrier = 1;   // + consumer
  static constexpr int kDotsBarrier = 1;   // and beyond: shared_dots.cuh, without turns
  static constexpr int kGroupBarrier = 4;  // + consumer: the warp group's own

  using Visible = attention::VisibleKeys<C::kLowerVaries, C::kUpperVaries>;
  using Softmax =
      typename Choice<kByFactor, attention::DotSoftmax<(C::kSlack > 0), kSplitF16, kSplitF16>,
                      attention::OnlineSoftmax<C::kSlack, kSplitF16, kNatural>>::Type;
  static_assert(!kByFactor || !is_same<T, f16> ||
                    C::kSlack + (kSplitF16 ? 7 : 0) + attention::kMostRounded < 16,
                "weights are f16");
};

}  // namespace heddle::sm90
