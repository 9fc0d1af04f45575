// CUDA graphs of a program's own: a call's launches put into one, and its nodes given another
// call's arguments.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "heddle/frontend/driver.h"

// CUDA's runtime and driver have the same name for it.
struct CUgraph_st;

namespace heddle::frontend::detail {

/// Adds to the graph what `queue`, a function of a CUstream, launches.
template <class Queue>
error_t capture(CUgraph_st* graph, const Queue& queue) {
  constexpr unsigned kNonBlocking = 1;
  constexpr int kRelaxed = 2;
  constexpr void* kNone = nullptr;
  void *stream = nullptr, *captured = nullptr;
  if (error_t error = call_driver("cuStreamCreate", &stream, kNonBlocking); error.is_bad())
    return error;
  error_t error =
      call_driver("cuStreamBeginCaptureToGraph", stream, graph, kNone, kNone, size_t{0}, kRelaxed);
  if (error.is_good()) {
    error = queue(stream);
    const error_t ended = call_driver("cuStreamEndCapture", stream, &captured);
    if (error.is_good()) error = ended;
  }
  const error_t destroyed = call_driver("cuStreamDestroy_v2", stream);
  return error.is_good() ? destroyed : error;
}

/// In the order in which they were made.
inline error_t kernel_nodes(CUgraph_st* graph, std::vector<void*>& nodes) {
  constexpr int kKernel = 0;
  size_t count = 0;
  void** const none = nullptr;
  if (error_t error = call_driver("cuGraphGetNodes", graph, none, &count); error.is_bad())
    return error;
  nodes.resize(count);
  if (count == 0) return {};
  if (error_t error = call_driver("cuGraphGetNodes", graph, nodes.data(), &count); error.is_bad())
    return error;
  for (void* node : nodes) {
    int kind = kKernel;
    if (error_t error = call_driver("cuGraphNodeGetType", node, &kind); error.is_bad())
      return error;
    if (kind != kKernel) {
      return {error_code_t::INVALID_VALUE,
              "The CUDA graph has a node of the driver's kind " + std::to_string(kind) +
                  ", expected kernels alone, as populate_cuda_graph makes them."};
    }
  }
  return {};
}

/// Gives the kernels of `graph` the arguments of those of `call`.
inline error_t copy_kernels(CUgraph_st* graph, CUgraph_st* call) {
  std::vector<void*> to, from;
  if (error_t error = kernel_nodes(graph, to); error.is_bad()) return error;
  if (error_t error = kernel_nodes(call, from); error.is_bad()) return error;
  if (to.size() != from.size()) {
    return {error_code_t::INVALID_VALUE,
            "The CUDA graph has " + std::to_string(to.size()) + " kernels and the call " +
                std::to_string(from.size()) +
                ", expected the graph that populate_cuda_graph filled with a call of this graph."};
  }
  for (size_t i = 0; i < to.size(); ++i) {
    // More bytes than the driver's description of a kernel's launch takes.
    alignas(std::max_align_t) std::array<char, 128> launch{};
    if (error_t e = call_driver("cuGraphKernelNodeGetParams_v2", from[i], launch.data());
        e.is_bad())
      return e;
    if (error_t e = call_driver("cuGraphKernelNodeSetParams_v2", to[i], launch.data()); e.is_bad())
      return e;
  }
  return {};
}

/// Gives the kernels that `capture` made in `graph` the arguments that `queue` would launch now.
template <class Queue>
error_t capture_again(CUgraph_st* graph, const Queue& queue) {
  CUgraph_st* call = nullptr;
  if (error_t error = call_driver("cuGraphCreate", &call, 0u); error.is_bad()) return error;
  error_t error = capture(call, queue);
  if (error.is_good()) error = copy_kernels(graph, call);
  const error_t destroyed = call_driver("cuGraphDestroy", call);
  return error.is_good() ? destroyed : error;
}

}  // namespace heddle::frontend::detail
