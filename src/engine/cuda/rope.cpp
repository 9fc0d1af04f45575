#include "engine/cuda/rope.h"

#include <algorithm>

#include "core/dims.h"
#include "core/rounding.h"
#include "engine/cuda/config_source.h"
#include "problem/facts.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;
using problem::RopeProblem;

namespace {

constexpr const char* kKernelName = "rope";
constexpr int kThreads = 256;
constexpr std::initializer_list<DataType> kFloats = {DataType::f64, DataType::f32, DataType::bf16,
                                                     DataType::f16};

RowsStep rows_of(const RopeStep& step) {
  const problem::RopeStructure& s = step.rope.structure;
  return {s.x, s.y, step.lengths, step.lengths_cumulative};
}

/// What is there is one of the types, and in device memory.
Status check_operand(const RopeProblem& problem, const RowsOperands& operands, const char* label,
                     OperandId id, std::initializer_list<DataType> types) {
  if (id == kAbsent) return {};
  HEDDLE_TRY(operands.check_type("rope", label, id, types));
  // An offset into the table may be passed by value.
  const problem::Rope& rope = problem.structure.rope;
  if (operands.type(id).on_host && (id != rope.positions || rope.positions_per_row)) {
    return error(Code::graph_not_supported,
                 "cuda: rope {} is passed by value, expected a tensor in device memory", label);
  }
  return {};
}

Status check(const RopeProblem& problem, const RowsOperands& operands) {
  const problem::RopeStructure& s = problem.structure;
  const auto check_one = [&](const char* label, OperandId id,
                             std::initializer_list<DataType> types) {
    return check_operand(problem, operands, label, id, types);
  };
  HEDDLE_TRY(check_one("x", s.x, kFloats));
  HEDDLE_TRY(check_one("y", s.y, kFloats));
  HEDDLE_TRY(operands.check("rope"));
  HEDDLE_TRY(check_one("cosines", s.rope.cosines, {DataType::f32}));
  HEDDLE_TRY(check_one("sines", s.rope.sines, {DataType::f32}));
  HEDDLE_TRY(check_one("angles", s.rope.angles, {DataType::f32}));
  return check_one("positions", s.rope.positions, {DataType::i32, DataType::i64});
}

/// Whether there are positions in device memory.
bool reads_positions(const RopeProblem& problem) {
  const OperandId id = problem.structure.rope.positions;
  return id != kAbsent && !problem.structure.type(id).on_host;
}

bool is_interleaved(const RopeProblem& problem) {
  return problem.structure.rope.pairing == problem::Rope::Pairing::interleaved;
}

/// Neighbouring elements a thread takes at once: those of its pairs, or half of them.
int run_of(const RopeProblem& problem, int pairs) {
  return is_interleaved(problem) ? 2 * pairs : pairs;
}

/// Of the one kernel there is, if there is something to write.
class RopeLaunches final : public Launches {
 public:
  explicit RopeLaunches(RopeLaunch launch) : launch_(std::move(launch)) {}

  Status execute(const Execution& at) const override {
    if (launch_.is_empty()) return {};
    HEDDLE_ASSIGN(streaming::RopeArguments arguments, launch_.bind(at.buffers));
    return at.launch(0, launch_.grid(), &arguments);
  }

 private:
  const RopeLaunch launch_;
};

}  // namespace

Result<streaming::RopeConfig> configure_rope(const RopeStep& step) {
  const RopeProblem& problem = step.rope;
  const RowsStep rows = rows_of(step);
  const RowsOperands operands(problem.structure, problem.sizes, rows);
  HEDDLE_TRY(check(problem, operands));
  streaming::RopeConfig config;
  config.x = element_of(operands.type(problem.structure.x).dtype);
  config.y = element_of(operands.type(problem.structure.y).dtype);
  config.interleaved = is_interleaved(problem);
  config.tables = problem.structure.rope.cosines != kAbsent;
  config.inverse = problem.structure.inverse;
  config.rounded = step.rounded;
  config.positions = reads_positions(problem);
  config.positions_per_row = problem.structure.rope.positions_per_row;
  config.ragged = operands.are_ragged();
  for (OperandId id : {problem.structure.x, problem.structure.y})
    if (operands.type(id).dtype == DataType::f64) config.number = Element::f64;
  const problem::RopeFacts facts = problem::facts_of(problem);
  /// Whether runs of so many pairs divide a row and begin on a multiple of their size.
  const auto fits = [&](int pairs) {
    return problem.structure.rope.rope_dim % (2 * pairs) == 0 &&
           problem.structure.rope.first_column % run_of(problem, pairs) == 0 &&
           facts.alignment % run_of(problem, pairs) == 0;
  };
  const int run = 16 / static_cast<int>(size_of(operands.type(problem.structure.x).dtype));
  config.pairs = is_interleaved(problem) ? run / 2 : run;
  while (config.pairs > 1 && !fits(config.pairs)) config.pairs /= 2;
  config.aligned = fits(config.pairs);
  return config;
}

