// A plan of the library as a resource of the Erlang VM.
#pragma once

#include <erl_nif.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terms.h"

namespace heddle::elixir {

/// A tensor that a plan binds, as it lies in memory.
struct Port {
  int64_t uid;
  std::string name;
  heddle_dtype dtype;
  std::vector<int64_t>
      dims;      ///< of an output from the slowest to the fastest; of others the graph's
  size_t bytes;  ///< from its first element to past its last; of a packed one the most there may be
  size_t alignment;
  bool packed;    ///< offsets and lengths of an execution say how much memory it takes
  bool by_value;  ///< a scalar that is read from the host's memory, whatever the device
};

/// Frees itself when no term and no cache holds it (resource destructor). It has no virtual
/// function: a resource outlives the version of this library that made it.
struct Plan {
  heddle_plan* plan = nullptr;
  heddle_device device = HEDDLE_CPU;
  size_t workspace_bytes = 0;
  bool leaves_rows =
      false;              ///< rows past a length, which are never written: results begin as zeros
  bool is_light = false;  ///< an execution takes far less than a millisecond on any CPU
  mutable std::atomic<bool> has_run = false;  ///< what a first execution prepares is there
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

/// "tensor 'q', f32 [1, 2, 3, 4],"
std::string describe(const Port& port);

/// "f32"
const char* name_of(heddle_dtype dtype);

}  // namespace heddle::elixir
