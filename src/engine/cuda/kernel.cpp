#include "engine/cuda/kernel.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "engine/cuda/relaxed_capture.h"

namespace heddle::engine::cuda {
namespace {

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

struct Library {
  CuLibrary handle = nullptr;
  std::map<std::pair<CuKernel, CuDevice>, int64_t> shared_bytes;  ///< allowed, where some are
};

Status load_library(const Driver& driver, const Cubin& cubin, Library& library) {
  if (library.handle) return {};
  const Status status =
      driver.check(driver.library_load_data(&library.handle, cubin.image.data(), nullptr, nullptr,
                                            0, nullptr, nullptr, 0),
                   "cuLibraryLoadData");
  return status.is_ok() ? status : with_versions(status, driver);
}

/// Plans of the same kernel need not say the same number: none may lower another's.
Status allow_shared(const Driver& driver, const Device& device, CuKernel kernel, int64_t bytes,
                    Library& library) {
  int64_t& allowed = library.shared_bytes[{kernel, device.handle}];
  if (bytes <= allowed) return {};
  HEDDLE_TRY(
      driver.check(driver.kernel_set_attribute(KernelAttribute::max_dynamic_shared_bytes,
                                               static_cast<int>(bytes), kernel, device.handle),
                   "cuKernelSetAttribute"));
  allowed = bytes;
  return {};
}

}  // namespace

Result<std::shared_ptr<const Kernel>> Kernel::load(const Driver& driver, const Device& device,
                                                   const std::shared_ptr<const Cubin>& cubin,
                                                   const std::string& name, int64_t shared_bytes) {
  if (shared_bytes > device.shared_bytes_per_block) {
    return error(Code::graph_not_supported,
                 "kernel {} needs {} bytes of shared memory; {} allows {} per block", name,
                 shared_bytes, device.name, device.shared_bytes_per_block);
  }
  // Not destroyed: the driver may be gone when the process ends.
  static std::mutex mutex;
  static auto& libraries = *new std::map<std::shared_ptr<const Cubin>, Library>;

  const RelaxedCapture relaxed(driver);
  const std::lock_guard lock(mutex);
  Library& library = libraries[cubin];
  HEDDLE_TRY(load_library(driver, *cubin, library));
  CuKernel kernel = nullptr;
  HEDDLE_TRY(driver.check(driver.library_get_kernel(&kernel, library.handle, name.c_str()),
                          "cuLibraryGetKernel"));
  HEDDLE_TRY(allow_shared(driver, device, kernel, shared_bytes, library));
  return std::shared_ptr<const Kernel>(new Kernel(kernel, name));
}

Status Kernel::launch(const Launch& launch, Queue& queue, std::span<void*> parameters,
                      int* first_layer) const {
  if (launch.is_empty()) return {};
  if (!first_layer) return queue.launch(*this, launch, parameters);
  Launch part = launch;
  for (unsigned first = 0; first < launch.grid_z; first += part.grid_z) {
    *first_layer = static_cast<int>(first);
    part.grid_z = std::min(launch.grid_z - first, static_cast<unsigned>(kMostBlocksAcross));
    HEDDLE_TRY(queue.launch(*this, part, parameters));
  }
  return {};
}

}  // namespace heddle::engine::cuda
