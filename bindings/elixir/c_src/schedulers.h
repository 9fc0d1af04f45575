// Which threads of the VM do what: its schedulers work of microseconds, as waking a dirty one and
// being woken by it takes ten and more; dirty ones what takes long or may wait.
#pragma once

#include <erl_nif.h>

#include "heddle/heddle.h"

namespace heddle::elixir {

/// Which scheduler a function is called on.
enum class On { normal, dirty };

/// What a scheduler of Erlang's own must not do: the kind of dirty ones that are to do it.
struct Heavy {
  int schedulers;
};
inline constexpr Heavy kComputes{ERL_NIF_DIRTY_JOB_CPU_BOUND}, kWaits{ERL_NIF_DIRTY_JOB_IO_BOUND};
inline Heavy heavy_on(heddle_device device) { return device == HEDDLE_CPU ? kComputes : kWaits; }

}  // namespace heddle::elixir
