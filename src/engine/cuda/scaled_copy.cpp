#include "engine/cuda/scaled_copy.h"

#include <fmt/format.h>

#include "engine/cuda/config_source.h"
#include "problem/facts.h"

namespace heddle::engine::cuda {
namespace {

using problem::kAbsent;
using problem::OperandId;

constexpr const char* kKernelName = "scaled_copy";
constexpr int kThreads = 256, kRun = 4;

RowsOperands operands_of(const ScaledCopyStep& step) { return {step.types, step.layouts, step}; }

bool writes(const ScaledCopyStep& step) { return step.y != step.x; }

class ScaledCopyLaunches final : public Launches {
 public:
  ScaledCopyLaunches(ScaledCopyStep step, const Launch& launch,
                     const streaming::ScaledCopyArguments& arguments, int run)
      : step_(std::move(step)), launch_(launch), arguments_(arguments), run_(run) {}

  Status execute(const Execution& at) const override {
    if (launch_.grid_x == 0) return {};
    const auto buffer = [&](OperandId id) -> void* {
      return id == kAbsent ? nullptr : at.buffers[static_cast<size_t>(id)];
    };
    for (const OperandId id : {step_.x, step_.y}) {
      const auto bytes = static_cast<uintptr_t>(run_ * size_of(step_.types.type(id).dtype));
      if (reinterpret_cast<uintptr_t>(buffer(id)) % bytes != 0)
        return error(Code::invalid_variant_pack,
                     "cuda: {} is at address {:#x}, expected a multiple of {} for the kernel that "
                     "scales it",
                     step_.name, reinterpret_cast<uintptr_t>(buffer(id)), bytes);
    }
    streaming::ScaledCopyArguments arguments = arguments_;
    operands_of(step_).bind(at.buffers, arguments);
    arguments.factor = static_cast<const float*>(buffer(step_.factor));
    arguments.scale = static_cast<const float*>(buffer(step_.scale));
    arguments.largest = static_cast<unsigned*>(buffer(step_.largest));
    return at.launch(0, launch_, &arguments);
  }

 private:
  const ScaledCopyStep step_;
  const Launch launch_;
  const streaming::ScaledCopyArguments arguments_;
  const int run_;
};

}  // namespace

Result<Lowering> lower_scaled_copy(const ScaledCopyStep& step, const Target& target) {
  const RowsOperands operands = operands_of(step);
  const std::string op = fmt::format("a scaled copy of {}", step.name);
  const auto types = {DataType::f8e4m3, DataType::f8e5m2, DataType::f32, DataType::bf16,
                      DataType::f16};
  HEDDLE_TRY(operands.check_type(op, "x", step.x, types));
  if (writes(step)) HEDDLE_TRY(operands.check_type(op, "y", step.y, types));
  HEDDLE_TRY(operands.check(op));
  const problem::OperandType &x = step.types.type(step.x), &y = step.types.type(step.y);
  const problem::OperandLayout &from = step.layouts.layout(step.x),
                               &to = step.layouts.layout(step.y);
  const bool runs = problem::alignment_of(x, from) % kRun == 0 &&
                    problem::alignment_of(y, to) % kRun == 0 && from.dims[3] % kRun == 0;
  const streaming::ScaledCopyConfig config{.x = element_of(x.dtype),
                                           .y = element_of(y.dtype),
                                           .run = runs ? kRun : 1,
                                           .writes = writes(step),
                                           .reciprocal = step.reciprocal,
                                           .ragged = operands.are_ragged()};
  streaming::ScaledCopyArguments arguments{};
  arguments.columns = static_cast<int>(from.dims[3]);
  HEDDLE_ASSIGN(const Launch launch,
                operands.arrange(op, arguments.columns / config.run, kThreads, arguments));
  Lowering lowering;
  if (launch.grid_x > 0) {
    lowering.add_kernel(
        {kKernelName,
         fmt::format("#include \"streaming/scaled_copy.cuh\"\n"
                     "namespace heddle::streaming {{\n{}}}  // namespace heddle::streaming\n"
                     "extern \"C\" __global__ void __launch_bounds__({})\n"
                     "{}(const __grid_constant__ heddle::streaming::ScaledCopyArguments arguments) "
                     "{{\n"
                     "  heddle::streaming::ScaledCopy<heddle::streaming::Config>::run(arguments);\n"
                     "}}\n",
                     config_source<streaming::ScaledCopyConfig>(config), kThreads, kKernelName),
         summary_of<streaming::ScaledCopyConfig>(config)},
        kThreads);
  }
  const std::string what =
      writes(step) ? fmt::format("{} scaled from {} to {}", step.name, name(x.dtype), name(y.dtype))
                   : fmt::format("the largest of {}", step.name);
  lowering.description = fmt::format("{}, {}", what, target.architecture);
  lowering.launches =
      std::make_shared<const ScaledCopyLaunches>(step, launch, arguments, config.run);
  return lowering;
}

}  // namespace heddle::engine::cuda
