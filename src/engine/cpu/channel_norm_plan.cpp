#include "engine/cpu/channel_norm_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/dtype.h"
#include "core/rounding.h"
#include "engine/cpu/long_sum.h"
#include "engine/cpu/parallel.h"
#include "problem/facts.h"
#include "problem/norm_rows.h"

namespace heddle::engine::cpu {

using problem::ChannelNormBackwardProblem;
using problem::ChannelNormProblem;
using problem::kAbsent;
using problem::OperandId;
using problem::RowPart;

namespace {

/// Channels next to each other that a task takes: where they lie together, a line of a cache is
/// read once for all of them.
constexpr int kMostTogether = 16;

using Numbers = std::array<double, kMostTogether>;
using Sums = std::array<LongSum, kMostTogether>;

/// A tensor, and how far apart its entries, channels and columns lie.
struct View {
  DataType dtype = DataType::f32;
  char* data = nullptr;
  std::array<int64_t, kMaxRank> entry{}, column{};
  int64_t channel = 0;

  explicit operator bool() const { return data != nullptr; }
  double at(int64_t offset) const { return load(dtype, data, offset); }
  void set(int64_t offset, double value) const { store(dtype, data, offset, value); }
};

/// Channels [first, first + count).
struct Channels {
  int64_t first;
  int count;
};

/// What both directions share: entries, channels and columns counted, and tensors found.
template <class Problem>
class ChannelsPlan : public Plan {
 public:
  ChannelsPlan(const Problem& problem, const char* direction)
      : problem_(problem), direction_(direction), workers_(worker_count()) {
    const Dims& x = problem_.sizes.layout(problem_.structure.x).dims;
    channel_dim_ = x.rank() - problem_.structure.normalised_dims - 1;
    channels_ = x[channel_dim_];
    for (int d = 0; d < channel_dim_; ++d) entries_ *= x[d];
    const problem::NormRows joined(problem_);
    columns_ = joined.columns;
    for (const auto& dim : joined.column_dims) column_dims_.push_back(dim);
    together_ = problem::facts_of(problem_).channels_last ? kMostTogether : 1;
  }

  Status check() const {
    if (columns_ < 1 || columns_ > (int64_t{1} << 40))
      return error(Code::graph_not_supported,
                   "{}: {} elements are normalised together, but the CPU engine takes 1 to 2^40",
                   op(), columns_);
    Status status;
    problem::tensors(
        [&](const char* label, OperandId id, problem::Use, RowPart) {
          if (status.is_ok() && id != kAbsent) status = check(label, id);
        },
        problem_.structure);
    return status;
  }

  int64_t workspace_bytes() const override { return 0; }
  std::string description() const override {
    return fmt::format("{}{}, f64, {} channels of {} entries, {} elements each", op(), direction_,
                       channels_, entries_, columns_);
  }

 protected:
  const char* op() const { return problem::norm_name(problem_.structure); }

  Result<View> bind(const char* label, OperandId id, std::span<void* const> buffers) const {
    View view;
    if (id == kAbsent) return view;
    const problem::OperandLayout& layout = problem_.sizes.layout(id);
    const auto stride = [&](int d) { return layout.dims[d] == 1 ? 0 : layout.strides[d]; };
    view.dtype = problem_.structure.type(id).dtype;
    view.data = static_cast<char*>(buffers[static_cast<size_t>(id)]);
    if (!view.data) return error(Code::invalid_variant_pack, "{}: {} has no buffer", op(), label);
    const int64_t size = size_of(view.dtype);
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(size) != 0)
      return error(Code::invalid_variant_pack,
                   "{}: the buffer of {} is not aligned to its elements of {} bytes", op(), label,
                   size);
    for (int d = 0; d < channel_dim_; ++d) view.entry[static_cast<size_t>(d)] = stride(d);
    view.channel = stride(channel_dim_);
    for (size_t n = 0; n < column_dims_.size(); ++n) view.column[n] = stride(column_dims_[n].dim);
    return view;
  }

