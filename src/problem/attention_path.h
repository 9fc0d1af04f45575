// The paths by which engines serve an attention's forward, named as ONNX Runtime's users know them,
// and which of them the environment leaves.
#pragma once

#include <array>
#include <span>
#include <string>

#include "core/status.h"

namespace heddle::problem {

enum class AttentionPath : uint8_t { decode, flash, memory_efficient };
inline constexpr AttentionPath kAttentionPaths[] = {AttentionPath::decode, AttentionPath::flash,
                                                    AttentionPath::memory_efficient};

const char* name(AttentionPath path);
/// Variables of the environment, each of which switches the path off where it is 1.
std::span<const char* const> switches_of(AttentionPath path);

/// Which paths may serve: all, unless the environment switches some off.
class AllowedPaths {
 public:
  /// As the environment says now; fails if one of its variables is neither 0 nor 1.
  static Result<AllowedPaths> of_environment();

  /// The variable by which a path is off, null where it is not.
  const char* off_by(AttentionPath path) const { return off_by_[static_cast<size_t>(path)]; }
  bool has(AttentionPath path) const { return off_by(path) == nullptr; }
  /// Every path that is off, with its variable: "flash by HEDDLE_DISABLE_FLASH_ATTENTION=1".
  std::string words() const;

 private:
  std::array<const char*, std::size(kAttentionPaths)> off_by_{};
};

/// The path that serves a problem, and why it is that one.
struct ChosenPath {
  AttentionPath path = AttentionPath::flash;
  std::string reason;
};

}  // namespace heddle::problem
