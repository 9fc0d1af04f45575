#include "memory.h"

#include <atomic>
#include <new>

namespace heddle::elixir {
namespace {

std::atomic<int64_t> live_count = 0, live_bytes = 0;

void free_memory(ErlNifEnv*, void* object) { static_cast<Memory*>(object)->~Memory(); }

}  // namespace

Result<DeviceMemory> DeviceMemory::allocate(heddle_device device, size_t bytes) {
  DeviceMemory made;
  made.device_ = device;
  made.bytes_ = bytes;
  if (const heddle_status status = heddle_memory_allocate(device, bytes, nullptr, &made.data_);
      status != HEDDLE_OK) {
    return last_error(status);
  }
  return made;
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
  DeviceMemory memory;
  memory.device_ = device;
  memory.data_ = data;
  memory.bytes_ = bytes;
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
  return enif_open_resource_type(env, nullptr, "heddle_memory_2", free_memory, flags, nullptr);
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
