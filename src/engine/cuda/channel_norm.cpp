#include "engine/cuda/channel_norm.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/norm_shape.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

using problem::ChannelNormBackwardProblem;
using problem::ChannelNormProblem;
using problem::kAbsent;
using problem::OperandId;

namespace {

constexpr int kThreads = 256, kRowThreads = 128;
/// Rows of a block whose channels lie together: 16-bit ones of a warp are 64 bytes.
constexpr int kAcross = 32;
/// Blocks that a grid is to have, whatever the device: sums have the same bits on all.
constexpr int64_t kBlocks = 1024;
/// Columns that a thread has of a slice at least, where there are so many.
constexpr int64_t kColumnsOfThread = 8;

streaming::Real real(double value) { return {value, static_cast<float>(value)}; }

template <class Config>
KernelUnit unit_of(const std::string& name, const char* kernels, const char* arguments,
                   const Config& config, std::initializer_list<const char*> parts) {
  std::string source = fmt::format(
      "#include \"streaming/channel_norm.cuh\"\n"
      "namespace heddle::streaming {{\n"
      "{}"
      "using Kernels = {}<Config>;\n"
      "}}  // namespace heddle::streaming\n",
      config_source<Config>(config), kernels);
  for (const char* part : parts)
    source += fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({})\n"
        "{}_{}(const __grid_constant__ heddle::streaming::{} arguments) {{\n"
        "  heddle::streaming::Kernels::{}(arguments);\n"
        "}}\n",
        kThreads, name, part, arguments, part);
  return {name, std::move(source), summary_of<Config>(config)};
}

/// Launches of three kernels: of slices, of rows, and of slices again.
template <class Problem, class Arguments>
class ChannelLaunches : public Launches {
 public:
  explicit ChannelLaunches(const Problem& problem) : problem_(problem), shape_(problem_) {}

 protected:
  template <class Config>
  Status configure(Config& config) {
    HEDDLE_TRY(shape_.set(problem_.structure));
    shape_.configure(config);
    config.vector = 1;
    config.across = shape_.facts().channels_last ? kAcross : 1;
    shape_.set_element(config.x, problem_.structure.x);
    shape_.set_element(config.w, problem_.structure.weight);
    shape_.set_element(config.mean, problem_.structure.mean);
    shape_.set_element(config.statistic, problem_.structure.inv_rms);
    return {};
  }

  /// Slices, and workspace of so many numbers a slice and a row.
  void share_out(int across, int numbers_of_slice, int numbers_of_row, Lowering& lowering) {
    arguments_.extents = shape_.extents();
    arguments_.x = shape_.tensor(problem_.structure.x);
    arguments_.weight = shape_.tensor(problem_.structure.weight);
    arguments_.mean = shape_.tensor(problem_.structure.mean);
    arguments_.inv_rms = shape_.tensor(problem_.structure.inv_rms);
    arguments_.rows = shape_.rows();
    arguments_.columns = shape_.columns();
    const int64_t groups = std::max<int64_t>(1, divide_up(int64_t{shape_.rows()}, int64_t{across}));
    const int64_t least = kThreads / across * kColumnsOfThread;
    const int64_t slices = std::clamp<int64_t>(divide_up(kBlocks, groups), 1,
                                               divide_up(int64_t{shape_.columns()}, least));
    arguments_.slice_columns = static_cast<int>(divide_up(int64_t{shape_.columns()}, slices));
    arguments_.slices = static_cast<int>(divide_up(shape_.columns(), arguments_.slice_columns));
    const int64_t number = shape_.is_f64() ? 8 : 4, rows = shape_.rows();
    row_offset_ = round_up(rows * arguments_.slices * numbers_of_slice * number, int64_t{256});
    lowering.workspace_bytes = row_offset_ + rows * numbers_of_row * number;
    of_slices_ = {.grid_x = static_cast<unsigned>(groups),
                  .grid_y = static_cast<unsigned>(arguments_.slices),
                  .threads = kThreads};
  }
  static Launch of_rows(int64_t rows) {
    return {.grid_x = static_cast<unsigned>(std::max<int64_t>(1, divide_up(rows, kRowThreads))),
            .threads = kRowThreads};
  }

  void describe(int across, const Target& target, Lowering& lowering) const {
    lowering.description = fmt::format(
        "{}, {} rows of {} in {} slices, {} across, {}", norm_name(problem_.structure),
        shape_.rows(), shape_.columns(), arguments_.slices, across, target.architecture);
  }

