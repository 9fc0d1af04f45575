// A kernel's arguments. The host's structs have all parts that any kernel reads; a kernel's own has
// those that it reads itself (attention::ArgumentLayout), in the same order, and is put together of
// them.
#pragma once

#include <array>
#include <cstring>
#include <string>

#include "attention/parameters.h"
#include "core/rounding.h"
#include "problem/attention.h"
#include "sm80/decode_arguments.h"
#include "sm90/backward_arguments.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {

/// What general kernels of the problem need whose score reads so many loads.
attention::ArgumentLayout argument_layout_of(const problem::AttentionStructure& structure,
                                             size_t loads);

/// What a kernel's source begins with.
std::string argument_layout_source(const attention::ArgumentLayout& layout);

class KernelArguments {
 public:
  KernelArguments(const attention::ForwardParameters& all, const attention::ArgumentLayout& layout);
  KernelArguments(const attention::BackwardParameters& all,
                  const attention::ArgumentLayout& layout);
  KernelArguments(const sm80::DecodeArguments& all, const attention::ArgumentLayout& layout);
  KernelArguments(const sm90::ForwardArguments& all, const attention::ArgumentLayout& layout);
  KernelArguments(const sm90::BackwardArguments& all, const attention::ArgumentLayout& layout);

  void* address() { return memory_.data(); }
  /// The size of the kernel's struct.
  size_t size() const {
    return static_cast<size_t>(
        round_up(static_cast<int64_t>(size_), static_cast<int64_t>(alignment_)));
  }
  /// ForwardParameters::first_batch of it, which is told to each of several launches.
  int* first_batch() { return first_batch_; }

 private:
  /// Adds parts; where the first of them is now.
  template <class Part>
  Part* add(const Part* parts, int count = 1) {
    // Else what follows would not be where the kernel's is.
    static_assert(sizeof(Part) % 8 == 0 && std::is_trivially_copyable_v<Part>);
    if (count > 0 && alignof(Part) > alignment_) alignment_ = alignof(Part);
    return static_cast<Part*>(add_bytes(parts, sizeof(Part) * static_cast<size_t>(count)));
  }
  void add_address(const void* address) { add_bytes(&address, sizeof address); }
  void* add_bytes(const void* bytes, size_t count) {
    void* const at = memory_.data() + size_;
    std::memcpy(at, bytes, count);
    size_ += count;
    return at;
  }
  /// The part of `all` of this kind, if there is room for it.
  template <class Part, class All>
  void add_part(bool is_there, const All& all) {
    if (is_there) add(static_cast<const Part*>(&all));
  }
  void add_forward(const attention::ForwardParameters& all,
                   const attention::ArgumentLayout& layout);
  void add_backward(const attention::BackwardParameters& all,
                    const attention::ArgumentLayout& layout);

  alignas(TensorMap) std::array<char, sizeof(sm90::BackwardArguments)> memory_;
  size_t size_ = 0, alignment_ = alignof(attention::ForwardParameters);
  int* first_batch_ = nullptr;
};
static_assert(sizeof(sm90::BackwardArguments) >= sizeof(sm90::ForwardArguments) &&
              sizeof(sm90::BackwardArguments) >= sizeof(sm80::DecodeArguments));

/// What a kernel's struct takes.
template <class All>
size_t passed_bytes(const attention::ArgumentLayout& layout) {
  return KernelArguments(All{}, layout).size();
}

}  // namespace heddle::engine::cuda
