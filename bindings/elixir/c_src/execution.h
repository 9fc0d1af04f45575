// The execution of a plan on what terms hold: binaries, and memory of a device.
#pragma once

#include <erl_nif.h>

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "memory.h"
#include "pending.h"
#include "plan.h"
#include "schedulers.h"
#include "terms.h"
#include "workspaces.h"

namespace heddle::elixir {

/// An input by its uid.
struct Input {
  int64_t uid;
  std::variant<ErlNifBinary, const Memory*> data;
};

/// Where results are made: as binaries, or as memory of the plan's device.
enum class Place { binaries, memory };

/// What executions take and make.
struct Resources {
  ErlNifResourceType *memory, *buffers;
  Workspaces workspaces;
  Pending pending;
};

using Made = std::variant<std::vector<ERL_NIF_TERM>, Error, Heavy>;

/// Runs the plan and gives its outputs as terms, in the order of its outputs. Everything is checked
/// before memory is taken or anything runs. Inputs are read where they lie, unless they are
/// binaries that are not aligned to their elements, as parts of others may be, or that a GPU is to
/// read. Memory of another device than the plan's is refused.
///
/// On a scheduler of Erlang's own only what takes microseconds is done: on a CPU a small plan; on a
/// GPU the launches of a plan that has run before, where all tensors lie there, memory of the
/// results' sizes is kept and the queue is not long.
Made execute(ErlNifEnv* env, const Plan& plan, std::span<const Input> inputs, Place place, On on,
             Resources& resources);

}  // namespace heddle::elixir
