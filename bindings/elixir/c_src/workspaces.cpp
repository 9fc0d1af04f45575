#include "workspaces.h"

#include <algorithm>
#include <new>

namespace heddle::elixir {

Workspace Workspaces::take(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  Workspace taken;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      taken = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (taken.bytes < bytes) {
    // The old memory goes first. Pages that a plan does not touch are never there.
    taken.memory.reset();
    taken.memory.reset(new (std::nothrow) std::byte[bytes]);
    taken.bytes = taken.memory ? bytes : 0;
  }
  return taken;
}

void Workspaces::give_back(Workspace workspace) noexcept {
  if (!workspace.memory) return;
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {
    // It is freed then.
  }
}

}  // namespace heddle::elixir
