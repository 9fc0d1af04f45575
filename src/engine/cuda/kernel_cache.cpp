#include "engine/cuda/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/environment.h"
#include "engine/cuda/files.h"

namespace heddle::engine::cuda {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCubinFile = "kernel.cubin";
constexpr const char* kMetaFile = "meta.json";
constexpr std::string_view kStrayPrefix = "writing-";
// A stray folder this old belongs to nobody alive: no compilation takes an hour.
constexpr int64_t kStraySeconds = 3600;

/// A cache may share its folder with other things, which are none of its business.
bool is_entry(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == kDigestDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_stray(const fs::path& path) { return path.filename().string().starts_with(kStrayPrefix); }

fs::path new_stray(const fs::path& root) {
  static std::atomic<int> serial = 0;
  return root / fmt::format("{}{}-{}", kStrayPrefix, ::getpid(), serial++);
}

/// Takes an entry away whole, as it came: a crash amid the removal leaves a stray, not half an
/// entry.
Status discard(const fs::path& root, const fs::path& entry) {
  const fs::path away = new_stray(root);
  std::error_code failure;
  fs::rename(entry, away, failure);
  if (failure == std::errc::no_such_file_or_directory) return {};  // another process was first
  if (!failure) fs::remove_all(away, failure);
  if (!failure) return {};
  return error(Code::io_failed, "{} could not be removed: {}", entry.string(), failure.message());
}

}  // namespace

fs::path KernelCache::default_root() {
  std::error_code ignored;
  if (const char* chosen = environment::value_of("HEDDLE_CACHE_DIR"))
    return *chosen ? fs::absolute(chosen, ignored) : fs::path();
  // One that is not absolute is to be ignored, says the specification.
  if (const char* base = std::getenv("XDG_CACHE_HOME"); base && *base == '/')
    return fs::path(base) / "heddle";
  if (const char* home = std::getenv("HOME"); home && *home)
    return fs::path(home) / ".cache" / "heddle";
  return {};
}

Result<Cubin> KernelCache::find(const KernelKey& key) const {
  const fs::path folder = root_ / key.digest();
  std::error_code ignored;
  // Not what a link leads to: one that leads nowhere would keep an entry from being stored.
  if (fs::symlink_status(folder, ignored).type() == fs::file_type::not_found)
    return error(Code::io_failed, "there is no cache entry {}", folder.string());
  const auto damaged = [&](std::string_view what) {
    const Status kept = discard(root_, folder);
    return error(Code::io_failed, "cache entry {} {}: {}", folder.string(),
                 kept.is_ok() ? "was removed" : "is damaged", what);
  };
  // Left in its place it would also keep a whole one from being stored.
  if (!is_file(folder / kMetaFile) || !is_file(folder / kCubinFile))
    return damaged("it lacks a file");
  HEDDLE_ASSIGN(const std::vector<char> text, read_all(folder / kMetaFile));
  Cubin cubin;
  HEDDLE_ASSIGN(cubin.image, read_all(folder / kCubinFile));
  if (const Status wrong = check_entry({text.data(), text.size()}, cubin.image, key);
      !wrong.is_ok())
    return damaged(wrong.message());
  ::utimensat(AT_FDCWD, (folder / kMetaFile).c_str(), nullptr, 0);  // Marks it used, for prune.
  return cubin;
}

Status KernelCache::store(const KernelKey& key, const std::string& name, const Cubin& cubin,
                          const UnitSummary& made_for) const {
  HEDDLE_ASSIGN(const fs::path writing, make_stray());
  const std::string meta = entry_text(key, name, made_for, cubin.image);
  Status status = write_synced(writing / kCubinFile, cubin.image.data(), cubin.image.size());
  if (status.is_ok()) status = write_synced(writing / kMetaFile, meta.data(), meta.size());
  if (status.is_ok()) {
    // The folder itself is synced so that its entries survive the crash that the rename survives.
    sync_folder(writing);
    if (::rename(writing.c_str(), (root_ / key.digest()).c_str()) == 0) return {};
    // Another process was first: its entry serves as well.
    if (errno != EEXIST && errno != ENOTEMPTY) {
      status = error(Code::io_failed, "{} could not be renamed into place: {}", writing.string(),
                     std::strerror(errno));
    }
  }
  std::error_code ignored;
  fs::remove_all(writing, ignored);
  return status;
}

Result<fs::path> KernelCache::make_stray() const {
  std::error_code failure;
  fs::create_directories(root_, failure);
  if (failure)
    return error(Code::io_failed, "{} could not be made: {}", root_.string(), failure.message());
  fs::path stray = new_stray(root_);
  fs::create_directory(stray, failure);
  if (failure)
    return error(Code::io_failed, "{} could not be made: {}", stray.string(), failure.message());
  return stray;
}

Result<KernelCache::Place> KernelCache::look() const {
  std::error_code failure;
  fs::path there = root_;
  while (fs::symlink_status(there, failure).type() == fs::file_type::not_found &&
         there.has_relative_path())
    there = there.parent_path();
  if (!fs::is_directory(there, failure)) {
    return error(Code::io_failed, "{} {}", there.string(),
                 failure ? "cannot be seen: " + failure.message() : "is no folder");
  }
  if (there != root_) {
    if (::faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) == 0)
      return Place::not_there_yet;
    return error(Code::io_failed, "it cannot be made in {}: {}", there.string(),
                 std::strerror(errno));
  }
  // Only a file that is written shows that the disk has room.
  HEDDLE_ASSIGN(const fs::path stray, make_stray());
  const std::vector<char> page(4096);
  const Status status = write_synced(stray / kCubinFile, page.data(), page.size());
  fs::remove_all(stray, failure);
  if (!status.is_ok()) return status;
  return Place::ready;
}

