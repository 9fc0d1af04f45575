#include "graph/set_field.h"

#include <array>

#include "graph/fields.h"
#include "graph/names.h"

namespace heddle::graph {
namespace {

constexpr std::array<std::string_view, 6> kKinds{"a tensor", "a number", "an integer",
                                                 "a flag",   "a choice", "dims"};

/// Walks the fields to the one that the path names and sets it.
class FieldSetter {
 public:
  FieldSetter(std::string_view path, const FieldValue& value) : path_(path), value_(value) {}

  void input(const char* name, TensorId& id) {
    if (const TensorValue* tensor = take<TensorValue>(name)) id = tensor->id;
  }
  void output(const char* name, TensorId& id) { input(name, id); }
  void flag(const char* name, bool& flag) {
    if (const bool* value = take<bool>(name)) flag = *value;
  }
  template <class Number>  // double or optional<double>
  void number(const char* name, Number& number) {
    if (path_ != name) return;
    if (const int64_t* integer = std::get_if<int64_t>(&value_)) {
      number = static_cast<double>(*integer);
      found_ = true;
    } else if (const double* value = take<double>(name)) {
      number = *value;
    }
  }
  template <class Integer>  // int64_t or optional<int64_t>
  void integer(const char* name, Integer& integer) {
    if (const int64_t* value = take<int64_t>(name)) integer = *value;
  }
  void integer(const char*, int32_t&) {}  // of an op, which is given with it
  template <class Enum>
  void choice(const char* name, Enum& choice) {
    const std::string_view* text = take<std::string_view>(name);
    if (text && !from_name(*text, choice)) {
      failure_ = error(Code::invalid_value, "The field '{}' is '{}', expected one of {}.", name,
                       *text, choices(choice));
    }
  }
  void dims(const char* name, Dims& dims) {
    if (const Dims* value = take<Dims>(name)) dims = *value;
  }
  template <class T>
  void object(const char* name, T& value) {
    if (const auto rest = inside(name)) descend(*rest, value);
  }
  template <class T>
  void object(const char* name, std::optional<T>& value) {
    const auto rest = inside(name);
    if (!rest) return;
    if (!value) value.emplace();
    descend(*rest, *value);
  }
  /// A path into a list leads to the entry appended last.
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    const auto rest = inside(name);
    if (rest && !values.empty()) descend(*rest, values.back());
  }
  void inputs(const char*, std::vector<TensorId>&) {}  // given as a whole
  void text(const char*, std::string&) {}

  bool found() const { return found_; }
  const Status& failure() const { return failure_; }

 private:
  template <class T>
  const T* take(std::string_view name) {
    if (path_ != name) return nullptr;
    found_ = true;
    const T* value = std::get_if<T>(&value_);
    if (!value) {
      failure_ = error(Code::invalid_value, "The field '{}' is given {}, expected {}.", name,
                       kKinds[value_.index()], kKinds[FieldValue(T{}).index()]);
    }
    return value;
  }

  std::optional<std::string_view> inside(std::string_view group) const {
    if (!path_.starts_with(group) || path_.size() <= group.size() || path_[group.size()] != '.')
      return std::nullopt;
    return path_.substr(group.size() + 1);
  }

  template <class T>
  void descend(std::string_view rest, T& value) {
    FieldSetter inner(rest, value_);
    fields(inner, value);
    found_ = inner.found_;
    failure_ = inner.failure_;
  }

  std::string_view path_;
  const FieldValue& value_;
  bool found_ = false;
  Status failure_;
};

/// Lists the path of every field that can be set.
class FieldPaths {
 public:
  explicit FieldPaths(std::string prefix = {}) : prefix_(std::move(prefix)) {}

