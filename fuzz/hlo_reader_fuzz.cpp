// Any bytes given to the HLO reader yield a module or a sentence; a module it accepts is written
// and read back as an equal module.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "hlo/module.h"
#include "hlo/read.h"
#include "hlo/write.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace heddle::hlo;
  const auto first = read_text(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!first) return 0;
  const std::string text = write_text(**first);
  const auto second = read_text(text);
  std::string difference = second ? "" : second.status().message();
  if (!second || !equal(**first, **second, &difference)) {
    std::fprintf(stderr, "not read back as it was: %s\n%s\n", difference.c_str(), text.c_str());
    std::abort();
  }
  return 0;
}
