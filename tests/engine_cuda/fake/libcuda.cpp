// A driver without a GPU: takes what the real one takes, refuses what it refuses, runs nothing. The
// tests of plans load it as libcuda.so.1.
//   FAKE_CUDA_VERSION     what cuDriverGetVersion says, else 13000
//   FAKE_CUDA_CAPABILITY  of the devices, else 90
//   FAKE_CUDA_DEVICE      of the current context, 0 or 1, which each have one; else 0
//   FAKE_CUDA_CONTEXT     the number of the context, else 1
//   FAKE_CUDA_NO_CONTEXT  set: no thread has one, unless it made one current
//   FAKE_CUDA_CAPTURES    set: every stream is being captured
//   FAKE_CUDA_ALLOCATIONS how many of memory there is room for at once, else any number
//   FAKE_CUDA_BEHIND      milliseconds from an event to its passing, else 0
//   FAKE_CUDA_NO_POOLS    set: memory pools have no attributes
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "engine/cuda/cuda_types.h"
#include "engine_cuda/fake/calls.h"
#include "streaming/arguments.h"

using namespace heddle::engine::cuda;

namespace {

constexpr CuResult kInvalidValue = 1;
using Clock = std::chrono::steady_clock;
constexpr unsigned kSharedAllowed = 48 * 1024;

heddle::testing::FakeCudaCalls calls;

struct Kernel {
  std::string name;
  std::map<CuDevice, unsigned> shared_allowed;  ///< where it is more than kSharedAllowed
};
/// A library has as many kernels as were asked for.
using Library = std::list<Kernel>;
/// A row of nodes, each after the one before it.
struct Graph {
  std::list<KernelNode> nodes;
  size_t edges = 0;
};

/// Its nodes go by the names of the graph's.
struct Executable {
  explicit Executable(const Graph& from) : graph(from) {}
  const Graph& graph;
  size_t set = 0;  ///< nodes that were given arguments
};

/// A context's graphs, which go with it: those that nobody destroyed are no leak.
std::list<Graph>& graphs() {
  static auto& all = *new std::list<Graph>;
  return all;
}
std::list<Executable>& executables() {
  static auto& all = *new std::list<Executable>;
  return all;
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
thread_local std::vector<Copy> copies;
thread_local CuContext made_current = nullptr;

CuContext context_of(CuDevice device) {
  static int contexts[2];
  return reinterpret_cast<CuContext>(&contexts[device]);
}

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

CuDevice current_device() { return from_environment("FAKE_CUDA_DEVICE", 0); }

bool may_run(const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared_bytes,
             CuKernel kernel) {
  const unsigned threads = block[0] * block[1] * block[2];
  const auto& allowed = reinterpret_cast<Kernel*>(kernel)->shared_allowed;
  const auto here = allowed.find(current_device());
  return grid[0] >= 1 && grid[0] <= INT32_MAX && grid[1] >= 1 && grid[1] <= 65535 && grid[2] >= 1 &&
         grid[2] <= 65535 && threads >= 1 && threads <= 1024 &&
         shared_bytes <= (here == allowed.end() ? kSharedAllowed : here->second);
}

bool may_run(const KernelNode& node) {
  return !node.function && node.context && node.parameters && node.parameters[0] &&
         may_run({node.grid_x, node.grid_y, node.grid_z},
                 {node.block_x, node.block_y, node.block_z}, node.shared_bytes, node.kernel);
}

void note_arguments(CuKernel kernel, void** parameters) {
  const std::string& name = reinterpret_cast<Kernel*>(kernel)->name;
  if (name == "cache_append") {
    const auto& append =
        *static_cast<const heddle::streaming::CacheAppendArguments<false>*>(parameters[0]);
    calls.appended_q = append.from[0].data, calls.appended_k = append.from[1].data,
    calls.cache_k = append.to[1].data;
  }
  if (name != "host_values") return;
  ++calls.host_values;
  using heddle::streaming::HostValueArguments;
  calls.value = static_cast<const HostValueArguments<1>*>(parameters[0])->values[0];
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
  const bool none = std::getenv("FAKE_CUDA_NO_CONTEXT") != nullptr;
  *context = none ? made_current : context_of(current_device());
  return kCudaSuccess;
}
CuResult cuCtxSetCurrent(CuContext context) {
  made_current = context;
  return kCudaSuccess;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  ++calls.retained_contexts;
  *context = context_of(device);
  return kCudaSuccess;
}
CuResult cuMemPoolCreate(CuMemoryPool* pool, const MemoryPoolProperties* properties) {
  constexpr int kDevice = 1, kPinned = 1;
  if (properties->allocation_type != kPinned || properties->handle_types != 0 ||
      properties->location_type != kDevice || properties->location_id != current_device())
    return kInvalidValue;
  ++calls.pools;
  static int some;
  *pool = reinterpret_cast<CuMemoryPool>(&some);
  return kCudaSuccess;
}
CuResult cuMemPoolDestroy(CuMemoryPool) {
  --calls.pools;
  return kCudaSuccess;
}
CuResult cuMemPoolSetAttribute(CuMemoryPool, MemoryPoolAttribute, void*) {
  return std::getenv("FAKE_CUDA_NO_POOLS") ? kInvalidValue : kCudaSuccess;
}
CuResult cuMemAllocFromPoolAsync(CuDevicePointer* memory, size_t bytes, CuMemoryPool, CuStream) {
  CuContext context = nullptr;
  cuCtxGetCurrent(&context);
  if (!context || bytes == 0) return kInvalidValue;
  const char* const most = std::getenv("FAKE_CUDA_ALLOCATIONS");
  if (most && calls.allocations >= std::atoi(most)) return kCudaOutOfMemory;
  void* const made = ::operator new(bytes, std::nothrow);
  if (!made) return kCudaOutOfMemory;
  ++calls.allocations;
  *memory = reinterpret_cast<uintptr_t>(made);
  return kCudaSuccess;
}
CuResult cuMemFreeAsync(CuDevicePointer memory, CuStream) {
  --calls.allocations;
  ::operator delete(reinterpret_cast<void*>(memory));
  return kCudaSuccess;
}
// A copy is made when it is waited for, as one of pinned memory is.
CuResult cuMemcpyHtoDAsync_v2(CuDevicePointer memory, const void* host, size_t bytes, CuStream) {
  copies.push_back({reinterpret_cast<void*>(memory), host, bytes});
  return kCudaSuccess;
}
CuResult cuMemcpyDtoHAsync_v2(void* host, CuDevicePointer memory, size_t bytes, CuStream) {
  copies.push_back({host, reinterpret_cast<const void*>(memory), bytes});
  return kCudaSuccess;
}
CuResult cuMemcpyDtoDAsync_v2(CuDevicePointer to, CuDevicePointer from, size_t bytes, CuStream) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kCudaSuccess;
}
// Its work is done when a call returns, or FAKE_CUDA_BEHIND milliseconds later: an event is the
// host's clock.
std::chrono::milliseconds behind() {
  const char* const given = std::getenv("FAKE_CUDA_BEHIND");
  return std::chrono::milliseconds(given ? std::atoi(given) : 0);
}
bool has_passed(Clock::time_point event) { return event + behind() <= Clock::now(); }
CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  if (flags != 0) return kInvalidValue;
  ++calls.events;
  *event = reinterpret_cast<CuEvent>(new Clock::time_point);
  return kCudaSuccess;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  --calls.events;
  delete reinterpret_cast<Clock::time_point*>(event);
  return kCudaSuccess;
}
CuResult cuEventRecord(CuEvent event, CuStream) {
  *reinterpret_cast<Clock::time_point*>(event) = Clock::now();
  return kCudaSuccess;
}
CuResult cuEventQuery(CuEvent event) {
  return has_passed(*reinterpret_cast<const Clock::time_point*>(event)) ? kCudaSuccess
                                                                        : kCudaNotReady;
}
CuResult cuEventSynchronize(CuEvent event) {
  std::this_thread::sleep_until(*reinterpret_cast<const Clock::time_point*>(event) + behind());
  return kCudaSuccess;
}
CuResult cuEventElapsedTime(float* milliseconds, CuEvent from, CuEvent to) {
  *milliseconds =
      std::chrono::duration<float, std::milli>(*reinterpret_cast<const Clock::time_point*>(to) -
                                               *reinterpret_cast<const Clock::time_point*>(from))
          .count();
  return kCudaSuccess;
}
CuResult cuMemsetD8Async(CuDevicePointer memory, unsigned char value, size_t bytes, CuStream) {
  std::memset(reinterpret_cast<void*>(memory), value, bytes);
  return kCudaSuccess;
}
CuResult cuStreamSynchronize(CuStream) {
  ++calls.synchronizations;
  for (const auto& [to, from, bytes] : copies) std::memcpy(to, from, bytes);
  copies.clear();
  return kCudaSuccess;
}
CuResult cuCtxGetId(CuContext, unsigned long long* id) {
  *id = static_cast<unsigned long long>(from_environment("FAKE_CUDA_CONTEXT", 1));
  return kCudaSuccess;
}
CuResult cuCtxGetDevice(CuDevice* device) {
  *device = current_device();
  return kCudaSuccess;
}
CuResult cuLibraryLoadData(CuLibrary* library, const void*, void*, void**, unsigned, void*, void**,
                           unsigned) {
  ++calls.libraries;
  *library = reinterpret_cast<CuLibrary>(new Library);
  return kCudaSuccess;
}
CuResult cuLibraryGetKernel(CuKernel* kernel, CuLibrary library, const char* name) {
  auto& kernels = *reinterpret_cast<Library*>(library);
  auto at = std::find_if(kernels.begin(), kernels.end(),
                         [name](const Kernel& one) { return one.name == name; });
  if (at == kernels.end()) at = kernels.insert(at, Kernel{.name = name});
  *kernel = reinterpret_cast<CuKernel>(&*at);
  return kCudaSuccess;
}
CuResult cuKernelSetAttribute(KernelAttribute attribute, int value, CuKernel kernel,
                              CuDevice device) {
  if (attribute != KernelAttribute::max_dynamic_shared_bytes || value < 0 || value > 227 * 1024)
    return kInvalidValue;
  reinterpret_cast<Kernel*>(kernel)->shared_allowed[device] = static_cast<unsigned>(value);
  return kCudaSuccess;
}
CuResult cuLaunchKernelEx(const LaunchConfig* launch, CuKernel kernel, void** parameters, void**) {
  if (!may_run({launch->grid_x, launch->grid_y, launch->grid_z},
               {launch->block_x, launch->block_y, launch->block_z}, launch->shared_bytes, kernel))
    return kInvalidValue;
  note_arguments(kernel, parameters);
  for (unsigned n = 0; n < launch->attribute_count; ++n)
    calls.cooperative_launches += launch->attributes[n].id == LaunchAttributeId::cooperative;
  calls.stream = launch->stream;
  ++calls.launches;
  return kCudaSuccess;
}
CuResult cuThreadExchangeStreamCaptureMode(CaptureMode*) { return kCudaSuccess; }
CuResult cuStreamIsCapturing(CuStream, int* status) {
  *status = std::getenv("FAKE_CUDA_CAPTURES") != nullptr;
  return kCudaSuccess;
}
CuResult cuGraphCreate(CuGraph* graph, unsigned flags) {
  if (flags != 0) return kInvalidValue;
  *graph = reinterpret_cast<CuGraph>(&graphs().emplace_back());
  return kCudaSuccess;
}
CuResult cuGraphDestroy(CuGraph graph) {
  graphs().remove_if([graph](Graph& one) { return graph == reinterpret_cast<CuGraph>(&one); });
  return kCudaSuccess;
}
CuResult cuGraphAddKernelNode_v2(CuGraphNode* node, CuGraph graph, const CuGraphNode*, size_t count,
                                 const KernelNode* made) {
  if (count != 0 || !may_run(*made)) return kInvalidValue;
  *node =
      reinterpret_cast<CuGraphNode>(&reinterpret_cast<Graph*>(graph)->nodes.emplace_back(*made));
  return kCudaSuccess;
}
CuResult cuGraphKernelNodeSetAttribute(CuGraphNode node, LaunchAttributeId id,
                                       const LaunchAttributeValue* value) {
  if (!node || id != LaunchAttributeId::cooperative || value->cooperative != 1)
    return kInvalidValue;
  ++calls.cooperative_nodes;
  return kCudaSuccess;
}
CuResult cuGraphAddDependencies_v2(CuGraph graph, const CuGraphNode* from, const CuGraphNode* to,
                                   const GraphEdge* edge, size_t count) {
  auto& [nodes, edges] = *reinterpret_cast<Graph*>(graph);
  const bool known = edge->from_port == edge->type && edge->type <= 1 && edge->to_port == 0;
  if (count != 1 || !known || nodes.size() < 2 ||
      *to != reinterpret_cast<CuGraphNode>(&nodes.back()) ||
      *from != reinterpret_cast<CuGraphNode>(&*std::prev(nodes.end(), 2)))
    return kInvalidValue;
  ++edges;
  return kCudaSuccess;
}
CuResult cuGraphInstantiateWithFlags(CuGraphExec* executable, CuGraph graph, unsigned long long) {
  const auto& from = *reinterpret_cast<Graph*>(graph);
  if (from.edges + 1 != from.nodes.size()) return kInvalidValue;
  *executable = reinterpret_cast<CuGraphExec>(&executables().emplace_back(from));
  ++calls.graphs;
  return kCudaSuccess;
}
CuResult cuGraphExecDestroy(CuGraphExec executable) {
  --calls.graphs;
  executables().remove_if(
      [executable](Executable& one) { return executable == reinterpret_cast<CuGraphExec>(&one); });
  return kCudaSuccess;
}
CuResult cuGraphExecKernelNodeSetParams_v2(CuGraphExec executable, CuGraphNode node,
                                           const KernelNode* set) {
  ++reinterpret_cast<Executable*>(executable)->set;
  ++calls.node_updates;
  note_arguments(set->kernel, set->parameters);
  const auto& made = *reinterpret_cast<KernelNode*>(node);
  return set->kernel == made.kernel && set->context == made.context && may_run(*set)
             ? kCudaSuccess
             : kInvalidValue;
}
CuResult cuGraphLaunch(CuGraphExec executable, CuStream stream) {
  const auto& [graph, set] = *reinterpret_cast<Executable*>(executable);
  // What was recorded is of no operands: arguments were set since, of all nodes.
  if (set == 0 || set % graph.nodes.size() != 0) return kInvalidValue;
  ++calls.graph_launches;
  calls.stream = stream;
  calls.launches += static_cast<int>(graph.nodes.size());
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
