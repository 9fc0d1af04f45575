#include "tools/onnx_attentions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "onnxruntime/element_types.h"
#include "onnxruntime/kernel.h"
#include "onnxruntime/microsoft/operators.h"
#include "onnxruntime/onnx/operators.h"
#include "tools/onnx_host.h"
#include "tools/table.h"

namespace heddle::tools::onnx {
namespace {

namespace ort = onnxruntime;
using ort::abi::ElementType;

/// Attention operators of ONNX Runtime that Heddle has none for.
constexpr std::string_view kOthers[] = {
    "Attention",
    "DecoderAttention",
    "DecoderMaskedMultiHeadAttention",
    "DecoderMaskedSelfAttention",
    "LinearAttention",
    "LongformerAttention",
    "PackedAttention",
    "PackedMultiHeadAttention",
    "PagedAttention",
    "QAttention",
    "QOrderedAttention",
    "QOrderedLongformerAttention",
    "SparseAttention",
};
constexpr const char* kMicrosoft = "com.microsoft";

/// What a name stands for at some place of the model.
struct Scope {
  const Scope* outer;
  const Graph& graph;

  const ValueType* find(const std::string& name) const {
    for (const Scope* at = this; at; at = at->outer) {
      const auto found = at->graph.values.find(name);
      if (found != at->graph.values.end()) return &found->second;
    }
    return nullptr;
  }
};

std::string title(const Node& node) {
  return fmt::format("{} {}", node.domain.empty() ? "ai.onnx" : node.domain, node.type);
}

const ort::Operator* operator_of(const Node& node) {
  for (const ort::Domain* domain : {&ort::kMicrosoftDomain, &ort::kOnnxDomain}) {
    if (node.domain != domain->name) continue;
    for (const ort::Operator* op : domain->operators)
      if (node.type == op->name) return op;
  }
  return nullptr;
}

/// Norms and rotations are Heddle's too, and no attentions.
bool is_attention(const ort::Operator& op) {
  return std::string_view(op.name).ends_with("Attention");
}

/// Type and dims as the model says them: "f32 [batch, 1, 4096]".
std::string words_of(const ValueType& type) {
  const auto known = ort::data_type(static_cast<ElementType>(type.element_type));
  std::string dims;
  if (type.dims) {
    for (const Dim& dim : *type.dims)
      dims += fmt::format("{}{}", dims.empty() ? "" : ", ",
                          dim.number         ? fmt::format("{}", *dim.number)
                          : dim.name.empty() ? "?"
                                             : dim.name);
  }
  return fmt::format("{} [{}]", known ? name(*known) : "of an unknown type",
                     type.dims ? dims : "of unknown dims");
}

/// One node under the code that would make its kernel.
class Examination {
 public:
  Examination(const ort::Operator& op, const Node& node, const Scope& scope, const DimValues& dims,
              const Imports& imports, const ort::Target& target)
      : op_(op), node_(node), scope_(scope), dims_(dims), imports_(imports), target_(target) {}

  void answer(Attention& out) {
    const Result<std::string> path = path_of(out.served);
    if (path.is_ok()) {
      out.answer = *path;
    } else {
      out.served = Served::no;
      out.answer = path.status().message();
    }
  }

 private:
  Result<std::string> path_of(Served& served) {
    HEDDLE_TRY(check_import());
    HEDDLE_TRY(check_attributes());
    const ort::abi::KernelInfo info{&node_};
    HEDDLE_ASSIGN(const std::unique_ptr<ort::Kernel> kernel,
                  ort::Kernel::make(op_, target_, host(), &info));
    HEDDLE_TRY(read_inputs());
    HEDDLE_TRY(check_types());
    if (!open_.empty()) {
      served = Served::by_shape;
      return fmt::format("the path is chosen by dims that are open here: {}",
                         fmt::join(open_, ", "));
    }
    HEDDLE_TRY(give_host_values());
    HEDDLE_ASSIGN(const std::shared_ptr<const ort::Plan> plan, kernel->plan_for(values_));
    served = Served::yes;
    return plan->attention_paths.empty() ? "there is nothing to compute" : plan->attention_paths;
  }

