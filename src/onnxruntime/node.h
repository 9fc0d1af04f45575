// What a node of a model is to Heddle: attributes, read when the session is made, and a graph for
// each set of shapes that its inputs come in. A file of microsoft/ or onnx/ has one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/status.h"
#include "onnxruntime/attributes.h"
#include "onnxruntime/handles.h"
#include "onnxruntime/shapes.h"

namespace heddle::onnxruntime {

/// An input or output as a run has it.
struct Value {
  std::optional<DataType> dtype;  ///< nothing: the node has none
  Dims dims;
  void* data = nullptr;

  bool is_given() const { return dtype.has_value(); }
};
using Inputs = std::span<const Value>;
/// Which outputs the model has a name for.
using Wanted = std::vector<bool>;

struct Output {
  Dims dims;
  DataType dtype = DataType::f32;
};

/// Part of an input as a tensor of its own: a packed one holds several.
struct View {
  size_t input;
  int64_t first_byte;
};

/// What computes a node at one set of shapes.
struct Recipe {
  /// Binds input n by uid 1 + n and output n by 101 + n. Null: the outputs have no elements.
  GraphHandle graph;
  /// Sizes of blocks that the node fills before the graph runs, bound by uid 201 and on: what the
  /// graph reads and no input holds as it does.
  std::vector<size_t> prepared_bytes;
  /// Bound by uid 301 and on.
  std::vector<View> views;
  /// What `prepare` and `finish` do beside refusing contents, in words: it is done in the host's
  /// memory, so that no GPU runs such a recipe. Empty: nothing.
  std::string on_host;
  /// Of all outputs; those that are not wanted do not matter.
  std::vector<Output> outputs;
};

inline constexpr int64_t uid_of_input(int n) { return 1 + n; }
inline constexpr int64_t uid_of_output(int n) { return 101 + n; }
inline constexpr int64_t uid_of_prepared(int n) { return 201 + n; }
inline constexpr int64_t uid_of_view(int n) { return 301 + n; }

class Node {
 public:
  virtual ~Node() = default;
  /// What the recipe depends on beside types and dims: a number that an input on the host holds.
  /// Numbers that make no difference are to be one.
  virtual Result<int64_t> number(Inputs, const Wanted&) const { return 0; }
  virtual Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t number) const = 0;
  /// Fills the recipe's blocks, and outputs that the graph reads; refuses what only the inputs'
  /// contents show. On a CPU alone, as `finish` is.
  virtual Status prepare(Inputs, const Wanted&, std::span<const Value> outputs,
                         std::span<void* const> blocks) const {
    static_cast<void>(outputs), static_cast<void>(blocks);
    return {};
  }
  /// After the graph has run: writes outputs that it knows nothing of.
  virtual void finish(Inputs, std::span<const Value>) const {}
};

/// An input or output of an operator, in its order.
struct Port {
  const char* name;
  /// A type of its own, or which of the overload's.
  abi::ElementType type = abi::ElementType::undefined;
  int variable = 0;
  bool is_optional = false;
  /// Of whichever type, for the node to refuse.
  bool any = false;
  /// Read on the host, wherever the node runs.
  bool on_host = false;
};

/// The types that stand for an operator's variables, T and perhaps another.
struct Overload {
  abi::ElementType types[2];
};

/// An operator as a session is told of it.
struct Operator {
  const char* name;
  /// The host gives a library every later version too.
  int first_version;
  std::span<const Port> inputs, outputs;
  /// A node without some of its optional inputs may fit several: the first of them has it.
  std::span<const Overload> overloads;
  /// Refuses attributes that no input could make right.
  Result<std::unique_ptr<Node>> (*make)(Attributes& attributes);
  /// Dims of the first output, as far as they are known beforehand.
  std::optional<SymbolicDims> (*shape)(const ShapeContext& context);
};

/// What one of our libraries has: all operators of one domain. Defined beside the operators.
struct Domain {
  const char* name;
  std::span<const Operator* const> operators;
};
const Domain& domain();

}  // namespace heddle::onnxruntime
