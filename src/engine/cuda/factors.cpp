#include "engine/cuda/factors.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cuda/launch_operands.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::kAbsent;
using problem::OperandId;
using streaming::FactorsArguments;

constexpr const char* kKernelName = "factors";
constexpr int kThreads = 32;

class FactorsLaunches final : public Launches {
 public:
  FactorsLaunches(FactorsArguments arguments, std::vector<Entry> entries)
      : arguments_(arguments), entries_(std::move(entries)) {}

  Status execute(const Execution& at) const override {
    FactorsArguments arguments = arguments_;
    bind_entries(entries_, at.buffers, &arguments);
    return at.launch(0, {.threads = kThreads}, &arguments);
  }

 private:
  const FactorsArguments arguments_;
  const std::vector<Entry> entries_;
};

/// Notes what an execution fills in.
class FactorsBlock {
 public:
  explicit FactorsBlock(const FactorsStep& step) : step_(step) {}

  template <class T>
  void entry(const T& target, OperandId id, Entry::Kind kind) {
    entries.push_back({static_cast<size_t>(reinterpret_cast<const char*>(&target) -
                                           reinterpret_cast<const char*>(&arguments)),
                       id, kind, step_.types.type(id).dtype});
  }

  void add(const FactorsStep::Product& product) {
    streaming::Product& to = arguments.products[arguments.product_count++];
    to.number = static_cast<float>(product.number);
    to.passed = 1;
    to.is_magnitude = product.is_magnitude ? 1 : 0;
    entry(to.to, product.to, Entry::Kind::address);
    for (const OperandId id : product.of) {
      if (id == kAbsent) continue;
      if (step_.types.type(id).on_host)
        entry(to.passed, id, Entry::Kind::real);
      else
        entry(to.of[to.of_count++], id, Entry::Kind::address);
    }
    for (const OperandId id : product.by)
      if (id != kAbsent) entry(to.by[to.by_count++], id, Entry::Kind::address);
  }

  FactorsArguments arguments{};
  std::vector<Entry> entries;

 private:
  const FactorsStep& step_;
};

}  // namespace

Result<Lowering> lower_factors(const FactorsStep& step, const Target& target) {
  FactorsBlock block(step);
  for (const FactorsStep::Product& product : step.products) block.add(product);
  for (const OperandId id : step.zeroed) {
    if (id == kAbsent) continue;
    block.entry(block.arguments.zeroed[block.arguments.zeroed_count++], id, Entry::Kind::address);
  }
  Lowering lowering;
  lowering.add_kernel(
      {kKernelName,
       fmt::format("#include \"streaming/factors.cuh\"\n"
                   "extern \"C\" __global__ void __launch_bounds__({})\n"
                   "{}(const __grid_constant__ heddle::streaming::FactorsArguments arguments) {{\n"
                   "  heddle::streaming::make_factors(arguments);\n"
                   "}}\n",
                   kThreads, kKernelName),
       {}},
      kThreads);
  lowering.description = fmt::format("{} factors, {}", step.products.size(), target.architecture);
  lowering.launches =
      std::make_shared<const FactorsLaunches>(block.arguments, std::move(block.entries));
  return lowering;
}

}  // namespace heddle::engine::cuda
