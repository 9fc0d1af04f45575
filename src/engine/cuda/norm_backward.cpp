#include "engine/cuda/norm_backward.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/config_source.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::NormBackwardProblem;
using problem::OperandId;
using Step = NormBackwardStep;

namespace {

/// Blocks share the rows among as many processors at most: every workspace has room for the sums of
/// so many, as a program may run on a larger device than its workspace was measured for. GB202 has
/// 192.
constexpr int kMostProcessors = 192;

constexpr int kThreads = 512, kMeansThreads = 512, kLongRowThreads = 256, kCombineThreads = 256;

int64_t size_of_operand(const NormBackwardProblem& problem, OperandId id) {
  return size_of(problem.structure.type(id).dtype);
}

/// 32-bit registers a thread's share of rows and sums fills.
int64_t registers(const NormBackwardProblem& problem, const NormShape& shape, int vectors,
                  bool prefetch, bool d_bias_shared) {
  const auto packed = [&](OperandId id) {
    return std::max<int64_t>(4, shape.vector() * size_of_operand(problem, id)) / 4;
  };
  const int64_t rows =
      (packed(problem.structure.x) + packed(problem.structure.dy)) * (prefetch ? 2 : 1);
  const int64_t sums = (problem.structure.d_weight != kAbsent) +
                       (problem.structure.d_bias != kAbsent && !d_bias_shared);
  return vectors * (rows + packed(problem.structure.weight) +
                    sums * shape.vector() * (shape.is_f64() ? 2 : 1));
}

/// Dynamic shared memory of the main kernel: 64 KB at most, where each device has 99 and the
/// kernel's own take 18.
int64_t shared_bytes_of(const NormBackwardConfig& config) {
  if (!config.d_bias_shared) return 0;
  const int64_t number = config.number == Element::f64 ? 8 : 4;
  return number * kThreads * config.vectors * config.vector;
}

std::string kernel_name(const NormBackwardProblem& problem, const char* part) {
  return fmt::format("{}_backward{}", norm_name(problem.structure), part);
}

KernelUnit unit_of(const NormBackwardProblem& problem, const NormBackwardConfig& config) {
  std::string source = fmt::format(
      "#include \"streaming/norm_backward.cuh\"\n"
      "namespace heddle::streaming {{\n"
      "{}"
      "using Rows = {}<Config>;\n"
      "using Sums = NormCombine<Config>;\n"
      "}}  // namespace heddle::streaming\n",
      config_source<streaming::NormBackwardConfig>(config),
      config.in_registers ? "NormBackward" : "NormBackwardLongRows");
  constexpr const char* kRuns[] = {"Rows::means", "Rows::run", "Sums::run"};
  for (const Step& step : steps_of(problem, config)) {
    // Left to itself, the assembler makes room for a second block of the main kernel, and spills.
    source += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({}{})\n"
        "{}(const __grid_constant__ heddle::streaming::NormBackwardArguments arguments) {{\n"
        "  heddle::streaming::{}(arguments);\n"
        "}}\n",
        step.threads, step.part == Step::Part::main ? ", 1" : "", step.name,
        kRuns[static_cast<int>(step.part)]);
  }
  return {kernel_name(problem, ""), std::move(source),
          summary_of<streaming::NormBackwardConfig>(config)};
}

class NormBackwardLaunches final : public Launches {
 public:
  explicit NormBackwardLaunches(const NormBackwardProblem& problem)
      : problem_(problem), shape_(problem_) {}

