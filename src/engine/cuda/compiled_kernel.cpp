// Single flight: a kernel is compiled once, however many threads and processes ask for it.
#include "engine/cuda/compiled_kernel.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <future>
#include <map>
#include <mutex>

#include "engine/cuda/driver.h"
#include "engine/cuda/kernel_archive.h"
#include "engine/cuda/kernel_cache.h"

namespace heddle::engine::cuda {
namespace {

using Compiled = Result<std::shared_ptr<const Cubin>>;

// Held across processes while a kernel is compiled. The kernel of the operating system releases it
// when its holder dies, so no lock is ever stale. Where the file cannot be made, nothing is locked:
// two processes then compile the same kernel, and one's entry wins.
class ProcessLock {
 public:
  explicit ProcessLock(const std::filesystem::path& path)
      : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~ProcessLock() {
    if (descriptor_ < 0) return;
    // Not by closing alone: a process forked meanwhile has the descriptor too.
    ::flock(descriptor_, LOCK_UN);
    ::close(descriptor_);
  }
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

 private:
  int descriptor_;
};

/// Minor versions of a driver take the code of any compiler of their major one.
Status check_driver(const KernelArchive& archive) {
  const Result<Driver>& here = driver();
  if (!here || here->version / 1000 >= archive.made_by().major) return {};
  return error(Code::io_failed,
               "{} is not used: NVRTC {}.{} compiled it, and the driver supports CUDA {}.{}",
               archive.path().string(), archive.made_by().major, archive.made_by().minor,
               here->version / 1000, here->version % 1000 / 10);
}

/// Of the archive that was installed.
Result<Cubin> carried(const KernelUnit& unit, const std::string& architecture) {
  const Result<KernelArchive>& archive = installed_archive();
  if (!archive) return archive.status();
  HEDDLE_TRY(check_driver(*archive));
  return archive->find(unit.source, architecture);
}

Compiled find_or_compile(const KernelUnit& unit, const std::string& architecture) {
  Result<Cubin> found = carried(unit, architecture);
  const Status none = found.status();
  if (!found) found = compiled_here(unit, architecture);
  if (found) return std::make_shared<const Cubin>(std::move(*found));
  // Where there is no compiler, what was compiled beforehand is all there is.
  if (compiler_version().is_ok()) return found.status();
  return error(found.status().code(), "{}; {}", found.status().message(), none.message());
}

}  // namespace

Result<Cubin> compiled_here(const KernelUnit& unit, const std::string& architecture) {
  HEDDLE_ASSIGN(const CompilerVersion version, compiler_version());
  const std::filesystem::path root = KernelCache::default_root();
  if (root.empty()) return compile(unit.source, unit.name, architecture);
  const KernelKey key = kernel_key(unit.source, architecture, version);
  const KernelCache cache(root);
  if (Result<Cubin> found = cache.find(key); found.is_ok()) return found;

  std::error_code ignored;
  std::filesystem::create_directories(root / "locks", ignored);
  // 256 lock files for all keys: they are never removed, since removing one that is waited for
  // would split it.
  const ProcessLock lock(root / "locks" / key.digest().substr(kDigestDigits - 2));
  if (Result<Cubin> found = cache.find(key); found.is_ok()) return found;
  HEDDLE_ASSIGN(Cubin cubin, compile(unit.source, unit.name, architecture));
  // An unwritable cache costs a compilation per process, and `heddle doctor` reports it.
  if (cache.store(key, unit.name, cubin, unit.made_for).is_ok()) {
    const Result<int64_t> limit = cache_limit_bytes();
    (void)cache.prune(limit.is_ok() ? *limit : kDefaultCacheLimit);
  }
  return cubin;
}

Compiled compiled_kernel(const KernelUnit& unit, const std::string& architecture) {
  // What has landed stays: plans, which also live long, hold most of it anyway.
  static std::mutex mutex;
  static std::map<std::string, std::shared_future<Compiled>> flights;

  const std::string asked = architecture + "\n" + unit.source;
  std::promise<Compiled> promise;
  std::shared_future<Compiled> flight;
  bool mine = false;
  {
    const std::lock_guard lock(mutex);
    auto [at, inserted] = flights.try_emplace(asked);
    if (inserted) at->second = promise.get_future().share();
    flight = at->second;
    mine = inserted;
  }
  if (mine) {
    // A failure is not kept: its cause (a full disk, a missing library, no memory) may pass.
    const auto forget = [&] {
      const std::lock_guard lock(mutex);
      flights.erase(asked);
    };
    try {
      Compiled result = find_or_compile(unit, architecture);
      if (!result.is_ok()) forget();
      promise.set_value(std::move(result));
    } catch (...) {
      forget();
      promise.set_exception(std::current_exception());
    }
  }
  return flight.get();
}

}  // namespace heddle::engine::cuda
