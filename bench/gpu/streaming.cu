// Streaming kernels for streaming.py.
#include "streaming/rms_norm.cuh"
#include "streaming/rms_norm_backward.cuh"
#include "streaming/rope.cuh"

using namespace heddle;
using namespace heddle::streaming;

template <int kThreads, int kCount>
struct Forward : RmsNormConfig {
  static constexpr int kThreadsPerRow = kThreads, kVectors = kCount;
};
template <int kThreads, int kCount>
struct Backward : RmsNormBackwardConfig {
  static constexpr bool kPrefetch = kCount <= 2;
  static constexpr int kThreadsPerRow = kThreads, kVectors = kCount;
};
struct ScalarForward : RmsNormConfig {
  using X = float;
  using Y = f16;
  static constexpr int kVector = 1, kVectors = 4, kThreadsPerRow = 256;
  static constexpr bool kBias = true;
};
struct ScalarBackward : RmsNormBackwardConfig {
  using X = float;
  using Dy = f16;
  using Dx = float;
  static constexpr int kVector = 1, kVectors = 4, kThreadsPerRow = 256;
  static constexpr bool kDBias = true;
};
struct Halves : RopeConfig {};
struct Interleaved : RopeConfig {
  static constexpr int kPairs = 4;
  static constexpr bool kInterleaved = true, kTables = true, kInverse = true;
};

#define FORWARD(name, ...)                                                           \
  extern "C" __global__ __launch_bounds__(RmsNorm<__VA_ARGS__>::kThreads) void name( \
      const __grid_constant__ RmsNormArguments args) {                               \
    RmsNorm<__VA_ARGS__>::run(args);                                                 \
  }
#define BACKWARD(name, ...)                                                                     \
  extern "C" __global__ __launch_bounds__(RmsNormBackward<__VA_ARGS__>::kThreads, 1) void name( \
      const __grid_constant__ RmsNormBackwardArguments args) {                                  \
    RmsNormBackward<__VA_ARGS__>::run(args);                                                    \
  }                                                                                             \
  extern "C" __global__ __launch_bounds__(256) void name##_combine(                             \
      const __grid_constant__ RmsNormBackwardArguments args) {                                  \
    RmsNormCombine<__VA_ARGS__>::run(args);                                                     \
  }
#define ROPE(name, ...)                                      \
  extern "C" __global__ __launch_bounds__(256, 1) void name( \
      const __grid_constant__ RopeArguments args) {          \
    Rope<__VA_ARGS__>::run(args);                            \
  }

FORWARD(forward_8x2, Forward<8, 2>)
FORWARD(forward_32x4, Forward<32, 4>)
FORWARD(forward_64x2, Forward<64, 2>)
FORWARD(forward_64x4, Forward<64, 4>)
FORWARD(forward_128x1, Forward<128, 1>)
FORWARD(forward_128x8, Forward<128, 8>)
FORWARD(forward_256x4, Forward<256, 4>)
FORWARD(forward_32x8, Forward<32, 8>)
FORWARD(forward_64x8, Forward<64, 8>)
FORWARD(forward_128x4, Forward<128, 4>)
FORWARD(forward_256x2, Forward<256, 2>)
FORWARD(forward_512x4, Forward<512, 4>)
FORWARD(forward_256x8, Forward<256, 8>)
FORWARD(forward_1024x2, Forward<1024, 2>)
FORWARD(forward_512x2, Forward<512, 2>)
FORWARD(forward_512x1, Forward<512, 1>)
FORWARD(forward_256x1, Forward<256, 1>)
FORWARD(forward_128x2, Forward<128, 2>)
FORWARD(forward_scalar, ScalarForward)
BACKWARD(backward_128x4, Backward<128, 4>)
BACKWARD(backward_256x2, Backward<256, 2>)
BACKWARD(backward_512x1, Backward<512, 1>)
BACKWARD(backward_64x2, Backward<64, 2>)
BACKWARD(backward_64x4, Backward<64, 4>)
BACKWARD(backward_256x4, Backward<256, 4>)
BACKWARD(backward_512x4, Backward<512, 4>)
BACKWARD(backward_scalar, ScalarBackward)
ROPE(rope_halves, Halves)
ROPE(rope_interleaved, Interleaved)
