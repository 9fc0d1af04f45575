// What follows an instruction's operands in text: `name=value` pairs, in the order they were read.
// Attributes that Heddle reads have typed values; every other value is kept as its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hlo/shape.h"

namespace heddle::hlo {

class Computation;
class Instruction;

/// One dimension of `slice={[start:limit:stride]}`.
struct SliceDimension {
  int64_t start = 0;
  int64_t limit = 0;
  int64_t stride = 1;
  friend bool operator==(const SliceDimension&, const SliceDimension&) = default;
};

/// One dimension of `padding=low_high_interior`; negative low or high cut elements off.
struct PaddingDimension {
  int64_t low = 0;
  int64_t high = 0;
  int64_t interior = 0;
  friend bool operator==(const PaddingDimension&, const PaddingDimension&) = default;
};

/// One dimension of `window={size=3x3 stride=1x2 pad=0_0x1_1 ...}`.
struct WindowDimension {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t pad_low = 0;
  int64_t pad_high = 0;
  int64_t lhs_dilate = 1;
  int64_t rhs_dilate = 1;
  bool reversed = false;
  friend bool operator==(const WindowDimension&, const WindowDimension&) = default;
};

/// Text kept as it was: balanced brackets, words, quoted strings.
struct Verbatim {
  std::string text;
  friend bool operator==(const Verbatim&, const Verbatim&) = default;
};

using AttributeValue =
    std::variant<Verbatim,                       // metadata, sharding, direction=GE, algorithm=...
                 bool,                           // is_stable, indices_are_sorted, ...
                 int64_t,                        // index, iota_dimension, index_vector_dim
                 std::vector<int64_t>,           // dimensions, lhs_contracting_dims, ...
                 std::string,                    // custom_call_target, decoded from its quotes
                 std::vector<SliceDimension>,    // slice
                 std::vector<PaddingDimension>,  // padding
                 std::vector<WindowDimension>,   // window
                 std::vector<Shape>,             // operand_layout_constraints
                 Computation*,                   // to_apply, condition, body, calls, ...
                 std::vector<Computation*>,      // branch_computations, called_computations
                 std::vector<Instruction*>>;     // control-predecessors

struct Attribute {
  std::string name;
  AttributeValue value;
};

/// What kind of value an attribute of this name has.
enum class AttributeKind : uint8_t {
  verbatim,
  boolean,
  integer,
  integers,
  string,
  slice,
  padding,
  window,
  shapes,
  computation,
  computations,
  instructions,
};
/// By name alone: a name Heddle does not read is verbatim.
AttributeKind attribute_kind(std::string_view name);

}  // namespace heddle::hlo
