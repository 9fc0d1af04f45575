// HLO modules through the C interface: serialized in, serialized out.
#include <optional>

#include "api/c_error.h"
#include "api/c_values.h"
#include "api/executable.h"
#include "engine/devices.h"
#include "heddle/heddle.h"
#include "hlo/read_proto.h"
#include "rewrite/report.h"
#include "rewrite/rewrite.h"

struct heddle_fused_module {
  std::optional<std::string> bytes;  ///< none: nothing was fused
  std::string report;
};

namespace heddle::api {
namespace {

Status fuse(const void* module, size_t size, heddle_device device, heddle_fused_module** out) {
  constexpr const char* kFunction = "heddle_fuse_module";
  if (!module) return null_argument(kFunction, "module");
  if (!out) return null_argument(kFunction, "fused");
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  const auto engines = engine::engines(on);
  HEDDLE_ASSIGN(std::unique_ptr<hlo::Module> read,
                hlo::read_proto({static_cast<const char*>(module), size}));
  const auto workspace_bytes = [&](const graph::Graph& graph) -> Result<int64_t> {
    HEDDLE_ASSIGN(const auto executable, Executable::build(graph, engines));
    return executable->workspace_bytes();
  };
  rewrite::Report report = rewrite::rewrite(read, {workspace_bytes});
  auto fused = std::make_unique<heddle_fused_module>();
  if (!report.fusions.empty()) {
    auto bytes = hlo::write_proto(*read);
    if (bytes) {
      fused->bytes = std::move(*bytes);
    } else {
      rewrite::give_up(report, *read, bytes.status());
    }
  }
  fused->report = rewrite::to_json(report);
  *out = fused.release();
  return {};
}

}  // namespace
}  // namespace heddle::api

extern "C" {

heddle_status heddle_fuse_module(const void* module, size_t size, heddle_device device,
                                 heddle_fused_module** fused) {
  return heddle::api::guarded([&] { return heddle::api::fuse(module, size, device, fused); });
}

void heddle_fused_module_free(heddle_fused_module* fused) { delete fused; }

const void* heddle_fused_module_bytes(const heddle_fused_module* fused, size_t* size) {
  const bool changed = fused && fused->bytes;
  if (size) *size = changed ? fused->bytes->size() : 0;
  return changed ? fused->bytes->data() : nullptr;
}

const char* heddle_fused_module_report(const heddle_fused_module* fused) {
  return fused ? fused->report.c_str() : "";
}

}  // extern "C"
