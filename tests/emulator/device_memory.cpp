#include "emulator/device_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <shared_mutex>

#include "emulator/block.h"

namespace heddle::emulator {
namespace {

constexpr uint64_t kPage = 4096, kAlignment = 256;

struct Allocation {
  uint64_t bytes, mapped_at, mapped;
};

struct Allocations {
  std::shared_mutex mutex;
  std::map<uint64_t, Allocation> by_address;
};

Allocations& allocations() {
  static auto& all = *new Allocations;
  return all;
}

}  // namespace

uint64_t allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > uint64_t{1} << 40) return 0;
  const uint64_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment,
                 pages = (used + kPage - 1) / kPage * kPage;
  void* const begin = ::mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return 0;
  ::mprotect(static_cast<char*>(begin) + pages, kPage, PROT_NONE);
  const uint64_t mapped_at = reinterpret_cast<uint64_t>(begin), address = mapped_at + pages - used;
  const std::unique_lock lock(allocations().mutex);
  allocations().by_address[address] = {bytes, mapped_at, pages + kPage};
  return address;
}

bool release(uint64_t address) {
  const std::unique_lock lock(allocations().mutex);
  const auto at = allocations().by_address.find(address);
  if (at == allocations().by_address.end()) return false;
  ::munmap(reinterpret_cast<void*>(at->second.mapped_at), at->second.mapped);
  allocations().by_address.erase(at);
  return true;
}

bool is_allocated(const void* from, u64 bytes) {
  const auto address = reinterpret_cast<uint64_t>(from);
  const std::shared_lock lock(allocations().mutex);
  auto at = allocations().by_address.upper_bound(address);
  if (at == allocations().by_address.begin()) return false;
  --at;
  return address + bytes <= at->first + at->second.bytes;
}

}  // namespace heddle::emulator
