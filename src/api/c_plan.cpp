// Plans through the C interface.
#include <array>

#include "api/c_error.h"
#include "api/c_objects.h"
#include "api/c_values.h"
#include "api/tensor_bytes.h"
#include "engine/devices.h"

namespace heddle::api {
namespace {

Result<std::shared_ptr<const Executable>> build(const heddle_graph* graph, heddle_device device,
                                                const char* function) {
  if (!graph) return null_argument(function, "graph");
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  return Executable::build(graph->graph, engine::engines(on));
}

void hand_over(std::unique_ptr<heddle_plan> plan, heddle_plan** out) {
  for (const Port& port : plan->executable->inputs()) plan->input_uids.push_back(port.uid);
  for (const Port& port : plan->executable->outputs()) plan->output_uids.push_back(port.uid);
  *out = plan.release();
}

Status create_plan(const heddle_graph* graph, heddle_device device, heddle_plan** out) {
  if (!out) return null_argument("heddle_plan_create", "plan");
  auto plan = std::make_unique<heddle_plan>();
  HEDDLE_ASSIGN(plan->executable, build(graph, device, "heddle_plan_create"));
  hand_over(std::move(plan), out);
  return {};
}

Status create_plan_for(const heddle_graph* graph, const char* architecture, heddle_plan** out) {
  if (!graph) return null_argument("heddle_plan_create_for", "graph");
  if (!architecture) return null_argument("heddle_plan_create_for", "architecture");
  if (!out) return null_argument("heddle_plan_create_for", "plan");
  auto plan = std::make_unique<heddle_plan>();
  HEDDLE_ASSIGN(plan->engine, engine::architecture_engine(architecture));
  const engine::Engine* const only = plan->engine.get();
  HEDDLE_ASSIGN(plan->executable, Executable::build(graph->graph, {&only, 1}));
  hand_over(std::move(plan), out);
  return {};
}

Result<Dims> dims_of(const heddle_shape& shape, const char* what, const int64_t* values,
                     int32_t rank) {
  if (rank < 0 || rank > HEDDLE_MAX_RANK) {
    return error(Code::invalid_value, "The shape of uid {} has {} {}, expected 0 to {}.", shape.uid,
                 rank, what, HEDDLE_MAX_RANK);
  }
  return Dims(values, values + rank);
}

/// The plan at the shapes.
Result<std::shared_ptr<const Executable>> executable_of(const heddle_plan& plan,
                                                        const heddle_shape* given, size_t count) {
  if (count == 0) return plan.executable;
  if (!given) return null_argument("heddle_plan_execute", "shapes");
  if (count > Executable::kMaxPorts) {
    return error(Code::invalid_value, "{} shapes are given, expected at most {}.", count,
                 Executable::kMaxPorts);
  }
  std::array<Shape, Executable::kMaxPorts> shapes;
  for (size_t i = 0; i < count; ++i) {
    shapes[i].uid = given[i].uid;
    HEDDLE_ASSIGN(shapes[i].dims, dims_of(given[i], "dims", given[i].dims, given[i].rank));
    HEDDLE_ASSIGN(shapes[i].strides,
                  dims_of(given[i], "strides", given[i].strides, given[i].stride_rank));
  }
  return plan.late_sizes.find_or_make(*plan.executable, {shapes.data(), count});
}

Status execute(const heddle_plan* plan, const int64_t* uids, void* const* pointers, size_t count,
               const heddle_shape* shapes, size_t shape_count, void* workspace, void* stream) {
  if (!plan) return null_argument("heddle_plan_execute", "plan");
  if (count > 0 && !uids) return null_argument("heddle_plan_execute", "uids");
  if (count > 0 && !pointers) return null_argument("heddle_plan_execute", "pointers");
  // Uids the plan does not bind are dropped here, so that any number of them fits on the stack.
  std::array<Binding, Executable::kMaxPorts> bindings;
  size_t bound = 0;
  const auto bind = [&](const std::vector<Port>& ports) {
    for (const Port& port : ports) {
      for (size_t i = 0; i < count; ++i) {
        if (uids[i] != port.uid) continue;
        bindings[bound++] = {port.uid, pointers[i]};
        break;
      }
    }
  };
  bind(plan->executable->inputs());
  bind(plan->executable->outputs());
  HEDDLE_ASSIGN(const std::shared_ptr<const Executable> executable,
                executable_of(*plan, shapes, shape_count));
  return executable->execute({bindings.data(), bound}, workspace, stream);
}

Status count_bytes(const heddle_plan* plan, int64_t uid, const int64_t* uids, void* const* pointers,
                   size_t count, size_t* bytes) {
  constexpr const char* kFunction = "heddle_plan_tensor_bytes";
  if (!plan) return null_argument(kFunction, "plan");
  if (!bytes) return null_argument(kFunction, "bytes");
  if (count > 0 && !uids) return null_argument(kFunction, "uids");
  if (count > 0 && !pointers) return null_argument(kFunction, "pointers");
  const graph::Graph& graph = plan->executable->graph();
  HEDDLE_ASSIGN(const graph::TensorId id, find_tensor(graph, uid));
  const auto host = [&](graph::TensorId wanted) -> const void* {
    for (size_t i = 0; i < count; ++i) {
      if (uids[i] == graph[wanted].uid) return pointers[i];
    }
    return nullptr;
  };
  HEDDLE_ASSIGN(const int64_t counted, tensor_bytes(graph, id, host));
  *bytes = static_cast<size_t>(counted);
  return {};
}

heddle_status list_uids(const std::vector<int64_t>* list, const char* function,
                        const int64_t** uids, size_t* count) {
  return guarded([&]() -> Status {
    if (!list) return null_argument(function, "plan");
    if (!uids) return null_argument(function, "uids");
    if (!count) return null_argument(function, "count");
    *uids = list->data();
    *count = list->size();
    return {};
  });
}

}  // namespace
}  // namespace heddle::api

