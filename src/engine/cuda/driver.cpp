#include "engine/cuda/driver.h"

#include <array>
#include <string>

#include "engine/cuda/shared_object.h"

namespace heddle::engine::cuda {
namespace {

// cuLibrary*, cuKernel* and context-free loading came with 12.0.
constexpr int kOldestDriver = 12000;
constexpr int kOldestWithProgrammaticEdges = 12030;

Result<Driver> load_driver() {
  const std::array<std::string, 2> names{"libcuda.so.1", "libcuda.so"};
  HEDDLE_ASSIGN(const SharedObject library, SharedObject::open("the NVIDIA driver", names));
  Driver driver{};
  HEDDLE_TRY(bind(library, "cuInit", driver.init));
  HEDDLE_TRY(bind(library, "cuDriverGetVersion", driver.driver_get_version));
  HEDDLE_TRY(bind(library, "cuGetErrorString", driver.get_error_string));
  HEDDLE_TRY(driver.check(driver.init(0), "cuInit"));
  HEDDLE_TRY(driver.check(driver.driver_get_version(&driver.version), "cuDriverGetVersion"));
  if (driver.version < kOldestDriver) {
    return error(Code::cuda_api_failed,
                 "the NVIDIA driver supports CUDA {}.{}; Heddle needs 12.0 or newer",
                 driver.version / 1000, driver.version % 1000 / 10);
  }
  HEDDLE_TRY(bind(library, "cuDeviceGetCount", driver.device_get_count));
  HEDDLE_TRY(bind(library, "cuDeviceGet", driver.device_get));
  HEDDLE_TRY(bind(library, "cuDeviceGetName", driver.device_get_name));
  HEDDLE_TRY(bind(library, "cuDeviceGetAttribute", driver.device_get_attribute));
  HEDDLE_TRY(bind(library, "cuCtxGetCurrent", driver.context_get_current));
  HEDDLE_TRY(bind(library, "cuCtxGetDevice", driver.context_get_device));
  HEDDLE_TRY(bind(library, "cuCtxGetId", driver.context_get_id));
  HEDDLE_TRY(bind(library, "cuLibraryLoadData", driver.library_load_data));
  HEDDLE_TRY(bind(library, "cuLibraryGetKernel", driver.library_get_kernel));
  HEDDLE_TRY(bind(library, "cuKernelSetAttribute", driver.kernel_set_attribute));
  HEDDLE_TRY(bind(library, "cuLaunchKernelEx", driver.launch_kernel));
  HEDDLE_TRY(bind(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode));
  HEDDLE_TRY(bind(library, "cuStreamIsCapturing", driver.stream_is_capturing));
  HEDDLE_TRY(bind(library, "cuGraphCreate", driver.graph_create));
  HEDDLE_TRY(bind(library, "cuGraphDestroy", driver.graph_destroy));
  HEDDLE_TRY(bind(library, "cuGraphAddKernelNode_v2", driver.graph_add_kernel_node));
  if (driver.version >= kOldestWithProgrammaticEdges) {
    HEDDLE_TRY(bind(library, "cuGraphAddDependencies_v2", driver.graph_add_dependencies));
  }
  HEDDLE_TRY(bind(library, "cuGraphInstantiateWithFlags", driver.graph_instantiate));
  HEDDLE_TRY(bind(library, "cuGraphExecDestroy", driver.graph_executable_destroy));
  HEDDLE_TRY(bind(library, "cuGraphExecKernelNodeSetParams_v2", driver.graph_set_kernel_node));
  HEDDLE_TRY(bind(library, "cuGraphLaunch", driver.graph_launch));
  HEDDLE_TRY(bind(library, "cuTensorMapEncodeTiled", driver.tensor_map_encode_tiled));
  return driver;
}

}  // namespace

Status Driver::check(CuResult result, const char* call) const {
  if (result == kCudaSuccess) return {};
  const char* words = nullptr;
  get_error_string(result, &words);
  return error(Code::cuda_api_failed, "{} failed: {} (CUDA error {})", call,
               words ? words : "unknown error", result);
}

const Result<Driver>& driver() {
  static const Result<Driver> loaded = load_driver();
  return loaded;
}

Result<Device> describe(const Driver& driver, CuDevice handle) {
  Device device{.handle = handle};
  std::array<char, 256> name{};
  HEDDLE_TRY(
      driver.check(driver.device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle),
                   "cuDeviceGetName"));
  device.name = name.data();
  auto attribute = [&](DeviceAttribute which, auto& value) {
    int read = 0;
    Status status =
        driver.check(driver.device_get_attribute(&read, which, handle), "cuDeviceGetAttribute");
    value = read;
    return status;
  };
  int major = 0, minor = 0;
  HEDDLE_TRY(attribute(DeviceAttribute::compute_capability_major, major));
  HEDDLE_TRY(attribute(DeviceAttribute::compute_capability_minor, minor));
  HEDDLE_TRY(attribute(DeviceAttribute::multiprocessor_count, device.multiprocessors));
  HEDDLE_TRY(
      attribute(DeviceAttribute::max_shared_memory_per_block_optin, device.shared_bytes_per_block));
  device.compute_capability = major * 10 + minor;
  return device;
}

bool is_supported(const Device& device) { return device.compute_capability >= 80; }

Result<Device> current_device(const Driver& driver) {
  CuContext context = nullptr;
  HEDDLE_TRY(driver.check(driver.context_get_current(&context), "cuCtxGetCurrent"));
  CuDevice handle = 0;
  if (context) {
    HEDDLE_TRY(driver.check(driver.context_get_device(&handle), "cuCtxGetDevice"));
  } else {
    int count = 0;
    HEDDLE_TRY(driver.check(driver.device_get_count(&count), "cuDeviceGetCount"));
    if (count == 0) return error(Code::invalid_cuda_device, "the NVIDIA driver reports no device");
    HEDDLE_TRY(driver.check(driver.device_get(&handle, 0), "cuDeviceGet"));
  }
  return describe(driver, handle);
}

}  // namespace heddle::engine::cuda
