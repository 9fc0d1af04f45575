#include "engine/cuda/copy.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/config_source.h"
#include "problem/facts.h"

namespace heddle::engine::cuda {
namespace {

using problem::OperandId;

constexpr const char* kKernelName = "copy_rows";
constexpr int kThreads = 256;

RowsOperands operands_of(const CopyStep& step) { return {step.types, step.layouts, step}; }

/// Columns of a row.
int64_t columns_of(const CopyStep& step, OperandId id) {
  const problem::OperandType& type = step.types.type(id);
  return step.layouts.layout(id).dims[3] * type.columns_of_element();
}

/// Elements of an access that every row of the operand is a multiple of.
int each_of(const CopyStep& step, OperandId id) {
  const problem::OperandType& type = step.types.type(id);
  const auto most = std::min<int64_t>(streaming::kCopiedRun / type.columns_of_element(),
                                      16 / size_of(type.dtype));
  return static_cast<int>(
      std::min<int64_t>(most, problem::alignment_of(type, step.layouts.layout(id))));
}

class CopyLaunches final : public Launches {
 public:
  CopyLaunches(CopyStep step, const Launch& launch, const streaming::CopyArguments& arguments,
               int64_t x_bytes, int64_t y_bytes)
      : step_(std::move(step)),
        launch_(launch),
        arguments_(arguments),
        x_bytes_(x_bytes),
        y_bytes_(y_bytes) {}

  Status execute(const Execution& at) const override {
    if (launch_.grid_x == 0) return {};
    HEDDLE_TRY(check_address(at, step_.x, x_bytes_));
    HEDDLE_TRY(check_address(at, step_.y, y_bytes_));
    streaming::CopyArguments arguments = arguments_;
    operands_of(step_).bind(at.buffers, arguments);
    if (const OperandId scales = step_.types.type(step_.x).scales.operand;
        scales != problem::kAbsent)
      arguments.scales = static_cast<const float*>(at.buffers[static_cast<size_t>(scales)]);
    return at.launch(0, launch_, &arguments);
  }

 private:
  Status check_address(const Execution& at, OperandId id, int64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(at.buffers[static_cast<size_t>(id)]);
    if (address != 0 && address % static_cast<uintptr_t>(bytes) == 0) return {};
    return error(Code::invalid_variant_pack,
                 "cuda: {} is at address {:#x}, expected a multiple of {} for the kernel that "
                 "copies it",
                 step_.name, address, bytes);
  }

  const CopyStep step_;
  const Launch launch_;
  const streaming::CopyArguments arguments_;
  const int64_t x_bytes_, y_bytes_;  ///< of an access
};

}  // namespace

Result<streaming::CopyConfig> configure_copy(const CopyStep& step) {
  const RowsOperands operands = operands_of(step);
  for (OperandId id : {step.x, step.y}) {
    if (id == step.x && step.types.type(id).holds_codes()) continue;
    HEDDLE_TRY(operands.check_type("a copy of", step.name, id,
                                   {DataType::f32, DataType::bf16, DataType::f16}));
  }
  HEDDLE_TRY(operands.check(fmt::format("a copy of {}", step.name)));
  streaming::CopyConfig config;
  config.x = element_of(step.types.type(step.x).dtype);
  config.y = element_of(step.types.type(step.y).dtype);
  config.x_each = each_of(step, step.x);
  config.y_each = each_of(step, step.y);
  config.ragged = operands.are_ragged();
  return config;
}

std::string words_of(const CopyStep& step) {
  const auto columns = [&](OperandId id) { return columns_of(step, id); };
  const DataType from = step.types.type(step.x).dtype, to = step.types.type(step.y).dtype;
  std::string words;
  const auto add = [&](const std::string& one) { words += (words.empty() ? "" : ", ") + one; };
  if (step.types.type(step.x).holds_codes())
    add(fmt::format("from codes of {} to {}", name(from), name(to)));
  else if (from != to)
    add(fmt::format("converted to {}", name(to)));
  if (columns(step.x) < columns(step.y))
    add(fmt::format("padded from {} to {} columns", columns(step.x), columns(step.y)));
  if (columns(step.x) > columns(step.y))
    add(fmt::format("cut from {} to {} columns", columns(step.x), columns(step.y)));
  if (words.empty()) add("copied");
  return fmt::format("{} {}", step.name, words);
}

Result<Lowering> lower_copy(const CopyStep& step, const Target& target) {
  HEDDLE_ASSIGN(const streaming::CopyConfig config, configure_copy(step));
  streaming::CopyArguments arguments{};
  arguments.x_columns = static_cast<int>(columns_of(step, step.x));
  arguments.y_columns = static_cast<int>(columns_of(step, step.y));
  if (const problem::OperandType& type = step.types.type(step.x); type.holds_codes()) {
    const problem::OperandLayout& scales = step.layouts.layout(type.scales.operand);
    arguments.scale_stride[0] = scales.strides[1];
    arguments.scale_stride[1] = scales.strides[3];
  }
  const int64_t units = divide_up(arguments.y_columns, streaming::kCopiedRun);
  HEDDLE_ASSIGN(const Launch launch,
                operands_of(step).arrange(fmt::format("a copy of {}", step.name), units, kThreads,
                                          arguments));
  Lowering lowering;
  if (launch.grid_x > 0) {
    lowering.add_kernel(
        {kKernelName,
         fmt::format("#include \"streaming/copy.cuh\"\n"
                     "namespace heddle::streaming {{\n{}}}  // namespace heddle::streaming\n"
                     "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                     "{}(const __grid_constant__ heddle::streaming::CopyArguments arguments) {{\n"
                     "  heddle::streaming::Copy<heddle::streaming::Config>::run(arguments);\n"
                     "}}\n",
                     config_source<streaming::CopyConfig>(config), kThreads, kKernelName),
         summary_of<streaming::CopyConfig>(config)},
        kThreads);
  }
  lowering.description = fmt::format("{}, {}", words_of(step), target.architecture);
  lowering.launches = std::make_shared<const CopyLaunches>(
      step, launch, arguments, config.x_each * size_of(step.types.type(step.x).dtype),
      config.y_each * size_of(step.types.type(step.y).dtype));
  return lowering;
}

}  // namespace heddle::engine::cuda
