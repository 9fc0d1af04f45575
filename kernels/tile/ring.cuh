// A ring of stages in shared memory between a producer and its consumers: `full` barriers say a
// stage holds data, `empty` barriers that its consumers are done with it.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "tile_bytes.h"

namespace heddle::tile {

/// Position in a ring: the stage and the parity of the current pass. Consumers wait for `full` with
/// `parity`, producers for `empty` with `parity ^ 1` (which passes at once in the first pass). With
/// kCounts both come of one register, by division, for warp groups that have few.
template <int kStages, bool kCounts = false>
class RingPosition {
 public:
  HEDDLE_DEVICE u32 stage() const { return kCounts ? at_ % kStages : at_; }
  HEDDLE_DEVICE u32 parity() const { return kCounts ? at_ / kStages % 2 : parity_; }
  /// How often it advanced.
  HEDDLE_DEVICE u32 count() const {
    static_assert(kCounts);
    return at_;
  }
  HEDDLE_DEVICE void advance() {
    ++at_;
    if constexpr (!kCounts) {
      if (at_ == kStages) {
        at_ = 0;
        parity_ ^= 1;
      }
    }
  }

 private:
  u32 at_ = 0, parity_ = 0;
};

template <int kStages>
using RingCount = RingPosition<kStages, true>;

/// Barrier addresses of a ring laid out as kStages full barriers, then kStages empty ones.
template <int kStages>
struct Ring {
  static constexpr int kBytes = ring_bytes(kStages);
  u32 base;

  HEDDLE_DEVICE u32 full(u32 stage) const { return base + 8 * stage; }
  HEDDLE_DEVICE u32 empty(u32 stage) const { return base + 8 * (kStages + stage); }

  HEDDLE_DEVICE void init(u32 full_arrivals, u32 empty_arrivals) const {
    for (u32 s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full(s), full_arrivals);
      ptx::mbarrier_init(empty(s), empty_arrivals);
    }
  }
};

}  // namespace heddle::tile
