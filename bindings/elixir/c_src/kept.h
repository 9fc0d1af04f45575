// Memory that nothing uses any more, kept for the next that asks for as much.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace heddle::elixir {

/// A Block says its size by `bytes`, and frees itself.
template <typename Block>
class Kept {
 public:
  explicit Kept(size_t most_bytes) : most_bytes_(most_bytes) {}

  /// The one given last of exactly so many bytes.
  std::optional<Block> take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                    [&](const Block& one) { return one.bytes == bytes; });
    if (found == blocks_.rend()) return std::nullopt;
    std::optional<Block> taken(std::move(*found));
    blocks_.erase(std::next(found).base());
    bytes_ -= bytes;
    return taken;
  }

  /// How many there are of so many bytes.
  std::ptrdiff_t count(size_t bytes) {
    const std::lock_guard lock(mutex_);
    return std::count_if(blocks_.begin(), blocks_.end(),
                         [&](const Block& one) { return one.bytes == bytes; });
  }

  /// Those that nobody took for long go first.
  void give(Block block) noexcept {
    if (block.bytes > most_bytes_) return;
    std::vector<Block> outlived;  // freed without the lock
    try {
      const std::lock_guard lock(mutex_);
      size_t count = 0, left = bytes_;
      while (left + block.bytes > most_bytes_ || blocks_.size() - count >= kMostBlocks) {
        left -= blocks_[count++].bytes;
      }
      const auto end = blocks_.begin() + static_cast<std::ptrdiff_t>(count);
      outlived.reserve(count);
      std::move(blocks_.begin(), end, std::back_inserter(outlived));
      blocks_.erase(blocks_.begin(), end);
      bytes_ = left;
      const size_t bytes = block.bytes;
      blocks_.push_back(std::move(block));
      bytes_ += bytes;
    } catch (const std::bad_alloc&) {
      // It is freed then.
    }
  }

  /// Frees all.
  void clear() noexcept {
    std::vector<Block> outlived;
    const std::lock_guard lock(mutex_);
    outlived.swap(blocks_);
    bytes_ = 0;
  }

 private:
  /// A search through so many takes a tenth of a microsecond.
  static constexpr size_t kMostBlocks = 512;

  const size_t most_bytes_;
  std::mutex mutex_;
  std::vector<Block> blocks_;  ///< in the order in which they were given
  size_t bytes_ = 0;           ///< of all
};

}  // namespace heddle::elixir
