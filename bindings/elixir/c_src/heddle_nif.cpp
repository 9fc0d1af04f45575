// The functions of the Elixir module Heddle.Native. What takes long runs on dirty schedulers, and
// every failure is {:error, %Heddle.Error{}}.
#include <erl_nif.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "arguments.h"
#include "attention.h"
#include "buffers.h"
#include "execution.h"
#include "memory.h"
#include "plan.h"
#include "plan_cache.h"
#include "schedulers.h"
#include "terms.h"
#include "xla.h"

namespace heddle::elixir {
namespace {

/// What the loaded library owns.
struct Library {
  ErlNifResourceType* plans;
  Resources resources;
  PlanCache cpu{HEDDLE_CPU}, cuda{HEDDLE_CUDA};

  PlanCache& cache(heddle_device device) { return device == HEDDLE_CPU ? cpu : cuda; }
};

Library& library(ErlNifEnv* env) { return *static_cast<Library*>(enif_priv_data(env)); }

using Arguments = std::span<const ERL_NIF_TERM>;

using Answer = std::variant<ERL_NIF_TERM, Error, Heavy>;
using Body = Answer (*)(ErlNifEnv*, Arguments, On);

/// A function of the VM whose failures, exceptions too, are terms. It is called on a scheduler of
/// Erlang's own; what is heavy is called again on a dirty one.
template <Body body, On on = On::normal>
ERL_NIF_TERM guarded(ErlNifEnv* env, int count, const ERL_NIF_TERM* arguments) {
  try {
    const ErlNifTime begin = on == On::normal ? enif_monotonic_time(ERL_NIF_USEC) : 0;
    const Answer answer = body(env, {arguments, static_cast<size_t>(count)}, on);
    if (const auto* heavy = std::get_if<Heavy>(&answer)) {
      return enif_schedule_nif(env, "heddle", heavy->schedulers, guarded<body, On::dirty>, count,
                               arguments);
    }
    if constexpr (on == On::normal) {
      // A timeslice is a millisecond.
      const ErlNifTime taken = enif_monotonic_time(ERL_NIF_USEC) - begin;
      if (taken >= 10)
        enif_consume_timeslice(env, std::min<int>(100, static_cast<int>(taken / 10)));
    }
    if (const auto* error = std::get_if<Error>(&answer)) return make_error(env, *error);
    return std::get<ERL_NIF_TERM>(answer);
  } catch (const std::exception& exception) {
    return make_error(env, {HEDDLE_OUT_OF_MEMORY,
                            std::string("The call ran out of memory: ") + exception.what() + "."});
  }
}

// ---- Memory of a device.

/// What is copied in some microseconds.
constexpr size_t kLightBytes = 64 << 10;

Answer upload(ErlNifEnv* env, Arguments arguments, On on) {
  ErlNifBinary binary;
  if (!enif_inspect_binary(env, arguments[0], &binary)) {
    return invalid("The data are no binary, expected one.");
  }
  const Result<heddle_device> device = read_device(env, arguments[1]);
  if (const auto* error = std::get_if<Error>(&device)) return *error;
  const heddle_device to = std::get<heddle_device>(device);
  if (on == On::normal && (to != HEDDLE_CPU || binary.size > kLightBytes)) return heavy_on(to);
  Result<DeviceMemory> made = DeviceMemory::copy(to, binary.data, binary.size);
  if (auto* error = std::get_if<Error>(&made)) return std::move(*error);
  return make_ok(env, make_memory(env, library(env).resources.memory,
                                  std::move(std::get<DeviceMemory>(made))));
}

Answer download(ErlNifEnv* env, Arguments arguments, On on) {
  const Result<const Memory*> memory =
      read_memory(env, library(env).resources.memory, arguments[0]);
  if (const auto* error = std::get_if<Error>(&memory)) return *error;
  const DeviceMemory& held = std::get<const Memory*>(memory)->held;
  if (on == On::normal && (held.device() != HEDDLE_CPU || held.bytes() > kLightBytes)) {
    return heavy_on(held.device());
  }
  ErlNifBinary binary;
  if (!enif_alloc_binary(held.bytes(), &binary)) {
    return Error{HEDDLE_OUT_OF_MEMORY,
                 "There is no memory for a binary of " + std::to_string(held.bytes()) + " bytes."};
  }
  if (const heddle_status status =
          heddle_memory_copy_out(held.device(), binary.data, held.data(), held.bytes(), nullptr);
      status != HEDDLE_OK) {
    enif_release_binary(&binary);
    return last_error(status);
  }
  return make_ok(env, enif_make_binary(env, &binary));
}

/// :host is the host's memory of another library, which stands for a binary.
Answer memory_description(ErlNifEnv* env, Arguments arguments, On) {
  const Result<const Memory*> memory =
      read_memory(env, library(env).resources.memory, arguments[0]);
  if (const auto* error = std::get_if<Error>(&memory)) return *error;
  const DeviceMemory& held = std::get<const Memory*>(memory)->held;
  const bool is_as_a_binary = held.is_anothers() && held.device() == HEDDLE_CPU;
  const char* const place = is_as_a_binary ? "host" : name_of(held.device());
  return make_ok(
      env, enif_make_tuple2(env, enif_make_atom(env, place), enif_make_uint64(env, held.bytes())));
}

Answer address_of_memory(ErlNifEnv* env, Arguments arguments, On) {
  const Result<const Memory*> memory =
      read_memory(env, library(env).resources.memory, arguments[0]);
  if (const auto* error = std::get_if<Error>(&memory)) return *error;
  const DeviceMemory& held = std::get<const Memory*>(memory)->held;
  return make_ok(env, enif_make_uint64(env, reinterpret_cast<uintptr_t>(held.data())));
}

/// What lies at the address is taken at its word.
Answer borrow(ErlNifEnv* env, Arguments arguments, On) {
  ErlNifUInt64 address, bytes;
  if (!enif_get_uint64(env, arguments[0], &address) || address == 0 ||
      !enif_get_uint64(env, arguments[1], &bytes) || bytes == 0 || address + bytes < address) {
    return invalid("An address and the bytes there are whole numbers above 0, expected such.");
  }
  const Result<heddle_device> device = read_device(env, arguments[2]);
  if (const auto* error = std::get_if<Error>(&device)) return *error;
  return make_ok(env, lend_memory(env, library(env).resources.memory,
                                  DeviceMemory::of_another(std::get<heddle_device>(device),
                                                           reinterpret_cast<void*>(address), bytes),
                                  arguments[3]));
}

Answer count_memory(ErlNifEnv* env, Arguments, On) {
  const LiveMemory live = live_memory();
  return enif_make_tuple2(env, enif_make_int64(env, live.count), enif_make_int64(env, live.bytes));
}

// ---- Graphs by their text.

using Found = std::variant<PlanReference, Error, Heavy>;

/// What is hashed and compared in some microseconds.
constexpr size_t kLightText = 64 << 10;

/// The plan of a text; making one is heavy.
Found find_plan(ErlNifEnv* env, std::string_view text, heddle_device device, On on) {
  if (on == On::normal && text.size() > kLightText) return heavy_on(device);
  PlanCache& cache = library(env).cache(device);
  if (PlanReference found = cache.find(text)) return found;
  if (on == On::normal) return heavy_on(device);
  Result<PlanReference> made = cache.find_or_make(library(env).plans, text);
  if (auto* error = std::get_if<Error>(&made)) return std::move(*error);
  return std::move(std::get<PlanReference>(made));
}

Found find_plan(ErlNifEnv* env, ERL_NIF_TERM text, ERL_NIF_TERM device, On on) {
  ErlNifBinary bytes;
  if (!enif_inspect_binary(env, text, &bytes)) {
    return invalid("The graph is no binary, expected its text form.");
  }
  const Result<heddle_device> read = read_device(env, device);
  if (const auto* error = std::get_if<Error>(&read)) return *error;
  return find_plan(env, std::string_view(reinterpret_cast<char*>(bytes.data), bytes.size),
                   std::get<heddle_device>(read), on);
}

Answer plan(ErlNifEnv* env, Arguments arguments, On on) {
  const Found made = find_plan(env, arguments[0], arguments[1], on);
  if (const auto* error = std::get_if<Error>(&made)) return *error;
  if (const auto* heavy = std::get_if<Heavy>(&made)) return *heavy;
  return make_ok(env, enif_make_resource(env, std::get<PlanReference>(made).get()));
}

ERL_NIF_TERM list_ports(ErlNifEnv* env, const std::vector<Port>& ports) {
  std::vector<ERL_NIF_TERM> terms;
  for (const Port& port : ports) {
    std::vector<ERL_NIF_TERM> dims;
    for (const int64_t dim : port.dims) dims.push_back(enif_make_int64(env, dim));
    terms.push_back(enif_make_tuple4(env, enif_make_int64(env, port.uid),
                                     make_string(env, port.name),
                                     enif_make_atom(env, name_of(port.dtype)),
                                     enif_make_tuple_from_array(env, dims.data(), dims.size())));
  }
  return enif_make_list_from_array(env, terms.data(), terms.size());
}

Answer plan_ports(ErlNifEnv* env, Arguments arguments, On) {
  const Result<const Plan*> plan = read_plan(env, library(env).plans, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  const Plan& made = *std::get<const Plan*>(plan);
  return make_ok(
      env, enif_make_tuple2(env, list_ports(env, made.inputs), list_ports(env, made.outputs)));
}

Answer plan_description(ErlNifEnv* env, Arguments arguments, On) {
  const Result<const Plan*> plan = read_plan(env, library(env).plans, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  return make_ok(env, make_string(env, heddle_plan_description(std::get<const Plan*>(plan)->plan)));
}

Answer plan_workspace(ErlNifEnv* env, Arguments arguments, On) {
  const Result<const Plan*> plan = read_plan(env, library(env).plans, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  return make_ok(env, enif_make_uint64(env, std::get<const Plan*>(plan)->workspace_bytes));
}

Answer execute_to_list(ErlNifEnv* env, const Plan& plan, ERL_NIF_TERM list, ERL_NIF_TERM where,
                       On on) {
  const Result<std::vector<Input>> inputs = read_inputs(env, library(env).resources.memory, list);
  if (const auto* error = std::get_if<Error>(&inputs)) return *error;
  const Result<Place> place = read_place(env, where);
  if (const auto* error = std::get_if<Error>(&place)) return *error;
  const Made made = execute(env, plan, std::get<std::vector<Input>>(inputs), std::get<Place>(place),
                            on, library(env).resources);
  if (const auto* error = std::get_if<Error>(&made)) return *error;
  if (const auto* heavy = std::get_if<Heavy>(&made)) return *heavy;
  const auto& terms = std::get<std::vector<ERL_NIF_TERM>>(made);
  return make_ok(env, enif_make_list_from_array(env, terms.data(), terms.size()));
}

Answer execute_plan(ErlNifEnv* env, Arguments arguments, On on) {
  const Result<const Plan*> plan = read_plan(env, library(env).plans, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  return execute_to_list(env, *std::get<const Plan*>(plan), arguments[1], arguments[2], on);
}

/// The plan of a text, kept or made, and its execution in one call.
Answer run(ErlNifEnv* env, Arguments arguments, On on) {
  const Found plan = find_plan(env, arguments[0], arguments[1], on);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  if (const auto* heavy = std::get_if<Heavy>(&plan)) return *heavy;
  return execute_to_list(env, *std::get<PlanReference>(plan), arguments[2], arguments[3], on);
}

Answer version(ErlNifEnv* env, Arguments, On) { return make_string(env, heddle_version()); }

Answer count_plans(ErlNifEnv* env, Arguments, On) { return enif_make_int64(env, live_plans()); }

// ---- Attention of fixed arguments.

struct Operand {
  const char* name;
  AttentionUid uid;
};

/// The sizes and the flag that end the arguments.
Result<AttentionSizes> read_sizes(ErlNifEnv* env, Arguments arguments) {
  const char* const names[]{"batch", "seq_len", "num_heads", "head_dim"};
  int64_t values[4];
  __int128 bytes = sizeof(float);
  for (size_t i = 0; i < 4; ++i) {
    ErlNifSInt64 value;
    if (!enif_get_int64(env, arguments[i], &value) || value < 1) {
      return invalid(std::string(names[i]) + " is no integer of 1 to 2^63 - 1, expected one.");
    }
    values[i] = value;
    bytes = bytes > INT64_MAX ? bytes : bytes * value;
  }
  if (bytes > INT64_MAX) {
    return invalid(
        "batch, seq_len, num_heads and head_dim together ask for more than 2^63 - 1 bytes, "
        "expected less.");
  }
  const std::string causal = read_atom(env, arguments[4]);
  if (causal != "true" && causal != "false") {
    return invalid("causal is neither true nor false, expected one of them.");
  }
  return AttentionSizes{values[0], values[1], values[2], values[3], causal == "true"};
}

/// Checks binaries against the sizes before any graph is made of them, so that sizes without memory
/// to match go no further.
Result<std::vector<Input>> read_operands(ErlNifEnv* env, std::span<const Operand> operands,
                                         Arguments arguments, const AttentionSizes& s) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    ErlNifBinary binary;
    if (!enif_inspect_binary(env, arguments[i], &binary)) {
      return invalid(std::string(operands[i].name) + " is no binary, expected one of f32.");
    }
    const bool statistics = operands[i].uid == kLogSumExp;
    const auto expected = static_cast<size_t>(s.batch * s.seq_len * s.num_heads) *
                          (statistics ? 1 : static_cast<size_t>(s.head_dim)) * sizeof(float);
    if (binary.size != expected) {
      return invalid(
          std::string(operands[i].name) + " has " + std::to_string(binary.size) +
          " bytes, expected " + std::to_string(expected) + ": f32 of " +
          (statistics ? "[batch, num_heads, seq_len]" : "[batch, seq_len, num_heads, head_dim]") +
          ".");
    }
    inputs.push_back({operands[i].uid, binary});
  }
  return inputs;
}

Answer attend(ErlNifEnv* env, Arguments arguments, std::span<const Operand> operands,
              std::string (*text)(const AttentionSizes&), On on) {
  const Result<AttentionSizes> sizes = read_sizes(env, arguments.subspan(operands.size()));
  if (const auto* error = std::get_if<Error>(&sizes)) return *error;
  const auto& given = std::get<AttentionSizes>(sizes);
  const Result<std::vector<Input>> inputs =
      read_operands(env, operands, arguments.first(operands.size()), given);
  if (const auto* error = std::get_if<Error>(&inputs)) return *error;
  const Found plan = find_plan(env, std::string_view(text(given)), HEDDLE_CPU, on);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  if (const auto* heavy = std::get_if<Heavy>(&plan)) return *heavy;
  Made made = execute(env, *std::get<PlanReference>(plan), std::get<std::vector<Input>>(inputs),
                      Place::binaries, on, library(env).resources);
  if (auto* error = std::get_if<Error>(&made)) return std::move(*error);
  if (const auto* heavy = std::get_if<Heavy>(&made)) return *heavy;
  auto& terms = std::get<std::vector<ERL_NIF_TERM>>(made);
  terms.insert(terms.begin(), enif_make_atom(env, "ok"));
  return enif_make_tuple_from_array(env, terms.data(), terms.size());
}

Answer forward_with_logsumexp(ErlNifEnv* env, Arguments arguments, On on) {
  constexpr Operand kOperands[]{{"q", kQ}, {"k", kK}, {"v", kV}};
  return attend(env, arguments, kOperands, attention_text, on);
}

Answer backward_f32(ErlNifEnv* env, Arguments arguments, On on) {
  constexpr Operand kOperands[]{{"d_out", kDO}, {"q", kQ},      {"k", kK},
                                {"v", kV},      {"output", kO}, {"logsumexp", kLogSumExp}};
  return attend(env, arguments, kOperands, attention_backward_text, on);
}

// ---- XLA.

Answer register_with_xla(ErlNifEnv* env, Arguments arguments, On on) {
  ErlNifBinary name;
  if (!enif_inspect_binary(env, arguments[0], &name)) {
    return invalid("The library is no binary, expected its name.");
  }
  if (on == On::normal) return kWaits;
  if (auto failed = register_xla(std::string(reinterpret_cast<char*>(name.data), name.size))) {
    return std::move(*failed);
  }
  return enif_make_atom(env, "ok");
}

// ---- The library as the VM sees it.

int load(ErlNifEnv* env, void** data, ERL_NIF_TERM) {
  try {
    auto made = std::make_unique<Library>();
    made->plans = open_plans(env);
    made->resources.memory = open_memory(env);
    made->resources.buffers = open_buffers(env);
    if (!made->plans || !made->resources.memory || !made->resources.buffers) return 1;
    *data = made.release();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

/// New code has plans and workspaces of its own; plans and memory that terms hold are taken over.
int upgrade(ErlNifEnv* env, void** data, void**, ERL_NIF_TERM info) {
  return load(env, data, info);
}

void unload(ErlNifEnv*, void* data) { delete static_cast<Library*>(data); }

ErlNifFunc functions[]{
    {"version", 0, guarded<version>, 0},
    {"live_plans", 0, guarded<count_plans>, 0},
    {"live_memory", 0, guarded<count_memory>, 0},
    {"upload", 2, guarded<upload>, 0},
    {"download", 1, guarded<download>, 0},
    {"memory", 1, guarded<memory_description>, 0},
    {"address", 1, guarded<address_of_memory>, 0},
    {"borrow", 4, guarded<borrow>, 0},
    {"plan", 2, guarded<plan>, 0},
    {"plan_ports", 1, guarded<plan_ports>, 0},
    {"plan_workspace", 1, guarded<plan_workspace>, 0},
    {"register_xla", 1, guarded<register_with_xla>, 0},
    {"plan_description", 1, guarded<plan_description>, 0},
    {"run", 4, guarded<run>, 0},
    {"execute", 3, guarded<execute_plan>, 0},
    {"forward_with_logsumexp", 8, guarded<forward_with_logsumexp>, 0},
    {"forward_with_logsumexp_nif", 8, guarded<forward_with_logsumexp>, 0},
    {"backward_f32", 11, guarded<backward_f32>, 0},
    {"backward_f32_nif", 11, guarded<backward_f32>, 0},
};

}  // namespace
}  // namespace heddle::elixir

using namespace heddle::elixir;

extern "C" {
ERL_NIF_INIT(Elixir.Heddle.Native, functions, load, nullptr, upgrade, unload)
}
