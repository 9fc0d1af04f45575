#include "engine/cuda/pointwise.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/score_instructions.h"
#include "engine/cuda/score_source.h"
#include "problem/facts.h"
#include "streaming/pointwise_arguments.h"

namespace heddle::engine::cuda {

using problem::OperandId;
using problem::PointwiseFacts;
using problem::PointwiseProblem;
using problem::PointwiseStructure;
using problem::ScoreExpression;
using problem::ScoreNode;
using problem::ScoreOp;
using streaming::PointwiseArguments;

namespace {

constexpr const char* kKernelName = "pointwise";
constexpr int kThreads = 256;
/// Threads, dims and blocks are counted in 31 bits.
constexpr int64_t kMost = INT32_MAX;
/// Of a thread, about: an element's code is there as often as a vector has elements, and a kernel
/// is to compile in two seconds.
constexpr int kMostInstructions = 1500;
/// Of a thread's loads, which are all on their way together, in registers.
constexpr int64_t kMostLoadedBytes = 512;

/// The program as an expression: which of its nodes is the root does not matter.
ScoreExpression expression_of(const PointwiseStructure& structure) {
  ScoreExpression expression;
  expression.nodes = structure.nodes;
  return expression;
}

int vector_of(const PointwiseStructure& structure, const PointwiseFacts& facts) {
  int vector = facts.vector;
  const int each = instructions(expression_of(structure), /*f32=*/true);
  int64_t element_bytes = 0;
  for (const problem::OperandType& type : structure.operands) element_bytes += size_of(type.dtype);
  while (vector > 1 &&
         (vector * each > kMostInstructions || vector * element_bytes > kMostLoadedBytes))
    vector /= 2;
  return vector;
}

std::string columns_source(PointwiseFacts::Columns columns) {
  constexpr const char* kNames[] = {"one", "dense", "strided"};
  return fmt::format("Columns::{}", kNames[static_cast<int>(columns)]);
}

std::string vector_source(const PointwiseStructure& structure, const PointwiseFacts& facts,
                          OperandId id) {
  return fmt::format("PointwiseVector<{}, {}, kVector>", device_type(structure.type(id).dtype),
                     columns_source(facts.columns[static_cast<size_t>(id)]));
}

/// `struct Program`: loads, the nodes of each element, stores.
std::string program_source(const PointwiseStructure& structure, const PointwiseFacts& facts,
                           int vector) {
  const ScoreExpression expression = expression_of(structure);
  std::string loads, nodes, stores;
  for (size_t n = 0; n < structure.nodes.size(); ++n) {
    const ScoreNode& node = structure.nodes[n];
    std::string value;
    if (node.op == ScoreOp::load) {
      loads += fmt::format(
          "    float x{0}[kVector];\n"
          "    {1}::load(args.operands[{2}], at, x{0});\n",
          n, vector_source(structure, facts, node.operand), node.operand);
      value = fmt::format("x{}[i]", n);
    } else {
      value = node_source(expression, node, Functions::exact);
    }
    nodes += fmt::format("      [[maybe_unused]] const float t{} = {};\n", n, value);
  }
  for (size_t n = 0; n < structure.results.size(); ++n) {
    const PointwiseStructure::Result& result = structure.results[n];
    loads += fmt::format("    float y{}[kVector];\n", n);
    nodes += fmt::format("      y{}[i] = t{};\n", n, result.node);
    stores += fmt::format("    {}::store(args.operands[{}], at, y{});\n",
                          vector_source(structure, facts, result.y), result.y, n);
  }
  return fmt::format(
      "namespace heddle::streaming {{\n"
      "struct Program {{\n"
      "  static constexpr int kVector = {};\n"
      "  HEDDLE_DEVICE static void run(const PointwiseArguments& args,\n"
      "                                const PointwisePlace& at) {{\n"
      "{}"
      "#pragma unroll\n"
      "    for (int i = 0; i < kVector; ++i) {{\n"
      "      [[maybe_unused]] const PointwiseCell cell{{at.batch, at.head, at.row, at.column + "
      "i}};\n"
      "{}"
      "    }}\n"
      "{}"
      "  }}\n"
      "}};\n"
      "}}  // namespace heddle::streaming\n",
      vector, loads, nodes, stores);
}

KernelUnit unit_of(const PointwiseStructure& structure, const PointwiseFacts& facts, int vector) {
  return {
      kKernelName,
      fmt::format("#include \"streaming/pointwise.cuh\"\n"
                  "{}"
                  "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                  "{}(const __grid_constant__ heddle::streaming::PointwiseArguments arguments) {{\n"
                  "  heddle::streaming::Pointwise<heddle::streaming::Program>::run(arguments);\n"
                  "}}\n",
                  program_source(structure, facts, vector), kThreads, kKernelName),
      {name(element_of(structure.type(structure.results.front().y).dtype)), "",
       fmt::format("{} ops", structure.nodes.size())}};
}

/// Of the one kernel there is, if there is something to write.
class PointwiseLaunches final : public Launches {
 public:
  PointwiseLaunches(PointwiseProblem ordered, const PointwiseFacts& facts, int vector)
      : problem_(std::move(ordered)), columns_(facts.columns), vector_(vector) {
    const Dims& dims = problem_.dims();
    arguments_.heads = static_cast<unsigned>(dims[1]);
    arguments_.rows = static_cast<unsigned>(dims[2]);
    arguments_.row_vectors = static_cast<unsigned>(dims[3] / vector);
    arguments_.vectors = static_cast<unsigned>(*element_count(dims) / vector);
    for (size_t n = 0; n < problem_.sizes.layouts.size(); ++n) {
      const problem::OperandLayout& layout = problem_.sizes.layouts[n];
      for (int d = 0; d < 4; ++d)
        arguments_.operands[n].stride[d] = layout.dims[d] == 1 ? 0 : layout.strides[d];
    }
  }

  Status execute(const Execution& at) const override {
    if (arguments_.vectors == 0) return {};
    const std::vector<problem::OperandType>& types = problem_.structure.operands;
    if (at.buffers.size() != types.size())
      return error(Code::invalid_variant_pack,
                   "cuda: pointwise has {} operands, but {} buffers were given", types.size(),
                   at.buffers.size());
    PointwiseArguments arguments = arguments_;
    for (size_t n = 0; n < types.size(); ++n) {
      const auto address = reinterpret_cast<uintptr_t>(at.buffers[n]);
      const int64_t size = size_of(types[n].dtype);
      const bool in_vectors = columns_[n] == PointwiseFacts::Columns::dense;
      const int64_t unit = in_vectors ? std::min<int64_t>(16, vector_ * size) : size;
      if (address == 0 || address % static_cast<uintptr_t>(unit) != 0)
        return error(Code::invalid_variant_pack,
                     "cuda: operand {} of pointwise is at address {:#x}, expected a multiple of {} "
                     "for the kernel planned for it",
                     n, address, unit);
      arguments.operands[n].data = at.buffers[n];
    }
    const int64_t blocks = divide_up(int64_t{arguments.vectors}, int64_t{kThreads});
    return at.launch(0, {.grid_x = static_cast<unsigned>(blocks), .threads = kThreads}, &arguments);
  }

 private:
  const PointwiseProblem problem_;
  const std::vector<PointwiseFacts::Columns> columns_;
  const int vector_;
  PointwiseArguments arguments_{};
};

Status check_limits(const PointwiseProblem& ordered, int vector) {
  const size_t operands = ordered.structure.operands.size();
  if (operands > streaming::kMostPointwiseOperands)
    return error(Code::graph_not_supported,
                 "cuda: pointwise ops read and make {} tensors in one step; the kernel takes at "
                 "most {}",
                 operands, streaming::kMostPointwiseOperands);
  if (*element_count(ordered.dims()) / vector > kMost)
    return error(Code::graph_not_supported,
                 "cuda: pointwise results have dims {}, {} vectors of {} elements; the kernel "
                 "counts up to 2^31 - 1",
                 to_string(ordered.dims()), *element_count(ordered.dims()) / vector, vector);
  return {};
}

}  // namespace

Result<Lowering> lower_pointwise(const PointwiseProblem& problem, const Target& target) {
  const PointwiseFacts facts = problem::facts_of(problem);
  PointwiseProblem ordered = problem::in_memory_order(problem);
  const int vector = vector_of(ordered.structure, facts);
  HEDDLE_TRY(check_limits(ordered, vector));
  Lowering lowering;
  if (!facts.is_empty) lowering.add_kernel(unit_of(ordered.structure, facts, vector), kThreads);
  lowering.description = fmt::format("pointwise, {} ops, {} elements a thread, {}",
                                     ordered.structure.nodes.size(), vector, target.architecture);
  lowering.launches = std::make_shared<const PointwiseLaunches>(std::move(ordered), facts, vector);
  return lowering;
}

}  // namespace heddle::engine::cuda
