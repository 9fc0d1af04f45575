// Static shared memory: a kernel's __shared__ variables are its module's thread-local ones, and a
// block is an operating system's thread.
#pragma once

#include <cstddef>

namespace heddle::emulator {

struct ModuleMemory {
  unsigned char* begin = nullptr;
  size_t bytes = 0;
};

/// All thread-local memory of the module in whose, of this thread, `place` lies.
ModuleMemory module_memory_of(const unsigned char* place);

}  // namespace heddle::emulator
