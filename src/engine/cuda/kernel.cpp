#include "engine/cuda/kernel.h"

#include <algorithm>
#include <utility>

#include "engine/cuda/relaxed_capture.h"

namespace heddle::engine::cuda {
namespace {

constexpr unsigned kMostLayers = 65535;

/// A driver need not take the code of a compiler that is newer than itself.
Status with_versions(const Status& refused, const Driver& driver) {
  const Result<CompilerVersion> compiler = compiler_version();
  const int major = driver.version / 1000, minor = driver.version % 1000 / 10;
  if (!compiler.is_ok() || std::pair(compiler->major, compiler->minor) <= std::pair(major, minor))
    return refused;
  return error(refused.code(),
               "{}; the driver supports CUDA {}.{}, and {} is NVRTC {}.{}: HEDDLE_NVRTC chooses an "
               "older one",
               refused.message(), major, minor, compiler->library, compiler->major,
               compiler->minor);
}

}  // namespace

Result<std::shared_ptr<const Kernel>> Kernel::load(const Driver& driver, const Device& device,
                                                   const Cubin& cubin, const std::string& name,
                                                   int64_t shared_bytes) {
  if (shared_bytes > device.shared_bytes_per_block) {
    return error(Code::graph_not_supported,
                 "kernel {} needs {} bytes of shared memory; {} allows {} per block", name,
                 shared_bytes, device.name, device.shared_bytes_per_block);
  }
  const RelaxedCapture relaxed(driver);
  CuLibrary library = nullptr;
  if (const Status refused =
          driver.check(driver.library_load_data(&library, cubin.image.data(), nullptr, nullptr, 0,
                                                nullptr, nullptr, 0),
                       "cuLibraryLoadData");
      !refused.is_ok())
    return with_versions(refused, driver);
  CuKernel kernel = nullptr;
  Status status =
      driver.check(driver.library_get_kernel(&kernel, library, name.c_str()), "cuLibraryGetKernel");
  if (status.is_ok() && shared_bytes > 0) {
    status = driver.check(
        driver.kernel_set_attribute(KernelAttribute::max_dynamic_shared_bytes,
                                    static_cast<int>(shared_bytes), kernel, device.handle),
        "cuKernelSetAttribute");
  }
  if (!status.is_ok()) {
    (void)driver.library_unload(library);
    return status;
  }
  return std::shared_ptr<const Kernel>(new Kernel(driver, library, kernel, name));
}

Kernel::~Kernel() { (void)driver_.library_unload(library_); }

Status Kernel::launch(const Launch& launch, Queue& queue, std::span<void*> parameters,
                      int* first_layer) const {
  if (launch.is_empty()) return {};
  if (!first_layer) return queue.launch(*this, launch, parameters);
  Launch part = launch;
  for (unsigned first = 0; first < launch.grid_z; first += part.grid_z) {
    *first_layer = static_cast<int>(first);
    part.grid_z = std::min(launch.grid_z - first, kMostLayers);
    HEDDLE_TRY(queue.launch(*this, part, parameters));
  }
  return {};
}

}  // namespace heddle::engine::cuda