  /// A number that the plan knows, or that an operand has.
  Result<double> number(const char* label, OperandId id, double known,
                        std::span<void* const> buffers) const {
    if (id == kAbsent) return known;
    const void* data = buffers[static_cast<size_t>(id)];
    if (!data) return error(Code::invalid_variant_pack, "{}: {} has no buffer", op(), label);
    return load(problem_.structure.type(id).dtype, data, 0);
  }

  Status check_buffers(std::span<void* const> given) const {
    const size_t expected = problem_.structure.operands.size();
    if (given.size() == expected) return {};
    return error(Code::invalid_variant_pack, "{}: {} buffers were given for {} operands", op(),
                 given.size(), expected);
  }

  /// Where an entry's channel begins.
  int64_t start(const View& view, int64_t entry, int64_t channel) const {
    const Dims& x = problem_.sizes.layout(problem_.structure.x).dims;
    int64_t offset = channel * view.channel;
    for (int d = channel_dim_ - 1; d >= 0; --d) {
      offset += entry % x[d] * view.entry[static_cast<size_t>(d)];
      entry /= x[d];
    }
    return offset;
  }

  /// visit(offsets) for each column: of each view, how far it lies behind the first.
  template <size_t kViews, class Visit>
  void for_each_column(const std::array<const View*, kViews>& views, const Visit& visit) const {
    std::array<int64_t, kViews> offsets{};
    std::array<int64_t, kMaxRank> index{};
    const int dims = static_cast<int>(column_dims_.size());
    for (int64_t n = 0; n < columns_; ++n) {
      visit(offsets);
      for (int d = dims - 1; d >= 0; --d) {
        const auto at = static_cast<size_t>(d);
        for (size_t v = 0; v < kViews; ++v) offsets[v] += views[v]->column[at];
        if (++index[at] < column_dims_[at].extent) break;
        for (size_t v = 0; v < kViews; ++v) offsets[v] -= views[v]->column[at] * index[at];
        index[at] = 0;
      }
    }
  }

  /// Tasks of neighbouring channels, `times` each.
  template <class Body>
  void for_each_channels(int64_t times, const Body& body) const {
    const int64_t groups = divide_up(channels_, int64_t{together_});
    for_each_task(times * groups, workers_, [&](int64_t task, int) {
      const int64_t first = task % groups * together_;
      body(task / groups,
           Channels{first, static_cast<int>(std::min<int64_t>(together_, channels_ - first))});
    });
  }

  Problem problem_;
  int64_t entries_ = 1, channels_ = 0, columns_ = 0;

 private:
  Status check(const char* label, OperandId id) const {
    const problem::OperandType& type = problem_.structure.type(id);
    if (type.dtype != DataType::f64 && type.dtype != DataType::f32 &&
        type.dtype != DataType::bf16 && type.dtype != DataType::f16)
      return error(Code::graph_not_supported,
                   "{}: {} is {}, but the CPU engine takes f64, f32, bf16 and f16", op(), label,
                   name(type.dtype));
    if (type.storage.is_ragged())
      return error(Code::graph_not_supported, "{}: {} is ragged, expected a dense tensor", op(),
                   label);
    return {};
  }

  const char* direction_;
  int workers_, channel_dim_ = 0, together_ = 1;
  std::vector<problem::NormRows::Joined> column_dims_;
};

class ChannelNormPlan final : public ChannelsPlan<ChannelNormProblem> {
 public:
  explicit ChannelNormPlan(const ChannelNormProblem& problem) : ChannelsPlan(problem, "") {}

