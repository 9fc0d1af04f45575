#include "engine/cuda/host_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/rounding.h"
#include "engine/cuda/problem_operands.h"
#include "engine/cuda/sequence.h"
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

struct HostValue {
  OperandId id = problem::kAbsent;
  DataType dtype = DataType::f32;
};

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

class HostValuesLaunches final : public Launches {
 public:
  /// The other launches' kernels come first, then the one that writes the values.
  HostValuesLaunches(std::shared_ptr<const Launches> others, size_t kernel,
                     std::vector<HostValue> values)
      : others_(std::move(others)), kernel_(kernel), values_(std::move(values)) {}

  /// Of the workspace: the others' comes after it.
  int64_t bytes() const {
    return round_up(static_cast<int64_t>(values_.size() * sizeof(HostValueCell)), 256);
  }

  Status execute(const Execution& at) const override {
    HostValueArguments<kMaxHostValues> arguments{
        .cells = reinterpret_cast<HostValueCell*>(at.workspace),
        .count = static_cast<int>(values_.size())};
    std::array<void*, kMostOperands> all;
    std::copy(at.buffers.begin(), at.buffers.end(), all.begin());
    for (size_t n = 0; n < values_.size(); ++n) {
      const auto id = static_cast<size_t>(values_[n].id);
      std::memcpy(&arguments.values[n], at.buffers[id],
                  static_cast<size_t>(size_of(values_[n].dtype)));
      all[id] = arguments.cells + n;
    }
    const auto threads = static_cast<unsigned>(room_for(values_.size()));
    HEDDLE_TRY(at.launch(kernel_, {.threads = threads}, &arguments));
    Execution others = at;
    others.buffers = {all.data(), at.buffers.size()};
    others.workspace += bytes();
    return others_->execute(others);
  }

 private:
  std::shared_ptr<const Launches> others_;
  size_t kernel_;
  std::vector<HostValue> values_;
};

/// Those of the problem.
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

/// The problem with them in device memory.
Problem with_values_on_device(Problem problem, const std::vector<HostValue>& values) {
  std::visit(
      [&values](auto& one) {
        for (const HostValue& value : values)
          operands_of(one)[static_cast<size_t>(value.id)].on_host = false;
      },
      problem);
  return problem;
}

}  // namespace

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

std::optional<Result<Lowering>> lower_host_values(const Problem& problem, const Target& target) {
  static_assert(kMaxHostValues >= kMostOperands);
  std::vector<HostValue> values = host_values(problem);
  if (values.empty()) return {};
  Result<Lowering> lowered = lower(with_values_on_device(problem, values), target);
  if (!lowered.is_ok()) return lowered;
  const size_t kernel =
      lowered->add_kernel(host_values_unit(values.size()), room_for(values.size()));
  auto launches = std::make_shared<const HostValuesLaunches>(std::move(lowered->launches), kernel,
                                                             std::move(values));
  lowered->workspace_bytes += launches->bytes();
  lowered->description += ", after numbers passed by value";
  lowered->launches = std::move(launches);
  return lowered;
}

}  // namespace heddle::engine::cuda