using namespace heddle;
using api::guarded;
using api::null_argument;

extern "C" {

heddle_status heddle_graph_supported(const heddle_graph* graph, heddle_device device) {
  return guarded([&] { return api::build(graph, device, "heddle_graph_supported").status(); });
}

heddle_status heddle_plan_create(const heddle_graph* graph, heddle_device device,
                                 heddle_plan** plan) {
  return guarded([&] { return api::create_plan(graph, device, plan); });
}

heddle_status heddle_plan_create_for(const heddle_graph* graph, const char* architecture,
                                     heddle_plan** plan) {
  return guarded([&] { return api::create_plan_for(graph, architecture, plan); });
}

void heddle_plan_free(heddle_plan* plan) { delete plan; }

size_t heddle_plan_workspace_bytes(const heddle_plan* plan) {
  return plan ? static_cast<size_t>(plan->executable->workspace_bytes()) : 0;
}

heddle_status heddle_plan_inputs(const heddle_plan* plan, const int64_t** uids, size_t* count) {
  return api::list_uids(plan ? &plan->input_uids : nullptr, "heddle_plan_inputs", uids, count);
}

heddle_status heddle_plan_outputs(const heddle_plan* plan, const int64_t** uids, size_t* count) {
  return api::list_uids(plan ? &plan->output_uids : nullptr, "heddle_plan_outputs", uids, count);
}

heddle_status heddle_plan_tensor(const heddle_plan* plan, int64_t uid, heddle_tensor* tensor) {
  return guarded([&]() -> Status {
    if (!plan) return null_argument("heddle_plan_tensor", "plan");
    if (!tensor) return null_argument("heddle_plan_tensor", "tensor");
    return api::describe_tensor(plan->executable->graph(), uid, *tensor);
  });
}

heddle_status heddle_plan_tensor_bytes(const heddle_plan* plan, int64_t uid, const int64_t* uids,
                                       void* const* pointers, size_t count, size_t* bytes) {
  return guarded([&] { return api::count_bytes(plan, uid, uids, pointers, count, bytes); });
}

const char* heddle_plan_engine(const heddle_plan* plan) {
  return plan ? plan->executable->engine().c_str() : "";
}

const char* heddle_plan_description(const heddle_plan* plan) {
  return plan ? plan->executable->description().c_str() : "";
}

const char* heddle_plan_attention_paths(const heddle_plan* plan) {
  return plan ? plan->executable->attention_paths().c_str() : "";
}

heddle_status heddle_plan_execute(const heddle_plan* plan, const int64_t* uids,
                                  void* const* pointers, size_t count, const heddle_shape* shapes,
                                  size_t shape_count, void* workspace, void* stream) {
  return guarded([&] {
    return api::execute(plan, uids, pointers, count, shapes, shape_count, workspace, stream);
  });
}

}  // extern "C"
