#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "graph/fields.h"
#include "graph/json_tree.h"
#include "graph/names.h"
#include "graph/set_field.h"
#include "graph/text.h"

namespace heddle::graph {
namespace {

using Kind = JsonValue::Kind;

/// What the readers of one document share.
struct Document {
  std::string_view text;
  std::unordered_map<int64_t, TensorId> tensor_of_uid;

  Status unexpected(const JsonValue& value, std::string_view key, std::string_view expected) const {
    return error(Code::malformed_input, "{}: \"{}\" is {}, expected {}.", place(text, value.offset),
                 key, kind_name(value.kind), expected);
  }
};

/// Reads the fields of one object. The first failure stays; fields after it are left alone.
/// Whatever key no field asked for is refused by finish().
class FieldReader {
 public:
  FieldReader(const Document& document, const JsonValue& object, std::string_view what)
      : document_(document), object_(object), what_(what), asked_(object.members.size()) {
    if (object.kind != Kind::object) failure_ = document.unexpected(object, what, "an object");
  }

  void input(const char* name, TensorId& id) {
    if (const JsonValue* value = find(name)) tensor(name, *value, id);
  }
  void output(const char* name, TensorId& id) { input(name, id); }
  void inputs(const char* name, std::vector<TensorId>& ids) {
    const JsonValue* value = find(name, Kind::array, "an array of tensor uids");
    if (!value) return;
    ids.resize(value->items.size(), kNone);
    for (size_t i = 0; i < ids.size(); ++i) tensor(name, value->items[i], ids[i]);
  }
  void flag(const char* name, bool& value) {
    if (const JsonValue* json = find(name, Kind::boolean, "true or false")) value = json->boolean;
  }
  void number(const char* name, double& value) {
    const JsonValue* json = find(name);
    if (!json) return;
    if (json->kind == Kind::number || json->kind == Kind::integer) {
      value = json->number;
    } else if (json->kind == Kind::string && json->string == "inf") {
      value = std::numeric_limits<double>::infinity();
    } else if (json->kind == Kind::string && json->string == "-inf") {
      value = -std::numeric_limits<double>::infinity();
    } else if (json->kind == Kind::string && json->string == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else {
      fail(document_.unexpected(*json, name, "a number, \"inf\", \"-inf\" or \"nan\""));
    }
  }
  void integer(const char* name, int64_t& value) {
    if (const JsonValue* json = find(name, Kind::integer, "an integer")) value = json->integer;
  }
  void integer(const char* name, int32_t& value) {
    const JsonValue* json = find(name, Kind::integer, "an integer");
    if (!json) return;
    value = static_cast<int32_t>(json->integer);
    if (value != json->integer)
      fail(*json, "\"{}\" is {}, expected an integer of 32 bits", name, json->integer);
  }
  void number(const char* name, std::optional<double>& value) {
    double read = 0;
    if (!has(name)) return;
    number(name, read);
    value = read;
  }
  void integer(const char* name, std::optional<int64_t>& value) {
    int64_t read = 0;
    if (!has(name)) return;
    integer(name, read);
    value = read;
  }
  template <class Enum>
  void choice(const char* name, Enum& value) {
    const JsonValue* json = find(name, Kind::string, "a name");
    if (json && !from_name(json->string, value))
      fail(*json, "\"{}\" is \"{}\", expected one of {}", name, json->string, choices(value));
  }
  void data_type(const char* name, std::optional<DataType>& value) {
    const JsonValue* json = find(name, Kind::string, "the name of a data type");
    if (!json) return;
    value = data_type_from_name(json->string);
    if (!value) {
      fail(*json,
           "\"{}\" is \"{}\", expected a data type: f64, f32, bf16, f16, f8e4m3, f8e5m2, i64, i32, "
           "i8, u64, u32, "
           "u8 or boolean",
           name, json->string);
    }
  }
  void dims(const char* name, Dims& value) {
    const JsonValue* json = find(name, Kind::array, "an array of integers");
    if (!json) return;
    if (json->items.size() > static_cast<size_t>(kMaxRank)) {
      return fail(*json, "\"{}\" has {} entries, expected at most {}", name, json->items.size(),
                  kMaxRank);
    }
    for (const JsonValue& item : json->items) {
      if (item.kind != Kind::integer)
        return fail(document_.unexpected(item, name, "integers in its array"));
      value.push_back(item.integer);
    }
  }
  void text(const char* name, std::string& value) {
    if (const JsonValue* json = find(name, Kind::string, "a string")) value = json->string;
  }
  template <class T>
  void object(const char* name, T& value) {
    const JsonValue* json = find(name, Kind::object, "an object");
    if (!json) return;
    FieldReader reader(document_, *json, name);
    fields(reader, value);
    fail(reader.finish());
  }
  template <class T>
  void object(const char* name, std::optional<T>& value) {
    if (!has(name)) return;
    object(name, value.emplace());
  }
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    const JsonValue* json = find(name, Kind::array, "an array of objects");
    if (!json) return;
    for (const JsonValue& item : json->items) {
      FieldReader reader(document_, item, name);
      fields(reader, values.emplace_back());
      fail(reader.finish());
    }
  }

  /// The member's value, or nothing if it is absent or an earlier failure stands.
  const JsonValue* find(std::string_view name) {
    if (!failure_.is_ok()) return nullptr;
    know(name);
    for (size_t i = 0; i < object_.members.size(); ++i) {
      if (object_.members[i].key != name) continue;
      asked_[i] = true;
      return &object_.members[i].value;
    }
    return nullptr;
  }
  const JsonValue* find(std::string_view name, Kind kind, std::string_view expected) {
    const JsonValue* value = find(name);
    if (!value || value->kind == kind) return value;
    fail(document_.unexpected(*value, name, expected));
    return nullptr;
  }
  void require(std::string_view name) {
    if (failure_.is_ok() && !has(name)) fail(object_, "{} lacks the key \"{}\"", what_, name);
  }