  Status make(const Target& target, Lowering& lowering) {
    HEDDLE_ASSIGN(const NormBackwardConfig config, configure_norm_backward(problem_, shape_));
    const KernelUnit unit = unit_of(problem_, config);
    arguments_.extents = shape_.extents();
    arguments_.dy = shape_.tensor(problem_.structure.dy);
    arguments_.x = shape_.tensor(problem_.structure.x);
    arguments_.weight = shape_.tensor(problem_.structure.weight);
    arguments_.mean = shape_.tensor(problem_.structure.mean);
    arguments_.inv_rms = shape_.tensor(problem_.structure.inv_rms);
    arguments_.dx = shape_.tensor(problem_.structure.dx);
    arguments_.d_weight = shape_.tensor(problem_.structure.d_weight);
    arguments_.d_bias = shape_.tensor(problem_.structure.d_bias);
    arguments_.rows = shape_.rows();
    arguments_.columns = shape_.columns();
    arguments_.per_column = {1.0 / shape_.columns(), static_cast<float>(1.0 / shape_.columns())};
    const int tile = kLongRowThreads * shape_.vector();
    const auto divided = [](int a, int b) { return static_cast<int>(divide_up(a, b)); };
    const int tiles = divided(shape_.columns(), tile);
    const auto blocks_on = [&](int processors) {
      return config.in_registers
                 ? std::min(processors, divided(shape_.rows(), kThreads / config.threads_per_row))
                 // Four blocks a processor hide each other's loads.
                 : std::min({divided(4 * processors, tiles), shape_.rows(),
                             static_cast<int>(kMostBlocksAcross)});
    };
    arguments_.blocks = blocks_on(std::min(target.processors, kMostProcessors));
    for (const Step& step : steps_of(problem_, config)) {
      const int64_t shared_bytes = step.part == Step::Part::main ? shared_bytes_of(config) : 0;
      const size_t kernel = lowering.add_kernel(unit, step.threads, shared_bytes, step.name);
      if (shape_.rows() == 0 && step.part != Step::Part::combine) continue;
      Launch launch{.threads = static_cast<unsigned>(step.threads),
                    .shared_bytes = static_cast<unsigned>(shared_bytes)};
      if (step.part == Step::Part::means) {
        launch.grid_x = static_cast<unsigned>(shape_.rows());
      } else if (step.part == Step::Part::combine) {
        launch.grid_x = static_cast<unsigned>(divided(shape_.columns(), 32));
        launch.grid_y = 2;
      } else if (config.in_registers) {
        launch.grid_x = static_cast<unsigned>(arguments_.blocks);
      } else {
        launch.grid_x = static_cast<unsigned>(tiles);
        launch.grid_y = static_cast<unsigned>(arguments_.blocks);
      }
      launches_.push_back({kernel, launch});
    }
    const int64_t number = shape_.is_f64() ? 8 : 4;
    if (config.sums()) means_offset_ = 2 * number * blocks_on(kMostProcessors) * shape_.columns();
    lowering.workspace_bytes =
        means_offset_ + (config.in_registers || problem_.structure.dx == kAbsent
                             ? 0
                             : (config.centred ? 2 : 1) * number * shape_.rows());
    lowering.description = fmt::format(
        "{} backward, {}, {} launches, vectors of {}, {}", norm_name(problem_.structure),
        config.d_bias_shared  ? "rows in registers, d_bias in shared memory"
        : config.in_registers ? "rows in registers"
                              : "rows read twice",
        launches_.size(), shape_.vector(), target.architecture);
    return {};
  }

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(shape_.check_buffers(at.buffers));
    streaming::NormBackwardArguments arguments = arguments_;
    const auto bind = [&](streaming::Tensor& tensor, OperandId id) {
      tensor.data = id == kAbsent ? nullptr : at.buffers[static_cast<size_t>(id)];
    };
    bind(arguments.dy, problem_.structure.dy);
    bind(arguments.x, problem_.structure.x);
    bind(arguments.weight, problem_.structure.weight);
    bind(arguments.mean, problem_.structure.mean);
    bind(arguments.inv_rms, problem_.structure.inv_rms);
    bind(arguments.dx, problem_.structure.dx);
    bind(arguments.d_weight, problem_.structure.d_weight);
    bind(arguments.d_bias, problem_.structure.d_bias);
    arguments.partial = at.workspace;
    arguments.means = at.workspace + means_offset_;
    for (const auto& [kernel, launch] : launches_)
      HEDDLE_TRY(at.launch(kernel, launch, &arguments));
    return {};
  }

 private:
  struct KernelLaunch {
    size_t kernel;
    Launch launch;
  };
  const NormBackwardProblem problem_;
  NormShape shape_;
  std::vector<KernelLaunch> launches_;
  streaming::NormBackwardArguments arguments_{};
  int64_t means_offset_ = 0;
};

}  // namespace

