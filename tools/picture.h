// Pictures of HLO computations through Graphviz.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "hlo/computation.h"
#include "tools/changed_part.h"

namespace heddle::tools {

/// Values this large are drawn apart: their dims hold a query length and a key length.
struct AttentionExtent {
  int64_t q_len = 0;
  int64_t kv_len = 0;
};

/// One drawing: a part of a computation, with what it reads and what reads it, and a heading.
struct Panel {
  std::string heading;
  const hlo::Computation* computation = nullptr;
  Instructions part;
};

/// The panels side by side as Graphviz text. What only moves data (reshape, broadcast, transpose,
/// convert, tuples) is drawn as a line, and elementwise operations that feed one another are one
/// box. Heddle's calls are green and say what they compute; values that hold a score for every
/// query and key are red.
std::string picture(const std::vector<Panel>& panels, const std::vector<AttentionExtent>& extents);

/// Writes Graphviz text to `path` if it ends in .dot; otherwise renders it as what the ending says
/// (svg, png, pdf) with the `dot` program. io_failed, with what to do, if that is not there.
Status write_picture(const std::string& dot_text, const std::string& path);

}  // namespace heddle::tools
