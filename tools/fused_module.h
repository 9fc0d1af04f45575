// A module before and after the rewriter.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "engine/engine.h"
#include "hlo/module.h"
#include "rewrite/rewrite.h"

namespace heddle::tools {

struct FusedModule {
  std::unique_ptr<hlo::Module> original;
  std::unique_ptr<hlo::Module> fused;
  rewrite::Report report;
};

/// Reads HLO text (errors name `file`, line and column) and fuses what one of the engines can run.
Result<FusedModule> fuse_text(std::string_view text, const std::string& file,
                              std::span<const engine::Engine* const> engines);

/// Drawings of what changed in every computation that holds a fused call, as it was and as it is,
/// as Graphviz text.
Result<std::string> before_and_after(const FusedModule& module);

}  // namespace heddle::tools
