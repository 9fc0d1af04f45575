// A kernel's part of its arguments: the host's have room for all that any kernel reads, a kernel's
// for what it reads itself (attention::Room).
#pragma once

#include <array>
#include <string>

#include "attention/parameters.h"
#include "problem/attention.h"
#include "sm90/backward_arguments.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {

/// What general kernels of the problem need whose score reads so many loads.
attention::Room room_of(const problem::AttentionStructure& structure, size_t loads);

/// What a kernel's source begins with.
std::string room_source(const attention::Room& room);

/// Which bytes of a block of arguments are passed, in their order.
class PassedBytes {
 public:
  static PassedBytes of_forward(const attention::Room& room);
  static PassedBytes of_backward(const attention::Room& room);
  static PassedBytes of_forward_sm90(const attention::Room& room);
  static PassedBytes of_backward_sm90(const attention::Room& room);

  /// The size of the kernel's struct.
  size_t size() const { return size_; }
  void copy(const void* block, void* passed) const;
  /// Where a byte of the block is among those passed, as it must be.
  size_t place_of(size_t offset) const;

 private:
  struct Part {
    size_t begin, end;
  };
  class Cuts;

  std::array<Part, 16> parts_{};
  size_t count_ = 0, size_ = 0;
};

/// What a kernel is passed of a block.
template <class Block>
class Passed {
 public:
  Passed(const Block& block, const PassedBytes& bytes) : block_(block), bytes_(bytes) {
    bytes.copy(&block, memory_.data());
  }
  void* address() { return memory_.data(); }
  /// A member of the block, as passed.
  template <class T>
  T* place_of(const T& member) {
    const auto offset =
        reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&block_);
    return reinterpret_cast<T*>(memory_.data() + bytes_.place_of(static_cast<size_t>(offset)));
  }

 private:
  const Block& block_;
  const PassedBytes& bytes_;
  alignas(Block) std::array<char, sizeof(Block)> memory_;
};

}  // namespace heddle::engine::cuda
