// The CUDA driver's functions that the engine and its tests call, for a GPU that this machine's own
// processor plays (block.h). What is queued on a stream is done when the call returns. A test loads
// it as libcuda.so.1.
//   EMULATOR_CAPABILITY  90, or 80; else 90
//   EMULATOR_PROCESSORS  how many blocks run at a time, else 5: no power of two
//   EMULATOR_SEED        of the order in which threads run, else 0
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "emulator/block.h"
#include "emulator/copy_engine.h"
#include "emulator/device_memory.h"
#include "engine/cuda/cuda_types.h"

using namespace heddle::engine::cuda;
namespace emulator = heddle::emulator;

namespace {

constexpr CuResult kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719;
constexpr unsigned kSharedAllowed = 48 * 1024, kMostShared = 227 * 1024;
using Clock = std::chrono::steady_clock;

int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
int processors() { return from_environment("EMULATOR_PROCESSORS", 5); }

void* bytes_at(CuDevicePointer address) { return reinterpret_cast<void*>(address); }

struct Kernel {
  void (*call)(void** parameters);
  unsigned char* (*static_memory)();
  const unsigned* sizes;  ///< of its arguments, ended by a 0
  unsigned shared_allowed = kSharedAllowed;
};

struct Library {
  void* handle;
  std::map<std::string, Kernel> kernels;
};

/// A launch, with its arguments.
struct Work {
  Work(const Kernel& kernel, void** parameters) : kernel_(kernel) { set(parameters); }
  void set(void** parameters) {
    arguments_.clear();
    for (int n = 0; kernel_.sizes[n] != 0; ++n) {
      const auto* const from = static_cast<const char*>(parameters[n]);
      // Tensor maps lie at multiples of 128 bytes.
      auto* const to =
          static_cast<char*>(std::aligned_alloc(128, (kernel_.sizes[n] + 127) / 128 * 128));
      std::memcpy(to, from, kernel_.sizes[n]);
      arguments_.emplace_back(to, std::free);
    }
  }
  /// As a node of a graph is made, and given another grid and other arguments.
  void take(const KernelNode& node) {
    set(node.parameters);
    grid = {node.grid_x, node.grid_y, node.grid_z};
    threads = {node.block_x, node.block_y, node.block_z};
    shared_bytes = node.shared_bytes;
  }
  CuResult run() const {
    static std::atomic<uint64_t> launches = 0;
    std::vector<void*> parameters;
    for (const auto& one : arguments_) parameters.push_back(one.get());
    const auto seed = static_cast<uint64_t>(from_environment("EMULATOR_SEED", 0));
    const emulator::Launch launch{
        kernel_.call, kernel_.static_memory, parameters.data(),          grid, threads,
        cluster,      shared_bytes,          seed * 1000003 + launches++};
    try {
      emulator::run_grid(launch, processors(), cooperative);
    } catch (const emulator::Failure& failure) {
      std::fprintf(stderr, "emulator: %s\n", failure.what());
      return kLaunchFailed;
    }
    return kCudaSuccess;
  }
  bool may_run() const {
    const unsigned count = threads.x * threads.y * threads.z;
    return grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 &&
           grid.z <= 65535 && count >= 1 && count <= 1024 && cluster >= 1 &&
           grid.x % cluster == 0 && shared_bytes <= kernel_.shared_allowed;
  }

  emulator::Index grid{}, threads{};
  unsigned shared_bytes = 0, cluster = 1;
  bool cooperative = false;

 private:
  const Kernel& kernel_;
  std::vector<std::shared_ptr<char>> arguments_;
};

using Node = std::function<CuResult()>;

struct Graph {
  std::deque<Node> nodes;
  std::deque<Work> kernels;  ///< of nodes that were added by themselves, in their order
};

struct Executable {
  Graph& graph;  ///< its kernels' arguments are this one's
  std::vector<Node> nodes;
};

struct Stream {
  Graph* captured = nullptr;
};
Stream default_stream;
thread_local CuContext made_current = nullptr;
int context_object;

CuResult queue(CuStream at, Node work) {
  auto* const stream = at ? reinterpret_cast<Stream*>(at) : &default_stream;
  if (!stream->captured) return work();
  stream->captured->nodes.push_back(std::move(work));
  return kCudaSuccess;
}

bool is_there(CuDevicePointer address, size_t bytes) {
  return bytes == 0 || emulator::is_allocated(bytes_at(address), bytes);
}

}  // namespace