  Status execute(std::span<void* const> buffers, void*, void*) const override {
    const problem::ChannelNormStructure& p = problem_.structure;
    HEDDLE_TRY(check_buffers(buffers));
    if (entries_ * channels_ == 0) return {};
    Pass pass;
    HEDDLE_ASSIGN(pass.x, bind("x", p.x, buffers));
    HEDDLE_ASSIGN(pass.weight, bind("weight", p.weight, buffers));
    HEDDLE_ASSIGN(pass.bias, bind("bias", p.bias, buffers));
    HEDDLE_ASSIGN(pass.y, bind("y", p.y, buffers));
    HEDDLE_ASSIGN(pass.mean, bind("mean", p.mean, buffers));
    HEDDLE_ASSIGN(pass.inv_rms, bind("inv_rms", p.inv_rms, buffers));
    HEDDLE_ASSIGN(pass.running_mean, bind("running mean", p.running_mean, buffers));
    HEDDLE_ASSIGN(pass.running_var, bind("running variance", p.running_var, buffers));
    HEDDLE_ASSIGN(pass.next_mean, bind("next mean", p.next_mean, buffers));
    HEDDLE_ASSIGN(pass.next_var, bind("next variance", p.next_var, buffers));
    HEDDLE_ASSIGN(pass.epsilon, number("epsilon", p.epsilon, problem_.sizes.epsilon, buffers));
    HEDDLE_ASSIGN(pass.momentum, number("momentum", p.momentum, problem_.sizes.momentum, buffers));
    for_each_channels(entries_,
                      [&](int64_t entry, Channels channels) { normalise(pass, entry, channels); });
    return {};
  }

 private:
  struct Pass {
    View x, weight, bias, y, mean, inv_rms, running_mean, running_var, next_mean, next_var;
    double epsilon, momentum;
  };

  void normalise(const Pass& pass, int64_t entry, Channels channels) const {
    const int64_t x = start(pass.x, entry, channels.first);
    const auto columns = static_cast<double>(columns_);
    Sums of_x{}, of_squares{};
    Numbers mean{}, slope{}, shift{};
    for_each_column<1>({&pass.x}, [&](const auto& offset) {
      for (int c = 0; c < channels.count; ++c)
        of_x[c] += pass.x.at(x + offset[0] + c * pass.x.channel);
    });
    for (int c = 0; c < channels.count; ++c) mean[c] = of_x[c].value() / columns;
    for_each_column<1>({&pass.x}, [&](const auto& offset) {
      for (int c = 0; c < channels.count; ++c) {
        const double distance = pass.x.at(x + offset[0] + c * pass.x.channel) - mean[c];
        of_squares[c] += distance * distance;
      }
    });
    for (int c = 0; c < channels.count; ++c) {
      const auto place = [&](const View& view) { return start(view, entry, channels.first + c); };
      const double variance = of_squares[c].value() / columns;
      const double inverse = 1 / std::sqrt(variance + pass.epsilon);
      if (pass.mean) pass.mean.set(place(pass.mean), mean[c]);
      if (pass.inv_rms) pass.inv_rms.set(place(pass.inv_rms), inverse);
      slope[c] = inverse * pass.weight.at(place(pass.weight));
      shift[c] = pass.bias ? pass.bias.at(place(pass.bias)) : 0;
      if (!pass.running_mean) continue;
      const auto move = [&](const View& running, const View& next, double to) {
        const double from = running.at(place(running));
        next.set(place(next), (1 - pass.momentum) * from + pass.momentum * to);
      };
      move(pass.running_mean, pass.next_mean, mean[c]);
      move(pass.running_var, pass.next_var,
           columns_ > 1 ? variance * columns / (columns - 1) : variance);
    }
    const int64_t y = start(pass.y, entry, channels.first);
    for_each_column<2>({&pass.x, &pass.y}, [&](const auto& offset) {
      for (int c = 0; c < channels.count; ++c) {
        const double distance = pass.x.at(x + offset[0] + c * pass.x.channel) - mean[c];
        pass.y.set(y + offset[1] + c * pass.y.channel, distance * slope[c] + shift[c]);
      }
    });
  }
};

class ChannelNormBackwardPlan final : public ChannelsPlan<ChannelNormBackwardProblem> {
 public:
  explicit ChannelNormBackwardPlan(const ChannelNormBackwardProblem& problem)
      : ChannelsPlan(problem, " backward") {}

