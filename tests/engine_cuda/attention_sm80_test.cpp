// The general kernels' tiles: within every device's shared memory, for every head dim and type.
#include "engine/cuda/attention_sm80.h"

#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

TEST(GeneralTiles, FitSharedMemoryForEveryHeadDim) {
  for (DataType type : {DataType::bf16, DataType::f16, DataType::f32}) {
    const Target target = *target_named("sm_80");
    for (int dim = 1; dim <= 256; ++dim) {
      for (int64_t length : {1, 512}) {
        Case c{.dtype = type, .qk_dim = dim, .v_dim = dim, .length = length};
        const auto forward = configure_forward_sm80(forward_of(c), target);
        ASSERT_TRUE(forward.is_ok()) << forward.status().message();
        EXPECT_LE(sm80::forward_layout_of(*forward).bytes, kSm80SharedLimit) << title(c);
        for (const auto& features : {std::vector<Feature>{}, {Feature::statistics}}) {
          c.features = features;
          const auto backward = configure_backward_sm80(backward_of(c), target);
          ASSERT_TRUE(backward.is_ok()) << backward.status().message();
          for (const BackwardSm80Step& step : *backward)
            EXPECT_LE(step.shared_bytes(), kSm80SharedLimit) << title(c);
        }
      }
    }
  }
}

struct Heads {
  int qk, v;
};

// A warp's sums are of 256 columns, and of K and V a step takes what the device has room for.
TEST(GeneralTiles, OfWideHeadsFitTheDevice) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a", "sm_120"}) {
    const Target target = *target_named(architecture);
    for (DataType type : {DataType::bf16, DataType::f32}) {
      for (const Heads& heads : {Heads{264, 264},
                                 {320, 320},
                                 {384, 384},
                                 {448, 448},
                                 {512, 512},
                                 {576, 512},
                                 {576, 64},
                                 {64, 512},
                                 {300, 260},
                                 {576, 8}}) {
        for (const auto& features :
             {std::vector<Feature>{}, {Feature::statistics, Feature::bias}}) {
          const Case c{.dtype = type, .qk_dim = heads.qk, .v_dim = heads.v, .features = features};
          const auto forward = configure_forward_sm80(forward_of(c), target);
          const auto backward = configure_backward_sm80(backward_of(c), target);
          // Three planes of a tile of 16 rows are more than the smallest devices have.
          const bool fits = type == DataType::bf16 || target.shared_limit() > kSm80SharedLimit;
          if (fits) {
            EXPECT_TRUE(forward.is_ok()) << title(c) << forward.status().message();
            EXPECT_TRUE(backward.is_ok()) << title(c) << backward.status().message();
          }
          if (forward.is_ok())
            EXPECT_LE(sm80::forward_layout_of(*forward).bytes, target.shared_limit()) << title(c);
          if (!backward.is_ok()) continue;
          for (const BackwardSm80Step& step : *backward) {
            EXPECT_LE(step.shared_bytes(), target.shared_limit()) << title(c);
            if (step.part == BackwardSm80Step::Part::queries)
              EXPECT_LE(step.config.part_columns(heads.qk), kWidestHead);
          }
        }
      }
    }
  }
}

TEST(GeneralTiles, OfTheWidestHeadsInF32AreMoreThanTheSmallestDevicesHave) {
  const Case c{.dtype = DataType::f32, .qk_dim = 576, .v_dim = 512};
  EXPECT_EQ(
      configure_forward_sm80(forward_of(c), *target_named("sm_86")).status().message(),
      "cuda: sdpa head_dim 576 (q, k) and 512 (v) in f32 need 110720 bytes of shared memory; a "
      "block has 101376 on sm_86");
}

}  // namespace
}  // namespace heddle::engine::cuda