Result<RopeLaunch> RopeLaunch::make(const RopeStep& step) {
  const RopeProblem& problem = step.rope;
  RopeLaunch made(problem, rows_of(step));
  HEDDLE_ASSIGN(made.config_, configure_rope(step));
  const streaming::RopeConfig& config = made.config_;
  const problem::Rope& rope = problem.structure.rope;
  const RowsStep rows = rows_of(step);
  const RowsOperands operands(problem.structure, problem.sizes, rows);
  streaming::RopeArguments& a = made.arguments_;
  a.head_dim = static_cast<int>(operands.layout(problem.structure.x).dims[3]);
  a.rope_dim = rope.rope_dim;
  a.first_column = rope.first_column;
  const int64_t units =
      a.rope_dim / (2 * config.pairs) + (a.head_dim - a.rope_dim) / run_of(problem, config.pairs);
  HEDDLE_ASSIGN(made.grid_, operands.arrange("rope", units, kThreads, a));
  if (made.is_empty()) return made;
  for (const std::pair<OperandId, const char*>& operand :
       {std::pair{problem.structure.x, "x"},
        {problem.structure.y, "y"},
        {operands.type(problem.structure.x).storage.offsets(), "offsets of x"},
        {operands.type(problem.structure.y).storage.offsets(), "offsets of y"},
        {step.lengths, "lengths"},
        {rope.angles, "angles"},
        {rope.cosines, "cosines"},
        {rope.sines, "sines"},
        {rope.positions, "positions"}}) {
    if (operand.first != kAbsent) made.used_.push_back(operand);
  }
  if (const OperandId first = rope.angles != kAbsent ? rope.angles : rope.cosines;
      first != kAbsent) {
    a.first_stride[0] = operands.stride(first, 0);
    a.first_stride[1] = operands.stride(first, 3);
    a.table_rows = operands.layout(first).dims[0];
  }
  if (rope.sines != kAbsent) {
    a.second_stride[0] = operands.stride(rope.sines, 0);
    a.second_stride[1] = operands.stride(rope.sines, 3);
  }
  if (reads_positions(problem)) {
    a.position_batch_stride = operands.stride(rope.positions, 0);
    a.position_row_stride = operands.stride(rope.positions, 2);
    a.positions_are_64_bit = operands.is_64_bit(rope.positions);
  }
  a.scale = {problem.sizes.scale, static_cast<float>(problem.sizes.scale)};
  return made;
}

Result<streaming::RopeArguments> RopeLaunch::bind(std::span<void* const> buffers) const {
  if (buffers.size() != problem_.structure.operands.size()) {
    return error(Code::invalid_variant_pack,
                 "cuda: rope has {} operands, but {} buffers were given",
                 problem_.structure.operands.size(), buffers.size());
  }
  const RowsOperands operands(problem_.structure, problem_.sizes, rows_);
  const int64_t run = config_.aligned ? run_of(problem_, config_.pairs) : 1;
  for (const auto& [id, label] : used_) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(id)]);
    const int64_t size = size_of(operands.type(id).dtype);
    const bool in_runs = id == problem_.structure.x || id == problem_.structure.y;
    const int64_t unit = in_runs ? std::min<int64_t>(16, run * size) : size;
    if (address == 0 || address % static_cast<uintptr_t>(unit) != 0) {
      return error(Code::invalid_variant_pack,
                   "cuda: rope {} is at address {:#x}, expected a multiple of {} for the kernel "
                   "planned for it",
                   label, address, unit);
    }
  }
  const auto buffer = [&](OperandId id) -> void* {
    return id == kAbsent ? nullptr : buffers[static_cast<size_t>(id)];
  };
  streaming::RopeArguments arguments = arguments_;
  operands.bind(buffers, arguments);
  arguments.angles = static_cast<const float*>(buffer(problem_.structure.rope.angles));
  arguments.cosines = static_cast<const float*>(buffer(problem_.structure.rope.cosines));
  arguments.sines = static_cast<const float*>(buffer(problem_.structure.rope.sines));
  if (reads_positions(problem_)) {
    arguments.positions = buffer(problem_.structure.rope.positions);
  } else if (const void* offset = buffer(problem_.structure.rope.positions)) {
    // As near to the table as it takes to be outside: an f64 may be past all that 64 bits hold.
    const auto rows = static_cast<double>(arguments.table_rows +
                                          problem_.sizes.layout(problem_.structure.x).dims[2]);
    arguments.first_row = static_cast<int64_t>(std::clamp(
        load(operands.type(problem_.structure.rope.positions).dtype, offset, 0), -rows, rows));
  }
  return arguments;
}

std::string rope_config_source(const streaming::RopeConfig& config) {
  return fmt::format("namespace heddle::streaming {{\n{}}}  // namespace heddle::streaming\n",
                     config_source<streaming::RopeConfig>(config));
}

namespace {
KernelUnit unit_of(const streaming::RopeConfig& config) {
  // One block a processor: left to itself, the assembler takes 32 registers for the sake of eight,
  // and spills.
  return {kKernelName,
          fmt::format("#include \"streaming/rope.cuh\"\n"
                      "{}"
                      "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                      "{}(const __grid_constant__ heddle::streaming::RopeArguments arguments) {{\n"
                      "  heddle::streaming::Rope<heddle::streaming::Config>::run(arguments);\n"
                      "}}\n",
                      rope_config_source(config), kThreads, kKernelName),
          summary_of<streaming::RopeConfig>(config)};
}
}  // namespace

Result<Lowering> lower_rope_step(const RopeStep& step, const Target& target) {
  HEDDLE_ASSIGN(RopeLaunch launch, RopeLaunch::make(step));
  Lowering lowering;
  if (!launch.is_empty()) lowering.add_kernel(unit_of(launch.config()), kThreads);
  lowering.description =
      fmt::format("rope{}, {} pairs a thread, {}", step.rope.structure.inverse ? " backward" : "",
                  launch.config().pairs, target.architecture);
  lowering.launches = std::make_shared<const RopeLaunches>(std::move(launch));
  return lowering;
}

Result<Lowering> lower_rope(const RopeProblem& problem, const Target& target) {
  return lower_rope_step({problem}, target);
}

}  // namespace heddle::engine::cuda
