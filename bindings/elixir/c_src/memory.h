// Memory of a device as a resource of the Erlang VM: what a tensor that stays there holds.
#pragma once

#include <erl_nif.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "terms.h"

namespace heddle::elixir {

/// What was allocated there; frees itself.
struct Block {
  heddle_device device = HEDDLE_CPU;
  void* data = nullptr;
  size_t bytes = 0;

  Block() = default;
  Block(heddle_device on, void* at, size_t of) : device(on), data(at), bytes(of) {}
  ~Block() { heddle_memory_free(device, data, nullptr); }
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  void swap(Block& other) noexcept {
    std::swap(device, other.device);
    std::swap(data, other.data);
    std::swap(bytes, other.bytes);
  }
};

/// Kept for others with its owner's end, unless it is another's. Everything is queued on the
/// device's default stream, so that no call waits for another's work but by copying its results
/// out, and what was queued with memory is done with it before what is queued later begins.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : block_(std::move(other.block_)), is_anothers_(std::exchange(other.is_anothers_, false)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(is_anothers_, other.is_anothers_);
    return *this;
  }

  static Result<DeviceMemory> allocate(heddle_device device, size_t bytes);
  /// Of what is kept alone, as the device may take long to give more.
  static std::optional<DeviceMemory> of_kept(heddle_device device, size_t bytes);
  /// Keeps one more where few are kept, unless it is much. The VM frees what a process has dropped
  /// some calls later, so that a loop has the results of many at once; what it misses is allocated
  /// bit by bit.
  static void keep_spare(heddle_device device, size_t bytes);
  /// Of `bytes` from the host.
  static Result<DeviceMemory> copy(heddle_device device, const void* host, size_t bytes);

  /// What lies at an address, as another library says.
  static DeviceMemory of_another(heddle_device device, void* data, size_t bytes);

  heddle_device device() const { return block_.device; }
  bool is_anothers() const { return is_anothers_; }
  void* data() const { return block_.data; }
  size_t bytes() const { return block_.bytes; }

 private:
  explicit DeviceMemory(Block&& block) : block_(std::move(block)) {}

  Block block_;
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
