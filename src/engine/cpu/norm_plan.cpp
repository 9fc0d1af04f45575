#include "engine/cpu/norm_plan.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/long_sum.h"
#include "engine/cpu/norm_shape.h"
#include "engine/cpu/norm_wide.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

using problem::kAbsent;
using problem::NormBackwardProblem;
using problem::NormProblem;
using problem::OperandId;
using Part = NormShape::Part;

namespace {

/// Rows a task takes: enough elements that taking one costs nothing beside them.
constexpr int64_t kElementsPerTask = 16384;
/// Chunks of the backward's weight sums. Their number depends on the rows alone, never on the
/// machine, so that the sums have the same bits everywhere.
constexpr int64_t kMaxChunks = 64;

/// A vector of weights in the arithmetic's own type, zeros up to the padding.
template <class Number>
const Number* expand(const RowsView& view, const NormShape& shape, Number* out) {
  if (!view.data) return nullptr;
  for (int64_t i = 0; i < shape.padded_width(); ++i) {
    out[i] = i < shape.rows().width ? static_cast<Number>(load(static_cast<DataType>(view.element),
                                                               view.data, i * view.column_stride))
                                    : 0;
  }
  return out;
}

/// What both directions share. A Direction has carve(cursor) and run<Number>(buffers,
/// workspace), Number being the arithmetic's type.
template <class Direction, class Problem>
class RowsPlan : public Plan {
 public:
  RowsPlan(const Problem& problem, const char* direction)
      : problem_(problem),
        shape_(problem_.structure, problem_.sizes.layouts),
        isa_(active_isa().isa),
        workers_(worker_count()),
        direction_(direction) {}

  Status check() { return shape_.set(problem_.structure); }

  int64_t workspace_bytes() const override {
    WorkspaceCursor cursor(nullptr);
    direction().carve(cursor);
    return cursor.used();
  }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    return shape_.is_wide() ? direction().template run<double>(buffers, workspace)
                            : direction().template run<float>(buffers, workspace);
  }

  std::string description() const override {
    return fmt::format("{}{}, {}, {} rows of {}", op(), direction_,
                       shape_.is_wide() ? std::string_view("f64") : name(isa_), shape_.row_count(),
                       shape_.rows().width);
  }

 protected:
  const char* op() const { return problem::norm_name(problem_.structure); }
  Status check_buffers(std::span<void* const> given) const {
    const size_t expected = problem_.structure.operands.size();
    if (given.size() == expected) return {};
    return error(Code::invalid_variant_pack, "{}: {} buffers were given for {} operands", op(),
                 given.size(), expected);
  }
  int64_t scratch_bytes(int64_t rows) const {
    return rows * shape_.padded_width() * int64_t{sizeof(float)};
  }
  /// Takes scratch of so many rows for each worker that any machine gives the tasks.
  Workers workers(WorkspaceCursor& cursor, int64_t tasks, int64_t rows) const {
    const int64_t bytes = std::min<int64_t>(tasks, kMostWorkers) * scratch_bytes(rows);
    return {workers_, cursor.take<char>(bytes), bytes};
  }

  Problem problem_;
  NormShape shape_;
  Isa isa_;
  int workers_;

 private:
  const Direction& direction() const { return static_cast<const Direction&>(*this); }
  const char* direction_;
};

class NormPlan final : public RowsPlan<NormPlan, NormProblem> {
 public:
  explicit NormPlan(const NormProblem& problem) : RowsPlan(problem, "") {}

 private:
  friend RowsPlan;
  struct Memory {
    char *weight, *bias, *residual_bias;
    Workers workers;
  };
  int64_t rows_per_task() const {
    return std::max<int64_t>(1, kElementsPerTask / shape_.rows().width);
  }
  int64_t tasks() const { return divide_up(shape_.row_count(), rows_per_task()); }
  Memory carve(WorkspaceCursor& cursor) const {
    const int64_t width = shape_.padded_width();
    Memory memory{};
    memory.weight = cursor.take<char>(width * 8);
    memory.bias = cursor.take<char>(width * 8);
    if (problem_.structure.residual_bias != kAbsent)
      memory.residual_bias = cursor.take<char>(width * 8);
    memory.workers = workers(cursor, tasks(), 1);
    return memory;
  }

