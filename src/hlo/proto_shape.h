// Shapes in the protobuf form of HLO.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"
#include "hlo/shape.h"

namespace heddle::hlo::proto {

/// XLA's number of an element type.
int64_t number(ElementType type);
std::optional<ElementType> element_type(int64_t number);

/// A ShapeProto. Of a layout only the order is read: tiles and memory spaces, which appear after
/// layout assignment, stay in the bytes of the instruction. Throws protozero's exceptions.
Result<Shape> read_shape(std::string_view bytes);
std::string write_shape(const Shape& shape);

struct ProgramShape {
  std::vector<Shape> parameters;
  Shape result;
  friend bool operator==(const ProgramShape&, const ProgramShape&) = default;
};
Result<ProgramShape> read_program_shape(std::string_view bytes);
std::string write_program_shape(const ProgramShape& shape,
                                const std::vector<std::string>& parameter_names);

}  // namespace heddle::hlo::proto
