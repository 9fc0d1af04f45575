// The handlers that XLA calls, and their registration.
#include <algorithm>

#include "api/c_error.h"
#include "api/xla_call.h"

namespace heddle::api::xla {
namespace {

// Hosts from jaxlib 0.4.32 to 0.8.0 want 0.1, and the oldest of them do not give their own when
// they ask; later ones take any from 0.1 to their own. The newest this declaration was tried with
// is 0.4.
constexpr int kOldestMinor = 1, kNewestMinor = 4;

int reported_minor(const Api* host) {
  return host ? std::clamp(host->api_version.minor, kOldestMinor, kNewestMinor) : kOldestMinor;
}

bool fill_metadata(const CallFrame& frame, engine::Device device) {
  for (Extension* e = frame.header.extension_start; e; e = e->next) {
    if (e->type != kMetadata) continue;
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata.api_version.major = 0;
    metadata.api_version.minor = reported_minor(frame.api);
    // A GPU's handler only launches, the same each time: XLA may capture it into a CUDA graph.
    metadata.traits = device == engine::Device::cuda ? kCommandBufferCompatible : 0;
    return true;
  }
  return false;
}

ErrorCode error_code(Code code) {
  switch (code) {
    case Code::graph_not_supported:
    case Code::graph_execution_plan_creation_failed:
      return ErrorCode::unimplemented;
    case Code::out_of_memory:
      return ErrorCode::resource_exhausted;
    case Code::graph_execution_failed:
    case Code::cuda_api_failed:
    case Code::nvrtc_compilation_failed:
      return ErrorCode::internal;
    default:
      return ErrorCode::invalid_argument;
  }
}

Error* make_error(const Api& api, ErrorCode code, const char* message) {
  ErrorCreateArgs args{{sizeof(ErrorCreateArgs), nullptr}, message, code};
  return api.error_create(&args);
}

Result<void*> stream_of(const CallFrame& frame) {
  StreamGetArgs args{{sizeof(StreamGetArgs), nullptr}, frame.context, nullptr};
  if (frame.api->stream_get(&args))
    return error(Code::cuda_api_failed, "XLA gave no stream for the custom call.");
  return args.stream;
}

Error* handle(CallFrame* frame, engine::Device device) noexcept {
  if (!frame || fill_metadata(*frame, device) || !frame->api)
    return nullptr;  // null: no host to tell
  if (frame->header.struct_size < sizeof(CallFrame)) {
    return make_error(*frame->api, ErrorCode::invalid_argument,
                      "The call frame is older than FFI 0.1.");
  }
  if (frame->stage != Stage::initialize && frame->stage != Stage::execute) return nullptr;
  static PlanCache cpu_plans(engine::Device::cpu), cuda_plans(engine::Device::cuda);
  const heddle_status code = guarded([&]() -> Status {
    PlanCache& plans = device == engine::Device::cpu ? cpu_plans : cuda_plans;
    if (frame->stage == Stage::initialize) return prepare(*frame, plans);
    if (device == engine::Device::cpu) return call(*frame, plans, nullptr);
    HEDDLE_ASSIGN(void* const stream, stream_of(*frame));
    return call(*frame, plans, stream);
  });
  if (code == HEDDLE_OK) return nullptr;
  return make_error(*frame->api, error_code(static_cast<Code>(code)), heddle_last_error());
}

Error* handle_cpu(CallFrame* frame) { return handle(frame, engine::Device::cpu); }
Error* handle_cuda(CallFrame* frame) { return handle(frame, engine::Device::cuda); }

bool register_handler(const Api& api, std::string_view platform, Handler* handler,
                      engine::Device device) {
  constexpr std::string_view kName = "heddle";
  HandlerRegisterArgs args{};
  args.header.struct_size = sizeof(HandlerRegisterArgs);
  args.name = {kName.data(), kName.size()};
  args.platform = {platform.data(), platform.size()};
  args.bundle.execute = handler;
  if (device == engine::Device::cuda) {
    args.bundle.initialize = handler;
    args.traits = kCommandBufferCompatible;
  }
  return api.handler_register(&args) == nullptr;
}

}  // namespace
}  // namespace heddle::api::xla

namespace xla = heddle::api::xla;

extern "C" {

XLA_FFI_Error* heddle_xla_ffi_handler(XLA_FFI_CallFrame* frame) {
  return reinterpret_cast<XLA_FFI_Error*>(
      xla::handle_cpu(reinterpret_cast<xla::CallFrame*>(frame)));
}

XLA_FFI_Error* heddle_xla_ffi_handler_cuda(XLA_FFI_CallFrame* frame) {
  return reinterpret_cast<XLA_FFI_Error*>(
      xla::handle_cuda(reinterpret_cast<xla::CallFrame*>(frame)));
}

int heddle_xla_register_all(const XLA_FFI_Api* given) {
  int failed = 0;
  (void)heddle::api::guarded([&]() -> heddle::Status {
    if (!given) {
      failed = 2;
      return heddle::api::null_argument("heddle_xla_register_all", "api");
    }
    const auto& api = *reinterpret_cast<const xla::Api*>(given);
    failed += !xla::register_handler(api, "Host", xla::handle_cpu, heddle::engine::Device::cpu);
    failed += !xla::register_handler(api, "CUDA", xla::handle_cuda, heddle::engine::Device::cuda);
    if (failed == 0) return {};
    return heddle::error(heddle::Code::handle_error,
                         "XLA refused {} of the 2 registrations of \"heddle\".", failed);
  });
  return failed;
}

}  // extern "C"
