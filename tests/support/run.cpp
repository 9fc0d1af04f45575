#include "support/run.h"

#include <algorithm>

#include "graph/validate.h"

namespace heddle::testing {

using graph::TensorId;

namespace {

/// Memory for what the caller does not bind: intermediates, and constants that an op reads.
void add_unbound(const fusion::Schedule& schedule, Program& program) {
  for (const fusion::Step& step : schedule.steps) {
    for (TensorId id : step.tensors) {
      const graph::Tensor& tensor = program.graph[id];
      if (program.is_allocated(id)) continue;
      program.allocate(id);
      if (tensor.constant)
        store(*tensor.dtype, program.memory[tensor.uid].data(), 0, *tensor.constant);
    }
  }
}

Status execute(const fusion::Step& step, const engine::Engine& engine, Program& program) {
  HEDDLE_ASSIGN(const auto plan, engine.plan(step.problem));
  const reference::Buffers bound = program.buffers();
  std::vector<void*> buffers;
  for (TensorId id : step.tensors) buffers.push_back(bound.at(program.graph[id].uid));
  Block workspace(plan->workspace_bytes());
  HEDDLE_TRY(plan->execute(buffers, workspace.data(), nullptr));
  const unsigned char* guard = workspace.data() + plan->workspace_bytes();
  if (std::any_of(guard, static_cast<const unsigned char*>(workspace.data()) + workspace.size(),
                  [](unsigned char byte) { return byte != kPoison; })) {
    return error(Code::graph_execution_failed, "{} wrote past its workspace of {} bytes",
                 plan->description(), plan->workspace_bytes());
  }
  return {};
}

}  // namespace

Status run(Program& program, const engine::Engine& engine) {
  HEDDLE_TRY(graph::validate(program.graph));
  HEDDLE_ASSIGN(const fusion::Schedule schedule, fusion::fuse(program.graph));
  std::vector<int64_t> bound;
  for (const auto& [uid, block] : program.memory) bound.push_back(uid);
  add_unbound(schedule, program);
  Status status;
  for (const fusion::Step& step : schedule.steps) {
    status = execute(step, engine, program);
    if (!status.is_ok()) break;
  }
  std::erase_if(program.memory, [&](const auto& entry) {
    return std::find(bound.begin(), bound.end(), entry.first) == bound.end();
  });
  return status;
}

}  // namespace heddle::testing
