// Memory for the plans' workspaces, kept between calls: at most one for each call that runs.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace heddle::elixir {

struct Workspace {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

class Workspaces {
 public:
  /// One of at least so many bytes, their contents anything; its memory is null if there is none.
  Workspace take(size_t bytes);
  void give_back(Workspace workspace) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Workspace> idle_;
};

/// Holds a workspace while a call runs.
class BorrowedWorkspace {
 public:
  BorrowedWorkspace(Workspaces& owner, size_t bytes)
      : owner_(owner), workspace_(owner.take(bytes)) {}
  ~BorrowedWorkspace() { owner_.give_back(std::move(workspace_)); }
  BorrowedWorkspace(const BorrowedWorkspace&) = delete;
  BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;

  std::byte* memory() const { return workspace_.memory.get(); }

 private:
  Workspaces& owner_;
  Workspace workspace_;
};

}  // namespace heddle::elixir