  void input(const char* name, TensorId) { add(name); }
  void output(const char* name, TensorId) { add(name); }
  void flag(const char* name, bool) { add(name); }
  template <class Number>
  void number(const char* name, const Number&) {
    add(name);
  }
  template <class Integer>
  void integer(const char* name, const Integer&) {
    add(name);
  }
  template <class Enum>
  void choice(const char* name, const Enum&) {
    add(name);
  }
  void dims(const char* name, const Dims&) { add(name); }
  template <class T>
  void object(const char* name, const std::optional<T>&) {
    object(name, T{});
  }
  template <class T>
  void object(const char* name, const T& value) {
    FieldPaths inner(prefix_ + name + ".");
    fields(inner, value);
    paths_.insert(paths_.end(), inner.paths_.begin(), inner.paths_.end());
  }
  template <class T>
  void list(const char* name, const std::vector<T>&) {
    object(name, T{});
  }
  void integer(const char*, int32_t) {}
  void inputs(const char*, const std::vector<TensorId>&) {}
  void text(const char*, const std::string&) {}

  const std::vector<std::string>& paths() const { return paths_; }

 private:
  void add(const char* name) { paths_.push_back(prefix_ + name); }

  std::string prefix_;
  std::vector<std::string> paths_;
};

}  // namespace

Result<Node> make_node(std::string_view op, std::string_view name) {
  Node node{std::string(name), {}};
  if (op == "sdpa") {
    node.op = Sdpa{};
  } else if (op == "sdpa_backward") {
    node.op = SdpaBackward{};
  } else if (op == "sdpa_fp8") {
    node.op = SdpaFp8{};
  } else if (op == "sdpa_fp8_backward") {
    node.op = SdpaFp8Backward{};
  } else if (op == "rope" || op == "rope_backward") {
    node.op = Rope{.backward = op == "rope_backward"};
  } else if (op == "rms_norm") {
    node.op = RmsNorm{};
  } else if (op == "rms_norm_backward") {
    node.op = RmsNormBackward{};
  } else if (op == "layer_norm") {
    node.op = LayerNorm{};
  } else if (op == "layer_norm_backward") {
    node.op = LayerNormBackward{};
  } else if (op == "instance_norm") {
    node.op = InstanceNorm{};
  } else if (op == "instance_norm_backward") {
    node.op = InstanceNormBackward{};
  } else if (op == "batch_norm") {
    node.op = BatchNorm{};
  } else if (op == "batch_norm_backward") {
    node.op = BatchNormBackward{};
  } else if (op == "cache_append") {
    node.op = CacheAppend{};
  } else if (op == "pointwise") {
    node.op = PointwiseNode{};
  } else {
    return error(
        Code::invalid_value,
        "there is no op \"{}\", expected sdpa, sdpa_backward, sdpa_fp8, sdpa_fp8_backward, rope, "
        "rope_backward, rms_norm, rms_norm_backward, layer_norm, layer_norm_backward, "
        "instance_norm, "
        "instance_norm_backward, batch_norm, batch_norm_backward, cache_append or pointwise",
        op);
  }
  return node;
}

Status set_field(Node& node, std::string_view path, const FieldValue& value) {
  FieldSetter setter(path, value);
  Node changed = node;
  std::visit([&](auto& op) { fields(setter, op); }, changed.op);
  if (!setter.found()) {
    FieldPaths all;
    std::visit([&](const auto& op) { fields(all, op); }, node.op);
    return error(Code::invalid_value, "{} has no field '{}' to set; it has {}.", op_name(node),
                 path, fmt::join(all.paths(), ", "));
  }
  HEDDLE_TRY(setter.failure());
  node = std::move(changed);
  return {};
}

Status add_pointwise(Node& node, std::string_view path, Pointwise op) {
  std::optional<ScoreModifier>* modifier = nullptr;
  std::visit(
      [&](auto& attention) {
        if constexpr (requires { attention.attention.score_mod; })
          if (path == "score_mod") modifier = &attention.attention.score_mod;
        if constexpr (requires { attention.score_mod_bprop; })
          if (path == "score_mod_bprop") modifier = &attention.score_mod_bprop;
      },
      node.op);
  if (!modifier)
    return error(Code::invalid_value, "{} has no score expression '{}'.", op_name(node), path);
  if (!*modifier) modifier->emplace();
  (*modifier)->ops.push_back(std::move(op));
  return {};
}

}  // namespace heddle::graph
