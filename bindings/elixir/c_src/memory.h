// Memory of a device as a resource of the Erlang VM: what a tensor that stays there holds.
#pragma once

#include <erl_nif.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "terms.h"

namespace heddle::elixir {

/// Freed with its owner, unless it is another's. Everything is queued on the device's default
/// stream, so that no call waits for another's work but by copying its results out.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    if (!is_anothers_) heddle_memory_free(device_, data_, nullptr);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_anothers_(other.is_anothers_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_anothers_, other.is_anothers_);
    return *this;
  }

  static Result<DeviceMemory> allocate(heddle_device device, size_t bytes);
  /// Of `bytes` from the host.
  static Result<DeviceMemory> copy(heddle_device device, const void* host, size_t bytes);

  /// What lies at an address, as another library says.
  static DeviceMemory of_another(heddle_device device, void* data, size_t bytes);

  heddle_device device() const { return device_; }
  bool is_anothers() const { return is_anothers_; }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  heddle_device device_ = HEDDLE_CPU;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool is_anothers_ = false;
};

/// What a term holds; never changed once it is one. It has no virtual function: a resource outlives
/// the version of this library that made it.
struct Memory {
  DeviceMemory held;
  ErlNifEnv* owner;  ///< of memory that is another's: holds the term that keeps it there; else null

  explicit Memory(DeviceMemory&& made, ErlNifEnv* kept = nullptr);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

/// Opens the resource type of memory; null if the VM refuses.
ErlNifResourceType* open_memory(ErlNifEnv* env);
/// A term that owns the memory.
ERL_NIF_TERM make_memory(ErlNifEnv* env, ErlNifResourceType* type, DeviceMemory&& made);

/// A term through which another's memory is read, and which keeps `owner`, a term, for as long.
ERL_NIF_TERM lend_memory(ErlNifEnv* env, ErlNifResourceType* type, DeviceMemory&& anothers,
                         ERL_NIF_TERM owner);

/// What terms hold at present, but for another's.
struct LiveMemory {
  int64_t count, bytes;
};
LiveMemory live_memory();

/// "cuda"
const char* name_of(heddle_device device);

}  // namespace heddle::elixir