  Status check_import() const {
    const auto found = imports_.find(node_.domain);
    const std::string domain = node_.domain.empty() ? "ai.onnx" : node_.domain;
    if (found == imports_.end())
      return error(Code::graph_not_supported, "the model does not import {}", domain);
    if (found->second >= op_.first_version) return {};
    return error(Code::graph_not_supported, "it is of opset {} of {} on, the model imports {}",
                 op_.first_version, domain, found->second);
  }

  Status check_attributes() const {
    for (const auto& [name, value] : node_.attributes) {
      if (const auto* reference = std::get_if<Reference>(&value))
        return error(Code::graph_not_supported,
                     "its {} is the attribute {} of the function's calls, which a session knows "
                     "when it has put the function in their places",
                     name, reference->name);
    }
    return {};
  }

  Status read_inputs() {
    if (node_.inputs.size() > op_.inputs.size())
      return error(Code::invalid_value, "it has {} inputs, the operator {}", node_.inputs.size(),
                   op_.inputs.size());
    values_.resize(op_.inputs.size());
    types_.resize(op_.inputs.size());
    numbers_.resize(op_.inputs.size());
    for (size_t n = 0; n < op_.inputs.size(); ++n) {
      const std::string given = n < node_.inputs.size() ? node_.inputs[n] : "";
      if (given.empty()) {
        if (!op_.inputs[n].is_optional)
          return error(Code::invalid_value, "it has no input {}, which is required",
                       op_.inputs[n].name);
        continue;
      }
      const ValueType* const type = scope_.find(given);
      read_input(n, type ? *type : ValueType{});
    }
    return {};
  }

  void read_input(size_t n, const ValueType& given) {
    types_[n] = given;
    const auto type = ort::data_type(static_cast<ElementType>(given.element_type));
    std::optional<Dims> dims;
    if (given.dims && given.dims->size() <= static_cast<size_t>(kMaxRank)) {
      dims.emplace();
      for (const Dim& dim : *given.dims) {
        const auto chosen = dims_.find(dim.name);
        if (dim.number)
          dims->push_back(*dim.number);
        else if (!dim.name.empty() && chosen != dims_.end())
          dims->push_back(chosen->second);
        else
          dims.reset();
        if (!dims) break;
      }
    }
    if (!type || !dims) {
      open_.push_back(fmt::format("{} {}", op_.inputs[n].name, words_of(given)));
      return;
    }
    values_[n].dtype = type;
    values_[n].dims = *dims;
  }

  /// A session takes the first overload that all types fit.
  Status check_types() const {
    const auto fits = [&](const ort::Overload& overload) {
      for (size_t n = 0; n < types_.size(); ++n) {
        const ort::Port& port = op_.inputs[n];
        if (!types_[n] || types_[n]->element_type == 0 || port.any) continue;
        const ElementType expected =
            port.type != ElementType::undefined ? port.type : overload.types[port.variable];
        if (static_cast<ElementType>(types_[n]->element_type) != expected) return false;
      }
      return true;
    };
    if (std::ranges::any_of(op_.overloads, fits)) return {};
    std::string given;
    for (size_t n = 0; n < types_.size(); ++n) {
      if (types_[n])
        given += fmt::format("{}{} {}", given.empty() ? "" : ", ", op_.inputs[n].name,
                             words_of(*types_[n]));
    }
    return error(Code::invalid_value, "no overload of the operator has these types: {}", given);
  }

  /// Numbers that a kernel reads when it runs: those of the model, else as many rows as there are.
  Status give_host_values() {
    for (size_t n = 0; n < values_.size(); ++n) {
      if (!op_.inputs[n].on_host || !values_[n].is_given()) continue;
      HEDDLE_ASSIGN(numbers_[n], host_value(n));
      values_[n].data = &numbers_[n];
    }
    return {};
  }

