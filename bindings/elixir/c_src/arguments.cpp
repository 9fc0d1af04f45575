#include "arguments.h"

namespace heddle::elixir {
namespace {

/// Far more than a graph binds; a longer list would keep a scheduler of Erlang's busy.
constexpr size_t kMostInputs = 1024;

}  // namespace

std::string read_atom(ErlNifEnv* env, ERL_NIF_TERM term) {
  char name[16];
  const int length = enif_get_atom(env, term, name, sizeof name, ERL_NIF_LATIN1);
  return length > 0 ? name : "";
}

Result<heddle_device> read_device(ErlNifEnv* env, ERL_NIF_TERM term) {
  const std::string name = read_atom(env, term);
  if (name == "cpu") return HEDDLE_CPU;
  if (name == "cuda") return HEDDLE_CUDA;
  return invalid("The device is neither :cpu nor :cuda, expected one of them.");
}

Result<Place> read_place(ErlNifEnv* env, ERL_NIF_TERM term) {
  const std::string name = read_atom(env, term);
  if (name == "binaries") return Place::binaries;
  if (name == "memory") return Place::memory;
  return invalid("The place of results is neither :binaries nor :memory, expected one of them.");
}

Result<const Memory*> read_memory(ErlNifEnv* env, ErlNifResourceType* type, ERL_NIF_TERM term) {
  void* object;
  if (enif_get_resource(env, term, type, &object)) {
    return static_cast<const Memory*>(object);
  }
  return invalid(
      "The memory is none that this library made, expected what Heddle.Tensor.upload/2 gave.");
}

Result<std::vector<Input>> read_inputs(ErlNifEnv* env, ErlNifResourceType* memory_type,
                                       ERL_NIF_TERM list) {
  std::vector<Input> inputs;
  ERL_NIF_TERM head;
  while (enif_get_list_cell(env, list, &head, &list)) {
    if (inputs.size() == kMostInputs) {
      return invalid("There are more inputs than 1024, expected those that the graph binds.");
    }
    const ERL_NIF_TERM* pair;
    int arity;
    ErlNifSInt64 uid;
    ErlNifBinary binary;
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 ||
        !enif_get_int64(env, pair[0], &uid)) {
      return invalid("An input is no pair of a uid and a binary, expected {1, <<...>>}.");
    }
    if (enif_inspect_binary(env, pair[1], &binary)) {
      inputs.push_back({uid, binary});
      continue;
    }
    const Result<const Memory*> memory = read_memory(env, memory_type, pair[1]);
    if (std::holds_alternative<Error>(memory)) {
      return invalid("An input is no pair of a uid and a binary, expected {1, <<...>>}.");
    }
    const DeviceMemory& held = std::get<const Memory*>(memory)->held;
    if (held.is_anothers() && held.device() == HEDDLE_CPU) {
      // The host's, as a binary is: read where it lies, or brought to where the call runs.
      ErlNifBinary there{};
      there.size = held.bytes();
      there.data = static_cast<unsigned char*>(held.data());
      inputs.push_back({uid, there});
      continue;
    }
    inputs.push_back({uid, std::get<const Memory*>(memory)});
  }
  if (!enif_is_empty_list(env, list)) {
    return invalid("The inputs are no list, expected [{1, <<...>>}, ...].");
  }
  return inputs;
}

Result<const Plan*> read_plan(ErlNifEnv* env, ErlNifResourceType* type, ERL_NIF_TERM term) {
  void* object;
  if (enif_get_resource(env, term, type, &object)) {
    return static_cast<const Plan*>(object);
  }
  return invalid("The plan is none that this library made, expected what Heddle.Plan.new/2 gave.");
}

}  // namespace heddle::elixir