extern "C" {

CuResult cuInit(unsigned) { return kCudaSuccess; }
CuResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return kCudaSuccess;
}
CuResult cuGetErrorString(CuResult result, const char** text) {
  *text = result == kLaunchFailed      ? "the launch failed: standard error has the sentence"
          : result == kCudaOutOfMemory ? "out of memory"
          : result == kNotFound        ? "named symbol not found"
                                       : "invalid argument";
  return kCudaSuccess;
}
CuResult cuDeviceGetCount(int* count) {
  *count = 1;
  return kCudaSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  *device = 0;
  return ordinal == 0 ? kCudaSuccess : kInvalidValue;
}
CuResult cuDeviceGetName(char* name, int length, CuDevice) {
  std::snprintf(name, static_cast<size_t>(length), "emulated GPU");
  return kCudaSuccess;
}
CuResult cuDeviceGetAttribute(int* value, DeviceAttribute attribute, CuDevice) {
  const int capability = from_environment("EMULATOR_CAPABILITY", 90);
  switch (attribute) {
    case DeviceAttribute::multiprocessor_count:
      *value = processors();
      return kCudaSuccess;
    case DeviceAttribute::compute_capability_major:
      *value = capability / 10;
      return kCudaSuccess;
    case DeviceAttribute::compute_capability_minor:
      *value = capability % 10;
      return kCudaSuccess;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      *value = kMostShared;
      return kCudaSuccess;
  }
  return kInvalidValue;
}

CuResult cuCtxGetCurrent(CuContext* context) {
  *context = made_current;
  return kCudaSuccess;
}
CuResult cuCtxSetCurrent(CuContext context) {
  made_current = context;
  return kCudaSuccess;
}
CuResult cuCtxGetDevice(CuDevice* device) {
  *device = 0;
  return kCudaSuccess;
}
CuResult cuCtxGetId(CuContext, unsigned long long* id) {
  *id = 1;
  return kCudaSuccess;
}
CuResult cuCtxSynchronize() { return kCudaSuccess; }
CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice) {
  *context = reinterpret_cast<CuContext>(&context_object);
  return kCudaSuccess;
}
CuResult cuDevicePrimaryCtxRelease_v2(CuDevice) { return kCudaSuccess; }
CuResult cuDevicePrimaryCtxSetFlags_v2(CuDevice, unsigned) { return kCudaSuccess; }

CuResult cuMemAlloc_v2(CuDevicePointer* memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  *memory = emulator::allocate(bytes);
  return *memory ? kCudaSuccess : kCudaOutOfMemory;
}
CuResult cuMemFree_v2(CuDevicePointer memory) {
  return memory == 0 || emulator::release(memory) ? kCudaSuccess : kInvalidValue;
}
CuResult cuMemGetInfo_v2(size_t* free, size_t* all) {
  *free = *all = size_t{64} << 30;
  return kCudaSuccess;
}
CuResult cuMemPoolCreate(CuMemoryPool* pool, const MemoryPoolProperties*) {
  *pool = reinterpret_cast<CuMemoryPool>(&context_object);
  return kCudaSuccess;
}
CuResult cuMemPoolDestroy(CuMemoryPool) { return kCudaSuccess; }
CuResult cuMemPoolSetAttribute(CuMemoryPool, MemoryPoolAttribute, void*) { return kCudaSuccess; }
CuResult cuMemAllocFromPoolAsync(CuDevicePointer* memory, size_t bytes, CuMemoryPool, CuStream) {
  return cuMemAlloc_v2(memory, bytes);
}
CuResult cuMemFreeAsync(CuDevicePointer memory, CuStream) { return cuMemFree_v2(memory); }

CuResult cuMemcpyHtoDAsync_v2(CuDevicePointer to, const void* from, size_t bytes, CuStream stream) {
  if (!is_there(to, bytes)) return kInvalidValue;
  return queue(stream, [=] {
    std::memcpy(bytes_at(to), from, bytes);
    return kCudaSuccess;
  });
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuDevicePointer from, size_t bytes, CuStream stream) {
  if (!is_there(from, bytes)) return kInvalidValue;
  return queue(stream, [=] {
    std::memcpy(to, bytes_at(from), bytes);
    return kCudaSuccess;
  });
}
CuResult cuMemcpyDtoDAsync_v2(CuDevicePointer to, CuDevicePointer from, size_t bytes,
                              CuStream stream) {
  if (!is_there(to, bytes) || !is_there(from, bytes)) return kInvalidValue;
  return queue(stream, [=] {
    std::memmove(bytes_at(to), bytes_at(from), bytes);
    return kCudaSuccess;
  });
}
CuResult cuMemsetD8Async(CuDevicePointer to, unsigned char value, size_t bytes, CuStream stream) {
  if (!is_there(to, bytes)) return kInvalidValue;
  return queue(stream, [=] {
    std::memset(bytes_at(to), value, bytes);
    return kCudaSuccess;
  });
}
CuResult cuMemcpyHtoD_v2(CuDevicePointer to, const void* from, size_t bytes) {
  return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}
