// Programs written for NVIDIA's cudnn_frontend.h: they include this in its place and link against
// Heddle. namespace cudnn_frontend is heddle::frontend, handles are Heddle's; docs/cudnn.md says
// what runs and what is declined. It stands in for cudnn.h too, which cannot be included beside it.
//
//   #include <heddle/cudnn_frontend.h>      // was: #include <cudnn_frontend.h>
//   namespace fe = cudnn_frontend;
//   cudnnHandle_t handle;
//   cudnnCreate(&handle);                   // of the GPU where there is one, else of the CPU
//   cudnnContext cpu{HEDDLE_CPU};           // or one of the program's own: &cpu is a handle
#pragma once

#if defined(CUDNN_MAJOR)
#error "cudnn.h is included before heddle/cudnn_frontend.h, which declares the same: include one."
#endif

#include <cstdio>
#include <new>
#include <string>

#include "heddle/frontend.h"
#include "heddle/frontend/experimental.h"

namespace cudnn_frontend = heddle::frontend;

// What Heddle's graphs do or decline is what this version of the backend, and of the frontend,
// promises.
#define CUDNN_MAJOR 9
#define CUDNN_MINOR 24
#define CUDNN_PATCHLEVEL 0
#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
#define CUDNN_FRONTEND_MAJOR_VERSION 1
#define CUDNN_FRONTEND_MINOR_VERSION 23
#define CUDNN_FRONTEND_PATCH_VERSION 0
#define CUDNN_FRONTEND_VERSION                                                 \
  (CUDNN_FRONTEND_MAJOR_VERSION * 10000 + CUDNN_FRONTEND_MINOR_VERSION * 100 + \
   CUDNN_FRONTEND_PATCH_VERSION)

// CUDA's runtime and driver have the same name for it.
struct CUstream_st;

/// A device and the stream that work is queued on.
struct cudnnContext : heddle::frontend::Handle {
  using Handle::Handle;
};
using cudnnHandle_t = cudnnContext*;

enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_NOT_INITIALIZED = 1001,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_ALLOC_FAILED = 5003,
};

inline size_t cudnnGetVersion() { return CUDNN_VERSION; }
/// Of CUDA's runtime: the oldest driver that Heddle takes has 12.0.
inline size_t cudnnGetCudartVersion() { return 12000; }

inline const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_ALLOC_FAILED:
      return "CUDNN_STATUS_ALLOC_FAILED";
  }
  return "a status that is none of cudnnStatus_t";
}

namespace heddle::frontend::detail {

inline size_t get_backend_version() { return CUDNN_VERSION; }

/// The sentence of the thread's last failure of a function here.
inline std::string& last_sentence() {
  thread_local std::string sentence;
  return sentence;
}
inline cudnnStatus_t fail(cudnnStatus_t status, std::string sentence) {
  last_sentence() = std::move(sentence);
  return status;
}
inline cudnnStatus_t check_handle(const char* function, const void* handle) {
  if (handle) return CUDNN_STATUS_SUCCESS;
  return fail(CUDNN_STATUS_BAD_PARAM, std::string("The handle of ") + function +
                                          " is null, expected what cudnnCreate gives.");
}

}  // namespace heddle::frontend::detail

/// The sentence of the calling thread's last failure, cut to `size` bytes with the null.
inline void cudnnGetLastErrorString(char* message, size_t size) {
  if (message && size > 0)
    std::snprintf(message, size, "%s", heddle::frontend::detail::last_sentence().c_str());
}

/// A handle of the GPU where there is one, else of the CPU; HEDDLE_DEVICE=cpu or cuda says which.
/// As with CUDA's runtime it is the GPU of the calling thread.
inline cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  using heddle::frontend::detail::fail;
  if (!handle)
    return fail(CUDNN_STATUS_BAD_PARAM, "There is no place for the handle, expected its address.");
  *handle = nullptr;
  heddle_device device = HEDDLE_CPU;
  if (heddle_default_device(&device) != HEDDLE_OK)
    return fail(CUDNN_STATUS_NOT_INITIALIZED, heddle_last_error());
  *handle = new (std::nothrow) cudnnContext(device);
  if (!*handle) return fail(CUDNN_STATUS_ALLOC_FAILED, "The host has no memory for a handle.");
  return CUDNN_STATUS_SUCCESS;
}

/// Ends what cudnnCreate gave. What it queued runs on.
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  const cudnnStatus_t status = heddle::frontend::detail::check_handle("cudnnDestroy", handle);
  delete handle;
  return status;
}

/// What is executed with the handle from now on is queued on this stream, a CUstream or
/// cudaStream_t; a CPU has none.
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream_st* stream) {
  const cudnnStatus_t status = heddle::frontend::detail::check_handle("cudnnSetStream", handle);
  if (status == CUDNN_STATUS_SUCCESS) handle->stream = stream;
  return status;
}

inline cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, CUstream_st** stream) {
  const cudnnStatus_t status = heddle::frontend::detail::check_handle("cudnnGetStream", handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (!stream)
    return heddle::frontend::detail::fail(
        CUDNN_STATUS_BAD_PARAM, "There is no place for the stream, expected its address.");
  *stream = static_cast<CUstream_st*>(handle->stream);
  return status;
}
