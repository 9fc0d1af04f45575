#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "emulator/block.h"
#include "emulator/mbarriers.h"
#include "emulator/tensor_map.h"

namespace heddle::emulator {
namespace {

using i64 = long long;

constexpr u32 kLineBytes = 128, kChunkBytes = 16, kChunks = kLineBytes / kChunkBytes;

TiledTensor tensor_of(const void* map) {
  TiledTensor tensor;
  if (reinterpret_cast<u64>(map) % 64 != 0) fail("a tensor map is not aligned to 64 bytes");
  std::memcpy(&tensor, map, sizeof tensor);
  if (tensor.encoded != TiledTensor::kEncoded) fail("a tensor map has not been encoded");
  return tensor;
}

/// A box of a tensor and the tile in shared memory where it lies: a line of 128 bytes for each
/// index of the dims behind the first, swizzled.
class Box {
 public:
  Box(const void* map, u32 shared_address, const i32 (&at)[4]) : tensor_(tensor_of(map)) {
    if (tensor_.rank != 4) fail("a copy in four dims is of a tensor that has others");
    lines_ = u32{tensor_.box[1]} * tensor_.box[2] * tensor_.box[3];
    tile_ = shared(shared_address, bytes(), kLineBytes);
    first_line_ = shared_address / kLineBytes;
    std::copy(std::begin(at), std::end(at), at_);
    check_tensor();
  }

  u32 bytes() const { return lines_ * kLineBytes; }
  u8* tile() const { return tile_; }

  void load() const {
    for (u32 n = 0; n < lines_; ++n) {
      u8 line[kLineBytes] = {};
      if (const Part part = part_of(n); part.bytes > 0)
        std::memcpy(line + part.offset, part.global, part.bytes);
      for (u32 chunk = 0; chunk < kChunks; ++chunk)
        std::memcpy(chunk_at(n, chunk), line + chunk * kChunkBytes, kChunkBytes);
    }
  }

  void store() const {
    for (u32 n = 0; n < lines_; ++n) {
      const Part part = part_of(n);
      if (part.bytes == 0) continue;
      u8 line[kLineBytes];
      for (u32 chunk = 0; chunk < kChunks; ++chunk)
        std::memcpy(line + chunk * kChunkBytes, chunk_at(n, chunk), kChunkBytes);
      std::memcpy(part.global, line + part.offset, part.bytes);
    }
  }

 private:
  /// What of a line lies in the tensor.
  struct Part {
    u8* global;
    u32 offset, bytes;
  };

  Part part_of(u32 line) const {
    const u32 in_box[4] = {0, line % tensor_.box[1], line / tensor_.box[1] % tensor_.box[2],
                           line / tensor_.box[1] / tensor_.box[2]};
    const i64 first = std::max<i64>(at_[0], 0),
              end = std::min<i64>(i64{at_[0]} + tensor_.box[0], static_cast<i64>(tensor_.dims[0]));
    if (first >= end) return {};
    u64 offset = static_cast<u64>(first) * tensor_.element_bytes;
    for (int d = 1; d < 4; ++d) {
      const i64 index = i64{at_[d]} + in_box[d];
      if (index < 0 || index >= static_cast<i64>(tensor_.dims[d])) return {};
      offset += static_cast<u64>(index) * tensor_.stride_bytes[d - 1];
    }
    return {tensor_.address + offset, static_cast<u32>(first - at_[0]) * tensor_.element_bytes,
            static_cast<u32>(end - first) * tensor_.element_bytes};
  }

  /// The swizzle goes by the bits of addresses.
  u8* chunk_at(u32 line, u32 chunk) const {
    return tile_ + line * kLineBytes + (chunk ^ (first_line_ + line) % kChunks) * kChunkBytes;
  }

  /// What lies in the tensor must be there, from its first byte to its last.
  void check_tensor() const {
    u8 *first = nullptr, *end = nullptr;
    for (u32 n = 0; n < lines_; ++n) {
      const Part part = part_of(n);
      if (part.bytes == 0) continue;
      if (!first) first = part.global;
      end = part.global + part.bytes;
    }
    if (first) global(first, static_cast<u64>(end - first), 1);
  }

  TiledTensor tensor_;
  i32 at_[4];
  u32 lines_, first_line_;
  u8* tile_;
};

/// Work that nobody waits for but at a barrier.
template <class Work>
void start(Work work) {
  Block& block = *current().block;
  if (block.late)
    block.in_flight.emplace_back(work);
  else
    work();
}

/// The same of a load, until which nothing is known of where it goes.
template <class Load>
void start_load(u8* to, u32 bytes, u32 barrier, Load load) {
  if (current().block->late) std::memset(to, 0xff, bytes);
  start([load, bytes, counts = barrier_at(barrier)] {
    load();
    complete_bytes(counts, bytes);
  });
}

/// Work that is waited for in groups of the thread's.
template <class Work>
void start_store(Work work) {
  Thread& thread = current();
  if (thread.block->late)
    thread.stores.add(work);
  else
    work();
}

void check_run(u32 bytes) {
  if (bytes == 0 || bytes % 16 != 0) fail("a bulk copy is of no multiple of 16 bytes");
}

TiledTensor* map_in_memory(void* map) {
  tensor_of(map);
  return reinterpret_cast<TiledTensor*>(global(map, sizeof(TensorMap), 64));
}

}  // namespace

void tensor_load(u32 to, const void* map, u32 barrier, const i32 (&at)[4]) {
  const Box box(map, to, at);
  start_load(box.tile(), box.bytes(), barrier, [box] { box.load(); });
}

void tensor_store(const void* map, u32 from, const i32 (&at)[4]) {
  const Box box(map, from, at);
  start_store([box] { box.store(); });
}

void tensor_map_address(void* map, const void* address) {
  if (reinterpret_cast<u64>(address) % 16 != 0) fail("a tensor is not aligned to 16 bytes");
  map_in_memory(map)->address = static_cast<u8*>(const_cast<void*>(address));
}

void tensor_map_rows(void* map, u32 rows) {
  if (rows == 0) fail("a tensor has no rows");
  map_in_memory(map)->dims[1] = rows;
}

void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  check_run(bytes);
  u8* const target = shared(to, bytes, 16);
  const u8* const source = global(from, bytes, 16);
  start_load(target, bytes, barrier,
             [target, source, bytes] { std::memcpy(target, source, bytes); });
}

void bulk_add(float* to, u32 from, u32 bytes) {
  check_run(bytes);
  auto* const target = reinterpret_cast<float*>(global(to, bytes, 16));
  const auto* const source = reinterpret_cast<const float*>(shared(from, bytes, 16));
  start_store([target, source, count = bytes / sizeof(float)] {
    for (size_t n = 0; n < count; ++n)
      std::atomic_ref(target[n]).fetch_add(source[n], std::memory_order_relaxed);
  });
}

void bulk_commit() { current().stores.commit(); }
void bulk_wait(int pending) { current().stores.finish(pending); }

void cluster_store(u32 to, u32 barrier, const u32* words, u32 count) {
  std::array<u32, 4> kept{};
  std::copy_n(words, count, kept.begin());
  const u32 bytes = count * 4;
  u8* const target = shared(to, bytes, bytes);
  if (to >> 24 != barrier >> 24)
    fail("a store to another block is counted by a barrier of a third");
  start([kept, target, bytes, counts = barrier_at(barrier)] {
    std::memcpy(target, kept.data(), bytes);
    complete_bytes(counts, bytes);
  });
}

}  // namespace heddle::emulator
