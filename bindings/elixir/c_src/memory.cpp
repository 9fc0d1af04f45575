#include "memory.h"

#include <atomic>
#include <new>

#include "kept.h"

namespace heddle::elixir {
namespace {

std::atomic<int64_t> live_count = 0, live_bytes = 0;

/// What is kept at most; on a GPU as much as the library's pool keeps.
constexpr size_t kMostKept = 64 << 20, kMostKeptOnGpu = 1 << 30;
/// Calls on more take long enough for a dirty scheduler not to matter.
constexpr size_t kMostSpare = 8 << 20;
/// At least so many calls are launched then for each that a dirty scheduler allocates for.
constexpr std::ptrdiff_t kSpares = 8;

/// Never destroyed: terms may go after everything else.
Kept<Block>& kept_on(heddle_device device) {
  static auto& on_cpu = *new Kept<Block>(kMostKept);
  static auto& on_gpu = *new Kept<Block>(kMostKeptOnGpu);
  return device == HEDDLE_CPU ? on_cpu : on_gpu;
}

void free_memory(ErlNifEnv*, void* object) { static_cast<Memory*>(object)->~Memory(); }

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (is_anothers_) {
    block_.data = nullptr;
  } else if (block_.data) {
    kept_on(device()).give(std::move(block_));
  }
}

std::optional<DeviceMemory> DeviceMemory::of_kept(heddle_device device, size_t bytes) {
  if (bytes == 0) return DeviceMemory(Block(device, nullptr, 0));
  std::optional<Block> found = kept_on(device).take(bytes);
  if (!found) return std::nullopt;
  return DeviceMemory(std::move(*found));
}

Result<DeviceMemory> DeviceMemory::allocate(heddle_device device, size_t bytes) {
  if (std::optional<DeviceMemory> found = of_kept(device, bytes)) return std::move(*found);
  void* data = nullptr;
  heddle_status status = heddle_memory_allocate(device, bytes, nullptr, &data);
  if (status == HEDDLE_OUT_OF_MEMORY) {
    kept_on(device).clear();
    status = heddle_memory_allocate(device, bytes, nullptr, &data);
  }
  if (status != HEDDLE_OK) return last_error(status);
  return DeviceMemory(Block(device, data, bytes));
}

void DeviceMemory::keep_spare(heddle_device device, size_t bytes) {
  if (bytes == 0 || bytes > kMostSpare || kept_on(device).count(bytes) >= kSpares) return;
  void* data = nullptr;
  if (heddle_memory_allocate(device, bytes, nullptr, &data) == HEDDLE_OK) {
    kept_on(device).give(Block(device, data, bytes));
  }
}

Result<DeviceMemory> DeviceMemory::copy(heddle_device device, const void* host, size_t bytes) {
  Result<DeviceMemory> made = allocate(device, bytes);
  if (const auto* memory = std::get_if<DeviceMemory>(&made)) {
    const heddle_status status =
        heddle_memory_copy_in(device, memory->data(), host, bytes, nullptr);
    if (status != HEDDLE_OK) return last_error(status);
  }
  return made;
}

DeviceMemory DeviceMemory::of_another(heddle_device device, void* data, size_t bytes) {
  DeviceMemory memory(Block(device, data, bytes));
  memory.is_anothers_ = true;
  return memory;
}

Memory::Memory(DeviceMemory&& made, ErlNifEnv* kept) : held(std::move(made)), owner(kept) {
  if (owner) return;
  ++live_count;
  live_bytes += static_cast<int64_t>(held.bytes());
}
Memory::~Memory() {
  if (owner) {
    enif_free_env(owner);
    return;
  }
  --live_count;
  live_bytes -= static_cast<int64_t>(held.bytes());
}

ErlNifResourceType* open_memory(ErlNifEnv* env) {
  // A Memory of another layout needs another name, so that no version frees what it does not know.
  const auto flags = static_cast<ErlNifResourceFlags>(ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER);
  return enif_open_resource_type(env, nullptr, "heddle_memory_3", free_memory, flags, nullptr);
}

ERL_NIF_TERM make_memory(ErlNifEnv* env, ErlNifResourceType* type, DeviceMemory&& made) {
  void* const object = enif_alloc_resource(type, sizeof(Memory));
  new (object) Memory(std::move(made));
  const ERL_NIF_TERM term = enif_make_resource(env, object);
  enif_release_resource(object);
  return term;
}

ERL_NIF_TERM lend_memory(ErlNifEnv* env, ErlNifResourceType* type, DeviceMemory&& anothers,
                         ERL_NIF_TERM owner) {
  ErlNifEnv* const kept = enif_alloc_env();
  enif_make_copy(kept, owner);
  void* const object = enif_alloc_resource(type, sizeof(Memory));
  new (object) Memory(std::move(anothers), kept);
  const ERL_NIF_TERM term = enif_make_resource(env, object);
  enif_release_resource(object);
  return term;
}

LiveMemory live_memory() { return {live_count, live_bytes}; }

const char* name_of(heddle_device device) { return device == HEDDLE_CPU ? "cpu" : "cuda"; }

}  // namespace heddle::elixir
