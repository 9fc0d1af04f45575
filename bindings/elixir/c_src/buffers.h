// Memory of large results: binaries of the Erlang VM whose memory is kept when they go, for the
// next of their size. New pages would cost a call a twentieth of its time.
#pragma once

#include <erl_nif.h>

#include <cstddef>

namespace heddle::elixir {

/// Below this binaries are the VM's own.
inline constexpr size_t kLeastBuffer = 256 << 10;

/// Opens the resource type of buffers; null if the VM refuses.
ErlNifResourceType* open_buffers(ErlNifEnv* env);
/// A buffer of so many bytes, their contents anything; null if there is no memory. The caller gives
/// it back by enif_release_resource, or makes it a binary and does so then.
void* take_buffer(ErlNifResourceType* type, size_t bytes);
void* buffer_data(void* buffer);
/// A binary of the whole buffer.
ERL_NIF_TERM make_buffer_binary(ErlNifEnv* env, void* buffer);

}  // namespace heddle::elixir
