// The custom call of a module that was fused on one machine, run on another.
#include "api/xla_call.h"

#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include "engine/devices.h"
#include "graph/text.h"
#include "support/attention_programs.h"
#include "support/compare.h"

namespace heddle::api::xla {
namespace {

using heddle::testing::Program;

DataType type_of(heddle::DataType type) {
  return type == heddle::DataType::f32 ? DataType::f32 : DataType::bf16;
}

/// The frame XLA makes of a call: the graph's ports, and a workspace of the given size.
class Frame {
 public:
  Frame(const Executable& executable, Program& program, std::string text, int64_t workspace_bytes)
      : text_(std::move(text)), workspace_(static_cast<size_t>(workspace_bytes)) {
    for (const Port& port : executable.inputs()) add(port, program, arguments_);
    for (const Port& port : executable.outputs()) add(port, program, results_);
    results_.add(DataType::u8, workspace_.data(), workspace_bytes);
  }

  Status call(PlanCache& plans) {
    ByteSpan name{"graph", 5}, text{text_.data(), text_.size()};
    ByteSpan* names[] = {&name};
    void* items[] = {&text};
    int32_t types[] = {kString};
    CallFrame frame{};
    frame.arguments = arguments_.values();
    frame.results = results_.values();
    frame.attributes = {{}, 1, types, names, items};
    return xla::call(frame, plans, nullptr);
  }

 private:
  struct Side {
    std::vector<std::unique_ptr<std::pair<Buffer, int64_t>>> buffers;
    std::vector<int32_t> types;
    std::vector<void*> items;

    void add(DataType type, void* data, int64_t count) {
      auto& [buffer, dim] =
          *buffers.emplace_back(std::make_unique<std::pair<Buffer, int64_t>>(Buffer{}, count));
      buffer = {{}, type, data, 1, &dim};
      types.push_back(kBuffer);
      items.push_back(&buffer);
    }
    Values values() { return {{}, static_cast<int64_t>(items.size()), types.data(), items.data()}; }
  };

  static void add(const Port& port, Program& program, Side& side) {
    const graph::Tensor& tensor = program.graph[port.tensor];
    side.add(type_of(*tensor.dtype), program.memory.at(port.uid).data(),
             *span_of(tensor.dims, tensor.strides));
  }

  std::string text_;
  std::vector<unsigned char> workspace_;
  Side arguments_, results_;
};

std::shared_ptr<const Executable> built(const graph::Graph& graph, int workers) {
  std::shared_ptr<const Executable> executable;
  tbb::task_arena(workers).execute([&] {
    auto result = Executable::build(graph, engine::engines(engine::Device::cpu));
    EXPECT_TRUE(result.is_ok()) << result.status().message();
    if (result.is_ok()) executable = *result;
  });
  return executable;
}

TEST(XlaCall, OfAModuleFusedWithTwoWorkersRunsWithSixtyFourAndTheOtherWayRound) {
  heddle::testing::AttentionOptions options;
  options.dtypes = {heddle::DataType::f32, heddle::DataType::bf16};
  options.score_mod = options.alibi = options.padding = options.dropout = options.block_mask = 0;
  options.sink = options.bias = 0;
  options.max_length = 300;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    heddle::testing::Random random(seed);
    const Program drawn = seed % 2 == 0 ? heddle::testing::random_sdpa(random, options)
                                        : heddle::testing::random_sdpa_backward(random, options);
    for (auto [fused, run] : {std::pair{2, 64}, {64, 2}}) {
      Program program = drawn;
      const auto executable = built(program.graph, fused);
      ASSERT_TRUE(executable);
      Frame frame(*executable, program, graph::write_text(program.graph),
                  executable->workspace_bytes());
      PlanCache plans(engine::Device::cpu);
      Status status;
      tbb::task_arena(run).execute([&] { status = frame.call(plans); });
      ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << seed;
      EXPECT_TRUE(heddle::testing::matches_reference(program, io_dtype(program)))
          << "seed " << seed << ", fused with " << fused << " workers, run with " << run;
    }
  }
}

}  // namespace
}  // namespace heddle::api::xla
