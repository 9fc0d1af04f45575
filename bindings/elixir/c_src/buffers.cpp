#include "buffers.h"

#include <unistd.h>

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "kept.h"

namespace heddle::elixir {
namespace {

/// What is kept at most of memory that no binary has.
constexpr size_t kMostIdle = 64 << 20;

/// It has no virtual function: a resource outlives the version of this library that made it.
struct Buffer {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
};

/// Never destroyed: binaries may go after everything else.
Kept<Buffer>& kept() {
  static auto& buffers = *new Kept<Buffer>(kMostIdle);
  return buffers;
}

/// Where the kernel promises memory freely more than there is would be given, and end the VM once
/// it is written.
bool is_more_than_the_machine_has(size_t bytes) {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 &&
         bytes / static_cast<size_t>(page_bytes) >= static_cast<size_t>(pages);
}

Buffer take(size_t bytes) {
  if (is_more_than_the_machine_has(bytes)) return {};
  if (std::optional<Buffer> taken = kept().take(bytes)) return std::move(*taken);
  return {std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]), bytes};
}

void free_buffer(ErlNifEnv*, void* object) {
  auto& buffer = *static_cast<Buffer*>(object);
  kept().give(std::move(buffer));
  buffer.~Buffer();
}

}  // namespace

ErlNifResourceType* open_buffers(ErlNifEnv* env) {
  const auto flags = static_cast<ErlNifResourceFlags>(ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER);
  return enif_open_resource_type(env, nullptr, "heddle_buffer_1", free_buffer, flags, nullptr);
}

void* take_buffer(ErlNifResourceType* type, size_t bytes) {
  Buffer taken = take(bytes);
  if (!taken.data) return nullptr;
  void* const object = enif_alloc_resource(type, sizeof(Buffer));
  return new (object) Buffer(std::move(taken));
}

void* buffer_data(void* buffer) { return static_cast<Buffer*>(buffer)->data.get(); }

ERL_NIF_TERM make_buffer_binary(ErlNifEnv* env, void* buffer) {
  const auto& made = *static_cast<Buffer*>(buffer);
  return enif_make_resource_binary(env, buffer, made.data.get(), made.bytes);
}

}  // namespace heddle::elixir
