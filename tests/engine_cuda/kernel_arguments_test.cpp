// What kernels are passed of all arguments. That it is as much as their own structs hold, their
// sources assert.
#include "engine/cuda/kernel_arguments.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using attention::ArgumentLayout;

TEST(KernelArguments, AreAllOfABlockWithRoomForAll) {
  const ArgumentLayout all = attention::kWholeLayout;
  EXPECT_EQ(passed_bytes<attention::ForwardParameters>(all), sizeof(attention::ForwardParameters));
  EXPECT_EQ(passed_bytes<attention::BackwardParameters>(all),
            sizeof(attention::BackwardParameters));
  EXPECT_EQ(passed_bytes<sm90::ForwardArguments>(all), sizeof(sm90::ForwardArguments));
  EXPECT_EQ(passed_bytes<sm90::BackwardArguments>(all), sizeof(sm90::BackwardArguments));
}

int& first_batch(attention::ForwardParameters& p) { return p.first_batch; }
int& first_batch(attention::BackwardParameters& p) { return p.forward.first_batch; }
int& first_batch(sm90::ForwardArguments& a) { return a.problem.first_batch; }
int& first_batch(sm90::BackwardArguments& a) { return a.problem.forward.first_batch; }

/// That of the block, where kernels are told another.
template <class All>
void expect_first_batch(const ArgumentLayout& layout) {
  All all{};
  first_batch(all) = 1234567;
  KernelArguments arguments(all, layout);
  EXPECT_EQ(*arguments.first_batch(), 1234567);
  EXPECT_LE(arguments.size(), sizeof(All));
  const auto offset =
      reinterpret_cast<char*>(arguments.first_batch()) - static_cast<char*>(arguments.address());
  EXPECT_LT(offset, static_cast<int64_t>(arguments.size()));
}

TEST(KernelArguments, HoldTheirMembersWhateverIsLeftOut) {
  for (int bounds : {0, 1, 8}) {
    for (int loads : {0, 5, 12}) {
      for (int flags = 0; flags < 8192; ++flags) {
        const auto flag = [flags](int n) { return (flags >> n & 1) != 0; };
        const ArgumentLayout layout{bounds,  loads,   flag(0),  flag(1),  flag(2),
                                    flag(3), flag(4), flag(5),  flag(6),  flag(7),
                                    flag(8), flag(9), flag(10), flag(11), flag(12)};
        SCOPED_TRACE(argument_layout_source(layout));
        expect_first_batch<attention::ForwardParameters>(layout);
        expect_first_batch<attention::BackwardParameters>(layout);
        expect_first_batch<sm90::ForwardArguments>(layout);
        expect_first_batch<sm90::BackwardArguments>(layout);
      }
    }
  }
}

TEST(KernelArguments, KeepTheOrderOfWhatIsLeft) {
  attention::ForwardParameters block{};
  const auto number = [&block](void* at) {
    const int64_t offset = static_cast<char*>(at) - reinterpret_cast<char*>(&block) + 1;
    std::memcpy(at, &offset, sizeof offset);
    return offset;
  };
  const auto q = number(&block.q.data), max = number(&block.max.data),
             mask = number(&block.dropout_mask.data), table = number(&block.pages_v.table.data),
             load = number(&block.loads[1].data), bound = number(&block.bounds[0].constant);
  ArgumentLayout layout;
  layout.operands = true;
  layout.loads = 2;
  layout.bounds = 1;
  layout.row_sums = layout.sparse = true;
  KernelArguments arguments(block, layout);
  std::vector<int64_t> found(arguments.size() / 8);
  std::memcpy(found.data(), arguments.address(), arguments.size());
  std::erase(found, 0);
  EXPECT_EQ(found, (std::vector<int64_t>{q, max, table, load, bound}));
  EXPECT_GT(mask, max);
}

// A launch whose arguments are new costs the host by their size.
TEST(KernelArguments, AreFewWhereAProblemIsPlain) {
  const ArgumentLayout layout =
      argument_layout_of(forward_of({.features = {Feature::causal}}).structure, 0);
  EXPECT_EQ(argument_layout_source(layout),
            "#define HEDDLE_ARGUMENT_LAYOUT {1, 0, true, true, false, false, false, true, true, "
            "false, false, "
            "false, false, false, false, false, false, false, false}\n");
  EXPECT_LE(passed_bytes<attention::ForwardParameters>(layout), 576U);
  const ArgumentLayout busy = argument_layout_of(
      forward_of({.features = {Feature::causal, Feature::bias, Feature::philox}}).structure, 1);
  EXPECT_EQ(argument_layout_source(busy),
            "#define HEDDLE_ARGUMENT_LAYOUT {1, 1, true, true, false, true, false, true, true, "
            "false, false, "
            "false, false, false, false, false, false, false, false}\n");
}

TEST(KernelArguments, OfHoppersKernelsAreWhatEachReads) {
  const problem::AttentionProblem forward = forward_of({.features = {Feature::causal}});
  EXPECT_EQ(passed_bytes<sm90::ForwardArguments>(argument_layout_of_forward_sm90(
                forward.structure, *configure_forward_sm90(forward), 0)),
            768U);
  const problem::AttentionBackwardProblem backward = backward_of({.features = {Feature::causal}});
  const BackwardSm90Config config = *configure_backward_sm90(backward);
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  const auto size = [&](const char* name) {
    return passed_bytes<sm90::BackwardArguments>(
        argument_layout_of_backward_sm90(backward.structure, config, 0, name));
  };
  EXPECT_EQ(size(main), 1024U);
  for (const char* name : {prepare, finish, sink}) EXPECT_EQ(size(name), 432U);
  EXPECT_EQ(size(load), 1024U);
}

// It comes with the rows' statistics where deltas are made, and nowhere else.
TEST(KernelArguments, OfAGradientOfLogSumExpsAreTheFirstKernels) {
  const auto sizes = [](std::vector<Feature> features) {
    const problem::AttentionBackwardProblem problem =
        backward_of({.features = std::move(features)});
    const BackwardSm90Config config = *configure_backward_sm90(problem);
    std::vector<size_t> all;
    for (const char* name : kBackwardSm90Names)
      all.push_back(passed_bytes<sm90::BackwardArguments>(
          argument_layout_of_backward_sm90(problem.structure, config, 0, name)));
    return all;
  };
  std::vector<size_t> expected = sizes({});
  expected[0] += sizeof(attention::Tensor);
  EXPECT_EQ(sizes({Feature::stats_gradient}), expected);
}

}  // namespace
}  // namespace heddle::engine::cuda