Result<NormBackwardConfig> configure_norm_backward(const NormBackwardProblem& problem,
                                                   NormShape& shape) {
  HEDDLE_TRY(shape.set(problem.structure));
  NormBackwardConfig config;
  shape.configure(config);
  shape.set_element(config.x, problem.structure.x);
  shape.set_element(config.w, problem.structure.weight);
  shape.set_element(config.dy, problem.structure.dy);
  shape.set_element(config.dx, problem.structure.dx);
  shape.set_element(config.d_weight, problem.structure.d_weight);
  shape.set_element(config.d_bias, problem.structure.d_bias);
  shape.set_element(config.mean, problem.structure.mean);
  shape.set_element(config.statistic, problem.structure.inv_rms);
  config.centred = problem.structure.centred;
  config.wants_dx = problem.structure.dx != kAbsent;
  config.wants_d_weight = problem.structure.d_weight != kAbsent;
  config.wants_d_bias = problem.structure.d_bias != kAbsent;
  config.threads_per_row = 0;
  config.vectors = 1;
  config.prefetch = false;
  config.d_bias_shared = false;
  // Measured with bf16, vectors of 8: kernels/README.md. Types that fill more registers than those
  // (32 sums and 48 of rows) spread a row over more threads.
  constexpr int kMostRegisters = 80;
  struct Choice {
    int most_vectors, threads_per_row, vectors;
  };
  constexpr Choice kChoices[] = {{64, 64, 1},   {128, 64, 2},   {256, 64, 4},
                                 {512, 128, 4}, {1024, 256, 4}, {2048, 512, 4}};
  const auto* const choice =
      std::find_if(std::begin(kChoices), std::end(kChoices),
                   [&](const Choice& one) { return shape.facts().vectors <= one.most_vectors; });
  if (choice != std::end(kChoices)) {
    // Sums of the bias leave the registers only where rows would be read twice otherwise.
    for (const bool d_bias_shared : {false, true}) {
      config.d_bias_shared = d_bias_shared && config.wants_d_bias;
      config.threads_per_row = choice->threads_per_row;
      config.vectors = choice->vectors;
      const auto filled = [&](bool prefetch) {
        return registers(problem, shape, config.vectors, prefetch, config.d_bias_shared);
      };
      const auto prefetches = [&] { return config.vectors <= 2; };
      while (config.vectors > 1 && filled(prefetches()) > kMostRegisters) {
        config.vectors /= 2;
        config.threads_per_row *= 2;
      }
      if (config.threads_per_row > kThreads) continue;
      config.prefetch = prefetches() && filled(true) <= kMostRegisters;
      return config;
    }
  }
  config.d_bias_shared = false;
  config.in_registers = false;
  return config;
}

std::vector<Step> steps_of(const NormBackwardProblem& problem, const NormBackwardConfig& config) {
  std::vector<Step> steps;
  if (!config.in_registers && problem.structure.dx != kAbsent)
    steps.push_back({Step::Part::means, kernel_name(problem, "_means"), kMeansThreads});
  steps.push_back({Step::Part::main, kernel_name(problem, ""),
                   config.in_registers ? kThreads : kLongRowThreads});
  if (config.sums())
    steps.push_back({Step::Part::combine, kernel_name(problem, "_combine"), kCombineThreads});
  return steps;
}

Result<Lowering> lower_norm_backward(const NormBackwardProblem& problem, const Target& target) {
  Lowering lowering;
  auto launches = std::make_shared<NormBackwardLaunches>(problem);
  HEDDLE_TRY(launches->make(target, lowering));
  lowering.launches = std::move(launches);
  return lowering;
}

}  // namespace heddle::engine::cuda
