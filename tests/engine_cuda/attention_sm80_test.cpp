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
    for (int dim = 1; dim <= 256; ++dim) {
      for (int64_t length : {1, 512}) {
        Case c{.dtype = type, .qk_dim = dim, .v_dim = dim, .length = length};
        const auto forward = configure_forward_sm80(forward_of(c));
        ASSERT_TRUE(forward.is_ok()) << forward.status().message();
        EXPECT_LE(sm80::forward_layout_of(*forward).bytes, kSm80SharedLimit) << title(c);
        for (const auto& features : {std::vector<Feature>{}, {Feature::statistics}}) {
          c.features = features;
          const auto backward = configure_backward_sm80(backward_of(c));
          ASSERT_TRUE(backward.is_ok()) << backward.status().message();
          for (const BackwardSm80Step& step : *backward)
            EXPECT_LE(step.shared_bytes(), kSm80SharedLimit) << title(c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
