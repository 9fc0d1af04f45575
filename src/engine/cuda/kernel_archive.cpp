#include "engine/cuda/kernel_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/environment.h"
#include "engine/cuda/files.h"
#include "engine/cuda/shared_object.h"

namespace heddle::engine::cuda {
namespace fs = std::filesystem;
namespace {

// In the file as they are in memory, of a machine whose lowest byte comes first.
struct Header {
  std::array<char, 16> magic;
  uint64_t file_bytes, kernels, index_checksum;
  uint32_t major, minor;  ///< of NVRTC
};
struct IndexEntry {
  std::array<char, kDigestDigits> digest;
  uint64_t text_at, text_bytes, image_at, image_bytes;
};
static_assert(sizeof(Header) == 48 && sizeof(IndexEntry) == 64, "neither has a gap");

// Raise the number when the file's form changes.
constexpr std::array<char, 16> kMagic = {'h', 'e', 'd', 'd', 'l', 'e', ' ', 'k',
                                         'e', 'r', 'n', 'e', 'l', 's', ' ', '1'};
constexpr uint64_t kMostKernels = 1 << 16;
constexpr const char* kInstalled = "share/heddle/compiled_kernels";

template <class T>
std::span<const char> bytes_of(std::span<const T> all) {
  return {reinterpret_cast<const char*>(all.data()), all.size_bytes()};
}

bool read_at(int file, uint64_t at, void* to, size_t bytes) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(file, next, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got, at += static_cast<uint64_t>(got), bytes -= static_cast<size_t>(got);
  }
  return true;
}

/// Empty if there is none.
fs::path installed_place() {
  // lib/libheddle.so, bin/heddle, lib/x86_64-linux-gnu/libheddle.so.
  const fs::path folder = own_file().parent_path();
  for (const fs::path& prefix : {folder.parent_path(), folder.parent_path().parent_path()}) {
    std::error_code ignored;
    if (fs::exists(prefix / kInstalled, ignored)) return prefix / kInstalled;
  }
  return {};
}

Result<KernelArchive> find_archive(const char* chosen) {
  if (chosen && !*chosen) {
    return error(Code::io_failed,
                 "kernels compiled beforehand are switched off: HEDDLE_KERNELS is set to nothing");
  }
  const fs::path place = chosen ? fs::path(chosen) : installed_place();
  if (!place.empty()) return KernelArchive::open(place);
  return error(Code::io_failed, "no kernels compiled beforehand were installed with {}",
               own_file().string());
}

}  // namespace

