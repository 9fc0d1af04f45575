#include "engine/cuda/host_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/rounding.h"
#include "engine/cuda/problem_operands.h"
#include "engine/cuda/stages.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::OperandId;
using problem::OperandType;
using problem::Rope;

using streaming::HostValueArguments;
using streaming::HostValueCell;
using streaming::kFewHostValues;
using streaming::kMaxHostValues;

constexpr const char* kName = "host_values";

int room_for(size_t count) { return count <= kFewHostValues ? kFewHostValues : kMaxHostValues; }

/// A rope takes an offset into its table by value, but no positions row by row.
OperandId offset_of(const Rope& rope) {
  return rope.positions_per_row ? problem::kAbsent : rope.positions;
}
OperandId offset_of(const std::optional<Rope>& rope) {
  return rope ? offset_of(*rope) : problem::kAbsent;
}

/// What kernels read from device memory, some of it perhaps by another name as well.
void add_loads(const problem::ScoreExpression& expression, std::vector<OperandId>& ids) {
  for (const problem::ScoreNode& node : expression.nodes) ids.push_back(node.operand);
}
std::vector<OperandId> read_on_device(const AttentionStructure& structure) {
  std::vector<OperandId> ids{structure.sink,         structure.q_lengths,
                             structure.kv_lengths,   structure.block_mask,
                             structure.dropout.mask, structure.dropout.streams};
  for (const problem::KeyBound& bound : structure.bounds) ids.push_back(bound.operand);
  add_loads(structure.score, ids);
  return ids;
}
std::vector<OperandId> read_on_device(const AttentionProblem& problem) {
  return read_on_device(problem.structure);
}
std::vector<OperandId> read_on_device(const AttentionBackwardProblem& problem) {
  std::vector<OperandId> ids = read_on_device(problem.structure.forward);
  add_loads(problem.structure.d_dot, ids);
  for (const problem::LoadGradient& wanted : problem.structure.load_gradients)
    add_loads(wanted.derivative, ids);
  return ids;
}
template <class Streaming>
std::vector<OperandId> read_on_device(const Streaming&) {
  return {};
}

std::vector<OperandId> taken_by_value(const AttentionStructure& structure) {
  return {structure.scale,          structure.dropout.mask_scale, structure.dropout.seed,
          structure.dropout.offset, offset_of(structure.q_rope),  offset_of(structure.k_rope)};
}
std::vector<OperandId> taken_by_value(const AttentionProblem& problem) {
  return taken_by_value(problem.structure);
}
std::vector<OperandId> taken_by_value(const AttentionBackwardProblem& problem) {
  std::vector<OperandId> ids = taken_by_value(problem.structure.forward);
  ids.push_back(offset_of(problem.structure.d_q_rope));
  ids.push_back(offset_of(problem.structure.d_k_rope));
  return ids;
}
std::vector<OperandId> taken_by_value(const problem::NormProblem& problem) {
  return {problem.epsilon};
}
std::vector<OperandId> taken_by_value(const problem::NormBackwardProblem&) { return {}; }
std::vector<OperandId> taken_by_value(const problem::RopeProblem& problem) {
  return {offset_of(problem.rope)};
}

bool contains(const std::vector<OperandId>& ids, OperandId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

class HostValuesPlan final : public QueuedPlan {
 public:
  HostValuesPlan(std::shared_ptr<const Kernel> kernel, std::shared_ptr<const QueuedPlan> plan,
                 std::vector<HostValue> values)
      : kernel_(std::move(kernel)),
        plan_(std::move(plan)),
        values_(std::move(values)),
        plan_at_(round_up(static_cast<int64_t>(values_.size() * sizeof(HostValueCell)), 256)) {}

  int64_t workspace_bytes() const override { return plan_at_ + plan_->workspace_bytes(); }

  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const override {
    HostValueArguments<kMaxHostValues> arguments{.cells = static_cast<HostValueCell*>(workspace),
                                                 .count = static_cast<int>(values_.size())};
    std::array<void*, kMostOperands> all;
    std::copy(buffers.begin(), buffers.end(), all.begin());
    for (size_t n = 0; n < values_.size(); ++n) {
      const auto id = static_cast<size_t>(values_[n].id);
      std::memcpy(&arguments.values[n], buffers[id],
                  static_cast<size_t>(size_of(values_[n].dtype)));
      all[id] = arguments.cells + n;
    }
    void* parameters[] = {&arguments};
    const auto threads = static_cast<unsigned>(room_for(values_.size()));
    HEDDLE_TRY(kernel_->launch({.threads = threads}, queue, parameters));
    return plan_->execute({all.data(), buffers.size()}, static_cast<char*>(workspace) + plan_at_,
                          queue);
  }

  std::string description() const override {
    return plan_->description() + ", after numbers passed by value";
  }

 private:
  std::shared_ptr<const Kernel> kernel_;
  std::shared_ptr<const QueuedPlan> plan_;
  std::vector<HostValue> values_;
  int64_t plan_at_;  ///< in the workspace
};

}  // namespace

std::vector<HostValue> host_values(const Problem& problem) {
  return std::visit(
      [](const auto& one) {
        std::vector<HostValue> values;
        const std::vector<OperandId> by_value = taken_by_value(one), read = read_on_device(one);
        const std::vector<OperandType>& operands = operands_of(one);
        for (size_t n = 0; n < operands.size(); ++n) {
          const auto id = static_cast<OperandId>(n);
          if (operands[n].on_host && (!contains(by_value, id) || contains(read, id)))
            values.push_back({id, operands[n].dtype});
        }
        return values;
      },
      problem);
}

Problem with_values_on_device(Problem problem, const std::vector<HostValue>& values) {
  std::visit(
      [&values](auto& one) {
        for (const HostValue& value : values)
          operands_of(one)[static_cast<size_t>(value.id)].on_host = false;
      },
      problem);
  return problem;
}

KernelUnit host_values_unit(size_t count) {
  return {kName,
          fmt::format("#include \"streaming/host_values.cuh\"\n"
                      "extern \"C\" __global__ void __launch_bounds__({})\n"
                      "{}(const __grid_constant__ heddle::streaming::HostValueArguments<{}> args) "
                      "{{\n"
                      "  heddle::streaming::write_host_values(args);\n"
                      "}}\n",
                      room_for(count), kName, room_for(count))};
}

Result<std::shared_ptr<const QueuedPlan>> plan_host_values(const Driver& driver,
                                                           const Device& device,
                                                           std::shared_ptr<const QueuedPlan> plan,
                                                           std::vector<HostValue> values) {
  static_assert(kMaxHostValues >= kMostOperands);
  HEDDLE_ASSIGN(auto kernel, load_kernel(driver, device, host_values_unit(values.size()), 0));
  return std::make_shared<const HostValuesPlan>(std::move(kernel), std::move(plan),
                                                std::move(values));
}

}  // namespace heddle::engine::cuda