  Result<int32_t> host_value(size_t n) const {
    // No dim is longer, as the operator will say; sums of two stay within 64 bits.
    const int64_t rows = std::min<int64_t>(length_of("query", 1), INT64_MAX / 2),
                  past = std::min<int64_t>(length_of("past_key", 2), INT64_MAX / 2);
    const bool is_total = std::string_view(op_.inputs[n].name) == "total_sequence_length";
    const int64_t value = types_[n]->constant ? *types_[n]->constant
                          : is_total          ? past + rows
                                              : std::max<int64_t>(0, past - rows);
    if (value >= 0 && value <= INT32_MAX) return static_cast<int32_t>(value);
    return error(Code::invalid_value, "its {} is {}, expected 0 to {}", op_.inputs[n].name, value,
                 INT32_MAX);
  }

  /// A dim of an input, 0 if there is none.
  int64_t length_of(std::string_view input, int dim) const {
    for (size_t n = 0; n < values_.size(); ++n) {
      if (input == op_.inputs[n].name && values_[n].is_given() && values_[n].dims.rank() > dim)
        return values_[n].dims[dim];
    }
    return 0;
  }

  const ort::Operator& op_;
  const Node& node_;
  const Scope& scope_;
  const DimValues& dims_;
  const Imports& imports_;
  const ort::Target& target_;
  std::vector<ort::Value> values_;
  std::vector<std::optional<ValueType>> types_;  ///< nothing: the node has no such input
  std::vector<std::string> open_;
  std::vector<int32_t> numbers_;  ///< on the host
};

/// Which nodes of a graph make and read a value.
class Links {
 public:
  explicit Links(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      for (const std::string& name : node.outputs) makers_.emplace(name, &node);
      for (const std::string& name : node.inputs) readers_[name].push_back(&node);
    }
  }

  /// Whether a softmax's scores come of a product and its weights go to one, but for what is done
  /// to each element between.
  bool is_spelled_out(const Node& node) const {
    if (!node.domain.empty() || node.type != "Softmax" || node.inputs.empty() ||
        node.outputs.empty())
      return false;
    const auto makers = [&](const Node& one) {
      std::vector<const Node*> all;
      for (const std::string& name : one.inputs) {
        if (const auto found = makers_.find(name); found != makers_.end())
          all.push_back(found->second);
      }
      return all;
    };
    const auto readers = [&](const Node& one) {
      std::vector<const Node*> all;
      for (const std::string& name : one.outputs) {
        const auto found = readers_.find(name);
        if (found == readers_.end()) continue;
        const auto& some = found->second;
        all.insert(all.end(), some.begin(), some.begin() + std::min(some.size(), kMostSteps));
      }
      return all;
    };
    return reaches(node, makers, {"MatMul", "Gemm", "Einsum"}) &&
           reaches(node, readers, {"MatMul", "Einsum"});
  }

 private:
  static constexpr size_t kMostSteps = 32;  ///< nodes between a softmax and a product

  /// Whether one of these types is next to `from`, or behind nodes that work on elements.
  template <class Next>
  static bool reaches(const Node& from, const Next& next,
                      std::initializer_list<std::string_view> wanted) {
    constexpr std::string_view kElements[] = {"Add",   "Sub",     "Mul",  "Div",
                                              "Where", "Cast",    "Tanh", "Identity",
                                              "Clip",  "Reshape", "Max",  "Dropout"};
    std::vector<const Node*> open{&from};
    std::set<const Node*> seen{&from};
    while (!open.empty() && seen.size() <= kMostSteps) {
      const Node& at = *open.back();
      open.pop_back();
      for (const Node* const one : next(at)) {
        if (!one->domain.empty() || !seen.insert(one).second) continue;
        if (std::find(wanted.begin(), wanted.end(), one->type) != wanted.end()) return true;
        if (std::find(std::begin(kElements), std::end(kElements), one->type) != std::end(kElements))
          open.push_back(one);
      }
    }
    return false;
  }

