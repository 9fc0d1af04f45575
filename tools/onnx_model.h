// A model in ONNX's protobuf form, as far as its attentions are read: nodes of all graphs, with
// attributes, types and dims. Weights are passed over, wherever they lie.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/status.h"

namespace heddle::tools::onnx {

/// A number, or the name of one; of neither nothing is known.
struct Dim {
  std::optional<int64_t> number;
  std::string name;
};

/// What a model says of a tensor.
struct ValueType {
  int element_type = 0;  ///< in ONNX's numbering; 0: unknown
  std::optional<std::vector<Dim>> dims;
  std::optional<int64_t> constant;  ///< of one integer that the model holds
};

struct Body;

/// Of the others (tensors, types, lists) it is known only that they are there.
struct Other {};
/// The caller's attribute of this name, in the body of a function.
struct Reference {
  std::string name;
};
using Attribute = std::variant<Other, int64_t, float, std::string, Reference>;

struct Node {
  std::string name, type, domain;
  std::vector<std::string> inputs, outputs;  ///< "": none
  std::map<std::string, Attribute> attributes;
  std::vector<Body> bodies;  ///< of If, Loop and their kind
};

struct Graph {
  std::string name;
  std::vector<Node> nodes;
  std::map<std::string, ValueType> values;  ///< inputs, outputs, weights and what lies between
};

struct Body {
  std::string attribute;
  Graph graph;
};

/// Domain to version; ONNX's own domain is "".
using Imports = std::map<std::string, int64_t>;

struct Function {
  std::string name, domain;
  Imports imports;
  Graph body;
};

struct Model {
  Imports imports;
  Graph graph;
  std::vector<Function> functions;
};

/// "" for "ai.onnx" too.
std::string domain_named(std::string_view name);

/// Whether a file is to be read as a model: by its name, or by the version number that one begins
/// with.
bool is_model(std::string_view path, std::string_view bytes);

/// Any bytes give a model or a sentence.
Result<Model> read_model(std::string_view bytes);

}  // namespace heddle::tools::onnx