  template <class Number>
  Status run(std::span<void* const> buffers, void* workspace) const {
    const problem::NormStructure& p = problem_.structure;
    HEDDLE_TRY(check_buffers(buffers));
    const int64_t rows = shape_.row_count();
    if (rows == 0) return {};
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    const Memory memory = carve(cursor);
    NormPass<Number> pass{};
    pass.rows = shape_.rows();
    pass.centred = p.centred;
    pass.x = shape_.view(p.x, Part::whole);
    pass.residual = shape_.view(p.residual, Part::whole);
    pass.sum = shape_.view(p.sum, Part::whole);
    pass.y = shape_.view(p.y, Part::whole);
    pass.mean = shape_.view(p.mean, Part::row);
    pass.inv_rms = shape_.view(p.inv_rms, Part::row);
    RowsView weight = shape_.view(p.weight, Part::column), bias = shape_.view(p.bias, Part::column);
    RowsView residual_bias = shape_.view(p.residual_bias, Part::column);
    HEDDLE_TRY(shape_.bind("x", p.x, buffers, pass.x));
    HEDDLE_TRY(shape_.bind("residual", p.residual, buffers, pass.residual));
    HEDDLE_TRY(shape_.bind("sum", p.sum, buffers, pass.sum));
    HEDDLE_TRY(shape_.bind("y", p.y, buffers, pass.y));
    HEDDLE_TRY(shape_.bind("mean", p.mean, buffers, pass.mean));
    HEDDLE_TRY(shape_.bind("inv_rms", p.inv_rms, buffers, pass.inv_rms));
    HEDDLE_TRY(shape_.bind("weight", p.weight, buffers, weight));
    HEDDLE_TRY(shape_.bind("bias", p.bias, buffers, bias));
    HEDDLE_TRY(shape_.bind("residual bias", p.residual_bias, buffers, residual_bias));
    pass.weight = expand(weight, shape_, reinterpret_cast<Number*>(memory.weight));
    pass.bias = expand(bias, shape_, reinterpret_cast<Number*>(memory.bias));
    pass.residual_bias =
        expand(residual_bias, shape_, reinterpret_cast<Number*>(memory.residual_bias));
    pass.epsilon = problem_.sizes.epsilon;
    if (p.epsilon != kAbsent) {
      const void* data = buffers[static_cast<size_t>(p.epsilon)];
      if (!data) return error(Code::invalid_variant_pack, "{}: epsilon has no buffer", op());
      pass.epsilon = load(p.operands[static_cast<size_t>(p.epsilon)].dtype, data, 0);
    }
    const int64_t step = rows_per_task();
    for_each_task(tasks(), memory.workers, scratch_bytes(1), [&](int64_t task, char* scratch) {
      const RowRange range{task * step, std::min(rows, (task + 1) * step)};
      if constexpr (std::is_same_v<Number, double>) {
        norm_rows_wide(pass, range);
      } else {
        kernels_of(isa_).norm_rows(pass, range, reinterpret_cast<float*>(scratch));
      }
    });
    return {};
  }
};

class NormBackwardPlan final : public RowsPlan<NormBackwardPlan, NormBackwardProblem> {
 public:
  explicit NormBackwardPlan(const NormBackwardProblem& problem) : RowsPlan(problem, " backward") {}

 private:
  friend RowsPlan;
  struct Memory {
    char* weight;
    double *d_weight, *d_bias;
    Workers workers;
  };
  int64_t chunks() const {
    return std::clamp<int64_t>(divide_up(shape_.row_count(), kRowsPerSum), 1, kMaxChunks);
  }
  Memory carve(WorkspaceCursor& cursor) const {
    const int64_t width = shape_.padded_width();
    Memory memory{};
    memory.weight = cursor.take<char>(width * 8);
    memory.d_weight = cursor.take<double>(chunks() * width);
    memory.d_bias = cursor.take<double>(chunks() * width);
    memory.workers = workers(cursor, chunks(), 4);
    return memory;
  }

