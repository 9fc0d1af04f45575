// Every kind of kernel on a few problems: what compute-sanitizer watches (tests/gpu/run
// --sanitizers), and how plans are executed: on two streams at once, inside a CUDA graph, and at
// what cost to the host.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>

#include "gpu/device_stream.h"
#include "gpu/gpu_test.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

/// Programs of `draw` whose plan's description has all of these words.
struct Kind {
  const char* name;
  Program (*draw)(Random&);
  std::vector<const char*> words;
};

AttentionOptions small() {
  AttentionOptions options;
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 150;
  options.max_head_dim = 128;
  return options;
}

AttentionOptions aligned() {
  AttentionOptions options = small();
  options.odd_strides = 0;
  options.paged = options.block_mask = options.rng_dump = 0;
  return options;
}

AttentionOptions ragged() {
  AttentionOptions options = aligned();
  options.padding = options.ragged = 1;
  return options;
}

AttentionOptions rotated() {
  AttentionOptions options = aligned();
  options.rope = 1;
  return options;
}

constexpr NormOptions kRows{.aligned = 1, .max_aligned_columns = 4096};
constexpr NormOptions kWideRows{.aligned = 1, .max_aligned_columns = 40000};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"hopper_forward",
       [](Random& r) { return random_sdpa(r, aligned()); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_ragged",
       [](Random& r) { return random_sdpa(r, ragged()); },
       {"attention forward", "Hopper"}},
      {"hopper_backward",
       [](Random& r) { return random_sdpa_backward(r, aligned()); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_ragged",
       [](Random& r) { return random_sdpa_backward(r, ragged()); },
       {"attention backward", "Hopper"}},
      {"general_forward",
       [](Random& r) { return random_sdpa(r, small()); },
       {"attention forward", "general"}},
      {"general_backward",
       [](Random& r) { return random_sdpa_backward(r, small()); },
       {"attention backward", "general"}},
      {"rotated_forward", [](Random& r) { return random_sdpa(r, rotated()); }, {"rope"}},
      {"rotated_backward", [](Random& r) { return random_sdpa_backward(r, rotated()); }, {"rope"}},
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
    for (uint64_t seed = 0; mine.size() < kPrograms && seed < 200; seed += kAtOnce) {
      std::vector<std::future<Built>> builds;
      for (uint64_t one = seed; one < seed + kAtOnce; ++one) {
        builds.push_back(std::async(std::launch::async, [this, one] {
          Random random(one);
          return build(GetParam().draw(random));
        }));
      }
      for (std::future<Built>& one : builds) {
        Built built = one.get();
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
  static constexpr uint64_t kAtOnce = 8;
  bool is_of_kind(const Built& built) const {
    const std::string& plan = (*built.executable)->description();
    const auto& words = GetParam().words;
    return std::all_of(words.begin(), words.end(),
                       [&](const char* word) { return plan.find(word) != std::string::npos; });
  }
};

/// A program with its memory on the device.
struct Loaded {
  explicit Loaded(Program p, const api::Executable& executable)
      : program(std::move(p)),
        device(program),
        workspace(executable.workspace_bytes()),
        bindings(device.bindings(executable)) {}
  Program program;
  DeviceProgram device;
  DeviceBlock workspace;
  std::vector<api::Binding> bindings;
};

TEST_P(EveryKind, MatchesTheDefinition) {
  for (size_t n = 0; n < kPrograms; ++n) {
    Built built = draw(n);
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
  }
}

// Two plans on a stream each, and one of them twice at once, each with its own buffers.
TEST_P(EveryKind, RunsOnTwoStreamsAtOnce) {
  Built first = draw(0), second = draw(1);
  ASSERT_TRUE(first.executable.is_ok() && second.executable.is_ok());
  const api::Executable &a = **first.executable, &b = **second.executable;
  Loaded one(first.program, a), other(second.program, b), same(first.program, a);
  const DeviceStream left, right;
  ASSERT_TRUE(left.status().is_ok() && right.status().is_ok());
  for (int turn = 0; turn < 8; ++turn) {
    for (const auto& [executable, loaded, stream] :
         {std::tuple{&a, &one, &left}, {&b, &other, &right}, {&a, &same, &right}}) {
      const Status executed =
          executable->execute(loaded->bindings, loaded->workspace.pointer(), stream->handle());
      ASSERT_TRUE(executed.is_ok()) << executed.message();
    }
  }
  ASSERT_TRUE(left.synchronise().is_ok() && right.synchronise().is_ok());
  for (const auto& [loaded, io] :
       {std::pair{&one, first.io}, {&other, second.io}, {&same, first.io}}) {
    ASSERT_TRUE(loaded->device.copy_back().is_ok());
    EXPECT_TRUE(matches_reference(loaded->program, io));
  }
}

TEST_P(EveryKind, IsCapturedIntoAGraphAndReplayed) {
  Built built = draw(0);
  ASSERT_TRUE(built.executable.is_ok());
  const api::Executable& executable = **built.executable;
  Loaded loaded(built.program, executable);
  const DeviceStream stream;
  const DeviceGraph graph(stream, [&] {
    return executable.execute(loaded.bindings, loaded.workspace.pointer(), stream.handle());
  });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  // Nothing ran yet: every output still holds its poison.
  ASSERT_TRUE(loaded.device.copy_back().is_ok());
  EXPECT_FALSE(matches_reference(loaded.program, built.io));
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(graph.launch(stream).is_ok());
    ASSERT_TRUE(stream.synchronise().is_ok());
    ASSERT_TRUE(loaded.device.copy_back().is_ok());
    EXPECT_TRUE(matches_reference(loaded.program, built.io));
  }
}

// The best of batches, each short enough for the queue: what a call costs the thread that makes it.
TEST_P(EveryKind, CostsTheHostLittle) {
  constexpr int kBatches = 20, kCalls = 50;
  Built built = draw(0);
  ASSERT_TRUE(built.executable.is_ok());
  const api::Executable& executable = **built.executable;
  Loaded loaded(built.program, executable);
  const DeviceStream stream;
  double best = 1e9;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) {
      ASSERT_TRUE(
          executable.execute(loaded.bindings, loaded.workspace.pointer(), stream.handle()).is_ok());
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kCalls);
    ASSERT_TRUE(stream.synchronise().is_ok());
  }
  std::printf("%s: %.2f us of host time a call\n%s", GetParam().name, best,
              executable.description().c_str());
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryKind, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