  template <class... Args>
  void fail(const JsonValue& at, fmt::format_string<Args...> format, Args&&... args) {
    fail(error(Code::malformed_input, "{}: {}.", place(document_.text, at.offset),
               fmt::format(format, std::forward<Args>(args)...)));
  }
  void fail(Status status) {
    if (failure_.is_ok()) failure_ = std::move(status);
  }

  Status finish() {
    for (size_t i = 0; i < object_.members.size() && failure_.is_ok(); ++i) {
      if (asked_[i]) continue;
      failure_ = error(Code::malformed_input, "{}: {} has no key \"{}\", its keys are {}.",
                       place(document_.text, object_.members[i].offset), what_,
                       object_.members[i].key, fmt::join(known_, ", "));
    }
    return failure_;
  }

 private:
  void know(std::string_view name) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) known_.push_back(name);
  }
  bool has(std::string_view name) {
    know(name);
    for (const JsonValue::Member& member : object_.members) {
      if (member.key == name) return true;
    }
    return false;
  }

  void tensor(std::string_view name, const JsonValue& value, TensorId& id) {
    if (value.kind != Kind::integer)
      return fail(document_.unexpected(value, name, "the uid of a tensor"));
    const auto found = document_.tensor_of_uid.find(value.integer);
    if (found == document_.tensor_of_uid.end()) {
      return fail(value, "\"{}\" is {}, which is the uid of no tensor", name, value.integer);
    }
    id = found->second;
  }

  const Document& document_;
  const JsonValue& object_;
  std::string_view what_;
  std::vector<bool> asked_;
  std::vector<std::string_view> known_;  // for sentences, in the order asked
  Status failure_;
};

/// The first pass over "tensors": everything but references to other tensors.
Status read_tensors(Document& document, const JsonValue& list, Graph& graph) {
  for (const JsonValue& item : list.items) {
    FieldReader reader(document, item, "tensor");
    Tensor tensor;
    reader.require("uid");
    reader.integer("uid", tensor.uid);
    reader.text("name", tensor.name);
    reader.data_type("dtype", tensor.dtype);
    reader.dims("dims", tensor.dims);
    reader.dims("strides", tensor.strides);
    reader.flag("virtual", tensor.is_virtual);
    reader.flag("pass_by_value", tensor.pass_by_value);
    reader.number("constant", tensor.constant);
    reader.find("ragged_offset");
    reader.integer("ragged_offset_multiplier", tensor.ragged_offset_multiplier);
    const int64_t uid = tensor.uid;
    if (uid == 0) reader.fail(item, "the uid 0 means no uid, expected another integer");
    HEDDLE_TRY(reader.finish());
    if (!document.tensor_of_uid.emplace(uid, graph.add(std::move(tensor))).second) {
      return error(Code::malformed_input, "{}: the uid {} is given to two tensors.",
                   place(document.text, item.offset), uid);
    }
  }
  return {};
}

/// The second pass: references.
Status read_ragged_offsets(const Document& document, const JsonValue& list, Graph& graph) {
  for (size_t i = 0; i < list.items.size(); ++i) {
    FieldReader reader(document, list.items[i], "tensor");
    reader.input("ragged_offset", graph.tensors[i].ragged_offset);
    for (const JsonValue::Member& member : list.items[i].members) reader.find(member.key);
    HEDDLE_TRY(reader.finish());
  }
  return {};
}

Status read_node(const Document& document, const JsonValue& item, Graph& graph) {
  FieldReader reader(document, item, "node");
  std::string op, name;
  reader.require("op");
  reader.text("op", op);
  reader.text("name", name);
  Result<Node> node = make_node(op, name);
  if (!node.is_ok()) {
    const JsonValue* at = reader.find("op");
    reader.fail(at ? *at : item, "{}", node.status().message());
    return reader.finish();
  }
  std::visit([&](auto& value) { fields(reader, value); }, node->op);
  HEDDLE_TRY(reader.finish());
  graph.nodes.push_back(std::move(*node));
  return {};
}

}  // namespace

Result<Graph> read_text(std::string_view text) {
  HEDDLE_ASSIGN(const JsonValue root, parse_json(text));
  Document document{text, {}};
  Graph graph;
  FieldReader reader(document, root, "graph");
  int64_t version = 0;
  reader.require("heddle_graph");
  reader.integer("heddle_graph", version);
  if (version != 1)
    reader.fail(root, "\"heddle_graph\" is {}, expected 1, the version this reader knows", version);
  reader.text("name", graph.name);
  reader.data_type("io_dtype", graph.io_dtype);
  reader.data_type("intermediate_dtype", graph.intermediate_dtype);
  reader.data_type("compute_dtype", graph.compute_dtype);
  reader.require("tensors");
  const JsonValue* tensors = reader.find("tensors", Kind::array, "an array of tensors");
  reader.require("nodes");
  const JsonValue* nodes = reader.find("nodes", Kind::array, "an array of nodes");
  HEDDLE_TRY(reader.finish());

  HEDDLE_TRY(read_tensors(document, *tensors, graph));
  HEDDLE_TRY(read_ragged_offsets(document, *tensors, graph));
  for (const JsonValue& node : nodes->items) HEDDLE_TRY(read_node(document, node, graph));
  return graph;
}

}  // namespace heddle::graph
