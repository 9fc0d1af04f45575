#include "emulator/module_memory.h"

#include <link.h>

#include <utility>

namespace heddle::emulator {

ModuleMemory module_memory_of(const unsigned char* place) {
  std::pair<const unsigned char*, ModuleMemory> search{place, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* given) {
        auto& [at, found] = *static_cast<decltype(search)*>(given);
        auto* const begin = static_cast<unsigned char*>(module->dlpi_tls_data);
        for (int n = 0; begin && n < module->dlpi_phnum; ++n) {
          const auto& header = module->dlpi_phdr[n];
          if (header.p_type != PT_TLS || at < begin || at >= begin + header.p_memsz) continue;
          found = {begin, header.p_memsz};
          return 1;
        }
        return 0;
      },
      &search);
  return search.second;
}

}  // namespace heddle::emulator
