#include <bit>

#include "emulator/block.h"
#include "emulator/numbers.h"

namespace heddle::emulator {
namespace {

struct Product {
  float* d;
  const u32* a;
  u32 b[2];
};

}  // namespace

void mma_m16n8k16(Operand type, float* d, const u32* a, u32 b0, u32 b1) {
  Product own{d, a, {b0, b1}};
  void* const* const lanes = meet(0xffffffff, &own);
  if (!lanes) return;
  const auto of = [lanes](int lane) -> const Product& {
    return *static_cast<const Product*>(lanes[lane]);
  };
  float rows[16][16], columns[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4, k = 2 * (lane % 4) + half;
      for (int n = 0; n < 4; ++n)
        rows[row + n % 2 * 8][k + n / 2 * 8] = number_of(type, of(lane).a[n] >> 16 * half);
      for (int n = 0; n < 2; ++n)
        columns[k + 8 * n][row] = number_of(type, of(lane).b[n] >> 16 * half);
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8];
    const auto d_of = [&](int column) -> float& {
      return of(row % 8 * 4 + column / 2).d[row / 8 * 2 + column % 2];
    };
    for (int n = 0; n < 8; ++n) sums[n] = d_of(n);
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) sums[n] += rows[row][k] * columns[k][n];
    for (int n = 0; n < 8; ++n) d_of(n) = sums[n];
  }
  part(0xffffffff);
}

}  // namespace heddle::emulator