CuResult cuMemcpyDtoH_v2(void* to, CuDevicePointer from, size_t bytes) {
  return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
}
CuResult cuMemsetD8_v2(CuDevicePointer to, unsigned char value, size_t bytes) {
  return cuMemsetD8Async(to, value, bytes, nullptr);
}
CuResult cuMemsetD2D8_v2(CuDevicePointer to, size_t pitch, unsigned char value, size_t width,
                         size_t rows) {
  for (size_t row = 0; row < rows; ++row)
    if (const CuResult set = cuMemsetD8_v2(to + row * pitch, value, width)) return set;
  return kCudaSuccess;
}

CuResult cuStreamCreate(CuStream* stream, unsigned) {
  *stream = reinterpret_cast<CuStream>(new Stream);
  return kCudaSuccess;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  delete reinterpret_cast<Stream*>(stream);
  return kCudaSuccess;
}
CuResult cuStreamSynchronize(CuStream) { return kCudaSuccess; }
CuResult cuThreadExchangeStreamCaptureMode(CaptureMode*) { return kCudaSuccess; }
CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  *status = stream && reinterpret_cast<Stream*>(stream)->captured;
  return kCudaSuccess;
}
CuResult cuStreamBeginCapture_v2(CuStream stream, int) {
  if (!stream) return kInvalidValue;
  reinterpret_cast<Stream*>(stream)->captured = new Graph;
  return kCudaSuccess;
}
CuResult cuStreamEndCapture(CuStream stream, CuGraph* graph) {
  auto& captured = reinterpret_cast<Stream*>(stream)->captured;
  *graph = reinterpret_cast<CuGraph>(captured);
  captured = nullptr;
  return kCudaSuccess;
}

CuResult cuEventCreate(CuEvent* event, unsigned) {
  *event = reinterpret_cast<CuEvent>(new Clock::time_point);
  return kCudaSuccess;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  delete reinterpret_cast<Clock::time_point*>(event);
  return kCudaSuccess;
}
CuResult cuEventRecord(CuEvent event, CuStream) {
  *reinterpret_cast<Clock::time_point*>(event) = Clock::now();
  return kCudaSuccess;
}
CuResult cuEventQuery(CuEvent) { return kCudaSuccess; }
CuResult cuEventSynchronize(CuEvent) { return kCudaSuccess; }
CuResult cuEventElapsedTime(float* milliseconds, CuEvent from, CuEvent to) {
  *milliseconds =
      std::chrono::duration<float, std::milli>(*reinterpret_cast<const Clock::time_point*>(to) -
                                               *reinterpret_cast<const Clock::time_point*>(from))
          .count();
  return kCudaSuccess;
}

