// Every kind of kernel on a few problems: what compute-sanitizer watches (tests/gpu/run
// --sanitizers), and how plans are executed: on two streams at once, and inside a CUDA graph.
#include <algorithm>
#include <map>

#include "gpu/attention_options.h"
#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

/// Programs of `draw` whose plan's description has all of these words.
struct Kind {
  const char* name;
  Program (*draw)(Random&);
  std::vector<const char*> words;
};

/// Few heads and short rows: sanitizers and the definition are slow.
AttentionOptions small(AttentionOptions options) {
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.max_length = 200;
  return options;
}

AttentionOptions padded(AttentionOptions options) {
  options.padding = 1;
  options.ragged = 0;
  return small(options);
}

AttentionOptions packed(AttentionOptions options) {
  options.padding = options.ragged = 1;
  return small(options);
}

AttentionOptions rotated(AttentionOptions options) {
  options.rope = 1;
  return small(options);
}

constexpr NormOptions kRows{.aligned = 1, .max_aligned_columns = 4096};
constexpr NormOptions kWideRows{.aligned = 1, .max_aligned_columns = 40000};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"hopper_forward",
       [](Random& r) { return random_sdpa(r, small(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_padded",
       [](Random& r) { return random_sdpa(r, padded(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_packed",
       [](Random& r) { return random_sdpa(r, packed(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_padded",
       [](Random& r) { return random_sdpa_backward(r, padded(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_packed",
       [](Random& r) { return random_sdpa_backward(r, packed(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_score_tiles",
       [](Random& r) { return random_sdpa(r, small(score_tile_options())); },
       {"attention forward", "score tiles"}},
      {"hopper_backward_score_tiles",
       [](Random& r) { return random_sdpa_backward(r, small(score_tile_options())); },
       {"attention backward", "score tiles"}},
      {"general_forward",
       [](Random& r) { return random_sdpa(r, small(gpu_options())); },
       {"attention forward", "general"}},
      {"general_backward",
       [](Random& r) { return random_sdpa_backward(r, small(gpu_options())); },
       {"attention backward", "general"}},
      {"rotated_forward",
       [](Random& r) { return random_sdpa(r, rotated(aligned_options())); },
       {"rope"}},
      {"rotated_backward",
       [](Random& r) { return random_sdpa_backward(r, rotated(aligned_backward_options())); },
       {"rope"}},
      {"f32_hopper_forward",
       [](Random& r) { return random_sdpa(r, small(aligned_f32_options())); },
       {"attention forward", "Hopper"}},
      {"f32_hopper_backward",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_f32_backward_options())); },
       {"attention backward", "Hopper"}},
      {"f32_hopper_backward_wide",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_f32_backward_options())); },
       {"attention backward", "64 x 64 tiles of f16 pairs"}},
      {"f32_general_forward",
       [](Random& r) { return random_sdpa(r, small(f32_options())); },
       {"attention forward", "general"}},
      {"f32_general_backward",
       [](Random& r) { return random_sdpa_backward(r, small(f32_options())); },
       {"attention backward", "general"}},
      {"rms_norm", [](Random& r) { return random_rms_norm(r, kRows); }, {"in registers"}},
      {"rms_norm_wide", [](Random& r) { return random_rms_norm(r, kWideRows); }, {"read twice"}},
      {"rms_norm_backward",
       [](Random& r) { return random_rms_norm_backward(r, kRows); },
       {"in registers"}},
      {"rms_norm_backward_wide",
       [](Random& r) { return random_rms_norm_backward(r, kWideRows); },
       {"read twice"}},
      {"rope", random_rope, {"rope"}},
  };
  return all;
}

class EveryKind : public OnGpu, public ::testing::WithParamInterface<Kind> {
 protected:
  /// The n-th program of the kind, of kPrograms. They are looked for once, many at a time: most of
  /// it is compilation.
  static constexpr size_t kPrograms = 2;
  Built draw(size_t n) {
    static std::map<std::string, std::vector<Built>> found;
    std::vector<Built>& mine = found[GetParam().name];
    for (int64_t seed = 0; mine.size() < kPrograms && seed < 200; seed += kAtOnce) {
      for (Built& built : build_all(GetParam().draw, seed, seed + kAtOnce)) {
        if (mine.size() < kPrograms && built.executable.is_ok() && is_of_kind(built))
          mine.push_back(std::move(built));
      }
    }
    if (n < mine.size()) return mine[n];
    ADD_FAILURE() << "too few programs of this kind in 200";
    Random random(0);
    return build(GetParam().draw(random));
  }

 private:
  static constexpr int64_t kAtOnce = 4;
  bool is_of_kind(const Built& built) const {
    const std::string& plan = (*built.executable)->description();
    const auto& words = GetParam().words;
    return std::all_of(words.begin(), words.end(),
                       [&](const char* word) { return plan.find(word) != std::string::npos; });
  }
};

TEST_P(EveryKind, MatchesTheDefinition) {
  for (size_t n = 0; n < kPrograms; ++n) {
    Built built = draw(n);
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built));
  }
}

// Two plans on a stream each, and one of them twice at once, each with its own buffers.
TEST_P(EveryKind, RunsOnTwoStreamsAtOnce) {
  Built first = draw(0), second = draw(1), same = first;
  ASSERT_TRUE(first.executable.is_ok() && second.executable.is_ok());
  OnDevice one(first.program, **first.executable), other(second.program, **second.executable),
      again(same.program, **same.executable);
  ASSERT_TRUE(one.status().is_ok() && other.status().is_ok() && again.status().is_ok());
  const DeviceStream left, right;
  ASSERT_TRUE(left.status().is_ok() && right.status().is_ok());
  for (int turn = 0; turn < 8; ++turn) {
    ASSERT_TRUE(one.queue(left.handle()).is_ok());
    ASSERT_TRUE(other.queue(right.handle()).is_ok());
    ASSERT_TRUE(again.queue(right.handle()).is_ok());
  }
  ASSERT_TRUE(left.synchronise().is_ok() && right.synchronise().is_ok());
  ASSERT_TRUE(one.copy_back().is_ok() && other.copy_back().is_ok() && again.copy_back().is_ok());
  for (Built* built : {&first, &second, &same}) EXPECT_TRUE(matches_definition(*built));
}

// Recorded once, replayed twice: an execution neither allocates nor synchronises, and leaves its
// workspace so that the next finds nothing in it that it minds.
TEST_P(EveryKind, IsCapturedIntoAGraph) {
  Built built = draw(0);
  ASSERT_TRUE(built.executable.is_ok());
  OnDevice device(built.program, **built.executable);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceGraph graph([&device](void* stream) { return device.queue(stream); });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  // Nothing ran yet: every output still holds its poison.
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_FALSE(matches_definition(built));
  for (int run = 0; run < 2; ++run) {
    const Status replayed = graph.replay();
    ASSERT_TRUE(replayed.is_ok()) << replayed.message();
  }
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_TRUE(matches_definition(built));
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryKind, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
