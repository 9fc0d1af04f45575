// A plan of the library as a resource of the Erlang VM, and its execution on binaries.
#pragma once

#include <erl_nif.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terms.h"
#include "workspaces.h"

namespace heddle::elixir {

/// A tensor that a plan binds, as it lies in memory.
struct Port {
  int64_t uid;
  std::string name;
  heddle_dtype dtype;
  std::vector<int64_t>
      dims;      ///< of an output from the slowest to the fastest; of an input the graph's
  size_t bytes;  ///< from its first element to past its last
  size_t alignment;
};

/// Frees itself when no term and no cache holds it (resource destructor). It has no virtual
/// function: a resource outlives the version of this library that made it.
struct Plan {
  heddle_plan* plan = nullptr;
  size_t workspace_bytes = 0;
  std::vector<Port> inputs, outputs;

  Plan();
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

struct ReleasePlan {
  void operator()(Plan* plan) const { enif_release_resource(plan); }
};
/// One reference of a plan: with the last of these and of terms the plan goes.
using PlanReference = std::unique_ptr<Plan, ReleasePlan>;

/// Another reference of the plan.
PlanReference share(const PlanReference& plan);

/// How many plans there are.
int64_t live_plans();

/// Opens the resource type of plans; null if the VM refuses.
ErlNifResourceType* open_plans(ErlNifEnv* env);

/// Plans a graph's text.
Result<PlanReference> make_plan(ErlNifResourceType* type, std::string_view text,
                                heddle_device device);

/// An input by its uid.
struct Input {
  int64_t uid;
  ErlNifBinary data;
};

/// Runs the plan and gives its outputs as binaries, in the order of its outputs. Everything is
/// checked before memory is taken or anything runs. Inputs are read where they lie, unless they are
/// not aligned to their elements, as parts of other binaries may be.
Result<std::vector<ERL_NIF_TERM>> execute(ErlNifEnv* env, const Plan& plan,
                                          std::span<const Input> inputs, Workspaces& workspaces);

/// "f32"
const char* name_of(heddle_dtype dtype);

}  // namespace heddle::elixir
