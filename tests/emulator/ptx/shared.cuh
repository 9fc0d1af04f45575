// kernels/ptx/shared.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

template <typename T, int kCount>
HEDDLE_DEVICE T (&words_at(u32 address))[kCount] {
  u8* const words = emulator::shared(address, sizeof(T) * kCount, sizeof(T) * kCount);
  return *reinterpret_cast<T(*)[kCount]>(words);
}

HEDDLE_DEVICE void store_shared(u32 address, u32 value) { words_at<u32, 1>(address)[0] = value; }
HEDDLE_DEVICE void store_shared(u32 address, float value) {
  words_at<float, 1>(address)[0] = value;
}
HEDDLE_DEVICE void store_shared(u32 address, const u32 (&value)[4]) {
  auto& words = words_at<u32, 4>(address);
  for (int n = 0; n < 4; ++n) words[n] = value[n];
}
HEDDLE_DEVICE void store_shared(u32 address, u32 x, u32 y) {
  auto& words = words_at<u32, 2>(address);
  words[0] = x, words[1] = y;
}
HEDDLE_DEVICE void store_shared(u32 address, float x, float y) {
  auto& words = words_at<float, 2>(address);
  words[0] = x, words[1] = y;
}
HEDDLE_DEVICE void store_shared(u32 address, float x, float y, float z, float w) {
  auto& words = words_at<float, 4>(address);
  words[0] = x, words[1] = y, words[2] = z, words[3] = w;
}

HEDDLE_DEVICE u32 load_shared_u32(u32 address) { return words_at<u32, 1>(address)[0]; }
HEDDLE_DEVICE float load_shared_f32(u32 address) { return words_at<float, 1>(address)[0]; }
HEDDLE_DEVICE void load_shared(u32 address, u32 (&value)[4]) {
  const auto& words = words_at<u32, 4>(address);
  for (int n = 0; n < 4; ++n) value[n] = words[n];
}
HEDDLE_DEVICE void load_shared(u32 address, u32& x, u32& y) {
  const auto& words = words_at<u32, 2>(address);
  x = words[0], y = words[1];
}
HEDDLE_DEVICE void load_shared(u32 address, u32 (&value)[2]) {
  load_shared(address, value[0], value[1]);
}
HEDDLE_DEVICE void load_shared(u32 address, float& x, float& y) {
  const auto& words = words_at<float, 2>(address);
  x = words[0], y = words[1];
}
HEDDLE_DEVICE void load_shared(u32 address, float& x, float& y, float& z, float& w) {
  const auto& words = words_at<float, 4>(address);
  x = words[0], y = words[1], z = words[2], w = words[3];
}

/// Matrices of 8 x 8, by the rows whose addresses the lanes give, and a lane's register of each.
struct Matrices {
  u32 address;
  u32* registers;

  HEDDLE_DEVICE static u16& element(void* const* lanes, int matrix, int row, int column) {
    const u32 address = static_cast<const Matrices*>(lanes[8 * matrix + row])->address;
    return reinterpret_cast<u16*>(emulator::shared(address, 16, 16))[column];
  }
  /// Element `half` of what lane `lane` holds of a matrix.
  HEDDLE_DEVICE static u16& held(void* const* lanes, int matrix, int lane, int half) {
    return reinterpret_cast<u16*>(static_cast<const Matrices*>(lanes[lane])->registers +
                                  matrix)[half];
  }
};

template <int kCount, bool kTransposed, bool kStores>
HEDDLE_DEVICE void move_matrices(u32 address, u32* registers) {
  Matrices own{address, registers};
  if (void* const* const lanes = emulator::meet(0xffffffff, &own)) {
    for (int matrix = 0; matrix < kCount; ++matrix) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4, column = 2 * (lane % 4) + half;
          u16& element = Matrices::element(lanes, matrix, kTransposed ? column : row,
                                           kTransposed ? row : column);
          u16& held = Matrices::held(lanes, matrix, lane, half);
          if constexpr (kStores)
            element = held;
          else
            held = element;
        }
      }
    }
    emulator::part(0xffffffff);
  }
}

HEDDLE_DEVICE void load_matrix_x4(u32 address, u32 (&m)[4]) {
  move_matrices<4, false, false>(address, m);
}
HEDDLE_DEVICE void load_matrix_x4_transposed(u32 address, u32 (&m)[4]) {
  move_matrices<4, true, false>(address, m);
}
HEDDLE_DEVICE void store_matrix_x4(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  u32 m[] = {m0, m1, m2, m3};
  move_matrices<4, false, true>(address, m);
}
HEDDLE_DEVICE void store_matrix_x4_transposed(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  u32 m[] = {m0, m1, m2, m3};
  move_matrices<4, true, true>(address, m);
}
HEDDLE_DEVICE void store_matrix_x2_transposed(u32 address, u32 m0, u32 m1) {
  u32 m[] = {m0, m1};
  move_matrices<2, true, true>(address, m);
}

}  // namespace heddle::ptx