CuResult cuLibraryLoadData(CuLibrary* library, const void* image, void*, void**, unsigned, void*,
                           void**, unsigned) {
  const auto& header = *static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return kInvalidValue;
  const size_t bytes = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  // Of a name that no other has had: the loader knows what it has loaded by that.
  std::string name = (std::filesystem::temp_directory_path() / "emulated-kernel-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file < 0) return kInvalidValue;
  const bool is_written = ::write(file, image, bytes) == static_cast<ssize_t>(bytes);
  ::close(file);
  void* const handle = is_written ? ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  ::unlink(name.c_str());
  if (!handle) std::fprintf(stderr, "emulator: %s\n", ::dlerror());
  if (!handle) return kInvalidValue;
  *library = reinterpret_cast<CuLibrary>(new Library{handle, {}});
  return kCudaSuccess;
}
CuResult cuLibraryGetKernel(CuKernel* kernel, CuLibrary from, const char* name) {
  static std::mutex mutex;
  auto& [handle, kernels] = *reinterpret_cast<Library*>(from);
  const auto find = [handle = handle](const std::string& symbol) {
    return ::dlsym(handle, symbol.c_str());
  };
  const auto sizes =
      reinterpret_cast<const unsigned* (*)()>(find("emulator_sizes_" + std::string(name)));
  if (!sizes) return kNotFound;
  const std::lock_guard lock(mutex);
  const auto at = kernels.try_emplace(
      name,
      Kernel{reinterpret_cast<void (*)(void**)>(find("emulator_call_" + std::string(name))),
             reinterpret_cast<unsigned char* (*)()>(find("emulator_static_memory")), sizes()});
  *kernel = reinterpret_cast<CuKernel>(&at.first->second);
  return kCudaSuccess;
}
CuResult cuKernelSetAttribute(KernelAttribute attribute, int value, CuKernel kernel, CuDevice) {
  if (attribute != KernelAttribute::max_dynamic_shared_bytes || value < 0 ||
      value > static_cast<int>(kMostShared))
    return kInvalidValue;
  reinterpret_cast<Kernel*>(kernel)->shared_allowed = static_cast<unsigned>(value);
  return kCudaSuccess;
}
CuResult cuLaunchKernelEx(const LaunchConfig* launch, CuKernel kernel, void** parameters, void**) {
  Work work(*reinterpret_cast<Kernel*>(kernel), parameters);
  work.grid = {launch->grid_x, launch->grid_y, launch->grid_z};
  work.threads = {launch->block_x, launch->block_y, launch->block_z};
  work.shared_bytes = launch->shared_bytes;
  for (unsigned n = 0; n < launch->attribute_count; ++n) {
    const auto& [id, pad, value] = launch->attributes[n];
    if (id == LaunchAttributeId::cooperative) work.cooperative = value.cooperative != 0;
    if (id == LaunchAttributeId::cluster_dimension)
      work.cluster = value.cluster.x * value.cluster.y * value.cluster.z;
  }
  if (!work.may_run()) return kInvalidValue;
  return queue(launch->stream, [work = std::move(work)] { return work.run(); });
}

CuResult cuGraphCreate(CuGraph* graph, unsigned) {
  *graph = reinterpret_cast<CuGraph>(new Graph);
  return kCudaSuccess;
}
CuResult cuGraphDestroy(CuGraph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return kCudaSuccess;
}
CuResult cuGraphGetNodes(CuGraph graph, CuGraphNode*, size_t* count) {
  *count = reinterpret_cast<Graph*>(graph)->nodes.size();
  return kCudaSuccess;
}
CuResult cuGraphAddKernelNode_v2(CuGraphNode* node, CuGraph graph, const CuGraphNode*, size_t,
                                 const KernelNode* made) {
  auto& [nodes, kernels] = *reinterpret_cast<Graph*>(graph);
  Work& work = kernels.emplace_back(*reinterpret_cast<Kernel*>(made->kernel), made->parameters);
  work.take(*made);
  if (!work.may_run()) return kInvalidValue;
  nodes.push_back([&work] { return work.run(); });
  *node = reinterpret_cast<CuGraphNode>(&work);
  return kCudaSuccess;
}
CuResult cuGraphKernelNodeSetAttribute(CuGraphNode node, LaunchAttributeId id,
                                       const LaunchAttributeValue* value) {
  auto& work = *reinterpret_cast<Work*>(node);
  if (id == LaunchAttributeId::cooperative) work.cooperative = value->cooperative != 0;
  if (id == LaunchAttributeId::cluster_dimension)
    work.cluster = value->cluster.x * value->cluster.y * value->cluster.z;
  return kCudaSuccess;
}
CuResult cuGraphAddDependencies_v2(CuGraph, const CuGraphNode*, const CuGraphNode*,
                                   const GraphEdge*, size_t) {
  return kCudaSuccess;
}
CuResult cuGraphInstantiateWithFlags(CuGraphExec* executable, CuGraph graph, unsigned long long) {
  auto& from = *reinterpret_cast<Graph*>(graph);
  *executable =
      reinterpret_cast<CuGraphExec>(new Executable{from, {from.nodes.begin(), from.nodes.end()}});
  return kCudaSuccess;
}
CuResult cuGraphExecDestroy(CuGraphExec executable) {
  delete reinterpret_cast<Executable*>(executable);
  return kCudaSuccess;
}
CuResult cuGraphExecKernelNodeSetParams_v2(CuGraphExec, CuGraphNode node, const KernelNode* set) {
  auto& work = *reinterpret_cast<Work*>(node);
  work.take(*set);
  return work.may_run() ? kCudaSuccess : kInvalidValue;
}
CuResult cuGraphLaunch(CuGraphExec executable, CuStream stream) {
  for (const Node& node : reinterpret_cast<Executable*>(executable)->nodes)
    if (const CuResult queued = queue(stream, node)) return queued;
  return kCudaSuccess;
}

CuResult cuTensorMapEncodeTiled(TensorMap* map, TensorMapType type, unsigned rank, void* address,
                                const uint64_t* dims, const uint64_t* stride_bytes,
                                const unsigned* box, const unsigned* element_strides,
                                int interleave, TensorMapSwizzle swizzle,
                                TensorMapPromotion promotion, int fill) {
  return emulator::encode_tensor_map(map, type, rank, address, dims, stride_bytes, box,
                                     element_strides, interleave, swizzle, promotion, fill)
             ? kCudaSuccess
             : kInvalidValue;
}

}  // extern "C"
