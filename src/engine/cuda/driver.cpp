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
  HEDDLE_TRY(bind(library, "cuCtxSetCurrent", driver.context_set_current));
  HEDDLE_TRY(bind(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain));
  HEDDLE_TRY(bind(library, "cuMemPoolCreate", driver.memory_pool_create));
  HEDDLE_TRY(bind(library, "cuMemPoolDestroy", driver.memory_pool_destroy));
  HEDDLE_TRY(bind(library, "cuMemPoolSetAttribute", driver.memory_pool_set_attribute));
  HEDDLE_TRY(bind(library, "cuMemAllocFromPoolAsync", driver.memory_allocate));
  HEDDLE_TRY(bind(library, "cuMemFreeAsync", driver.memory_free));
  HEDDLE_TRY(bind(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device));
  HEDDLE_TRY(bind(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host));
  HEDDLE_TRY(bind(library, "cuMemcpyDtoDAsync_v2", driver.copy_on_device));
  HEDDLE_TRY(bind(library, "cuMemsetD8Async", driver.memory_set));
  HEDDLE_TRY(bind(library, "cuStreamSynchronize", driver.stream_synchronize));
  HEDDLE_TRY(bind(library, "cuEventCreate", driver.event_create));
  HEDDLE_TRY(bind(library, "cuEventDestroy_v2", driver.event_destroy));
  HEDDLE_TRY(bind(library, "cuEventRecord", driver.event_record));
  HEDDLE_TRY(bind(library, "cuEventQuery", driver.event_query));
  HEDDLE_TRY(bind(library, "cuEventSynchronize", driver.event_synchronize));
  HEDDLE_TRY(bind(library, "cuEventElapsedTime", driver.event_elapsed_time));
  HEDDLE_TRY(bind(library, "cuLibraryLoadData", driver.library_load_data));
  HEDDLE_TRY(bind(library, "cuLibraryGetKernel", driver.library_get_kernel));
  HEDDLE_TRY(bind(library, "cuKernelSetAttribute", driver.kernel_set_attribute));
  HEDDLE_TRY(bind(library, "cuLaunchKernelEx", driver.launch_kernel));
  HEDDLE_TRY(bind(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode));
  HEDDLE_TRY(bind(library, "cuStreamIsCapturing", driver.stream_is_capturing));
  HEDDLE_TRY(bind(library, "cuGraphCreate", driver.graph_create));
  HEDDLE_TRY(bind(library, "cuGraphDestroy", driver.graph_destroy));
  HEDDLE_TRY(bind(library, "cuGraphAddKernelNode_v2", driver.graph_add_kernel_node));
  HEDDLE_TRY(bind(library, "cuGraphKernelNodeSetAttribute", driver.graph_set_node_attribute));
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

}  // namespace heddle::engine::cuda