  template <class Number>
  Status run(std::span<void* const> buffers, void* workspace) const {
    const problem::NormBackwardStructure& p = problem_.structure;
    HEDDLE_TRY(check_buffers(buffers));
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    const Memory memory = carve(cursor);
    NormBackwardPass<Number> pass{};
    pass.rows = shape_.rows();
    pass.centred = p.centred;
    pass.dy = shape_.view(p.dy, Part::whole);
    pass.x = shape_.view(p.x, Part::whole);
    pass.mean = shape_.view(p.mean, Part::row);
    pass.inv_rms = shape_.view(p.inv_rms, Part::row);
    pass.dx = shape_.view(p.dx, Part::whole);
    RowsView weight = shape_.view(p.weight, Part::column);
    RowsView d_weight = shape_.view(p.d_weight, Part::column);
    RowsView d_bias = shape_.view(p.d_bias, Part::column);
    const int64_t rows = shape_.row_count();
    if (rows > 0) {
      HEDDLE_TRY(shape_.bind("dy", p.dy, buffers, pass.dy));
      HEDDLE_TRY(shape_.bind("x", p.x, buffers, pass.x));
      HEDDLE_TRY(shape_.bind("mean", p.mean, buffers, pass.mean));
      HEDDLE_TRY(shape_.bind("inv_rms", p.inv_rms, buffers, pass.inv_rms));
      HEDDLE_TRY(shape_.bind("dx", p.dx, buffers, pass.dx));
    }
    HEDDLE_TRY(shape_.bind("weight", p.weight, buffers, weight));
    HEDDLE_TRY(shape_.bind("d_weight", p.d_weight, buffers, d_weight));
    HEDDLE_TRY(shape_.bind("d_bias", p.d_bias, buffers, d_bias));
    pass.weight = expand(weight, shape_, reinterpret_cast<Number*>(memory.weight));
    pass.d_weight = d_weight.data ? memory.d_weight : nullptr;
    pass.d_bias = d_bias.data ? memory.d_bias : nullptr;
    const int64_t count = chunks(), step = divide_up(rows, count);
    for_each_task(count, memory.workers, scratch_bytes(4), [&](int64_t chunk, char* scratch) {
      const RowRange range{std::min(rows, chunk * step), std::min(rows, (chunk + 1) * step)};
      if constexpr (std::is_same_v<Number, double>) {
        norm_backward_rows_wide(pass, range, chunk, reinterpret_cast<double*>(scratch));
      } else {
        kernels_of(isa_).norm_backward_rows(pass, range, chunk, reinterpret_cast<float*>(scratch));
      }
    });
    write_sum(pass.d_weight, d_weight);
    write_sum(pass.d_bias, d_bias);
    return {};
  }

  /// The chunks' sums, added in order.
  void write_sum(const double* sums, const RowsView& out) const {
    for (int64_t i = 0; sums && i < shape_.rows().width; ++i) {
      LongSum sum;
      for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
        sum += sums[chunk * shape_.padded_width() + i];
      }
      store(static_cast<DataType>(out.element), out.data, i * out.column_stride, sum.value());
    }
  }
};

template <class P, class Problem>
Result<std::shared_ptr<const Plan>> checked(const Problem& problem) {
  auto plan = std::make_shared<P>(problem);
  HEDDLE_TRY(plan->check());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace

Result<std::shared_ptr<const Plan>> plan_norm(const NormProblem& problem) {
  return checked<NormPlan>(problem);
}

Result<std::shared_ptr<const Plan>> plan_norm_backward(const NormBackwardProblem& problem) {
  return checked<NormBackwardPlan>(problem);
}

}  // namespace heddle::engine::cpu
