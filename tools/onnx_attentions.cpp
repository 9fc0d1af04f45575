#include "tools/onnx_attentions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

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
              const Imports& imports)
      : op_(op), node_(node), scope_(scope), dims_(dims), imports_(imports) {}

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
    HEDDLE_ASSIGN(const std::unique_ptr<ort::Kernel> kernel, ort::Kernel::make(op_, host(), &info));
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
    const int64_t rows = length_of("query", 1), past = length_of("past_key", 2);
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
  std::vector<ort::Value> values_;
  std::vector<std::optional<ValueType>> types_;  ///< nothing: the node has no such input
  std::vector<std::string> open_;
  std::vector<int32_t> numbers_;  ///< on the host
};

class Search {
 public:
  Search(const Model& model, const DimValues& dims) : model_(model), dims_(dims) {}

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
    for (const Node& node : graph.nodes) {
      judge(node, graph, scope, imports, place);
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

  void judge(const Node& node, const Graph& graph, const Scope& scope, const Imports& imports,
             const std::string& place) {
    Attention attention{place + label(node), title(node), Served::no, ""};
    if (calls_function(node)) return;  // its body is visited
    if (const ort::Operator* op = operator_of(node); op && is_attention(*op)) {
      Examination(*op, node, scope, dims_, imports).answer(attention);
    } else if (node.domain == kMicrosoft &&
               std::find(std::begin(kOthers), std::end(kOthers), node.type) != std::end(kOthers)) {
      attention.answer = "Heddle has no such operator: the session's own kernel runs it";
    } else if (is_spelled_out(node, graph)) {
      attention.type = "MatMul, Softmax, MatMul";
      attention.answer =
          "an attention spelled out, which no operator takes: ONNX Runtime's own tools "
          "(onnxruntime.transformers.optimizer) make MultiHeadAttention of some";
    } else {
      return;
    }
    found_.push_back(std::move(attention));
  }

  /// Whether a softmax's scores come of a product and its weights go to one, but for what is done
  /// to each element between.
  static bool is_spelled_out(const Node& node, const Graph& graph) {
    if (!node.domain.empty() || node.type != "Softmax" || node.inputs.empty() ||
        node.outputs.empty())
      return false;
    const auto passes = [](const Node& one, std::initializer_list<std::string_view> types) {
      return one.domain.empty() && std::find(types.begin(), types.end(), one.type) != types.end();
    };
    std::set<std::string> scores{node.inputs[0]}, weights{node.outputs[0]};
    bool of_product = false, to_product = false;
    for (auto at = graph.nodes.rbegin(); at != graph.nodes.rend(); ++at) {  // in order, by ONNX
      const bool is_source = std::ranges::any_of(
          at->outputs, [&](const std::string& name) { return scores.contains(name); });
      if (!is_source) continue;
      if (passes(*at, {"MatMul", "Gemm", "Einsum"})) of_product = true;
      if (passes(*at, {"Add", "Sub", "Mul", "Div", "Where", "Cast", "Tanh", "Identity", "Reshape",
                       "Clip", "Max"}))
        scores.insert(at->inputs.begin(), at->inputs.end());
    }
    for (const Node& one : graph.nodes) {
      const bool is_use = std::ranges::any_of(
          one.inputs, [&](const std::string& name) { return weights.contains(name); });
      if (!is_use) continue;
      if (passes(one, {"MatMul", "Einsum"})) to_product = true;
      if (passes(one, {"Cast", "Dropout", "Identity", "Where", "Mul", "Reshape"}))
        weights.insert(one.outputs.begin(), one.outputs.end());
    }
    return of_product && to_product;
  }

  const Model& model_;
  const DimValues& dims_;
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

std::vector<Attention> attentions_of(const Model& model, const DimValues& dims) {
  return Search(model, dims).run();
}

std::string to_people(const std::vector<Attention>& attentions) {
  constexpr size_t kWidth = 100;
  if (attentions.empty()) return "There is no attention in the model.\n";
  const auto taken = std::ranges::count_if(
      attentions, [](const Attention& one) { return one.served != Served::no; });
  std::string out = fmt::format("{} in the model, {} of them for Heddle\n",
                                counted(attentions.size(), "attention"), taken);
  std::vector<bool> said(attentions.size());
  for (size_t n = 0; n < attentions.size(); ++n) {
    if (said[n]) continue;
    const Attention& first = attentions[n];
    size_t others = 0;  // of the same answer, as a model's layers have
    for (size_t m = n + 1; m < attentions.size(); ++m) {
      if (attentions[m].type != first.type || attentions[m].answer != first.answer) continue;
      said[m] = true, ++others;
    }
    out += fmt::format("\n{}{} ({})\n", first.where,
                       others > 0 ? fmt::format(" and {} like it", others) : "", first.type);
    out += fmt::format("  {}\n",
                       wrap(fmt::format("{}: {}", word(first.served), first.answer), kWidth, 4, 2));
  }
  return out;
}

}  // namespace heddle::tools::onnx
