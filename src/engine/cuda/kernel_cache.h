// Compiled kernels kept on disk, one folder per key, shared by every process of a user.
//
// An entry is written into a folder of its own name first, synced, and renamed into place whole:
// readers see all of it or nothing, a crash leaves only a stray folder that `prune` removes, and
// losing a race to another process is success. It is taken away as it came, whole. A cache that
// cannot be written is no error: kernels are then compiled once per process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/cuda/kernel_entry.h"

namespace heddle::engine::cuda {

class KernelCache {
 public:
  /// `root` is made on the first store. See default_root for where the library keeps its own.
  explicit KernelCache(std::filesystem::path root) : root_(std::move(root)) {}

  /// HEDDLE_CACHE_DIR, else XDG_CACHE_HOME/heddle, else HOME/.cache/heddle; empty (no cache) if
  /// HEDDLE_CACHE_DIR is set to nothing or no home is known.
  static std::filesystem::path default_root();

  /// The entry of `key`, if it is whole and was made from the very same text; a damaged one is
  /// removed.
  Result<Cubin> find(const KernelKey& key) const;
  /// Keeps `cubin`; a failure says why the cache could not be written.
  Status store(const KernelKey& key, const std::string& name, const Cubin& cubin,
               const UnitSummary& made_for = {}) const;

  struct Entry {
    std::string digest;
    EntryWords words;
    int64_t bytes = 0;
    int64_t last_used = 0;  ///< seconds since the epoch
  };
  /// Entries, most recently used first.
  std::vector<Entry> list() const;
  /// Removes least recently used entries until at most `bytes` remain, and strays of crashed
  /// processes; returns how many entries went.
  Result<int64_t> prune(int64_t bytes) const;
  Result<int64_t> clear() const;
  enum class Place : uint8_t { ready, not_there_yet };
  /// What stands at `root`, which is not made; a failure says why no kernel can be kept there.
  Result<Place> look() const;

  const std::filesystem::path& root() const { return root_; }

 private:
  /// What an entry's folder says by itself, most recently used first; nothing of it is read.
  std::vector<Entry> entries() const;
  /// A folder of this call's own, to write in.
  Result<std::filesystem::path> make_stray() const;

  std::filesystem::path root_;
};

/// At most this much is kept: HEDDLE_CACHE_BYTES, or kDefaultCacheLimit; a failure says what is
/// wrong with the former.
Result<int64_t> cache_limit_bytes();
inline constexpr int64_t kDefaultCacheLimit = int64_t{1} << 30;

}  // namespace heddle::engine::cuda