Result<KernelArchive> KernelArchive::open(const fs::path& path) {
  const auto refused = [&](std::string_view why) {
    return error(Code::io_failed, "{} is not used: {}", path.string(), why);
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refused(std::strerror(errno));
  KernelArchive archive(path);
  archive.file_ = {new int(descriptor), [](const int* file) {
                     ::close(*file);
                     delete file;
                   }};
  struct stat about {};
  if (::fstat(descriptor, &about) != 0) return refused(std::strerror(errno));
  Header header{};
  if (!S_ISREG(about.st_mode) || !read_at(descriptor, 0, &header, sizeof header) ||
      header.magic != kMagic)
    return refused("it is no archive of kernels that this version of Heddle reads");
  if (header.file_bytes != static_cast<uint64_t>(about.st_size))
    return refused(
        fmt::format("it has {} bytes, and says that it has {}", about.st_size, header.file_bytes));
  if (header.kernels > kMostKernels ||
      sizeof header + header.kernels * sizeof(IndexEntry) > header.file_bytes)
    return refused("its index is longer than itself");
  std::vector<IndexEntry> index(header.kernels);
  const std::span<const IndexEntry> entries = index;
  if (!read_at(descriptor, sizeof header, index.data(), entries.size_bytes()))
    return refused("its index cannot be read");
  if (checksum(bytes_of(entries)) != header.index_checksum) return refused("its index is damaged");
  archive.made_by_ = {.major = static_cast<int>(header.major),
                      .minor = static_cast<int>(header.minor)};
  const auto is_inside = [&](uint64_t at, uint64_t bytes) {
    return bytes <= static_cast<uint64_t>(kMostFileBytes) && at <= header.file_bytes &&
           bytes <= header.file_bytes - at;
  };
  for (const IndexEntry& entry : index) {
    if (!is_inside(entry.text_at, entry.text_bytes) ||
        !is_inside(entry.image_at, entry.image_bytes))
      return refused("its index names places that it does not have");
    archive.places_.push_back({.digest = {entry.digest.begin(), entry.digest.end()},
                               .text = {entry.text_at, entry.text_bytes},
                               .image = {entry.image_at, entry.image_bytes}});
  }
  std::sort(archive.places_.begin(), archive.places_.end(),
            [](const Place& a, const Place& b) { return a.digest < b.digest; });
  return archive;
}

Result<std::vector<char>> KernelArchive::read(const Part& part) const {
  std::vector<char> bytes(part.bytes);
  if (read_at(*file_, part.at, bytes.data(), bytes.size())) return bytes;
  return error(Code::io_failed, "{} cannot be read at byte {}", path_.string(), part.at);
}

Result<Cubin> KernelArchive::find(const std::string& source,
                                  const std::string& architecture) const {
  const KernelKey key = kernel_key(source, architecture, made_by_);
  const std::string digest = key.digest();
  const auto at =
      std::lower_bound(places_.begin(), places_.end(), digest,
                       [](const Place& place, const std::string& d) { return place.digest < d; });
  if (at == places_.end() || at->digest != digest)
    return error(Code::io_failed, "{} has no such kernel", path_.string());
  Cubin cubin;
  HEDDLE_ASSIGN(const std::vector<char> text, read(at->text));
  HEDDLE_ASSIGN(cubin.image, read(at->image));
  if (const Status wrong = check_entry({text.data(), text.size()}, cubin.image, key);
      !wrong.is_ok()) {
    return error(Code::io_failed, "kernel {} of {} is not used: {}", digest, path_.string(),
                 wrong.message());
  }
  return cubin;
}

std::vector<EntryWords> KernelArchive::list() const {
  std::vector<EntryWords> all;
  for (const Place& place : places_) {
    const Result<std::vector<char>> text = read(place.text);
    all.push_back(text ? words_of_entry({text->data(), text->size()}) : EntryWords{});
  }
  return all;
}

Status write_archive(const fs::path& path, std::span<const ArchivedKernel> kernels,
                     const CompilerVersion& made_by) {
  std::vector<std::pair<std::string, const ArchivedKernel*>> sorted;
  for (const ArchivedKernel& kernel : kernels) {
    const KernelKey key = kernel_key(kernel.unit.source, kernel.architecture, made_by);
    sorted.emplace_back(key.digest(), &kernel);
  }
  // The same file of the same kernels, in whatever order they were compiled.
  std::sort(sorted.begin(), sorted.end());
  std::vector<IndexEntry> index;
  std::string rest;
  const uint64_t begin = sizeof(Header) + sorted.size() * sizeof(IndexEntry);
  const auto append = [&](std::string_view bytes) {
    const uint64_t at = begin + rest.size();
    rest += bytes;
    return at;
  };
  for (const auto& [digest, kernel] : sorted) {
    const std::vector<char>& image = kernel->cubin.image;
    const std::string text =
        entry_text(kernel_key(kernel->unit.source, kernel->architecture, made_by),
                   kernel->unit.name, kernel->unit.made_for, image);
    IndexEntry entry{.text_bytes = text.size(), .image_bytes = image.size()};
    std::copy(digest.begin(), digest.end(), entry.digest.begin());
    entry.text_at = append(text);
    entry.image_at = append({image.data(), image.size()});
    index.push_back(entry);
  }
  const std::span<const IndexEntry> entries = index;
  const Header header{.magic = kMagic,
                      .file_bytes = begin + rest.size(),
                      .kernels = index.size(),
                      .index_checksum = checksum(bytes_of(entries)),
                      .major = static_cast<uint32_t>(made_by.major),
                      .minor = static_cast<uint32_t>(made_by.minor)};
  std::string whole;
  whole.reserve(header.file_bytes);
  for (const std::span<const char> part : {bytes_of(std::span(&header, 1)), bytes_of(entries)})
    whole.append(part.data(), part.size());
  whole += rest;

  const fs::path writing = path.string() + ".writing";
  std::error_code failure;
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure)) {
    return error(Code::io_failed, "{} is no file, expected one or a name for one", path.string());
  }
  fs::remove(writing, failure);
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failure);
  HEDDLE_TRY(write_synced(writing, whole.data(), whole.size()));
  fs::rename(writing, path, failure);
  if (!failure) return {};
  return error(Code::io_failed, "{} could not be renamed into place: {}", writing.string(),
               failure.message());
}

const Result<KernelArchive>& installed_archive() {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, Result<KernelArchive>>;
  const char* chosen = environment::value_of("HEDDLE_KERNELS");
  const std::string said = chosen ? fmt::format("HEDDLE_KERNELS={}", chosen) : std::string();
  const std::lock_guard lock(mutex);
  const auto at = opened.find(said);
  return at != opened.end() ? at->second : opened.emplace(said, find_archive(chosen)).first->second;
}

}  // namespace heddle::engine::cuda
