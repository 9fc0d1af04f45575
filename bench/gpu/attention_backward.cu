// Backward variants for attention_backward.py: the shapes a generated source takes, many in a
// cubin.
//
//   nvcc -cubin -gencode=arch=compute_90a,code=sm_90a -std=c++20 -Xptxas -v -I kernels
//        -o attention_backward.cubin bench/gpu/attention_backward.cu
#include "sm90/attention_backward.cuh"
#include "sm90/attention_backward_rows.cuh"
#include "sm90/attention_backward_wide.cuh"
#include "sm90/sequence_maps.cuh"

using namespace heddle;

struct SoftCap {
  static constexpr bool kIdentity = false;
  static constexpr float kCap = 30.0f;
  template <class Cell>
  HEDDLE_DEVICE static float value(const Cell& cell) {
    return kCap * attention::tanh(cell.dot * (1.0f / kCap));
  }
};
struct SoftCapDerivative {
  template <class Cell>
  HEDDLE_DEVICE static float value(const Cell& cell) {
    const float t = attention::tanh(cell.dot * (1.0f / SoftCap::kCap));
    return cell.gradient * (1.0f - t * t);
  }
};

struct Alibi {
  static constexpr bool kIdentity = false;
  template <class Cell>
  HEDDLE_DEVICE static float value(const Cell& cell) {
    const float slope =
        attention::load<float, false, false>(cell.loads[0], cell.batch, cell.head, 0, 0);
    return ptx::fma(slope, static_cast<float>(cell.column - cell.row), cell.dot);
  }
};

template <int kHeadDim>
struct Full : sm90::BackwardConfig {
  static constexpr int kQkDim = kHeadDim, kVDim = kHeadDim;
  static constexpr int kTileM = kHeadDim > 64 ? 64 : 128;
  static constexpr bool kDkUnderDp = kHeadDim > 64;
};
template <int kHeadDim>
struct Causal : Full<kHeadDim> {
  static constexpr bool kUpperVaries = true;
};
template <int kHeadDim>
struct Window : Causal<kHeadDim> {
  static constexpr bool kLowerVaries = true;
};
template <class Base>
struct Deterministic : Base {
  static constexpr bool kDeterministic = true;
};
template <class Base>
struct Downwards : Deterministic<Base> {
  static constexpr bool kDownwards = true;
};
template <class Base>
struct Lengths : Base {
  static constexpr bool kLengths = true;
};
template <class Base>
struct Half : Base {
  using Element = f16;
};
/// A score expression needs registers of its own: dK is not left in flight; 128 queries would not
/// fit its slopes.
template <class Base>
struct Scored : Base {
  static constexpr bool kDkUnderDp = false;
};
template <class Base>
struct Sloped : Scored<Base> {
  static constexpr bool kUnitSlope = false;
  static constexpr int kTileM = 64;
};

/// Head dims above 128.
template <class Base, int kQk, int kV>
struct Wide : Base {
  static constexpr int kQkDim = kQk, kVDim = kV, kTileM = 64, kQStages = 2;
};

template <class Base>
struct Philox : Scored<Base> {
  static constexpr attention::Dropout kDropout = attention::Dropout::philox;
  static constexpr int kTileM = 64;
};
template <class Base>
struct Threefry : Philox<Base> {
  static constexpr attention::Dropout kDropout = attention::Dropout::threefry;
};

