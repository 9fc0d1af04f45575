// Lowerings one after the other: what each is given at an execution.
#include "engine/cuda/sequence.h"

#include "engine_cuda/fake_machine.h"

namespace heddle::engine::cuda {
namespace {

struct Call {
  std::vector<void*> buffers;
  char* workspace;
  size_t kernels;
};

class NotingLaunches final : public Launches {
 public:
  explicit NotingLaunches(std::vector<Call>& calls) : calls_(calls) {}
  Status execute(const Execution& at) const override {
    calls_.push_back({{at.buffers.begin(), at.buffers.end()}, at.workspace, at.kernels.size()});
    return {};
  }

 private:
  std::vector<Call>& calls_;
};

Lowering step(std::vector<Call>& calls, std::vector<std::string> kernels, int64_t bytes) {
  Lowering lowering;
  for (const std::string& kernel : kernels) lowering.add_kernel({kernel, "of " + kernel}, 32);
  lowering.launches = std::make_shared<const NotingLaunches>(calls);
  lowering.workspace_bytes = bytes;
  lowering.description = kernels.front();
  return lowering;
}

using Sequences = FakeMachine;

TEST_F(Sequences, ShareTheListOfOperandsAndTheScratchBehindTheTemporaries) {
  std::vector<Call> calls;
  const Lowering all =
      in_sequence({step(calls, {"a", "b"}, 100), step(calls, {"b"}, 250)}, {300, 7});
  EXPECT_EQ(all.workspace_bytes, 512 + 256 + 250);
  EXPECT_EQ(all.description, "a; b");
  ASSERT_EQ(all.units.size(), 2U) << "each once";
  ASSERT_EQ(all.kernels.size(), 3U);
  EXPECT_EQ(all.kernels[2].unit, 1U);

  int operand = 0;
  void* const buffers[] = {&operand};
  std::vector<char> workspace(static_cast<size_t>(all.workspace_bytes));
  StreamQueue queue(*driver(), nullptr);
  const std::vector<std::shared_ptr<const Kernel>> kernels(3);
  ASSERT_TRUE(all.launches
                  ->execute({.buffers = buffers,
                             .workspace = workspace.data(),
                             .kernels = kernels,
                             .driver = *driver(),
                             .queue = queue})
                  .is_ok());
  ASSERT_EQ(calls.size(), 2U);
  const std::vector<void*> given{&operand, workspace.data(), workspace.data() + 512};
  for (const Call& call : calls) {
    EXPECT_EQ(call.buffers, given);
    EXPECT_EQ(call.workspace, workspace.data() + 768);
  }
  EXPECT_EQ(calls[0].kernels, 3U);
  EXPECT_EQ(calls[1].kernels, 1U) << "its own are the last";
}

TEST_F(Sequences, OfMoreOperandsThanAnExecutionTakesAreRefused) {
  EXPECT_TRUE(check_operand_count({.operand_count = kMostOperands}).is_ok());
  EXPECT_EQ(check_operand_count({.operand_count = kMostOperands + 1}).message(),
            "cuda: a problem in stages has 145 operands; its plan takes at most 144");
}

}  // namespace
}  // namespace heddle::engine::cuda
