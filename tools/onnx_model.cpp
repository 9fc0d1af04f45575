#include "tools/onnx_model.h"

#include <bit>
#include <cstring>
#include <protozero/exception.hpp>

#include "hlo/proto_fields.h"

namespace heddle::tools::onnx {
namespace {

// Field numbers of onnx.proto, which are stable.
namespace model_field {
enum : uint32_t { ir_version = 1, graph = 7, imports = 8, functions = 25 };
}
namespace import_field {
enum : uint32_t { domain = 1, version = 2 };
}
namespace graph_field {
enum : uint32_t { nodes = 1, name = 2, weights = 5, inputs = 11, outputs = 12, values = 13 };
}
namespace function_field {
enum : uint32_t { name = 1, nodes = 7, imports = 9, domain = 10, values = 12 };
}
namespace node_field {
enum : uint32_t { inputs = 1, outputs = 2, name = 3, type = 4, attributes = 5, domain = 7 };
}
namespace attribute_field {
enum : uint32_t {
  name = 1,
  number = 2,
  integer = 3,
  text = 4,
  graph = 6,
  graphs = 11,
  type = 20,
  reference = 21
};
}
namespace tensor_field {
enum : uint32_t { dims = 1, type = 2, of_32 = 5, of_64 = 7, name = 8, raw = 9 };
}
namespace value_field {
enum : uint32_t { name = 1, type = 2 };
}
namespace type_field {
enum : uint32_t { tensor = 1 };
}
namespace tensor_type_field {
enum : uint32_t { element = 1, shape = 2 };
}
namespace shape_field {
enum : uint32_t { dims = 1 };
}
namespace dim_field {
enum : uint32_t { number = 1, name = 2 };
}
/// AttributeProto::AttributeType.
enum AttributeType : int64_t { kUnset = 0, kFloat = 1, kInt = 2, kString = 3 };
/// TensorProto::DataType.
enum ElementType : int64_t { kI32 = 6, kI64 = 7 };

namespace proto = hlo::proto;
using proto::Message;

/// Bodies within bodies; no model has as many, and each takes a frame of the stack.
constexpr int kMostDepth = 64;

struct TooDeep {};

std::string take_text(Message& at) { return std::string(proto::take_bytes(at)); }

Dim read_dim(std::string_view bytes) {
  Dim dim;
  for (Message at = proto::message(bytes); at.next();) {
    if (at.tag() == dim_field::number) {
      const int64_t number = proto::take_integer(at);
      if (number >= 0) dim.number = number;
    } else if (at.tag() == dim_field::name) {
      dim.name = take_text(at);
    } else {
      at.skip();
    }
  }
  return dim;
}

std::vector<Dim> read_shape(std::string_view bytes) {
  std::vector<Dim> dims;
  for (Message at = proto::message(bytes); at.next();) {
    if (at.tag() == shape_field::dims)
      dims.push_back(read_dim(proto::take_bytes(at)));
    else
      at.skip();
  }
  return dims;
}

void read_tensor_type(std::string_view bytes, ValueType& type) {
  for (Message at = proto::message(bytes); at.next();) {
    if (at.tag() == tensor_type_field::element)
      type.element_type = static_cast<int>(proto::take_integer(at));
    else if (at.tag() == tensor_type_field::shape)
      type.dims = read_shape(proto::take_bytes(at));
    else
      at.skip();
  }
}

/// Of what is no tensor (a sequence, a map) nothing is known.
void read_value(std::string_view bytes, std::map<std::string, ValueType>& values) {
  std::string name;
  ValueType type;
  for (Message at = proto::message(bytes); at.next();) {
    if (at.tag() == value_field::name) {
      name = take_text(at);
    } else if (at.tag() == value_field::type) {
      for (Message kind = proto::message(proto::take_bytes(at)); kind.next();) {
        if (kind.tag() == type_field::tensor)
          read_tensor_type(proto::take_bytes(kind), type);
        else
          kind.skip();
      }
    } else {
      at.skip();
    }
  }
  // An input that is a weight, too, is read as that.
  values.try_emplace(std::move(name), std::move(type));
}

void read_weight(std::string_view bytes, std::map<std::string, ValueType>& values) {
  std::string name;
  ValueType type;
  std::vector<int64_t> dims, integers;
  std::string_view raw;
  for (Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case tensor_field::dims:
        proto::take_integers(at, dims);
        break;
      case tensor_field::type:
        type.element_type = static_cast<int>(proto::take_integer(at));
        break;
      case tensor_field::of_32:
      case tensor_field::of_64:
        proto::take_integers(at, integers);
        break;
      case tensor_field::name:
        name = take_text(at);
        break;
      case tensor_field::raw:
        raw = proto::take_bytes(at);
        break;
      default:
        at.skip();
    }
  }
  type.dims.emplace();
  for (const int64_t dim : dims) type.dims->push_back({dim, ""});
  const bool is_whole = type.element_type == kI32 || type.element_type == kI64;
  if (is_whole && integers.size() == 1) type.constant = integers[0];
  int32_t narrow;
  int64_t wide;
  static_assert(std::endian::native == std::endian::little, "raw data is little endian");
  if (type.element_type == kI32 && raw.size() == sizeof narrow) {
    std::memcpy(&narrow, raw.data(), sizeof narrow);
    type.constant = narrow;
  } else if (type.element_type == kI64 && raw.size() == sizeof wide) {
    std::memcpy(&wide, raw.data(), sizeof wide);
    type.constant = wide;
  }
  values[std::move(name)] = std::move(type);
}

Graph read_graph(std::string_view bytes, int depth);

void read_attribute(std::string_view bytes, Node& node, int depth) {
  std::string name, text, reference;
  int64_t integer = 0, type = kUnset;
  float number = 0;
  bool has_integer = false, has_number = false, has_text = false;
  std::vector<std::string_view> graphs;
  for (Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case attribute_field::name:
        name = take_text(at);
        break;
      case attribute_field::number:
        proto::require(at, protozero::pbf_wire_type::fixed32);
        number = at.get_float(), has_number = true;
        break;
      case attribute_field::integer:
        integer = proto::take_integer(at), has_integer = true;
        break;
      case attribute_field::text:
        text = take_text(at), has_text = true;
        break;
      case attribute_field::graph:
      case attribute_field::graphs:
        graphs.push_back(proto::take_bytes(at));
        break;
      case attribute_field::type:
        type = proto::take_integer(at);
        break;
      case attribute_field::reference:
        reference = take_text(at);
        break;
      default:
        at.skip();
    }
  }
  for (const std::string_view graph : graphs)
    node.bodies.push_back({name, read_graph(graph, depth + 1)});
  Attribute value;
  // A zero may have no field; the type says then what it is. Old models have no types.
  if (!reference.empty())
    value = Reference{reference};
  else if (type == kInt || (type == kUnset && has_integer))
    value = integer;
  else if (type == kFloat || (type == kUnset && has_number))
    value = number;
  else if (type == kString || (type == kUnset && has_text))
    value = text;
  node.attributes[std::move(name)] = std::move(value);
}

