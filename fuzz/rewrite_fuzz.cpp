// Any module, as text or in protobuf form, is rewritten or left alone: no fault inside of the
// rewriter, and what comes out is a module that is read back as it is. Inputs are changed as
// modules, not as bytes: of those few would be read.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hlo/module.h"
#include "hlo/read.h"
#include "hlo/read_proto.h"
#include "hlo/write.h"
#include "module_mutator.h"
#include "rewrite/rewrite.h"

namespace {

using namespace heddle;

bool is_text(const std::string& input) { return input.starts_with("HloModule"); }

void require(bool holds, const char* what, const std::string& why) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, why.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  auto module = is_text(input) ? hlo::read_text(input) : hlo::read_proto(input);
  if (!module) return 0;
  rewrite::Options options;
  options.workspace_bytes = [](const graph::Graph&) -> Result<int64_t> { return int64_t{64}; };
  const rewrite::Report report = rewrite::rewrite(*module, options);
  require(!report.failure.starts_with("the rewriter failed"), "a fault", report.failure);
  if (report.fusions.empty()) return 0;
  const Status status = (*module)->verify();
  require(status.is_ok(), "no module any more", status.message());
  if (is_text(input)) {
    const auto again = hlo::read_text(hlo::write_text(**module));
    require(again.is_ok(), "not read back", again.status().message());
  } else if (const auto bytes = hlo::write_proto(**module)) {
    const auto again = hlo::read_proto(*bytes);
    require(again.is_ok(), "not read back", again.status().message());
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  if (!is_text(input) || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string changed = fuzz::ModuleMutator(seed).mutate(input);
  if (changed.size() > max_size) return size;
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
