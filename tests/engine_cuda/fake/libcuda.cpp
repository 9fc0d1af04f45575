// A driver without a GPU: takes what the real one takes, refuses what it refuses, runs nothing. The
// tests of plans load it as libcuda.so.1.
//   FAKE_CUDA_VERSION     what cuDriverGetVersion says, else 13000
//   FAKE_CUDA_CAPABILITY  of the one device, else 90
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>

#include "engine/cuda/cuda_types.h"
#include "engine_cuda/fake/calls.h"

using namespace heddle::engine::cuda;

namespace {

constexpr CuResult kInvalidValue = 1;

heddle::testing::FakeCudaCalls calls;

struct Kernel {
  unsigned shared_allowed = 48 * 1024;
};
/// A library has as many kernels as were asked for.
using Library = std::list<Kernel>;

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

}  // namespace

extern "C" {

heddle::testing::FakeCudaCalls* fake_cuda_calls() { return &calls; }

CuResult cuInit(unsigned) { return kCudaSuccess; }
CuResult cuDriverGetVersion(int* version) {
  *version = from_environment("FAKE_CUDA_VERSION", 13000);
  return kCudaSuccess;
}
CuResult cuGetErrorString(CuResult, const char** text) {
  *text = "invalid argument";
  return kCudaSuccess;
}
CuResult cuDeviceGetCount(int* count) {
  *count = 1;
  return kCudaSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int) {
  *device = 0;
  return kCudaSuccess;
}
CuResult cuDeviceGetName(char* name, int length, CuDevice) {
  std::strncpy(name, "No GPU", static_cast<size_t>(length));
  return kCudaSuccess;
}
CuResult cuDeviceGetAttribute(int* value, DeviceAttribute attribute, CuDevice) {
  const int capability = from_environment("FAKE_CUDA_CAPABILITY", 90);
  switch (attribute) {
    case DeviceAttribute::multiprocessor_count:
      *value = 132;
      return kCudaSuccess;
    case DeviceAttribute::compute_capability_major:
      *value = capability / 10;
      return kCudaSuccess;
    case DeviceAttribute::compute_capability_minor:
      *value = capability % 10;
      return kCudaSuccess;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      *value = 227 * 1024;
      return kCudaSuccess;
  }
  return kInvalidValue;
}
CuResult cuCtxGetCurrent(CuContext* context) {
  *context = nullptr;
  return kCudaSuccess;
}
CuResult cuCtxGetDevice(CuDevice* device) {
  *device = 0;
  return kCudaSuccess;
}
CuResult cuLibraryLoadData(CuLibrary* library, const void*, void*, void**, unsigned, void*, void**,
                           unsigned) {
  ++calls.libraries;
  *library = reinterpret_cast<CuLibrary>(new Library);
  return kCudaSuccess;
}
CuResult cuLibraryUnload(CuLibrary library) {
  --calls.libraries;
  delete reinterpret_cast<Library*>(library);
  return kCudaSuccess;
}
CuResult cuLibraryGetKernel(CuKernel* kernel, CuLibrary library, const char*) {
  *kernel = reinterpret_cast<CuKernel>(&reinterpret_cast<Library*>(library)->emplace_back());
  return kCudaSuccess;
}
CuResult cuKernelSetAttribute(KernelAttribute attribute, int value, CuKernel kernel, CuDevice) {
  if (attribute != KernelAttribute::max_dynamic_shared_bytes || value < 0 || value > 227 * 1024)
    return kInvalidValue;
  reinterpret_cast<Kernel*>(kernel)->shared_allowed = static_cast<unsigned>(value);
  return kCudaSuccess;
}
CuResult cuLaunchKernelEx(const LaunchConfig* launch, CuKernel kernel, void**, void**) {
  const bool grid = launch->grid_x >= 1 && launch->grid_x <= INT32_MAX && launch->grid_y >= 1 &&
                    launch->grid_y <= 65535 && launch->grid_z >= 1 && launch->grid_z <= 65535;
  const unsigned threads = launch->block_x * launch->block_y * launch->block_z;
  if (!grid || threads < 1 || threads > 1024 ||
      launch->shared_bytes > reinterpret_cast<Kernel*>(kernel)->shared_allowed)
    return kInvalidValue;
  ++calls.launches;
  return kCudaSuccess;
}
CuResult cuThreadExchangeStreamCaptureMode(CaptureMode*) { return kCudaSuccess; }
CuResult cuMemsetD32Async(CuDevicePointer at, unsigned value, size_t words, CuStream) {
  if (at % 4 != 0 || (at == 0 && words > 0)) return kInvalidValue;
  calls.filled = value;
  ++calls.memsets;
  return kCudaSuccess;
}
CuResult cuTensorMapEncodeTiled(TensorMap*, TensorMapType, unsigned rank, void* address,
                                const uint64_t* dims, const uint64_t* stride_bytes,
                                const unsigned* box, const unsigned*, int, TensorMapSwizzle,
                                TensorMapPromotion, int) {
  if (rank < 1 || rank > 5 || !address || reinterpret_cast<uintptr_t>(address) % 16 != 0)
    return kInvalidValue;
  for (unsigned d = 0; d < rank; ++d) {
    if (dims[d] < 1 || dims[d] > (uint64_t{1} << 32) || box[d] < 1 || box[d] > 256)
      return kInvalidValue;
    if (d + 1 < rank && (stride_bytes[d] % 16 != 0 || stride_bytes[d] >= uint64_t{1} << 40))
      return kInvalidValue;
  }
  ++calls.maps;
  return kCudaSuccess;
}

}  // extern "C"