Node read_node(std::string_view bytes, int depth) {
  Node node;
  for (Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case node_field::inputs:
        node.inputs.push_back(take_text(at));
        break;
      case node_field::outputs:
        node.outputs.push_back(take_text(at));
        break;
      case node_field::name:
        node.name = take_text(at);
        break;
      case node_field::type:
        node.type = take_text(at);
        break;
      case node_field::attributes:
        read_attribute(proto::take_bytes(at), node, depth);
        break;
      case node_field::domain:
        node.domain = domain_named(proto::take_bytes(at));
        break;
      default:
        at.skip();
    }
  }
  return node;
}

Graph read_graph(std::string_view bytes, int depth) {
  if (depth > kMostDepth) throw TooDeep();
  Graph graph;
  for (Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case graph_field::nodes:
        graph.nodes.push_back(read_node(proto::take_bytes(at), depth));
        break;
      case graph_field::name:
        graph.name = take_text(at);
        break;
      case graph_field::weights:
        read_weight(proto::take_bytes(at), graph.values);
        break;
      case graph_field::inputs:
      case graph_field::outputs:
      case graph_field::values:
        read_value(proto::take_bytes(at), graph.values);
        break;
      default:
        at.skip();
    }
  }
  return graph;
}

void read_import(std::string_view bytes, Imports& imports) {
  std::string domain;
  int64_t version = 0;
  for (Message at = proto::message(bytes); at.next();) {
    if (at.tag() == import_field::domain)
      domain = domain_named(proto::take_bytes(at));
    else if (at.tag() == import_field::version)
      version = proto::take_integer(at);
    else
      at.skip();
  }
  imports[domain] = version;
}

Function read_function(std::string_view bytes) {
  Function function;
  for (Message at = proto::message(bytes); at.next();) {
    switch (at.tag()) {
      case function_field::name:
        function.name = take_text(at);
        break;
      case function_field::nodes:
        function.body.nodes.push_back(read_node(proto::take_bytes(at), 0));
        break;
      case function_field::imports:
        read_import(proto::take_bytes(at), function.imports);
        break;
      case function_field::domain:
        function.domain = domain_named(proto::take_bytes(at));
        break;
      case function_field::values:
        read_value(proto::take_bytes(at), function.body.values);
        break;
      default:
        at.skip();
    }
  }
  return function;
}

}  // namespace

std::string domain_named(std::string_view name) {
  return std::string(name == "ai.onnx" ? std::string_view() : name);
}

bool is_model(std::string_view path, std::string_view bytes) {
  constexpr char kVersion = model_field::ir_version << 3;
  return path.ends_with(".onnx") || bytes.starts_with(kVersion);
}

Result<Model> read_model(std::string_view bytes) {
  Model model;
  bool has_graph = false;
  try {
    for (Message at = proto::message(bytes); at.next();) {
      switch (at.tag()) {
        case model_field::graph:
          model.graph = read_graph(proto::take_bytes(at), 0);
          has_graph = true;
          break;
        case model_field::imports:
          read_import(proto::take_bytes(at), model.imports);
          break;
        case model_field::functions:
          model.functions.push_back(read_function(proto::take_bytes(at)));
          break;
        default:
          at.skip();
      }
    }
  } catch (const protozero::exception& failure) {
    return error(Code::malformed_input, "it is no ONNX model, or a part of one: {}",
                 failure.what());
  } catch (const TooDeep&) {
    return error(Code::malformed_input, "bodies of its nodes lie more than {} deep in each other",
                 kMostDepth);
  }
  if (!has_graph) return error(Code::malformed_input, "it is no ONNX model: it has no graph");
  return model;
}

}  // namespace heddle::tools::onnx