#define VARIANT(name, ...) VARIANT_OF(AttentionBackward, name, __VA_ARGS__)
#define WIDE_VARIANT(name, ...) VARIANT_OF(AttentionBackwardWide, name, __VA_ARGS__)
#define VARIANT_OF(kernel, name, ...)                                                 \
  using Main_##name = sm90::kernel<__VA_ARGS__>;                                      \
  using Rows_##name = sm90::AttentionBackwardRows<Main_##name>;                       \
  extern "C" __global__ __launch_bounds__(Main_##name::kThreads, 1) void name##_main( \
      const __grid_constant__ sm90::BackwardArguments args) {                         \
    Main_##name::run(args);                                                           \
  }                                                                                   \
  extern "C" __global__ __launch_bounds__(Rows_##name::kThreads) void name##_prepare( \
      const __grid_constant__ sm90::BackwardArguments args) {                         \
    Rows_##name::prepare(args);                                                       \
  }                                                                                   \
  extern "C" __global__ __launch_bounds__(Rows_##name::kThreads) void name##_finish(  \
      const __grid_constant__ sm90::BackwardArguments args) {                         \
    Rows_##name::finish(args);                                                        \
  }                                                                                   \
  extern "C" __device__ const int name##_meta[15] = {Main_##name::kSharedBytes,       \
                                                     Main_##name::kThreads,           \
                                                     Main_##name::kTileN,             \
                                                     Main_##name::kTileM,             \
                                                     Main_##name::kDqTurns,           \
                                                     Main_##name::C::kQkDim,          \
                                                     Main_##name::kDqWidth,           \
                                                     Main_##name::C::kUpperVaries,    \
                                                     Main_##name::C::kLowerVaries,    \
                                                     0,                               \
                                                     Main_##name::C::kDeterministic,  \
                                                     is_same<Main_##name::T, f16>,    \
                                                     Main_##name::C::kLengths,        \
                                                     Main_##name::C::kVDim,           \
                                                     int(Main_##name::C::kDropout)};

extern "C" __global__ __launch_bounds__(128) void sequence_maps(
    const __grid_constant__ sm90::SequenceMapArguments args) {
  sm90::make_sequence_maps(args);
}

VARIANT(f128, Full<128>)
VARIANT(c128, Causal<128>)
VARIANT(w128, Window<128>)
VARIANT(f64, Full<64>)
VARIANT(c64, Causal<64>)
VARIANT(w64, Window<64>)
VARIANT(fd128, Deterministic<Full<128>>)
VARIANT(cd128, Deterministic<Causal<128>>)
VARIANT(fd64, Deterministic<Full<64>>)
VARIANT(cd64, Deterministic<Causal<64>>)
VARIANT(gd128, Downwards<Causal<128>>)
VARIANT(gd64, Downwards<Causal<64>>)
VARIANT(wd128, Deterministic<Window<128>>)
VARIANT(lwd64, Lengths<Deterministic<Window<64>>>)
VARIANT(lwcd64, Sloped<Lengths<Deterministic<Window<64>>>>, SoftCap, SoftCapDerivative)
VARIANT(p128, Philox<Causal<128>>)
VARIANT(p64, Philox<Full<64>>)
VARIANT(t128, Threefry<Causal<128>>)
VARIANT(pcap128, Philox<Sloped<Lengths<Causal<128>>>>, SoftCap, SoftCapDerivative)
VARIANT(l128, Lengths<Causal<128>>)
VARIANT(lw128, Lengths<Window<128>>)
VARIANT(l64, Lengths<Full<64>>)
VARIANT(lc64, Lengths<Causal<64>>)
VARIANT(c128h, Half<Causal<128>>)
VARIANT(c64h, Half<Causal<64>>)
VARIANT(cap128, Sloped<Causal<128>>, SoftCap, SoftCapDerivative)
VARIANT(cap64, Sloped<Causal<64>>, SoftCap, SoftCapDerivative)
VARIANT(capl128, Sloped<Lengths<Causal<128>>>, SoftCap, SoftCapDerivative)
VARIANT(ali128, Scored<Causal<128>>, Alibi)
VARIANT(ali64, Scored<Causal<64>>, Alibi)
VARIANT(f96, Full<96>)
VARIANT(c80, Causal<80>)
VARIANT(f40, Full<40>)
WIDE_VARIANT(f256, Wide<Full<128>, 256, 256>)
WIDE_VARIANT(c256, Wide<Causal<128>, 256, 256>)
WIDE_VARIANT(w256, Wide<Window<128>, 256, 256>)
WIDE_VARIANT(fd256, Wide<Deterministic<Full<128>>, 256, 256>)
WIDE_VARIANT(cd256, Wide<Deterministic<Causal<128>>, 256, 256>)
WIDE_VARIANT(gd256, Wide<Downwards<Causal<128>>, 256, 256>)
WIDE_VARIANT(wd256, Wide<Deterministic<Window<128>>, 256, 256>)
WIDE_VARIANT(lwd256, Wide<Lengths<Deterministic<Window<128>>>, 256, 256>)
WIDE_VARIANT(fd192, Wide<Deterministic<Full<128>>, 192, 192>)
WIDE_VARIANT(f64256, Wide<Full<128>, 64, 256>)
WIDE_VARIANT(p256, Wide<Philox<Causal<128>>, 256, 256>)
WIDE_VARIANT(lw256, Wide<Lengths<Window<128>>, 256, 256>)
WIDE_VARIANT(cap256, Wide<Sloped<Causal<128>>, 256, 256>, SoftCap, SoftCapDerivative)
WIDE_VARIANT(ali256, Wide<Scored<Causal<128>>, 256, 256>, Alibi)
WIDE_VARIANT(c192, Wide<Causal<128>, 192, 192>)
WIDE_VARIANT(c192128, Wide<Causal<128>, 192, 128>)
WIDE_VARIANT(f136, Wide<Full<128>, 136, 200>)
WIDE_VARIANT(c256h, Wide<Half<Causal<128>>, 256, 256>)
