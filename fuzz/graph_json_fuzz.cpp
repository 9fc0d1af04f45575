// Any bytes given to the graph reader yield a graph or a sentence; a graph that is also valid is
// written and read back as the same graph.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "graph/text.h"
#include "graph/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace heddle::graph;
  auto first = read_text(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!first || !validate(*first).is_ok()) return 0;
  for (const TextLayout layout : {TextLayout::line, TextLayout::indented}) {
    const std::string text = write_text(*first, layout);
    const auto second = read_text(text);
    // Compared as text: a graph that holds a NaN does not equal itself.
    if (!second || write_text(*second, layout) != text) {
      std::fprintf(stderr, "not read back as it was: %s\n%s\n",
                   second ? "another graph" : second.status().message().c_str(), text.c_str());
      std::abort();
    }
  }
  return 0;
}
