// Single flight: a kernel is compiled once, however many threads and processes ask for it.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <future>
#include <map>
#include <mutex>

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

Compiled find_or_compile(const KernelKey& key, const std::string& source, const std::string& name,
                         const std::string& architecture, const UnitSummary& made_for) {
  const std::filesystem::path root = KernelCache::default_root();
  if (root.empty()) {
    HEDDLE_ASSIGN(Cubin cubin, compile(source, name, architecture));
    return std::make_shared<const Cubin>(std::move(cubin));
  }
  const KernelCache cache(root);
  if (Result<Cubin> found = cache.find(key); found.is_ok())
    return std::make_shared<const Cubin>(std::move(*found));

  std::error_code ignored;
  std::filesystem::create_directories(root / "locks", ignored);
  // 256 lock files for all keys: they are never removed, since removing one that is waited for
  // would split it.
  const ProcessLock lock(root / "locks" / key.digest().substr(kDigestDigits - 2));
  if (Result<Cubin> found = cache.find(key); found.is_ok())
    return std::make_shared<const Cubin>(std::move(*found));
  HEDDLE_ASSIGN(Cubin cubin, compile(source, name, architecture));
  // An unwritable cache costs a compilation per process, and `heddle doctor` reports it.
  if (cache.store(key, name, cubin, made_for).is_ok()) {
    const Result<int64_t> limit = cache_limit_bytes();
    (void)cache.prune(limit.is_ok() ? *limit : kDefaultCacheLimit);
  }
  return std::make_shared<const Cubin>(std::move(cubin));
}

}  // namespace

Result<std::shared_ptr<const Cubin>> compiled_kernel(const std::string& source,
                                                     const std::string& name,
                                                     const std::string& architecture,
                                                     const UnitSummary& made_for) {
  // What has landed stays: plans, which also live long, hold most of it anyway.
  static std::mutex mutex;
  static std::map<std::string, std::shared_future<Compiled>> flights;

  HEDDLE_ASSIGN(const CompilerVersion version, compiler_version());
  const KernelKey key = kernel_key(source, architecture, version);
  std::promise<Compiled> promise;
  std::shared_future<Compiled> flight;
  bool mine = false;
  {
    const std::lock_guard lock(mutex);
    auto [at, inserted] = flights.try_emplace(key.text);
    if (inserted) at->second = promise.get_future().share();
    flight = at->second;
    mine = inserted;
  }
  if (mine) {
    // A failure is not kept: its cause (a full disk, a missing library, no memory) may pass.
    const auto forget = [&] {
      const std::lock_guard lock(mutex);
      flights.erase(key.text);
    };
    try {
      Compiled result = find_or_compile(key, source, name, architecture, made_for);
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
