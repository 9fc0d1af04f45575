// What kernels are passed of a block of arguments. That it is what their own structs hold, their
// sources assert.
#include "engine/cuda/passed_arguments.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using attention::Room;

/// That the member is among the bytes where it is said to be.
template <class Block, class Member>
void expect_passed(const PassedBytes& bytes, Member find) {
  Block block{};
  int& member = find(block);
  member = 1234567;
  Passed passed(block, bytes);
  int* const place = passed.place_of(member);
  EXPECT_EQ(*place, 1234567);
  EXPECT_LE(bytes.size(), sizeof(Block));
  const auto offset = reinterpret_cast<char*>(place) - static_cast<char*>(passed.address());
  EXPECT_LT(offset, static_cast<int64_t>(bytes.size()));
}

int& first_batch(attention::ForwardParameters& p) { return p.first_batch; }
int& first_batch(attention::BackwardParameters& p) { return p.forward.first_batch; }
int& first_batch(sm90::ForwardArguments& a) { return a.problem.first_batch; }
int& first_batch(sm90::BackwardArguments& a) { return a.problem.forward.first_batch; }

template <class Block>
void expect_place(const PassedBytes& bytes) {
  expect_passed<Block>(bytes, [](Block& block) -> int& { return first_batch(block); });
}

TEST(PassedArguments, AreAllOfABlockWithRoomForAll) {
  const Room all = attention::kWholeRoom;
  EXPECT_EQ(PassedBytes::of_forward(all).size(), sizeof(attention::ForwardParameters));
  EXPECT_EQ(PassedBytes::of_backward(all).size(), sizeof(attention::BackwardParameters));
  EXPECT_EQ(PassedBytes::of_forward_sm90(all).size(), sizeof(sm90::ForwardArguments));
  EXPECT_EQ(PassedBytes::of_backward_sm90(all).size(), sizeof(sm90::BackwardArguments));
}

TEST(PassedArguments, HoldTheirMembersWhateverIsLeftOut) {
  for (int bounds : {0, 1, 8}) {
    for (int loads : {0, 5, 12}) {
      for (int flags = 0; flags < 4096; ++flags) {
        const auto flag = [flags](int n) { return (flags >> n & 1) != 0; };
        const Room room{bounds,  loads,   flag(0), flag(1), flag(2), flag(3),  flag(4),
                        flag(5), flag(6), flag(7), flag(8), flag(9), flag(10), flag(11)};
        SCOPED_TRACE(room_source(room));
        expect_place<attention::ForwardParameters>(PassedBytes::of_forward(room));
        expect_place<attention::BackwardParameters>(PassedBytes::of_backward(room));
        expect_place<sm90::ForwardArguments>(PassedBytes::of_forward_sm90(room));
        expect_place<sm90::BackwardArguments>(PassedBytes::of_backward_sm90(room));
      }
    }
  }
}

TEST(PassedArguments, KeepTheOrderOfWhatIsLeft) {
  attention::ForwardParameters block{};
  const auto number = [&block](void* at) {
    const int64_t offset = static_cast<char*>(at) - reinterpret_cast<char*>(&block) + 1;
    std::memcpy(at, &offset, sizeof offset);
    return offset;
  };
  const auto q = number(&block.q.data), max = number(&block.max.data),
             mask = number(&block.dropout_mask.data), table = number(&block.page_table_v.data),
             load = number(&block.loads[1].data), bound = number(&block.bounds[0].constant);
  Room room;
  room.operands = true;
  room.loads = 2;
  room.bounds = 1;
  room.row_sums = room.sparse = true;
  const PassedBytes bytes = PassedBytes::of_forward(room);
  Passed passed(block, bytes);
  std::vector<int64_t> found(bytes.size() / 8);
  std::memcpy(found.data(), passed.address(), bytes.size());
  std::erase(found, 0);
  EXPECT_EQ(found, (std::vector<int64_t>{q, max, table, load, bound}));
  EXPECT_GT(mask, max);
}

// A launch whose arguments are new costs the host by their size.
TEST(PassedArguments, AreFewWhereAProblemIsPlain) {
  const Room room = room_of(forward_of({.features = {Feature::causal}}).structure, 0);
  EXPECT_EQ(room_source(room),
            "#define HEDDLE_ROOM {1, 0, true, true, false, false, false, true, true, false, false, "
            "false, false, false}\n");
  EXPECT_LE(PassedBytes::of_forward(room).size(), 576U);
  const Room busy = room_of(
      forward_of({.features = {Feature::causal, Feature::bias, Feature::philox}}).structure, 1);
  EXPECT_EQ(room_source(busy),
            "#define HEDDLE_ROOM {1, 1, true, true, false, true, false, true, true, false, false, "
            "false, false, false}\n");
}

TEST(PassedArguments, OfHoppersKernelsAreWhatEachReads) {
  const problem::AttentionProblem forward = forward_of({.features = {Feature::causal}});
  EXPECT_EQ(PassedBytes::of_forward_sm90(
                room_of_forward_sm90(forward, *configure_forward_sm90(forward), 0))
                .size(),
            896U);
  const problem::AttentionBackwardProblem backward = backward_of({.features = {Feature::causal}});
  const BackwardSm90Config config = *configure_backward_sm90(backward);
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  const auto size = [&](const char* name) {
    return PassedBytes::of_backward_sm90(room_of_backward_sm90(backward, config, 0, name)).size();
  };
  EXPECT_EQ(size(main), 1024U);
  for (const char* name : {prepare, finish, sink}) EXPECT_EQ(size(name), 432U);
  EXPECT_GT(size(load), size(main));
}

}  // namespace
}  // namespace heddle::engine::cuda
