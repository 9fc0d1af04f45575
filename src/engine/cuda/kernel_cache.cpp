#include "engine/cuda/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/environment.h"
#include "engine/cuda/files.h"
#include "engine/cuda/kernel_sources.h"

namespace heddle::engine::cuda {
namespace fs = std::filesystem;
namespace {

// Raise when the meaning of an entry's files changes.
constexpr int kFormat = 1;
constexpr const char* kCubinFile = "kernel.cubin";
constexpr const char* kMetaFile = "meta.json";
constexpr std::string_view kHeadersLine = "headers ", kArchitectureFlag = "--gpu-architecture=";
constexpr std::string_view kStrayPrefix = "writing-";
// A stray folder this old belongs to nobody alive: no compilation takes an hour.
constexpr int64_t kStraySeconds = 3600;

uint64_t checksum(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

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

std::string text_at(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return {};
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Over all of the device code: it took most of the time of a plan whose kernels are compiled.
uint64_t sources_digest() {
  static const uint64_t kDigest = kernel_sources_digest();
  return kDigest;
}

/// Nothing of a text that a terminal might not print.
std::string printable(std::string text) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isprint(c) != 0; });
  return is_plain ? text : std::string();
}

/// The word that begins at `at`: what a damaged or foreign file says must not reach a terminal raw.
std::string word(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
    ++end;
  return std::string(text.substr(at, end - at));
}

std::string word_after(std::string_view text, std::string_view label) {
  const size_t at = text.find(label);
  return at == text.npos ? std::string() : word(text, at + label.size());
}

}  // namespace

std::string KernelKey::digest() const {
  // FNV-1a over 128 bits; the entry also keeps the text, so that a collision is seen, not served.
  constexpr auto from_halves = [](uint64_t hi, uint64_t lo) {
    return static_cast<unsigned __int128>(hi) << 64 | lo;
  };
  const unsigned __int128 prime = from_halves(0x0000000001000000u, 0x000000000000013Bu);
  unsigned __int128 hash = from_halves(0x6c62272e07bb0142u, 0x62b821756295c58du);
  for (const unsigned char c : text) hash = (hash ^ c) * prime;
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64),
                     static_cast<uint64_t>(hash));
}

KernelKey kernel_key(const std::string& source, const std::string& architecture,
                     const CompilerVersion& version) {
  std::string text = fmt::format("format {}\nnvrtc {}.{}\n{}{:016x}\n", kFormat, version.major,
                                 version.minor, kHeadersLine, sources_digest());
  for (const std::string& flag : compile_flags(architecture)) text += flag + "\n";
  return {text + source};
}

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
  HEDDLE_ASSIGN(const std::vector<char> meta_text, read_all(folder / kMetaFile));
  const nlohmann::json meta =
      nlohmann::json::parse(meta_text.begin(), meta_text.end(), nullptr, false);
  HEDDLE_ASSIGN(std::vector<char> image, read_all(folder / kCubinFile));
  Cubin cubin;
  try {
    if (meta.at("checksum").get<uint64_t>() != checksum(image.data(), image.size()))
      return damaged("its checksum is wrong");
    if (meta.at("key").get<std::string>() != key.text)
      return damaged("it was made from another source");
  } catch (const nlohmann::json::exception&) {
    return damaged("its description does not parse");
  }
  ::utimensat(AT_FDCWD, (folder / kMetaFile).c_str(), nullptr, 0);  // Marks it used, for prune.
  cubin.image = std::move(image);
  return cubin;
}

Status KernelCache::store(const KernelKey& key, const std::string& name, const Cubin& cubin,
                          const UnitSummary& made_for) const {
  HEDDLE_ASSIGN(const fs::path writing, make_stray());
  const std::string meta =
      nlohmann::json{{"name", name},
                     {"dtype", made_for.dtype},
                     {"head_dim", made_for.head_dim},
                     {"features", made_for.features},
                     {"key", key.text},
                     {"checksum", checksum(cubin.image.data(), cubin.image.size())}}
          .dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
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
    const nlohmann::json meta = nlohmann::json::parse(text->begin(), text->end(), nullptr, false);
    const std::string key = text_at(meta, "key");
    entry.name = word(text_at(meta, "name"), 0);
    entry.architecture = word_after(key, kArchitectureFlag);
    entry.made_for = {.dtype = printable(text_at(meta, "dtype")),
                      .head_dim = printable(text_at(meta, "head_dim")),
                      .features = printable(text_at(meta, "features"))};
    entry.outdated =
        !key.empty() && word_after(key, kHeadersLine) != fmt::format("{:016x}", sources_digest());
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
