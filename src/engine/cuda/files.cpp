#include "engine/cuda/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace heddle::engine::cuda {
namespace fs = std::filesystem;
namespace {

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

Status write_synced(const fs::path& path, const void* data, size_t size) {
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  const auto failed = [&] {
    return error(Code::io_failed, "{} could not be written: {}", path.string(),
                 std::strerror(errno));
  };
  if (!file.is_open()) return failed();
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(file.get(), at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed();
    at += written;
    size -= static_cast<size_t>(written);
  }
  return ::fsync(file.get()) == 0 ? Status() : failed();
}

void sync_folder(const fs::path& folder) {
  const File file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.is_open()) ::fsync(file.get());
}

Result<std::vector<char>> read_all(const fs::path& path) {
  // Not blocking: nobody waits for the other end of a pipe that bears an entry's name.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) {
    return error(Code::io_failed, "{} could not be read: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kMostFileBytes) {
    return error(Code::io_failed, "{} is no file of at most {} bytes", path.string(),
                 kMostFileBytes);
  }
  std::vector<char> data(static_cast<size_t>(info.st_size));
  size_t have = 0;
  while (have < data.size()) {
    const ssize_t count = ::read(file.get(), data.data() + have, data.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return error(Code::io_failed, "{} ends after {} of {} bytes", path.string(), have,
                   data.size());
    have += static_cast<size_t>(count);
  }
  return data;
}

std::vector<fs::path> children(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure))
    all.push_back(at->path());
  return all;
}

int64_t folder_bytes(const fs::path& folder) {
  int64_t bytes = 0;
  for (const fs::path& file : children(folder)) {
    std::error_code failure;
    const uintmax_t size = fs::file_size(file, failure);
    if (!failure) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool is_file(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         info.st_size <= kMostFileBytes;
}

int64_t modified(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mtime : 0;
}

}  // namespace heddle::engine::cuda
