// The few types and constants of the CUDA driver's and NVRTC's C interfaces that Heddle uses,
// declared here so that no CUDA toolkit is needed to build. Values are fixed by those interfaces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx/tensor_map.h"

namespace heddle::engine::cuda {

using CuResult = int;  ///< 0 is success
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuLibrary = struct CuLibraryObject*;
using CuKernel = struct CuKernelObject*;
using CuGraph = struct CuGraphObject*;
using CuGraphExec = struct CuGraphExecObject*;
using CuGraphNode = struct CuGraphNodeObject*;
using CuMemoryPool = struct CuMemoryPoolObject*;
using CuDevicePointer = uint64_t;
using NvrtcProgram = struct NvrtcProgramObject*;

inline constexpr CuResult kCudaSuccess = 0, kCudaOutOfMemory = 2, kCudaNotReady = 600;

/// CUdevice_attribute, those used.
enum class DeviceAttribute : int {
  multiprocessor_count = 16,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
};

/// CUfunction_attribute, the one used.
enum class KernelAttribute : int {
  max_dynamic_shared_bytes = 8,
};

/// CUstreamCaptureMode, the one asked for: what a thread may do while one of its streams is
/// captured.
enum class CaptureMode : int { relaxed = 2 };

/// CUlaunchAttributeID, those used.
enum class LaunchAttributeId : int {
  cooperative = 2,
  cluster_dimension = 4,
  programmatic_stream_serialization = 6
};

/// CUlaunchAttributeValue.
union LaunchAttributeValue {
  char bytes[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } cluster;
  int programmatic_stream_serialization_allowed;
};

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  LaunchAttributeValue value;
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

/// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
  void* function;  ///< null: `kernel` is launched
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** parameters;
  void** extra;
  CuKernel kernel;
  CuContext context;
};

/// CUgraphEdgeData: that a node waits for the end of another.
struct GraphEdge {
  unsigned char from_port, to_port, type;
  unsigned char reserved[5];
};
/// That a kernel may begin where the one before it lets its dependents begin.
inline constexpr GraphEdge kProgrammaticEdge{
    .from_port = 1, .to_port = 0, .type = 1, .reserved = {}};

/// CUmemPoolProps, of a device's own memory.
struct MemoryPoolProperties {
  int allocation_type = 1;  ///< pinned: the only one there is
  int handle_types = 0;
  int location_type = 1;  ///< a device
  int location_id;
  void* security_attributes = nullptr;
  unsigned char reserved[64] =
      {};  ///< the first eight of them the most bytes, since 12.3; 0 is all
};
static_assert(sizeof(MemoryPoolProperties) == 88);

/// CUmemPool_attribute, the one used: how many bytes stay with a pool that are not allocated.
enum class MemoryPoolAttribute : int { release_threshold = 4 };

/// CUtensorMap: what the tensor memory accelerator reads; passed to kernels by value.
using heddle::TensorMap;
static_assert(sizeof(TensorMap) == 128);

/// CUtensorMapDataType, -Interleave, -Swizzle, -L2promotion, -FloatOOBfill: those used.
enum class TensorMapType : int { uint8 = 0, float16 = 6, float32 = 7, bfloat16 = 9 };
enum class TensorMapSwizzle : int { bytes128 = 3 };
enum class TensorMapPromotion : int { bytes256 = 3 };

}  // namespace heddle::engine::cuda