  Status execute(std::span<void* const> buffers, void*, void*) const override {
    const problem::ChannelNormBackwardStructure& p = problem_.structure;
    HEDDLE_TRY(check_buffers(buffers));
    if (channels_ == 0) return {};
    Pass pass;
    if (entries_ > 0) {
      HEDDLE_ASSIGN(pass.x, bind("x", p.x, buffers));
      HEDDLE_ASSIGN(pass.dy, bind("dy", p.dy, buffers));
      HEDDLE_ASSIGN(pass.mean, bind("mean", p.mean, buffers));
      HEDDLE_ASSIGN(pass.inv_rms, bind("inv_rms", p.inv_rms, buffers));
      HEDDLE_ASSIGN(pass.dx, bind("dx", p.dx, buffers));
    }
    HEDDLE_ASSIGN(pass.weight, bind("weight", p.weight, buffers));
    HEDDLE_ASSIGN(pass.d_weight, bind("d_weight", p.d_weight, buffers));
    HEDDLE_ASSIGN(pass.d_bias, bind("d_bias", p.d_bias, buffers));
    for_each_channels(1, [&](int64_t, Channels channels) {
      Sums d_weight{}, d_bias{};
      for (int64_t entry = 0; entry < entries_; ++entry)
        differentiate(pass, entry, channels, d_weight, d_bias);
      for (int c = 0; c < channels.count; ++c) {
        const int64_t channel = channels.first + c;
        if (pass.d_weight) pass.d_weight.set(start(pass.d_weight, 0, channel), d_weight[c].value());
        if (pass.d_bias) pass.d_bias.set(start(pass.d_bias, 0, channel), d_bias[c].value());
      }
    });
    return {};
  }

 private:
  struct Pass {
    View x, dy, mean, inv_rms, dx, weight, d_weight, d_bias;
  };

  /// One entry's dx, and its part of d_weight and d_bias.
  void differentiate(const Pass& pass, int64_t entry, Channels channels, Sums& d_weight,
                     Sums& d_bias) const {
    const int64_t x = start(pass.x, entry, channels.first);
    const int64_t dy = start(pass.dy, entry, channels.first);
    Sums of_along{}, of_gradient{};
    Numbers mean{}, inverse{}, along{}, gradient{};
    for (int c = 0; c < channels.count; ++c) {
      mean[c] = pass.mean.at(start(pass.mean, entry, channels.first + c));
      inverse[c] = pass.inv_rms.at(start(pass.inv_rms, entry, channels.first + c));
    }
    const auto x_hat = [&](int64_t offset, int c) {
      return (pass.x.at(x + offset + c * pass.x.channel) - mean[c]) * inverse[c];
    };
    for_each_column<2>({&pass.x, &pass.dy}, [&](const auto& offset) {
      for (int c = 0; c < channels.count; ++c) {
        const double g = pass.dy.at(dy + offset[1] + c * pass.dy.channel);
        of_gradient[c] += g;
        of_along[c] += g * x_hat(offset[0], c);
      }
    });
    for (int c = 0; c < channels.count; ++c) {
      d_weight[c] += of_along[c].value();
      d_bias[c] += of_gradient[c].value();
      along[c] = of_along[c].value() / static_cast<double>(columns_);
      gradient[c] = of_gradient[c].value() / static_cast<double>(columns_);
    }
    if (!pass.dx) return;
    Numbers slope{};
    for (int c = 0; c < channels.count; ++c)
      slope[c] = inverse[c] * pass.weight.at(start(pass.weight, 0, channels.first + c));
    const int64_t dx = start(pass.dx, entry, channels.first);
    for_each_column<3>({&pass.x, &pass.dy, &pass.dx}, [&](const auto& offset) {
      for (int c = 0; c < channels.count; ++c) {
        const double g = pass.dy.at(dy + offset[1] + c * pass.dy.channel);
        pass.dx.set(dx + offset[2] + c * pass.dx.channel,
                    slope[c] * (g - gradient[c] - x_hat(offset[0], c) * along[c]));
      }
    });
  }
};

template <class P, class Problem>
Result<std::shared_ptr<const Plan>> checked(const Problem& problem) {
  auto plan = std::make_shared<P>(problem);
  HEDDLE_TRY(plan->check());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace

Result<std::shared_ptr<const Plan>> plan_channel_norm(const ChannelNormProblem& problem) {
  return checked<ChannelNormPlan>(problem);
}

Result<std::shared_ptr<const Plan>> plan_channel_norm_backward(
    const ChannelNormBackwardProblem& problem) {
  return checked<ChannelNormBackwardPlan>(problem);
}

}  // namespace heddle::engine::cpu
