// Products to time a machine by.
#include "engine/cpu/kernels/product_sample.h"

#include "engine/cpu/kernels/microkernel.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

constexpr int64_t kElements = 128;  // of a sum, as of a usual head
constexpr int kTimes = 16;
static_assert(kProductSampleFloats >= (32 + kPanelColumns) * kElements + 32 * kPanelColumns);

template <class Arithmetic>
int64_t multiply(float* memory) {
  constexpr int kRows = Arithmetic::kPanelRows;
  const int64_t words = words_of<Arithmetic>(kElements);
  float *a = memory, *b = a + kRows * kElements, *c = b + kPanelColumns * kElements;
  for (int n = 0; n < kTimes; ++n) {
    multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
        kRows, kPanelColumns, a, words, b, kPanelColumns, c, kPanelColumns, words);
  }
  return kTimes * kRows * kPanelColumns * kElements;
}

}  // namespace

int64_t product_sample([[maybe_unused]] Products products, float* memory) {
#if defined(HEDDLE_CPU_LEVEL_BF16)
  if (products == Products::tiles) {
    const TileSession session;
    return multiply<Tiles>(memory);
  }
  if (products == Products::pairs) return multiply<Pairs>(memory);
#endif
  return multiply<Singles>(memory);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
