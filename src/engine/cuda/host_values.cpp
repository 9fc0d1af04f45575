#include "engine/cuda/host_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/rounding.h"
#include "engine/cuda/sequence.h"
#include "problem/operands.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::OperandId;
using problem::OperandType;
using problem::Use;

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

/// What kernels read from device memory, some of it perhaps as a number as well.
template <class Kind>
std::vector<bool> read_on_device(const Kind& problem) {
  std::vector<bool> is_read(problem::types_of(problem).size(), true);
  const auto mark = [&](bool as_number) {
    problem::operands(
        [&](const char*, OperandId id, Use use) {
          if (id != problem::kAbsent && (use == Use::value) == as_number)
            is_read[static_cast<size_t>(id)] = !as_number;
        },
        problem.structure);
  };
  mark(true);
  mark(false);
  return is_read;
}

/// Those of the problem.
std::vector<HostValue> host_values(const Problem& problem) {
  return std::visit(
      [](const auto& one) {
        std::vector<HostValue> values;
        const std::vector<bool> is_read = read_on_device(one);
        const std::vector<OperandType>& types = problem::types_of(one);
        for (size_t n = 0; n < types.size(); ++n)
          if (types[n].on_host && is_read[n])
            values.push_back({static_cast<OperandId>(n), types[n].dtype});
        return values;
      },
      problem);
}

/// The problem with them in device memory.
Problem with_values_on_device(Problem problem, const std::vector<HostValue>& values) {
  std::visit(
      [&values](auto& one) {
        for (const HostValue& value : values)
          problem::types_of(one)[static_cast<size_t>(value.id)].on_host = false;
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
