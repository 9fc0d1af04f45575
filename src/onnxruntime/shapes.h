// Shapes that a session knows before it runs: without them it optimises less of what follows a
// node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "onnxruntime/abi.h"

namespace heddle::onnxruntime {

/// A number, or a name of one.
struct SymbolicDim {
  int64_t number = -1;
  std::string name;
};
using SymbolicDims = std::vector<SymbolicDim>;

/// A node's inputs and attributes, as far as the session knows them.
class ShapeContext {
 public:
  ShapeContext(const abi::Api& api, const abi::ShapeContext* context)
      : api_(api), context_(context) {}

  /// Nothing if the node has no such input, or a dim of it has neither number nor name.
  std::optional<SymbolicDims> input(size_t index) const;
  /// Undefined if the node has no such input.
  abi::ElementType type(size_t index) const;
  bool has_input(size_t index) const { return type(index) != abi::ElementType::undefined; }
  int64_t integer(const char* name, int64_t default_value) const;

  Status set_output(size_t index, abi::ElementType type, const SymbolicDims& dims) const;

 private:
  /// Null if the node has no such input.
  const abi::ShapeInfo* info(size_t index) const;
  bool is(abi::Status* status) const;

  const abi::Api& api_;
  const abi::ShapeContext* context_;
};

}  // namespace heddle::onnxruntime
