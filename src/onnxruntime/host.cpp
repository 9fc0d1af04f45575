#include "onnxruntime/host.h"

namespace heddle::onnxruntime {
namespace {

abi::ErrorCode error_code(Code code) {
  switch (code) {
    case Code::graph_not_supported:
    case Code::graph_execution_plan_creation_failed:
      return abi::ErrorCode::not_implemented;
    case Code::out_of_memory:
    case Code::graph_execution_failed:
    case Code::cuda_api_failed:
    case Code::nvrtc_compilation_failed:
      return abi::ErrorCode::fail;
    default:
      return abi::ErrorCode::invalid_argument;
  }
}

Status no_memory(size_t bytes) {
  return error(Code::out_of_memory,
               "The session's allocator has no {} bytes for the workspace of a node.", bytes);
}

}  // namespace

Status status_from(const abi::Api& api, abi::Status* status) {
  if (!status) return {};
  const std::unique_ptr<abi::Status, void (*)(abi::Status*)> owned(status, api.release_status);
  return {Code::invalid_value, api.get_error_message(status)};
}

abi::Status* status_for(const abi::Api& api, const Status& status) noexcept {
  if (status.is_ok()) return nullptr;
  return api.create_status(error_code(status.code()), status.message().c_str());
}

Result<Scratch> Scratch::allocate(const abi::Api& api, const abi::KernelContext* context,
                                  const abi::Value* near, size_t bytes) {
  const abi::MemoryInfo* place;
  HEDDLE_TRY(status_from(api, api.get_tensor_memory_info(near, &place)));
  abi::Allocator* allocator;
  HEDDLE_TRY(status_from(api, api.get_allocator(context, place, &allocator)));
  AllocatorHandle owned(allocator, {&api});
  Memory memory(allocator->alloc(allocator, bytes), {allocator});
  if (!memory) return no_memory(bytes);
  return Scratch(std::move(owned), std::move(memory));
}

// The allocator's own function does not know the stream, and would lend the memory to another while
// this one still uses it.
Result<Scratch> Scratch::allocate_on_stream(const abi::Api& api, const abi::KernelContext* context,
                                            abi::Allocator* allocator, size_t bytes) {
  void* made = nullptr;
  HEDDLE_TRY(
      status_from(api, api.get_scratch_buffer(context, allocator->info(allocator), bytes, &made)));
  Memory memory(made, {allocator});
  if (!memory) return no_memory(bytes);
  return Scratch({nullptr, {&api}}, std::move(memory));
}

}  // namespace heddle::onnxruntime
