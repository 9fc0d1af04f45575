#include "tools/heddle_call.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "api/executable.h"
#include "engine/cpu/engine.h"
#include "graph/ports.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "hlo/computation.h"
#include "hlo/interpreter/judgement.h"
#include "hlo/quoting.h"
#include "reference/evaluate.h"

namespace heddle::tools {

using hlo::Instruction;
using hlo::Literal;

namespace {

/// The string after `graph = ` in a typed call's backend_config, decoded; nothing if there is none.
std::optional<std::string> graph_attribute(const std::string& config) {
  const size_t key = config.find("graph");
  const size_t begin = key == std::string::npos ? key : config.find('"', key);
  if (begin == std::string::npos) return std::nullopt;
  size_t end = begin + 1;
  while (end < config.size() && config[end] != '"') end += config[end] == '\\' ? 2 : 1;
  if (end >= config.size()) return std::nullopt;
  return hlo::unquote(std::string_view(config).substr(begin, end + 1 - begin));
}

/// The elements of `value` in the type the call declares; f64 arrays come from the f64 interpreter.
Result<Literal> as_type(const Literal& value, hlo::ElementType type) {
  if (value.shape().type() == type) return value;
  HEDDLE_ASSIGN(Literal converted, Literal::zeros(value.shape().with_type(type)));
  for (int64_t i = 0; i < value.element_count(); ++i) converted.set(i, value.get(i));
  return converted;
}

}  // namespace

bool is_heddle_call(const Instruction& instruction) {
  return instruction.is(hlo::Opcode::custom_call) &&
         instruction.custom_call_target() == kHeddleTarget;
}

std::vector<const Instruction*> heddle_calls(const hlo::Module& module) {
  std::vector<const Instruction*> calls;
  for (const hlo::Computation* computation : module.computations())
    for (const Instruction* instruction : computation->instructions())
      if (is_heddle_call(*instruction)) calls.push_back(instruction);
  return calls;
}

Result<graph::Graph> graph_of(const Instruction& call) {
  const std::optional<std::string> text = graph_attribute(call.backend_config());
  if (!text)
    return error(Code::malformed_input, "custom-call {} carries no attribute `graph`", call.name());
  HEDDLE_ASSIGN(graph::Graph graph, graph::read_text(*text));
  HEDDLE_TRY(graph::validate(graph));
  return graph;
}

bool is_backward(const Instruction& call) {
  const auto graph = graph_of(call);
  return graph && std::any_of(graph->nodes.begin(), graph->nodes.end(), [](const auto& node) {
           return std::holds_alternative<graph::SdpaBackward>(node.op);
         });
}

Result<Literal> run_heddle_call(const Instruction& call, std::span<const Literal> operands) {
  HEDDLE_ASSIGN(graph::Graph graph, graph_of(call));
  const engine::Engine* engines[] = {&engine::cpu_engine()};
  HEDDLE_ASSIGN(const std::shared_ptr<const api::Executable> executable,
                api::Executable::build(std::move(graph), engines));

  const bool is_tuple = call.shape().is_tuple();
  const std::vector<hlo::Shape> shapes =
      is_tuple ? call.shape().elements() : std::vector<hlo::Shape>{call.shape()};
  const size_t outputs = executable->outputs().size();
  if (operands.size() != executable->inputs().size() || shapes.size() < outputs)
    return error(
        Code::invalid_value,
        "custom-call {} has {} operands and {} results, and its graph {} inputs and {} outputs",
        call.name(), operands.size(), shapes.size(), executable->inputs().size(), outputs);

  std::vector<Literal> inputs, results;
  std::vector<api::Binding> bindings;
  for (size_t i = 0; i < operands.size(); ++i) {
    HEDDLE_ASSIGN(Literal input,
                  as_type(operands[i], call.operand(static_cast<int>(i))->shape().type()));
    inputs.push_back(std::move(input));
    bindings.push_back({executable->inputs()[i].uid, inputs[i].mutable_data()});
  }
  for (const hlo::Shape& shape : shapes) {
    HEDDLE_ASSIGN(Literal result, Literal::zeros(shape));
    results.push_back(std::move(result));
  }
  for (size_t i = 0; i < outputs; ++i)
    bindings.push_back({executable->outputs()[i].uid, results[i].mutable_data()});
  std::vector<std::byte> workspace(static_cast<size_t>(executable->workspace_bytes()));
  HEDDLE_TRY(executable->execute(bindings, workspace.data(), nullptr));
  return is_tuple ? Literal::tuple(std::move(results)) : results[0];
}

Result<Literal> define_heddle_call(const Instruction& call, std::span<const Literal> operands) {
  HEDDLE_ASSIGN(graph::Graph graph, graph_of(call));
  for (graph::Tensor& tensor : graph.tensors) {
    if (tensor.dtype && is_floating(*tensor.dtype)) tensor.dtype = DataType::f64;
    if (tensor.constant) tensor.constant = hlo::fill_for_f64(*tensor.constant);
  }
  const std::vector<graph::TensorId> inputs = graph::bound_inputs(graph);
  const std::vector<graph::TensorId> outputs = graph::bound_outputs(graph);
  const bool is_tuple = call.shape().is_tuple();
  const std::vector<hlo::Shape> shapes =
      is_tuple ? call.shape().elements() : std::vector<hlo::Shape>{call.shape()};
  if (operands.size() != inputs.size() || shapes.size() < outputs.size())
    return error(
        Code::invalid_value,
        "custom-call {} has {} operands and {} results, and its graph {} inputs and {} outputs",
        call.name(), operands.size(), shapes.size(), inputs.size(), outputs.size());

  reference::Buffers buffers;
  for (size_t i = 0; i < inputs.size(); ++i)
    buffers[graph[inputs[i]].uid] =
        const_cast<void*>(static_cast<const void*>(operands[i].data()));  // which are only read
  HEDDLE_ASSIGN(const reference::Values values, reference::evaluate(graph, buffers));
  std::vector<Literal> results;
  reference::Buffers written;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const bool is_float = hlo::is_floating(shapes[i].type());
    HEDDLE_ASSIGN(
        Literal result,
        Literal::zeros(is_float ? shapes[i].with_type(hlo::ElementType::f64) : shapes[i]));
    if (i < outputs.size()) written[graph[outputs[i]].uid] = result.mutable_data();
    results.push_back(std::move(result));
  }
  reference::store_results(values, written);
  return is_tuple ? Literal::tuple(std::move(results)) : results[0];
}

}  // namespace heddle::tools