  std::unordered_map<std::string_view, const Node*> makers_;
  std::unordered_map<std::string_view, std::vector<const Node*>> readers_;
};

class Search {
 public:
  Search(const Model& model, const DimValues& dims, const ort::Target& target)
      : model_(model), dims_(dims), target_(target) {}

  std::vector<Attention> run() {
    visit(model_.graph, nullptr, model_.imports, "");
    for (const Function& function : model_.functions)
      visit(function.body, nullptr, function.imports, fmt::format("function {}: ", function.name));
    return std::move(found_);
  }

 private:
  void visit(const Graph& graph, const Scope* outer, const Imports& imports,
             const std::string& place) {
    const Scope scope{outer, graph};
    const Links links(graph);
    for (const Node& node : graph.nodes) {
      judge(node, links, scope, imports, place);
      for (const auto& [name, body] : node.bodies)
        visit(body, &scope, imports, fmt::format("{}{} {}: ", place, label(node), name));
    }
  }

  /// A node without a name is known by its first output.
  static std::string label(const Node& node) {
    if (!node.name.empty()) return node.name;
    return node.outputs.empty() ? "a node without a name" : "the node of " + node.outputs[0];
  }

  bool calls_function(const Node& node) const {
    return std::ranges::any_of(model_.functions, [&](const Function& function) {
      return function.name == node.type && function.domain == node.domain;
    });
  }

  void judge(const Node& node, const Links& links, const Scope& scope, const Imports& imports,
             const std::string& place) {
    Attention attention{place + label(node), title(node), Served::no, ""};
    if (calls_function(node)) return;  // its body is visited
    if (const ort::Operator* op = operator_of(node); op && is_attention(*op)) {
      Examination(*op, node, scope, dims_, imports, target_).answer(attention);
    } else if (node.domain == kMicrosoft &&
               std::find(std::begin(kOthers), std::end(kOthers), node.type) != std::end(kOthers)) {
      attention.answer = "Heddle has no such operator: the session's own kernel runs it";
    } else if (links.is_spelled_out(node)) {
      attention.type = "MatMul, Softmax, MatMul";
      attention.answer =
          "an attention spelled out, which no operator takes: ONNX Runtime's own tools "
          "(onnxruntime.transformers.optimizer) make MultiHeadAttention of some";
    } else {
      return;
    }
    found_.push_back(std::move(attention));
  }

  const Model& model_;
  const DimValues& dims_;
  const ort::Target& target_;
  std::vector<Attention> found_;
};

const char* word(Served served) {
  switch (served) {
    case Served::yes:
      return "served";
    case Served::by_shape:
      return "served, by shape";
    case Served::no:
      return "none";
  }
  return "";
}

}  // namespace

std::vector<Attention> attentions_of(const Model& model, const DimValues& dims,
                                     const ort::Target& target) {
  return Search(model, dims, target).run();
}

std::string to_people(const std::vector<Attention>& attentions) {
  constexpr size_t kWidth = 100;
  if (attentions.empty()) return "There is no attention in the model.\n";
  const auto taken = std::ranges::count_if(
      attentions, [](const Attention& one) { return one.served != Served::no; });
  std::string out = fmt::format("{} in the model, {} of them for Heddle\n",
                                counted(attentions.size(), "attention"), taken);
  // Of the same answer, as a model's layers have.
  std::map<std::pair<std::string_view, std::string_view>, size_t> alike;
  for (const Attention& one : attentions) ++alike[{one.type, one.answer}];
  for (const Attention& one : attentions) {
    const auto found = alike.find({one.type, one.answer});
    if (found == alike.end()) continue;
    const size_t others = found->second - 1;
    alike.erase(found);
    out += fmt::format("\n{}{} ({})\n", one.where,
                       others > 0 ? fmt::format(" and {} like it", others) : "", one.type);
    out += fmt::format("  {}\n",
                       wrap(fmt::format("{}: {}", word(one.served), one.answer), kWidth, 4, 2));
  }
  return out;
}

}  // namespace heddle::tools::onnx
