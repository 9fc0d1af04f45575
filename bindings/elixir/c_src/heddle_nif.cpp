// The functions of the Elixir module Heddle.Native. Those that plan or compute run on dirty CPU
// schedulers, and every failure is {:error, %Heddle.Error{}}.
#include <erl_nif.h>

#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "attention.h"
#include "plan.h"
#include "plan_cache.h"
#include "terms.h"
#include "workspaces.h"

namespace heddle::elixir {
namespace {

/// What the loaded library owns.
struct Library {
  ErlNifResourceType* plans;
  PlanCache cache;
  Workspaces workspaces;
};

Library& library(ErlNifEnv* env) { return *static_cast<Library*>(enif_priv_data(env)); }

using Arguments = std::span<const ERL_NIF_TERM>;
using Body = Result<ERL_NIF_TERM> (*)(ErlNifEnv*, Arguments);

/// A function of the VM whose failures, exceptions too, are terms.
template <Body body>
ERL_NIF_TERM guarded(ErlNifEnv* env, int count, const ERL_NIF_TERM* arguments) {
  try {
    const Result<ERL_NIF_TERM> result = body(env, {arguments, static_cast<size_t>(count)});
    if (const auto* term = std::get_if<ERL_NIF_TERM>(&result)) return *term;
    return make_error(env, std::get<Error>(result));
  } catch (const std::exception& exception) {
    return make_error(env, {HEDDLE_OUT_OF_MEMORY,
                            std::string("The call ran out of memory: ") + exception.what() + "."});
  }
}

Error invalid(std::string sentence) { return {HEDDLE_INVALID_VALUE, std::move(sentence)}; }

// ---- Arguments.

Result<std::vector<Input>> read_inputs(ErlNifEnv* env, ERL_NIF_TERM list) {
  std::vector<Input> inputs;
  ERL_NIF_TERM head;
  while (enif_get_list_cell(env, list, &head, &list)) {
    const ERL_NIF_TERM* pair;
    int arity;
    ErlNifSInt64 uid;
    Input input{};
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 ||
        !enif_get_int64(env, pair[0], &uid) || !enif_inspect_binary(env, pair[1], &input.data)) {
      return invalid("An input is no pair of a uid and a binary, expected {1, <<...>>}.");
    }
    input.uid = uid;
    inputs.push_back(input);
  }
  if (!enif_is_empty_list(env, list)) {
    return invalid("The inputs are no list, expected [{1, <<...>>}, ...].");
  }
  return inputs;
}

Result<ERL_NIF_TERM> execute_to_list(ErlNifEnv* env, const Plan& plan,
                                     std::span<const Input> inputs) {
  Result<std::vector<ERL_NIF_TERM>> made = execute(env, plan, inputs, library(env).workspaces);
  if (auto* error = std::get_if<Error>(&made)) return *error;
  const auto& terms = std::get<std::vector<ERL_NIF_TERM>>(made);
  return make_ok(env, enif_make_list_from_array(env, terms.data(), terms.size()));
}

// ---- Graphs by their text.

Result<PlanReference> find_plan(ErlNifEnv* env, std::string_view text) {
  return library(env).cache.find_or_make(library(env).plans, text);
}

Result<PlanReference> find_plan(ErlNifEnv* env, ERL_NIF_TERM text) {
  ErlNifBinary bytes;
  if (!enif_inspect_binary(env, text, &bytes)) {
    return invalid("The graph is no binary, expected its text form.");
  }
  return find_plan(env, std::string_view(reinterpret_cast<char*>(bytes.data), bytes.size));
}

Result<ERL_NIF_TERM> plan(ErlNifEnv* env, Arguments arguments) {
  const Result<PlanReference> made = find_plan(env, arguments[0]);
  if (const auto* error = std::get_if<Error>(&made)) return *error;
  return make_ok(env, enif_make_resource(env, std::get<PlanReference>(made).get()));
}

Result<const Plan*> read_plan(ErlNifEnv* env, ERL_NIF_TERM term) {
  void* object;
  if (enif_get_resource(env, term, library(env).plans, &object)) {
    return static_cast<const Plan*>(object);
  }
  return invalid("The plan is none that this library made, expected what Heddle.Plan.new/1 gave.");
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

Result<ERL_NIF_TERM> plan_ports(ErlNifEnv* env, Arguments arguments) {
  const Result<const Plan*> plan = read_plan(env, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  const Plan& made = *std::get<const Plan*>(plan);
  return make_ok(
      env, enif_make_tuple2(env, list_ports(env, made.inputs), list_ports(env, made.outputs)));
}

Result<ERL_NIF_TERM> plan_description(ErlNifEnv* env, Arguments arguments) {
  const Result<const Plan*> plan = read_plan(env, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  return make_ok(env, make_string(env, heddle_plan_description(std::get<const Plan*>(plan)->plan)));
}

Result<ERL_NIF_TERM> execute_plan(ErlNifEnv* env, Arguments arguments) {
  const Result<const Plan*> plan = read_plan(env, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  const Result<std::vector<Input>> inputs = read_inputs(env, arguments[1]);
  if (const auto* error = std::get_if<Error>(&inputs)) return *error;
  return execute_to_list(env, *std::get<const Plan*>(plan), std::get<std::vector<Input>>(inputs));
}

/// The plan of a text, kept or made, and its execution in one call.
Result<ERL_NIF_TERM> run(ErlNifEnv* env, Arguments arguments) {
  const Result<PlanReference> plan = find_plan(env, arguments[0]);
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  const Result<std::vector<Input>> inputs = read_inputs(env, arguments[1]);
  if (const auto* error = std::get_if<Error>(&inputs)) return *error;
  return execute_to_list(env, *std::get<PlanReference>(plan), std::get<std::vector<Input>>(inputs));
}

Result<ERL_NIF_TERM> version(ErlNifEnv* env, Arguments) {
  return make_string(env, heddle_version());
}

Result<ERL_NIF_TERM> count_plans(ErlNifEnv* env, Arguments) {
  return enif_make_int64(env, live_plans());
}

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
  char causal[8];
  const int length = enif_get_atom(env, arguments[4], causal, sizeof causal, ERL_NIF_LATIN1);
  const bool yes = length > 0 && std::strcmp(causal, "true") == 0;
  if (!yes && (length <= 0 || std::strcmp(causal, "false") != 0)) {
    return invalid("causal is neither true nor false, expected one of them.");
  }
  return AttentionSizes{values[0], values[1], values[2], values[3], yes};
}

/// Checks binaries against the sizes before any graph is made of them, so that sizes without memory
/// to match go no further.
Result<std::vector<Input>> read_operands(ErlNifEnv* env, std::span<const Operand> operands,
                                         Arguments arguments, const AttentionSizes& s) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    Input input{operands[i].uid, {}};
    if (!enif_inspect_binary(env, arguments[i], &input.data)) {
      return invalid(std::string(operands[i].name) + " is no binary, expected one of f32.");
    }
    const bool statistics = operands[i].uid == kLogSumExp;
    const auto expected = static_cast<size_t>(s.batch * s.seq_len * s.num_heads) *
                          (statistics ? 1 : static_cast<size_t>(s.head_dim)) * sizeof(float);
    if (input.data.size != expected) {
      return invalid(
          std::string(operands[i].name) + " has " + std::to_string(input.data.size) +
          " bytes, expected " + std::to_string(expected) + ": f32 of " +
          (statistics ? "[batch, num_heads, seq_len]" : "[batch, seq_len, num_heads, head_dim]") +
          ".");
    }
    inputs.push_back(input);
  }
  return inputs;
}

Result<ERL_NIF_TERM> attend(ErlNifEnv* env, Arguments arguments, std::span<const Operand> operands,
                            std::string (*text)(const AttentionSizes&)) {
  const Result<AttentionSizes> sizes = read_sizes(env, arguments.subspan(operands.size()));
  if (const auto* error = std::get_if<Error>(&sizes)) return *error;
  const auto& given = std::get<AttentionSizes>(sizes);
  const Result<std::vector<Input>> inputs =
      read_operands(env, operands, arguments.first(operands.size()), given);
  if (const auto* error = std::get_if<Error>(&inputs)) return *error;
  const Result<PlanReference> plan = find_plan(env, std::string_view(text(given)));
  if (const auto* error = std::get_if<Error>(&plan)) return *error;
  Result<std::vector<ERL_NIF_TERM>> made =
      execute(env, *std::get<PlanReference>(plan), std::get<std::vector<Input>>(inputs),
              library(env).workspaces);
  if (auto* error = std::get_if<Error>(&made)) return *error;
  auto& terms = std::get<std::vector<ERL_NIF_TERM>>(made);
  terms.insert(terms.begin(), enif_make_atom(env, "ok"));
  return enif_make_tuple_from_array(env, terms.data(), terms.size());
}

Result<ERL_NIF_TERM> forward_with_logsumexp(ErlNifEnv* env, Arguments arguments) {
  constexpr Operand kOperands[]{{"q", kQ}, {"k", kK}, {"v", kV}};
  return attend(env, arguments, kOperands, attention_text);
}

Result<ERL_NIF_TERM> backward_f32(ErlNifEnv* env, Arguments arguments) {
  constexpr Operand kOperands[]{{"d_out", kDO}, {"q", kQ},      {"k", kK},
                                {"v", kV},      {"output", kO}, {"logsumexp", kLogSumExp}};
  return attend(env, arguments, kOperands, attention_backward_text);
}

// ---- The library as the VM sees it.

int load(ErlNifEnv* env, void** data, ERL_NIF_TERM) {
  try {
    auto made = std::make_unique<Library>();
    made->plans = open_plans(env);
    if (!made->plans) return 1;
    *data = made.release();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

/// New code has plans and workspaces of its own; plans that terms hold are taken over.
int upgrade(ErlNifEnv* env, void** data, void**, ERL_NIF_TERM info) {
  return load(env, data, info);
}

void unload(ErlNifEnv*, void* data) { delete static_cast<Library*>(data); }

ErlNifFunc functions[]{
    {"version", 0, guarded<version>, 0},
    {"live_plans", 0, guarded<count_plans>, 0},
    {"plan", 1, guarded<plan>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"plan_ports", 1, guarded<plan_ports>, 0},
    {"plan_description", 1, guarded<plan_description>, 0},
    {"run", 2, guarded<run>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"execute", 2, guarded<execute_plan>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"forward_with_logsumexp", 8, guarded<forward_with_logsumexp>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"forward_with_logsumexp_nif", 8, guarded<forward_with_logsumexp>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"backward_f32", 11, guarded<backward_f32>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"backward_f32_nif", 11, guarded<backward_f32>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
};

}  // namespace
}  // namespace heddle::elixir

using namespace heddle::elixir;

extern "C" {
ERL_NIF_INIT(Elixir.Heddle.Native, functions, load, nullptr, upgrade, unload)
}
