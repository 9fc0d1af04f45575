// What a caller binds to a graph at an execution.
#pragma once

#include <cstdint>

#include "core/dims.h"
#include "graph/graph.h"

namespace heddle::api {

/// One entry of a variant pack: the caller's pointer for a tensor.
struct Binding {
  int64_t uid = 0;
  void* pointer = nullptr;
};

/// What a tensor's dims are at one execution.
struct Shape {
  int64_t uid = 0;
  Dims dims;
  Dims strides;  ///< in elements; empty: the plan's

  friend bool operator==(const Shape&, const Shape&) = default;
};

/// A tensor the caller binds at execution.
struct Port {
  int64_t uid = 0;
  graph::TensorId tensor = graph::kNone;
  bool output = false;
};

}  // namespace heddle::api