  static void* buffer(const Execution& at, OperandId id) {
    return id == kAbsent ? nullptr : at.buffers[static_cast<size_t>(id)];
  }
  void bind_shared(const Execution& at, Arguments& arguments) const {
    arguments.x.data = buffer(at, problem_.structure.x);
    arguments.weight.data = buffer(at, problem_.structure.weight);
    arguments.mean.data = buffer(at, problem_.structure.mean);
    arguments.inv_rms.data = buffer(at, problem_.structure.inv_rms);
    arguments.partial = at.workspace;
  }

  const Problem problem_;
  NormShape shape_;
  Launch of_slices_;
  Arguments arguments_{};
  int64_t row_offset_ = 0;
};

class ChannelNormLaunches final
    : public ChannelLaunches<ChannelNormProblem, streaming::ChannelNormArguments> {
 public:
  using ChannelLaunches::ChannelLaunches;

  Status make(const Target& target, Lowering& lowering) {
    const problem::ChannelNormStructure& s = problem_.structure;
    streaming::ChannelNormConfig config;
    HEDDLE_TRY(configure(config));
    HEDDLE_TRY(check_number("epsilon", s.epsilon));
    HEDDLE_TRY(check_number("momentum", s.momentum));
    shape_.set_element(config.b, s.bias);
    shape_.set_element(config.y, s.y);
    shape_.set_element(config.running, s.running_mean);
    shape_.set_element(config.running_var, s.running_var);
    shape_.set_element(config.next, s.next_mean);
    shape_.set_element(config.next_var, s.next_var);
    config.bias = s.bias != kAbsent;
    config.running_statistics = s.running_mean != kAbsent;
    share_out(config.across, 3, 3, lowering);
    arguments_.bias = shape_.tensor(s.bias);
    arguments_.y = shape_.tensor(s.y);
    arguments_.running_mean = shape_.tensor(s.running_mean);
    arguments_.running_var = shape_.tensor(s.running_var);
    arguments_.next_mean = shape_.tensor(s.next_mean);
    arguments_.next_var = shape_.tensor(s.next_var);
    arguments_.epsilon = real(problem_.sizes.epsilon);
    arguments_.momentum = real(problem_.sizes.momentum);
    const KernelUnit unit = unit_of("channel_norm", "ChannelNorm", "ChannelNormArguments", config,
                                    {"slices", "statistics", "apply"});
    slices_ = lowering.add_kernel(unit, kThreads, 0, "channel_norm_slices");
    statistics_ = lowering.add_kernel(unit, kRowThreads, 0, "channel_norm_statistics");
    apply_ = lowering.add_kernel(unit, kThreads, 0, "channel_norm_apply");
    describe(config.across, target, lowering);
    return {};
  }

  Status execute(const Execution& at) const override {
    const problem::ChannelNormStructure& s = problem_.structure;
    HEDDLE_TRY(shape_.check_buffers(at.buffers));
    if (shape_.rows() == 0) return {};
    streaming::ChannelNormArguments arguments = arguments_;
    bind_shared(at, arguments);
    arguments.bias.data = buffer(at, s.bias);
    arguments.y.data = buffer(at, s.y);
    arguments.running_mean.data = buffer(at, s.running_mean);
    arguments.running_var.data = buffer(at, s.running_var);
    arguments.next_mean.data = buffer(at, s.next_mean);
    arguments.next_var.data = buffer(at, s.next_var);
    arguments.statistics = at.workspace + row_offset_;
    HEDDLE_TRY(bind_number(at, "epsilon", s.epsilon, arguments.epsilon, arguments.epsilon_operand,
                           arguments.epsilon_is_64_bit));
    HEDDLE_TRY(bind_number(at, "momentum", s.momentum, arguments.momentum,
                           arguments.momentum_operand, arguments.momentum_is_64_bit));
    HEDDLE_TRY(at.launch(slices_, of_slices_, &arguments));
    HEDDLE_TRY(at.launch(statistics_, of_rows(shape_.rows()), &arguments));
    return at.launch(apply_, of_slices_, &arguments);
  }

 private:
  Status check_number(const char* label, OperandId id) const {
    if (id == kAbsent) return {};
    const DataType dtype = problem_.structure.type(id).dtype;
    if (dtype == DataType::f32 || dtype == DataType::f64) return {};
    return error(Code::graph_not_supported, "cuda: {} {} is {}, expected an operand of f32 or f64",
                 norm_name(problem_.structure), label, name(dtype));
  }
  Status bind_number(const Execution& at, const char* label, OperandId id, streaming::Real& known,
                     const void*& operand, int& is_64_bit) const {
    if (id == kAbsent) return {};
    const void* data = buffer(at, id);
    if (data == nullptr)
      return error(Code::invalid_variant_pack, "cuda: {} {} has no buffer",
                   norm_name(problem_.structure), label);
    const problem::OperandType& type = problem_.structure.type(id);
    if (type.on_host) {
      known = real(load(type.dtype, data, 0));
    } else {
      operand = data;
      is_64_bit = type.dtype == DataType::f64;
    }
    return {};
  }

  size_t slices_ = 0, statistics_ = 0, apply_ = 0;
};

