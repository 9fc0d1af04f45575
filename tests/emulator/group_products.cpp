#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "emulator/block.h"
#include "emulator/numbers.h"

namespace heddle::emulator {
namespace {

constexpr u32 kAllLanes = 0xffffffff;
constexpr u32 kLineBytes = 128, kChunkBytes = 16, kChunks = kLineBytes / kChunkBytes;
constexpr u32 kStepBytes = 32, kMostK = 32;  ///< of k: 16 of 16 bits each, or 32 of 8

/// Eight rows of A or columns of B or D side by side. Products and their sums are exact in f64
/// (where they are not, f32 would not show it).
using Eight = double __attribute__((vector_size(64)));
using EightFloats = float __attribute__((vector_size(32)));
using EightWords = u64 __attribute__((vector_size(64)));

int k_of(Operand type) { return type == Operand::e4m3 ? 32 : 16; }

float element_of(Operand type, const u8* bytes, int n) {
  if (type == Operand::e4m3) return number_of(type, bytes[n]);
  u16 bits;
  std::memcpy(&bits, bytes + 2 * n, sizeof bits);
  return number_of(type, bits);
}

/// An operand in shared memory: atoms of eight lines of 128 bytes, whose chunks of 16 are swizzled.
/// With k contiguous a line is a row's, and atoms follow one another along rows. Else it is a k
/// index's, of 64 rows; atoms follow one another along k, and along rows by the leading offset.
class SharedOperand {
 public:
  SharedOperand(Block& block, Operand type, const GroupOperand& operand)
      : block_(block), type_(type), transposed_(operand.transposed) {
    const u64 word = operand.descriptor;
    constexpr u64 kReserved = 0x3ff1'c000'c000'c000;
    if (word & kReserved) fail("a matrix descriptor reaches beyond 256 KiB of shared memory");
    if (word >> 62 != 1) fail("a matrix descriptor is not of the 128-byte swizzle");
    if (word >> 49 & 7) fail("a matrix descriptor has a base offset");
    const u32 start = static_cast<u32>(word & 0x3fff) << 4;
    leading_ = static_cast<u32>(word >> 16 & 0x3fff) << 4;
    stride_ = static_cast<u32>(word >> 32 & 0x3fff) << 4;
    first_chunk_ = start % kLineBytes / kChunkBytes;
    atoms_ = start - start % kLineBytes;
    if (atoms_ % kAtomBytes != 0 || stride_ % kAtomBytes != 0 ||
        (transposed_ && leading_ % kAtomBytes != 0))
      fail("a matrix descriptor's atoms are not aligned to 1024 bytes");
    if (transposed_ && type == Operand::e4m3) fail("elements of 8 bits have k contiguous");
  }

  /// Eight rows (m or n), from 8 * `group` on, of each k.
  void read(u32 group, Eight* of_k) const {
    if (transposed_)
      read_lines_of_k(group, of_k);
    else
      read_lines_of_rows(group, of_k);
  }

 private:
  static constexpr u32 kAtomBytes = 8 * kLineBytes;

  void read_lines_of_rows(u32 group, Eight* of_k) const {
    constexpr u32 kStepChunks = kStepBytes / kChunkBytes;
    const u8* const atom = atom_at(atoms_ + group * stride_);
    if (first_chunk_ + kStepChunks > kChunks) fail("a matrix descriptor's step leaves its line");
    const int per_chunk = k_of(type_) / static_cast<int>(kStepChunks);
    for (u32 row = 0; row < 8; ++row) {
      for (u32 n = 0; n < kStepChunks; ++n) {
        const u8* const chunk = chunk_of(atom, row, first_chunk_ + n);
        Eight* const to = of_k + static_cast<int>(n) * per_chunk;
        for (int k = 0; k < per_chunk; ++k) to[k][row] = element_of(type_, chunk, k);
      }
    }
  }

  void read_lines_of_k(u32 group, Eight* of_k) const {
    const u32 chunk = first_chunk_ + group % kChunks;
    if (chunk >= kChunks) fail("a matrix descriptor's rows leave their box");
    for (u32 k = 0; k < 16; ++k) {
      const u8* const atom = atom_at(atoms_ + group / kChunks * leading_ + k / 8 * stride_);
      const u8* const from = chunk_of(atom, k % 8, chunk);
      for (int row = 0; row < 8; ++row) of_k[k][row] = element_of(type_, from, row);
    }
  }

  const u8* atom_at(u32 address) const { return block_.at(address, kAtomBytes, kAtomBytes); }
  static const u8* chunk_of(const u8* atom, u32 line, u32 chunk) {
    return atom + line * kLineBytes + (chunk ^ line) * kChunkBytes;
  }

  Block& block_;
  Operand type_;
  bool transposed_;
  u32 atoms_, first_chunk_, leading_, stride_;
};

/// What a lane gives.
struct Given {
  float* d;
  GroupOperand a, b;
};

/// A warp's share: 16 rows of D.
class Product {
 public:
  Product(Operand type, int n, bool accumulate, u32 warp, void* const* lanes)
      : type_(type), n_(n), accumulate_(accumulate), warp_(warp) {
    const Given& first = *static_cast<const Given*>(lanes[0]);
    a_ = first.a, b_ = first.b;
    for (u32 lane = 0; lane < 32; ++lane) {
      const Given& given = *static_cast<const Given*>(lanes[lane]);
      if (given.a.descriptor != a_.descriptor || given.b.descriptor != b_.descriptor)
        fail("lanes of a warp give different matrix descriptors");
      d_[lane] = given.d;
      if (a_.registers) keep_registers(lane, given.a.registers);
    }
  }