std::vector<KernelCache::Entry> KernelCache::entries() const {
  std::vector<Entry> all;
  for (const fs::path& folder : children(root_)) {
    if (!is_entry(folder)) continue;
    all.push_back({.digest = folder.filename().string(),
                   .bytes = folder_bytes(folder),
                   .last_used = modified(folder / kMetaFile)});
  }
  std::sort(all.begin(), all.end(),
            [](const Entry& a, const Entry& b) { return a.last_used > b.last_used; });
  return all;
}

std::vector<KernelCache::Entry> KernelCache::list() const {
  std::vector<Entry> all = entries();
  for (Entry& entry : all) {
    const Result<std::vector<char>> text = read_all(root_ / entry.digest / kMetaFile);
    if (!text.is_ok()) continue;
    entry.words = words_of_entry({text->data(), text->size()});
  }
  return all;
}

Result<int64_t> KernelCache::prune(int64_t bytes) const {
  for (const fs::path& folder : children(root_)) {
    std::error_code ignored;
    if (is_stray(folder) && ::time(nullptr) - modified(folder) > kStraySeconds)
      fs::remove_all(folder, ignored);
  }
  int64_t kept = 0, removed = 0;
  Status failed;
  for (const Entry& entry : entries()) {
    // One of no bytes is damaged.
    if (entry.bytes > 0 && kept + entry.bytes <= bytes) {
      kept += entry.bytes;
      continue;
    }
    if (Status status = discard(root_, root_ / entry.digest); status.is_ok())
      ++removed;
    else
      failed = std::move(status);  // the others go nevertheless
  }
  if (!failed.is_ok()) return failed;
  return removed;
}

Result<int64_t> KernelCache::clear() const { return prune(0); }

Result<int64_t> cache_limit_bytes() {
  const char* text = environment::value_of("HEDDLE_CACHE_BYTES");
  if (!text || !*text) return kDefaultCacheLimit;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, failure] = std::from_chars(text, end, value);
  if (failure == std::errc() && stop == end && value >= 0) return value;
  return error(Code::invalid_value, "HEDDLE_CACHE_BYTES is '{}', expected a number of bytes", text);
}

}  // namespace heddle::engine::cuda
