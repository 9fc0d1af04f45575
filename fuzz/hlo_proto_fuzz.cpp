// Any bytes given to the protobuf reader yield a module or a sentence; a module it accepts is
// written and read back, and written again as the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "hlo/module.h"
#include "hlo/read_proto.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace heddle::hlo;
  const auto first = read_proto(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!first) return 0;
  const auto bytes = write_proto(**first);
  // What is read can be written, but for declared parameters or results that are not the entry's.
  if (!bytes) return 0;
  const auto second = read_proto(*bytes);
  const auto again = second ? write_proto(**second) : second.status();
  if (!again || *again != *bytes) {
    std::fprintf(stderr, "not read back as it was: %s\n", again.status().message().c_str());
    std::abort();
  }
  return 0;
}
