// The shapes that bring a plan to the sizes of a smaller graph.
#pragma once

#include <vector>

#include "api/executable.h"

namespace heddle::api {

/// What of `less` is not as planned: inputs, and outputs as well if asked.
inline std::vector<Shape> shapes_of(const Executable& planned, const graph::Graph& less,
                                    bool with_outputs) {
  std::vector<Shape> shapes;
  const auto add = [&](const std::vector<Port>& ports) {
    for (const Port& port : ports) {
      const Dims& dims = less[port.tensor].dims;
      if (dims != planned.graph()[port.tensor].dims) shapes.push_back({port.uid, dims, {}});
    }
  };
  add(planned.inputs());
  if (with_outputs) add(planned.outputs());
  return shapes;
}

}  // namespace heddle::api