  void run(Block& block) const {
    Eight a[2][kMostK], b[kMostK];
    read_a(block, a);
    const SharedOperand shared_b(block, type_, b_);
    for (int group = 0; group < n_ / 8; ++group) {
      shared_b.read(static_cast<u32>(group), b);
      for (int row = 0; row < 16; ++row) multiply(row, a[row / 8], b, group);
    }
  }

 private:
  /// Register r of a lane has four bytes of k, from 4 * (lane % 4) + 16 * (r / 2) on, of row lane /
  /// 4 + 8 * (r % 2).
  void keep_registers(u32 lane, const u32* registers) {
    for (u32 r = 0; r < 4; ++r)
      std::memcpy(&rows_[lane / 4 + 8 * (r % 2)][4 * (lane % 4) + 16 * (r / 2)], registers + r, 4);
  }

  void read_a(Block& block, Eight (&a)[2][kMostK]) const {
    if (!a_.registers) {
      const SharedOperand shared_a(block, type_, a_);
      for (u32 half = 0; half < 2; ++half) shared_a.read(2 * warp_ + half, a[half]);
      return;
    }
    for (u32 row = 0; row < 16; ++row)
      for (int k = 0; k < k_of(type_); ++k)
        a[row / 8][k][row % 8] = element_of(type_, rows_[row].data(), k);
  }

  /// Columns 8 * `group` and on of a row of D. Tensor cores cut sums off, where f32 arithmetic
  /// rounds them: of fp8 operands behind 13 bits.
  void multiply(int row, const Eight* a, const Eight* b, int group) const {
    Eight sums = {};
    float* pairs[4];
    for (int n = 0; n < 4; ++n) {
      pairs[n] = d_[row % 8 * 4 + n] + 4 * group + 2 * (row / 8);
      if (accumulate_) sums[2 * n] = pairs[n][0], sums[2 * n + 1] = pairs[n][1];
    }
    for (int k = 0; k < k_of(type_); ++k) sums += a[k][row % 8] * b[k];
    const int kept = type_ == Operand::e4m3 ? 13 : 23;
    const u64 below = (u64{1} << (52 - kept)) - 1;
    const auto cut = reinterpret_cast<Eight>(reinterpret_cast<EightWords>(sums) & ~below);
    const auto results = __builtin_convertvector(cut, EightFloats);
    for (int n = 0; n < 4; ++n) pairs[n][0] = results[2 * n], pairs[n][1] = results[2 * n + 1];
  }

  Operand type_;
  int n_;
  bool accumulate_;
  u32 warp_;  ///< of the group
  GroupOperand a_, b_;
  std::array<float*, 32> d_;
  std::array<std::array<u8, kStepBytes>, 16> rows_;  ///< of A, where it comes from registers
};

/// The four warps that a product is of. It begins when all of them have issued it and ends for all
/// at once: one that is ahead of the others waits for them.
class WarpGroup {
 public:
  explicit WarpGroup(const Thread& thread)
      : block_(*thread.block), first_(thread.place.thread.x / 128 * kWarps) {
    if (first_ + kWarps > block_.warps.size()) fail("a warp group's product is of a part of one");
  }

  /// Finishes what all have committed.
  void finish_common() const {
    u64 common = warp(0).committed;
    for (u32 n = 1; n < kWarps; ++n) common = std::min(common, warp(n).committed);
    finish(common);
  }

  /// Finishes so many groups of each, once they are committed.
  void wait(u64 groups) const {
    for (u32 n = 0; n < kWarps; ++n)
      while (warp(n).committed < groups) leave(&warp(n).committed, false);
    finish(groups);
  }

 private:
  static constexpr u32 kWarps = 4;

  Warp& warp(u32 n) const { return block_.warps[first_ + n]; }
  void finish(u64 groups) const {
    for (u32 n = 0; n < kWarps; ++n)
      warp(n).products.finish(static_cast<int>(warp(n).committed - groups));
  }

  Block& block_;
  u32 first_;
};

}  // namespace

void group_product(Operand type, int n, float* d, const GroupOperand& a, const GroupOperand& b,
                   bool accumulate) {
  if (n % 8 != 0 || n < 8 || n > 256) fail("a warp group's product has 8 to 256 columns");
  Given own{d, a, b};
  void* const* const lanes = meet(kAllLanes, &own);
  if (!lanes) return;
  Thread& thread = current();
  const Product product(type, n, accumulate, thread.place.thread.x / 32 % 4, lanes);
  thread.warp->products.add([product, &block = *thread.block] { product.run(block); });
  part(kAllLanes);
}

void group_products_commit() {
  if (!meet(kAllLanes, nullptr)) return;
  Thread& thread = current();
  thread.warp->products.commit();
  ++thread.warp->committed;
  if (!thread.block->late) WarpGroup(thread).finish_common();
  part(kAllLanes);
}

void group_products_wait(int pending) {
  if (!meet(kAllLanes, nullptr)) return;
  const Thread& thread = current();
  const u64 committed = thread.warp->committed, left = static_cast<u64>(pending);
  if (committed > left) WarpGroup(thread).wait(committed - left);
  part(kAllLanes);
}

}  // namespace heddle::emulator
