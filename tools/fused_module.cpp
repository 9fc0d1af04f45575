#include "tools/fused_module.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "api/executable.h"
#include "hlo/read.h"
#include "rewrite/canonical.h"
#include "tools/changed_part.h"
#include "tools/heddle_call.h"
#include "tools/picture.h"

namespace heddle::tools {

Result<FusedModule> fuse_text(std::string_view text, const std::string& file,
                              std::span<const engine::Engine* const> engines) {
  const auto workspace_bytes = [engines](const graph::Graph& graph) -> Result<int64_t> {
    HEDDLE_ASSIGN(const auto executable, api::Executable::build(graph, engines));
    return executable->workspace_bytes();
  };
  FusedModule result;
  HEDDLE_ASSIGN(result.original, hlo::read_text(text, file));
  rewrite::Rewritten rewritten = rewrite::rewritten(*result.original, {workspace_bytes});
  result.report = std::move(rewritten.report);
  result.fused = rewritten.module ? std::move(rewritten.module) : result.original->copy();
  return result;
}

Result<std::string> before_and_after(const FusedModule& module) {
  // The rewriter works on the canonical form, so that is what its computations are compared with.
  std::unique_ptr<hlo::Module> canonical = module.original->copy();
  HEDDLE_TRY(rewrite::canonicalise(*canonical));
  std::vector<AttentionExtent> extents;
  for (const rewrite::Fusion& fusion : module.report.fusions)
    extents.push_back({fusion.q_len, fusion.kv_len});
  std::vector<Panel> panels;
  std::set<const hlo::Computation*> drawn;
  for (const hlo::Instruction* call : heddle_calls(*module.fused)) {
    const hlo::Computation* after = call->computation();
    const hlo::Computation* before = canonical->find_computation(after->name());
    if (!drawn.insert(after).second) continue;
    if (before == nullptr) continue;  // none of the program's
    ChangedPart part = changed_part(*before, *after);
    if (part.calls == 0) continue;  // the program's own calls alone
    const std::string heading =
        part.calls == part.of
            ? after->name()
            : fmt::format("{} ({} of {} calls)", after->name(), part.calls, part.of);
    panels.push_back({heading + ", before", before, std::move(part.before)});
    panels.push_back({heading + ", after", after, std::move(part.after)});
  }
  return picture(panels, extents);
}

}  // namespace heddle::tools
