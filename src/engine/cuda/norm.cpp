#include "engine/cuda/norm.h"

#include "core/rounding.h"
#include "engine/cuda/config_source.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::NormProblem;
using problem::OperandId;

namespace {

streaming::Real real(double value) { return {value, static_cast<float>(value)}; }

KernelUnit unit_of(const NormProblem& problem, const NormConfig& config) {
  const char* const name = norm_name(problem.structure);
  std::string source = fmt::format(
      "#include \"streaming/norm.cuh\"\n"
      "namespace heddle::streaming {{\n"
      "{}"
      "using Kernel = {}<Config>;\n"
      "}}  // namespace heddle::streaming\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "{}(const __grid_constant__ heddle::streaming::NormArguments arguments) {{\n"
      "  heddle::streaming::Kernel::run(arguments);\n"
      "}}\n",
      config_source<streaming::NormConfig>(config), config.in_registers ? "Norm" : "NormLongRows",
      config.threads(), name);
  return {name, std::move(source), summary_of<streaming::NormConfig>(config)};
}

class NormLaunches final : public Launches {
 public:
  explicit NormLaunches(const NormProblem& problem) : problem_(problem), shape_(problem_) {}

  Status make(const Target& target, Lowering& lowering) {
    HEDDLE_ASSIGN(const NormConfig config, configure_norm(problem_, shape_));
    kernel_ = lowering.add_kernel(unit_of(problem_, config), config.threads());
    arguments_.extents = shape_.extents();
    arguments_.x = shape_.tensor(problem_.structure.x);
    arguments_.weight = shape_.tensor(problem_.structure.weight);
    arguments_.bias = shape_.tensor(problem_.structure.bias);
    arguments_.residual = shape_.tensor(problem_.structure.residual);
    arguments_.residual_bias = shape_.tensor(problem_.structure.residual_bias);
    arguments_.sum = shape_.tensor(problem_.structure.sum);
    arguments_.y = shape_.tensor(problem_.structure.y);
    arguments_.mean = shape_.tensor(problem_.structure.mean);
    arguments_.inv_rms = shape_.tensor(problem_.structure.inv_rms);
    arguments_.rows = shape_.rows();
    arguments_.columns = shape_.columns();
    arguments_.per_column = real(1.0 / shape_.columns());
    arguments_.epsilon = real(problem_.sizes.epsilon);
    const int rows = config.in_registers ? config.threads() / config.threads_per_row : 1;
    launch_ = {.grid_x = static_cast<unsigned>(divide_up(shape_.rows(), rows)),
               .threads = static_cast<unsigned>(config.threads()),
               .overlaps_predecessor = target.compute_capability >= 90};
    lowering.description =
        fmt::format("{}, {}, {} threads a row, vectors of {}, {}", norm_name(problem_.structure),
                    config.in_registers ? "rows in registers"
                    : config.centred    ? "rows read three times"
                                        : "rows read twice",
                    config.threads_per_row, shape_.vector(), target.architecture);
    return {};
  }

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(shape_.check_buffers(at.buffers));
    if (shape_.rows() == 0) return {};
    streaming::NormArguments arguments = arguments_;
    const auto buffer = [&](OperandId id) {
      return id == kAbsent ? nullptr : at.buffers[static_cast<size_t>(id)];
    };
    arguments.x.data = buffer(problem_.structure.x);
    arguments.weight.data = buffer(problem_.structure.weight);
    arguments.bias.data = buffer(problem_.structure.bias);
    arguments.residual.data = buffer(problem_.structure.residual);
    arguments.residual_bias.data = buffer(problem_.structure.residual_bias);
    arguments.sum.data = buffer(problem_.structure.sum);
    arguments.y.data = buffer(problem_.structure.y);
    arguments.mean.data = buffer(problem_.structure.mean);
    arguments.inv_rms.data = buffer(problem_.structure.inv_rms);
    if (const void* epsilon = buffer(problem_.structure.epsilon)) {
      const problem::OperandType& type = problem_.structure.type(problem_.structure.epsilon);
      if (type.on_host) {
        arguments.epsilon = real(load(type.dtype, epsilon, 0));
      } else {
        arguments.epsilon_operand = epsilon;
        arguments.epsilon_is_64_bit = type.dtype == DataType::f64;
      }
    } else if (problem_.structure.epsilon != kAbsent) {
      return error(Code::invalid_variant_pack, "cuda: {} epsilon has no buffer",
                   norm_name(problem_.structure));
    }
    return at.launch(kernel_, launch_, &arguments);
  }

 private:
  const NormProblem problem_;
  NormShape shape_;
  size_t kernel_ = 0;
  Launch launch_;
  streaming::NormArguments arguments_{};
};

}  // namespace

Result<NormConfig> configure_norm(const NormProblem& problem, NormShape& shape) {
  HEDDLE_TRY(shape.set(problem.structure));
  if (problem.structure.epsilon != kAbsent) {
    const DataType dtype = problem.structure.type(problem.structure.epsilon).dtype;
    if (dtype != DataType::f32 && dtype != DataType::f64) {
      return error(Code::graph_not_supported,
                   "cuda: {} epsilon is {}, expected an operand of f32 or f64",
                   norm_name(problem.structure), name(dtype));
    }
  }
  NormConfig config;
  shape.configure(config);
  shape.set_element(config.x, problem.structure.x);
  shape.set_element(config.w, problem.structure.weight);
  shape.set_element(config.b, problem.structure.bias);
  shape.set_element(config.y, problem.structure.y);
  shape.set_element(config.mean, problem.structure.mean);
  shape.set_element(config.statistic, problem.structure.inv_rms);
  config.centred = problem.structure.centred;
  config.bias = problem.structure.bias != kAbsent;
  shape.set_element(config.residual, problem.structure.residual);
  shape.set_element(config.residual_bias, problem.structure.residual_bias);
  shape.set_element(config.sum, problem.structure.sum);
  config.adds_residual = problem.structure.residual != kAbsent;
  config.adds_residual_bias = problem.structure.residual_bias != kAbsent;
  config.wants_sum = problem.structure.sum != kAbsent;
  // Measured with bf16, vectors of 8: kernels/README.md.
  struct Choice {
    int most_vectors, threads_per_row, vectors;
  };
  constexpr Choice kChoices[] = {{8, 8, 1},     {64, 32, 2},    {128, 64, 2},  {256, 128, 2},
                                 {512, 128, 4}, {1024, 512, 2}, {2048, 512, 4}};
  config.in_registers = false;
  config.threads_per_row = 512;
  config.vectors = 1;
  for (const Choice& choice : kChoices) {
    if (shape.facts().vectors > choice.most_vectors) continue;
    config.in_registers = true;
    config.threads_per_row = choice.threads_per_row;
    config.vectors = choice.vectors;
    break;
  }
  return config;
}

Result<Lowering> lower_norm(const NormProblem& problem, const Target& target) {
  Lowering lowering;
  auto launches = std::make_shared<NormLaunches>(problem);
  HEDDLE_TRY(launches->make(target, lowering));
  lowering.launches = std::move(launches);
  return lowering;
}

}  // namespace heddle::engine::cuda
