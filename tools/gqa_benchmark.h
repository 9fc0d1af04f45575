// A GroupQueryAttention node, as `heddle bench gqa` and `heddle profile gqa` time it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/executable.h"
#include "engine/devices.h"
#include "tools/device_buffer.h"

namespace heddle::tools {

/// Types of Q and of the cache, and bits of a code: what "--cache" names.
struct GqaCache {
  std::string_view name;
  DataType io, cache;
  int bits = 0;  ///< of quantised caches, with scales per channel
};
inline constexpr GqaCache kGqaCaches[] = {
    {"f32", DataType::f32, DataType::f32},    {"bf16", DataType::bf16, DataType::bf16},
    {"f16", DataType::f16, DataType::f16},    {"int8", DataType::f32, DataType::i8, 8},
    {"int4", DataType::f32, DataType::u8, 4}, {"f8e4m3", DataType::f32, DataType::f8e4m3, 8},
};
/// On a GPU codes stand beside bf16.
inline GqaCache on(engine::Device device, GqaCache cache) {
  if (device == engine::Device::cuda && cache.bits != 0) cache.io = DataType::bf16;
  return cache;
}

/// Rotation and append are part of a step, into shared buffers.
struct GqaCell {
  GqaCache cache = kGqaCaches[0];
  int64_t batch = 1, heads = 32, kv_heads = 8, head_size = 128;
  int64_t rows = 1;     ///< new ones of each sequence
  int64_t keys = 8192;  ///< with the new ones

  bool is_prompt() const { return rows == keys; }
  /// 4 H d of the two products for every row and key it sees.
  double flops() const;
  /// Of K and V that a step reads.
  int64_t cache_bytes() const;
};

/// The node with its buffers, filled.
class GqaNode {
 public:
  static Result<GqaNode> make(const GqaCell& cell, engine::Device device);

  const api::Executable& executable() const { return *executable_; }
  /// On a GPU it returns when the work is queued.
  Status run(engine::Marks& marks) const {
    return executable_->execute_marked(bindings_, workspace_->data(), nullptr, marks, 0);
  }

 private:
  std::shared_ptr<const api::Executable> executable_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<api::Binding> bindings_;
  std::optional<DeviceBuffer> workspace_;
};

struct GqaTimes {
  double median = 0, least = 0;         ///< seconds of a run
  std::vector<double> steps;            ///< medians of each step
  std::vector<std::string> step_names;  ///< the executable's lines
  std::string path;                     ///< that serves the attention, and why
};

/// Runs for half a second, at least three times. On a GPU the times are its own, between events,
/// and before each run memory that its cache does not hold is written: a model's other layers would
/// have pushed the node's own out, and the host queues the run meanwhile.
Result<GqaTimes> measure(const GqaCell& cell, engine::Device device);

}  // namespace heddle::tools
