#include "engine/cpu/machine.h"

#include <unistd.h>

namespace heddle::engine::cpu {

int64_t l2_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 512 << 10;
}

}  // namespace heddle::engine::cpu