class ChannelNormBackwardLaunches final
    : public ChannelLaunches<ChannelNormBackwardProblem, streaming::ChannelNormBackwardArguments> {
 public:
  using ChannelLaunches::ChannelLaunches;

  Status make(const Target& target, Lowering& lowering) {
    const problem::ChannelNormBackwardStructure& s = problem_.structure;
    streaming::ChannelNormBackwardConfig config;
    HEDDLE_TRY(configure(config));
    shape_.set_element(config.dy, s.dy);
    shape_.set_element(config.dx, s.dx);
    shape_.set_element(config.d_weight, s.d_weight);
    shape_.set_element(config.d_bias, s.d_bias);
    share_out(config.across, 2, 2, lowering);
    const Dims& x = problem_.sizes.layout(s.x).dims;
    arguments_.channels = static_cast<int>(x[x.rank() - s.normalised_dims - 1]);
    arguments_.dy = shape_.tensor(s.dy);
    arguments_.dx = shape_.tensor(s.dx);
    arguments_.d_weight = shape_.tensor(s.d_weight);
    arguments_.d_bias = shape_.tensor(s.d_bias);
    const KernelUnit unit =
        unit_of("channel_norm_backward", "ChannelNormBackward", "ChannelNormBackwardArguments",
                config, {"slices", "combine", "apply"});
    slices_ = lowering.add_kernel(unit, kThreads, 0, "channel_norm_backward_slices");
    combine_ = lowering.add_kernel(unit, kRowThreads, 0, "channel_norm_backward_combine");
    apply_ = lowering.add_kernel(unit, kThreads, 0, "channel_norm_backward_apply");
    describe(config.across, target, lowering);
    return {};
  }

  Status execute(const Execution& at) const override {
    const problem::ChannelNormBackwardStructure& s = problem_.structure;
    HEDDLE_TRY(shape_.check_buffers(at.buffers));
    if (arguments_.channels == 0) return {};
    streaming::ChannelNormBackwardArguments arguments = arguments_;
    bind_shared(at, arguments);
    arguments.dy.data = buffer(at, s.dy);
    arguments.dx.data = buffer(at, s.dx);
    arguments.d_weight.data = buffer(at, s.d_weight);
    arguments.d_bias.data = buffer(at, s.d_bias);
    arguments.sums = at.workspace + row_offset_;
    if (shape_.rows() > 0) HEDDLE_TRY(at.launch(slices_, of_slices_, &arguments));
    HEDDLE_TRY(at.launch(combine_, of_rows(arguments_.channels), &arguments));
    if (s.dx == kAbsent || shape_.rows() == 0) return {};
    return at.launch(apply_, of_slices_, &arguments);
  }

 private:
  size_t slices_ = 0, combine_ = 0, apply_ = 0;
};

template <class Launched, class Problem>
Result<Lowering> lowered(const Problem& problem, const Target& target) {
  Lowering lowering;
  auto launches = std::make_shared<Launched>(problem);
  HEDDLE_TRY(launches->make(target, lowering));
  lowering.launches = std::move(launches);
  return lowering;
}

}  // namespace

Result<Lowering> lower_channel_norm(const ChannelNormProblem& problem, const Target& target) {
  return lowered<ChannelNormLaunches>(problem, target);
}

Result<Lowering> lower_channel_norm_backward(const ChannelNormBackwardProblem& problem,
                                             const Target& target) {
  return lowered<ChannelNormBackwardLaunches>(problem, target);
}

}  // namespace heddle::engine::cuda
