#include "rewrite/programs.h"

#include <fstream>
#include <map>
#include <sstream>

#include "graph/ports.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/judgement.h"
#include "hlo/quoting.h"
#include "hlo/read.h"
#include "reference/evaluate.h"

namespace heddle::testing {

using hlo::Instruction;
using hlo::Literal;

std::string program_text(const std::string& name) {
  std::ifstream file(std::string(HEDDLE_TEST_DATA) + "/hlo/" + name + ".hlo");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << name;
  return text.str();
}

std::string resized(const std::string& text,
                    const std::vector<std::pair<std::string, std::string>>& sizes) {
  const std::map<std::string, std::string> to(sizes.begin(), sizes.end());
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!digit(text[i])) {
      result += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && digit(text[end])) ++end;
    const std::string number = text.substr(i, end - i);
    const bool whole =
        (i == 0 || std::string_view("[{,:(").find(text[i - 1]) != std::string::npos) &&
        end < text.size() && std::string_view("]},:)").find(text[end]) != std::string::npos;
    const auto found = to.find(number);
    result += whole && found != to.end() ? found->second : number;
    i = end;
  }
  return result;
}

std::string small_program(const std::string& name) {
  return resized(
      program_text(name),
      {{"256", "24"}, {"1024", "96"}, {"64", "8"}, {"65536", "576"}, {"262144", "2304"}});
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  for (; at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::unique_ptr<hlo::Module> parsed(const std::string& text) {
  auto module = hlo::read_text(text);
  EXPECT_TRUE(module.is_ok()) << module.status().message();
  return module ? std::move(*module) : nullptr;
}

int Rewritten::count(const std::string& kind) const {
  int n = 0;
  for (const rewrite::Fusion& fusion : report.fusions) n += fusion.kind == kind;
  return n;
}

std::string Rewritten::reasons() const {
  std::string all;
  for (const rewrite::Refusal& r : report.refusals)
    all += r.computation + "/" + r.instruction + ": " + r.reason + "\n";
  return all;
}

Rewritten rewritten(const std::string& text) {
  Rewritten result;
  result.original = parsed(text);
  result.fused = parsed(text);
  rewrite::Options options;
  options.workspace_bytes = [](const graph::Graph&) -> Result<int64_t> { return int64_t{64}; };
  result.report = rewrite::rewrite(result.fused, options);
  const Status status = result.fused->verify();
  EXPECT_TRUE(status.is_ok()) << status.message();
  return result;
}

namespace {

/// A fused call by its definition, in f64 throughout.
Result<Literal> by_definition(const Instruction& call, std::span<const Literal> operands) {
  const std::string config = call.backend_config();
  const size_t begin = config.find('"'), end = config.rfind('"');
  const auto text = hlo::unquote(config.substr(begin, end + 1 - begin));
  if (!text) return error(Code::malformed_input, "no graph in %{}", call.name());
  HEDDLE_ASSIGN(graph::Graph graph, graph::read_text(*text));
  HEDDLE_TRY(graph::validate(graph));
  for (graph::Tensor& tensor : graph.tensors)
    if (tensor.dtype && is_floating(*tensor.dtype)) tensor.dtype = DataType::f64;
  const std::vector<graph::TensorId> inputs = graph::bound_inputs(graph);
  const std::vector<graph::TensorId> outputs = graph::bound_outputs(graph);
  if (inputs.size() != operands.size())
    return error(Code::invalid_value, "%{} has {} operands for {} inputs", call.name(),
                 operands.size(), inputs.size());
  reference::Buffers buffers;
  for (size_t i = 0; i < inputs.size(); ++i)
    buffers[graph[inputs[i]].uid] = const_cast<void*>(static_cast<const void*>(operands[i].data()));
  HEDDLE_ASSIGN(const reference::Values values, reference::evaluate(graph, buffers));
  std::vector<Literal> results;
  for (size_t i = 0; i < call.shape().elements().size(); ++i) {
    const hlo::Shape& shape = call.shape().elements()[i];
    const bool is_workspace = i >= outputs.size();
    HEDDLE_ASSIGN(Literal result,
                  Literal::zeros(is_workspace ? shape : shape.with_type(hlo::ElementType::f64)));
    if (!is_workspace) {
      const reference::Array& array = values.result(outputs[i]);
      for (size_t j = 0; j < array.values.size(); ++j)
        result.set(values.offset_of(outputs[i], static_cast<int64_t>(j)), array.values[j]);
    }
    results.push_back(std::move(result));
  }
  return Literal::tuple(std::move(results));
}

}  // namespace

std::vector<hlo::Draw> draws_of(const std::string& name) {
  std::vector<hlo::Draw> draws(std::begin(hlo::kDraws), std::end(hlo::kDraws));
  if (name.find("bias") != std::string::npos) std::erase(draws, hlo::Draw::hidden);
  for (const char* part :
       {"no_maximum", "sum_of_output_of_one_row", "equal_axes_", "exponentials_", "of_a_part"})
    if (name.find(part) != std::string::npos) std::erase(draws, hlo::Draw::large);
  return draws;
}

::testing::AssertionResult same_meaning(const Rewritten& programs, double tolerance, uint64_t seed,
                                        const std::vector<hlo::Draw>& draws,
                                        const std::function<void(std::vector<Literal>&)>& adjust) {
  hlo::EvaluateOptions options;
  options.precision = hlo::Precision::f64;
  options.max_iterations = 1000;
  options.custom_calls.emplace_back("heddle", by_definition);
  std::vector<int64_t> silent;  // elements of outputs that nothing was compared of
  for (const hlo::Draw draw : draws) {
    auto arguments = hlo::random_arguments(*programs.original, seed, draw);
    if (!arguments) return ::testing::AssertionFailure() << arguments.status().message();
    if (adjust) adjust(*arguments);
    const auto expected = hlo::evaluate(*programs.original, *arguments, options);
    if (!expected) return ::testing::AssertionFailure() << expected.status().message();
    const auto actual = hlo::evaluate(*programs.fused, *arguments, options);
    if (!actual) return ::testing::AssertionFailure() << actual.status().message();
    const std::vector<Literal> a = hlo::flattened(*expected), b = hlo::flattened(*actual);
    if (a.size() != b.size()) return ::testing::AssertionFailure() << "different outputs";
    silent.resize(a.size(), -1);
    for (size_t i = 0; i < a.size(); ++i) {
      const hlo::OutputJudgement output = hlo::judge(a[i], b[i], tolerance);
      if (!output.complaint.empty())
        return ::testing::AssertionFailure()
               << "output " << i << " on " << hlo::name(draw) << " inputs: " << output.complaint;
      silent[i] = output.compared > 0 || silent[i] == 0 ? 0 : output.elements;
    }
  }
  for (size_t i = 0; i < silent.size(); ++i)
    if (silent[i] > 0) return ::testing::AssertionFailure() << "output " << i << " is never finite";
  return ::testing::AssertionSuccess();
}

}  // namespace heddle::testing
