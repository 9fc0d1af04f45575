// Graphs and plans of the C interface, owned; and its failures as Status.
#pragma once

#include <memory>

#include "core/status.h"
#include "heddle/heddle.h"

namespace heddle::onnxruntime {

struct Free {
  void operator()(heddle_graph* graph) const { heddle_graph_free(graph); }
  void operator()(heddle_plan* plan) const { heddle_plan_free(plan); }
};
using GraphHandle = std::unique_ptr<heddle_graph, Free>;
using PlanHandle = std::unique_ptr<heddle_plan, Free>;

/// What a function of the C interface answered, with its sentence.
inline Status status_of(heddle_status status) {
  static_assert(static_cast<int>(Code::ok) == HEDDLE_OK &&
                static_cast<int>(Code::io_failed) == HEDDLE_IO_FAILED);
  if (status == HEDDLE_OK) return {};
  return {static_cast<Code>(status), heddle_last_error()};
}

}  // namespace heddle::onnxruntime
