// Arguments of functions of the VM, read of terms; what is none is said in a sentence.
#pragma once

#include <erl_nif.h>

#include <string>
#include <vector>

#include "execution.h"
#include "memory.h"
#include "plan.h"
#include "terms.h"

namespace heddle::elixir {

/// "true" of true; "" of what is no atom of few letters.
std::string read_atom(ErlNifEnv* env, ERL_NIF_TERM term);
/// Of :cpu and :cuda.
Result<heddle_device> read_device(ErlNifEnv* env, ERL_NIF_TERM term);
/// Of :binaries and :memory.
Result<Place> read_place(ErlNifEnv* env, ERL_NIF_TERM term);
/// Resources of a type that this library opened.
Result<const Plan*> read_plan(ErlNifEnv* env, ErlNifResourceType* type, ERL_NIF_TERM term);
Result<const Memory*> read_memory(ErlNifEnv* env, ErlNifResourceType* type, ERL_NIF_TERM term);
/// Of a list of pairs, a uid and a binary or memory each.
Result<std::vector<Input>> read_inputs(ErlNifEnv* env, ErlNifResourceType* memory_type,
                                       ERL_NIF_TERM list);

}  // namespace heddle::elixir
