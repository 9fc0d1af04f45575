#include "tools/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "hlo/interpreter/random_arguments.h"
#include "tools/heddle_call.h"

namespace heddle::tools {
namespace {

using hlo::ElementType;
using hlo::Literal;

/// What .npy files hold of HLO's types.
std::optional<DataType> data_type(ElementType type) {
  constexpr std::pair<ElementType, DataType> kTypes[] = {
      {ElementType::f64, DataType::f64},         {ElementType::f32, DataType::f32},
      {ElementType::bf16, DataType::bf16},       {ElementType::f16, DataType::f16},
      {ElementType::f8e4m3fn, DataType::f8e4m3}, {ElementType::f8e5m2, DataType::f8e5m2},
      {ElementType::s64, DataType::i64},         {ElementType::s32, DataType::i32},
      {ElementType::s8, DataType::i8},           {ElementType::u64, DataType::u64},
      {ElementType::u32, DataType::u32},         {ElementType::u8, DataType::u8},
      {ElementType::pred, DataType::boolean},
  };
  for (const auto& [of_hlo, of_npy] : kTypes)
    if (of_hlo == type) return of_npy;
  return std::nullopt;
}

/// As parameters are listed: "0 (q.1)".
std::string called(const hlo::Instruction& parameter) {
  return fmt::format("{} ({})", parameter.parameter_number(), parameter.name());
}

/// The first thing wrong on these inputs, as a sentence; empty if nothing is.
std::string complaint_of(const Trial& trial) {
  for (size_t i = 0; i < trial.outputs.size(); ++i)
    if (!trial.outputs[i].complaint.empty())
      return fmt::format("output {} ({}) on {} inputs: {}", i,
                         hlo::to_string_without_layout(trial.outputs[i].shape), trial.inputs,
                         trial.outputs[i].complaint);
  return "";
}

/// The same of outputs that no inputs told anything about.
std::string complaint_of_silence(const std::vector<Trial>& trials) {
  for (size_t i = 0; i < trials[0].outputs.size(); ++i) {
    int64_t compared = 0;
    for (const Trial& trial : trials) compared += trial.outputs[i].compared;
    if (compared == 0 && trials[0].outputs[i].elements > 0)
      return fmt::format(
          "output {} ({}) could not be compared: on no inputs does the original give a finite "
          "number",
          i, hlo::to_string_without_layout(trials[0].outputs[i].shape));
  }
  return "";
}

/// Literals and .npy arrays are both row-major with elements of the same bytes.
Result<Literal> literal_of(const GivenInput& input, const hlo::Shape& shape) {
  return Literal::from_bytes(shape.without_layout(), input.array.data);
}

}  // namespace

Result<Verification> verify(const hlo::Module& original, const hlo::Module& fused, uint64_t seed,
                            const std::vector<GivenInput>& given) {
  hlo::JudgeOptions options;
  options.seed = seed;
  options.rewritten.custom_calls.emplace_back(std::string(kHeddleTarget), run_heddle_call);
  options.original.custom_calls = options.rewritten.custom_calls;
  options.exact.custom_calls.emplace_back(std::string(kHeddleTarget), define_heddle_call);
  const std::vector<hlo::Instruction*>& parameters = original.entry()->parameters();

  Verification verification;
  for (const hlo::Draw draw : hlo::kDraws) {
    Trial trial{std::string(hlo::name(draw)), {}};
    HEDDLE_ASSIGN(std::vector<Literal> arguments, hlo::random_arguments(original, seed, draw));
    for (const GivenInput& input : given) {
      HEDDLE_ASSIGN(arguments[static_cast<size_t>(input.parameter)],
                    literal_of(input, parameters[static_cast<size_t>(input.parameter)]->shape()));
    }
    const bool nothing_is_drawn = given.size() == parameters.size();
    if (nothing_is_drawn) trial.inputs = "the given";
    HEDDLE_ASSIGN(trial.outputs, hlo::judge(original, fused, arguments, options));
    for (const hlo::OutputJudgement& output : trial.outputs)
      verification.max_relative_error = std::max(verification.max_relative_error, output.error);
    if (verification.complaint.empty()) verification.complaint = complaint_of(trial);
    verification.trials.push_back(std::move(trial));
    if (nothing_is_drawn) break;
  }
  if (verification.complaint.empty())
    verification.complaint = complaint_of_silence(verification.trials);
  return verification;
}

namespace {

Result<GivenInput> read_input(const hlo::Module& module, const std::string& text) {
  const size_t equals = text.find('=');
  const std::string wanted = text.substr(0, equals);
  const hlo::Instruction* parameter = nullptr;
  std::string known;
  for (const hlo::Instruction* one : module.entry()->parameters()) {
    known += (known.empty() ? "" : ", ") + called(*one);
    if (wanted == one->name() ||
        (parameter == nullptr && wanted == fmt::format("{}", one->parameter_number())))
      parameter = one;
  }
  if (equals == std::string::npos || parameter == nullptr)
    return error(
        Code::invalid_value,
        "'{}' names none of this module's parameters; NAME=FILE.npy or NUMBER=FILE.npy with "
        "one of {} is allowed",
        text, known.empty() ? "none" : known);
  const hlo::Shape& shape = parameter->shape();
  const std::optional<DataType> type = data_type(shape.type());
  if (!type)
    return error(Code::invalid_value,
                 "parameter {} is {}, of which .npy files hold nothing: it is always drawn",
                 called(*parameter), hlo::to_string_without_layout(shape));
  const bool is_raw = *type == DataType::f8e4m3 || *type == DataType::f8e5m2;
  HEDDLE_ASSIGN(Array array, read_npy(text.substr(equals + 1), is_raw ? *type : DataType::bf16));
  const auto same = [&] {
    if (array.dtype != *type || array.dims.rank() != shape.rank()) return false;
    for (int i = 0; i < shape.rank(); ++i)
      if (array.dims[i] != shape.dim(i)) return false;
    return true;
  };
  if (!same())
    return error(Code::invalid_value, "parameter {} takes {} [{}], not {} {}", called(*parameter),
                 name(*type), fmt::join(shape.dims(), ", "), name(array.dtype),
                 to_string(array.dims));
  return GivenInput{parameter->parameter_number(), std::move(array)};
}

}  // namespace

Result<std::vector<GivenInput>> read_inputs(const hlo::Module& module,
                                            const std::vector<std::string>& texts) {
  std::vector<GivenInput> inputs;
  for (const std::string& text : texts) {
    HEDDLE_ASSIGN(GivenInput input, read_input(module, text));
    for (const GivenInput& other : inputs)
      if (other.parameter == input.parameter)
        return error(Code::invalid_value, "'{}' gives parameter {} a second time; once is allowed",
                     text, input.parameter);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

}  // namespace heddle::tools
