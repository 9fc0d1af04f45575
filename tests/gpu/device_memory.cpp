#include "gpu/device_memory.h"

#include <cstdlib>

#include "engine/cuda/device.h"
#include "gpu/driver_library.h"

namespace heddle::testing {
namespace {

using engine::cuda::CuContext;
using engine::cuda::CuDevice;
using engine::cuda::CuResult;
using CuDevicePointer = uint64_t;

struct MemoryApi {
  CuResult (*context_set_flags)(CuDevice, unsigned flags);
  CuResult (*context_retain)(CuContext*, CuDevice);
  CuResult (*context_release)(CuDevice);
  CuResult (*context_set_current)(CuContext);
  CuResult (*context_synchronise)();
  CuResult (*allocate)(CuDevicePointer*, size_t);
  CuResult (*free)(CuDevicePointer);
  CuResult (*get_info)(size_t* free, size_t* all);
  CuResult (*to_device)(CuDevicePointer, const void*, size_t);
  CuResult (*to_host)(void*, CuDevicePointer, size_t);
  CuResult (*set)(CuDevicePointer, unsigned char, size_t);
  CuResult (*set_columns)(CuDevicePointer, size_t pitch, unsigned char, size_t width, size_t rows);
};

Result<MemoryApi> load_memory_api() {
  using engine::cuda::bind;
  HEDDLE_ASSIGN(const engine::cuda::SharedObject library, driver_library());
  MemoryApi api{};
  HEDDLE_TRY(bind(library, "cuDevicePrimaryCtxSetFlags_v2", api.context_set_flags));
  HEDDLE_TRY(bind(library, "cuDevicePrimaryCtxRetain", api.context_retain));
  HEDDLE_TRY(bind(library, "cuDevicePrimaryCtxRelease_v2", api.context_release));
  HEDDLE_TRY(bind(library, "cuCtxSetCurrent", api.context_set_current));
  HEDDLE_TRY(bind(library, "cuCtxSynchronize", api.context_synchronise));
  HEDDLE_TRY(bind(library, "cuMemAlloc_v2", api.allocate));
  HEDDLE_TRY(bind(library, "cuMemFree_v2", api.free));
  HEDDLE_TRY(bind(library, "cuMemGetInfo_v2", api.get_info));
  HEDDLE_TRY(bind(library, "cuMemcpyHtoD_v2", api.to_device));
  HEDDLE_TRY(bind(library, "cuMemcpyDtoH_v2", api.to_host));
  HEDDLE_TRY(bind(library, "cuMemsetD8_v2", api.set));
  HEDDLE_TRY(bind(library, "cuMemsetD2D8_v2", api.set_columns));
  return api;
}

const Result<MemoryApi>& memory_api() {
  static const Result<MemoryApi> api = load_memory_api();
  return api;
}

}  // namespace

DeviceContext::DeviceContext() {
  status_ = engine::cuda::driver().status();
  if (status_.is_ok()) status_ = memory_api().status();
  if (!status_.is_ok()) return;
  // Threads that wait for the GPU leave their cores to those that compile; where this is refused,
  // they do not.
  constexpr unsigned kBlockingSync = 4;
  (void)memory_api()->context_set_flags(device_, kBlockingSync);
  CuContext context = nullptr;
  status_ = check(memory_api()->context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
  if (status_.is_ok())
    status_ = check(memory_api()->context_set_current(context), "cuCtxSetCurrent");
  context_ = context;
  if (!status_.is_ok()) return;
  const Result<engine::cuda::Device> device = engine::cuda::current_device(*engine::cuda::driver());
  status_ = device.status();
  if (device.is_ok()) name_ = device->name;
}

DeviceContext::~DeviceContext() {
  if (context_) memory_api()->context_release(device_);
}

Status DeviceContext::make_current() const {
  return check(memory_api()->context_set_current(static_cast<CuContext>(context_)),
               "cuCtxSetCurrent");
}

Status DeviceContext::synchronise() const {
  return check(memory_api()->context_synchronise(), "cuCtxSynchronize");
}

int64_t DeviceContext::free_bytes() const {
  size_t free = 0, all = 0;
  return memory_api()->get_info(&free, &all) == engine::cuda::kCudaSuccess
             ? static_cast<int64_t>(free)
             : 0;
}

DeviceProgram::DeviceProgram(Program& program) : program_(program) {
  for (const graph::Tensor& tensor : program.graph.tensors) {
    const auto block = program.memory.find(tensor.uid);
    if (block == program.memory.end()) continue;
    if (tensor.pass_by_value) {
      pointers_[tensor.uid] = block->second.data();
      continue;
    }
    CuDevicePointer address = 0;
    const auto bytes = static_cast<size_t>(block->second.size());
    status_ = check(memory_api()->allocate(&address, bytes), "cuMemAlloc");
    if (status_.is_ok())
      status_ =
          check(memory_api()->to_device(address, block->second.data(), bytes), "cuMemcpyHtoD");
    if (!status_.is_ok()) return;
    allocations_[tensor.uid] = address;
    pointers_[tensor.uid] = reinterpret_cast<void*>(address);
  }
  for (const auto& [uid, other] : program.in_place) pointers_[uid] = pointer(other);
}

DeviceProgram::~DeviceProgram() {
  for (const auto& [uid, address] : allocations_) memory_api()->free(address);
}

std::vector<api::Binding> DeviceProgram::bindings(const api::Executable& executable) const {
  std::vector<api::Binding> bindings;
  for (const auto* ports : {&executable.inputs(), &executable.outputs()}) {
    for (const api::Port& port : *ports) bindings.push_back({port.uid, pointer(port.uid)});
  }
  return bindings;
}

Status DeviceProgram::copy_back() {
  for (const auto& [uid, address] : allocations_) {
    Block& block = program_.memory.at(uid);
    HEDDLE_TRY(
        check(memory_api()->to_host(block.data(), address, static_cast<size_t>(block.size())),
              "cuMemcpyDtoH"));
  }
  return {};
}

DeviceBlock::DeviceBlock(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes > 0 ? bytes : 1);
  if (memory_api()->allocate(&address_, size) != engine::cuda::kCudaSuccess) return;
  // The sanitizer's initcheck finds reads of what nothing wrote, poison included. Written are eight
  // bytes of each 256 nevertheless: the counter of tiles, which lies so, is taken over whatever it
  // holds, and that is a read.
  if (std::getenv("HEDDLE_GPU_UNSET_WORKSPACE")) {
    memory_api()->set_columns(address_, 256, kPoison, 8, size / 256);
  } else {
    memory_api()->set(address_, kPoison, size);
  }
  // Streams that do not wait for the default one would find it half done.
  memory_api()->context_synchronise();
}

Status DeviceBlock::copy_to(void* host, int64_t bytes, int64_t offset) const {
  return check(memory_api()->to_host(host, address_ + static_cast<uint64_t>(offset),
                                     static_cast<size_t>(bytes)),
               "cuMemcpyDtoH");
}

Status DeviceBlock::copy_from(const void* host, int64_t bytes, int64_t offset) const {
  return check(memory_api()->to_device(address_ + static_cast<uint64_t>(offset), host,
                                       static_cast<size_t>(bytes)),
               "cuMemcpyHtoD");
}

DeviceBlock::~DeviceBlock() {
  if (address_) memory_api()->free(address_);
}

}  // namespace heddle::testing
