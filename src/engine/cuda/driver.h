// The CUDA driver's functions Heddle calls, loaded from libcuda on first use.
#pragma once

#include "core/status.h"
#include "engine/cuda/cuda_types.h"

namespace heddle::engine::cuda {

struct Driver {
  int version;  ///< of CUDA that it supports: 12040 is 12.4
  CuResult (*init)(unsigned flags);
  CuResult (*driver_get_version)(int* version);
  CuResult (*get_error_string)(CuResult, const char** text);
  CuResult (*device_get_count)(int* count);
  CuResult (*device_get)(CuDevice*, int ordinal);
  CuResult (*device_get_name)(char* name, int length, CuDevice);
  CuResult (*device_get_attribute)(int* value, DeviceAttribute, CuDevice);
  CuResult (*context_get_current)(CuContext*);
  CuResult (*context_get_device)(CuDevice*);
  CuResult (*context_get_id)(CuContext, unsigned long long* id);
  CuResult (*context_set_current)(CuContext);
  CuResult (*primary_context_retain)(CuContext*, CuDevice);
  CuResult (*memory_pool_create)(CuMemoryPool*, const MemoryPoolProperties*);
  CuResult (*memory_pool_destroy)(CuMemoryPool);
  CuResult (*memory_pool_set_attribute)(CuMemoryPool, MemoryPoolAttribute, void* value);
  CuResult (*memory_allocate)(CuDevicePointer*, size_t bytes, CuMemoryPool, CuStream);
  CuResult (*memory_free)(CuDevicePointer, CuStream);
  CuResult (*copy_to_device)(CuDevicePointer, const void* host, size_t bytes, CuStream);
  CuResult (*copy_to_host)(void* host, CuDevicePointer, size_t bytes, CuStream);
  CuResult (*copy_on_device)(CuDevicePointer to, CuDevicePointer from, size_t bytes, CuStream);
  CuResult (*memory_set)(CuDevicePointer, unsigned char, size_t bytes, CuStream);
  CuResult (*stream_synchronize)(CuStream);
  CuResult (*event_create)(CuEvent*, unsigned flags);
  CuResult (*event_destroy)(CuEvent);
  CuResult (*event_record)(CuEvent, CuStream);
  CuResult (*event_query)(CuEvent);
  CuResult (*event_synchronize)(CuEvent);
  CuResult (*event_elapsed_time)(float* milliseconds, CuEvent from, CuEvent to);
  CuResult (*library_load_data)(CuLibrary*, const void* code, void*, void**, unsigned, void*,
                                void**, unsigned);
  CuResult (*library_get_kernel)(CuKernel*, CuLibrary, const char* name);
  CuResult (*kernel_set_attribute)(KernelAttribute, int value, CuKernel, CuDevice);
  CuResult (*launch_kernel)(const LaunchConfig*, CuKernel, void** parameters, void** extra);
  CuResult (*exchange_capture_mode)(CaptureMode*);
  CuResult (*stream_is_capturing)(CuStream, int* status);
  CuResult (*graph_create)(CuGraph*, unsigned flags);
  CuResult (*graph_destroy)(CuGraph);
  CuResult (*graph_add_kernel_node)(CuGraphNode*, CuGraph, const CuGraphNode* dependencies, size_t,
                                    const KernelNode*);
  CuResult (*graph_set_node_attribute)(CuGraphNode, LaunchAttributeId, const LaunchAttributeValue*);
  /// Of CUDA 12.3, null before.
  CuResult (*graph_add_dependencies)(CuGraph, const CuGraphNode* from, const CuGraphNode* to,
                                     const GraphEdge*, size_t count);
  CuResult (*graph_instantiate)(CuGraphExec*, CuGraph, unsigned long long flags);
  CuResult (*graph_executable_destroy)(CuGraphExec);
  CuResult (*graph_set_kernel_node)(CuGraphExec, CuGraphNode, const KernelNode*);
  CuResult (*graph_launch)(CuGraphExec, CuStream);
  CuResult (*tensor_map_encode_tiled)(TensorMap*, TensorMapType, unsigned rank, void* address,
                                      const uint64_t* dims, const uint64_t* stride_bytes,
                                      const unsigned* box, const unsigned* element_strides,
                                      int interleave, TensorMapSwizzle, TensorMapPromotion,
                                      int out_of_bounds_fill);

  /// A driver call's result as a Status: "cuLibraryLoadData failed: <the driver's own words>".
  Status check(CuResult result, const char* call) const;
};

/// The loaded and initialised driver, or why there is none (the same answer every time).
const Result<Driver>& driver();

}  // namespace heddle::engine::cuda
