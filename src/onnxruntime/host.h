// The session's side of a call: its failures as Status and ours as its own, and memory of its
// allocator.
#pragma once

#include <memory>

#include "core/status.h"
#include "onnxruntime/abi.h"

namespace heddle::onnxruntime {

/// Takes the failure over; an ok Status for null.
Status status_from(const abi::Api& api, abi::Status* status);
/// Null for an ok Status, which is how the host is told of success.
abi::Status* status_for(const abi::Api& api, const Status& status) noexcept;

/// Runs `body`, which returns a Status; an exception becomes a failure like any other.
template <class Body>
abi::Status* guarded(const abi::Api& api, Body&& body) noexcept {
  try {
    return status_for(api, body());
  } catch (const std::bad_alloc&) {
    return api.create_status(abi::ErrorCode::fail, "There was not enough memory.");
  } catch (const std::exception& exception) {
    return api.create_status(abi::ErrorCode::fail, exception.what());
  }
}

struct ReleaseAllocator {
  const abi::Api* api;
  void operator()(abi::Allocator* allocator) const { api->release_allocator(allocator); }
};
using AllocatorHandle = std::unique_ptr<abi::Allocator, ReleaseAllocator>;

/// Memory of the session's allocator for one run of a node.
class Scratch {
 public:
  /// Where `near` lies, of the host.
  static Result<Scratch> allocate(const abi::Api& api, const abi::KernelContext* context,
                                  const abi::Value* near, size_t bytes);
  /// Of a GPU, whose allocator this is: for what is queued on the node's stream, so that it may be
  /// given back before that has run.
  static Result<Scratch> allocate_on_stream(const abi::Api& api, const abi::KernelContext* context,
                                            abi::Allocator* allocator, size_t bytes);
  void* memory() const { return memory_.get(); }

 private:
  struct FreeMemory {
    abi::Allocator* allocator;
    void operator()(void* memory) const { allocator->free(allocator, memory); }
  };
  using Memory = std::unique_ptr<void, FreeMemory>;

  Scratch(AllocatorHandle allocator, Memory memory)
      : allocator_(std::move(allocator)), memory_(std::move(memory)) {}

  AllocatorHandle allocator_;  ///< of the host
  Memory memory_;              // goes first
};

}  // namespace heddle::onnxruntime
