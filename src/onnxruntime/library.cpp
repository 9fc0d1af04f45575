// What a session finds in the library: RegisterCustomOps, which tells it of the domain's operators,
// and a counter.
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>

#include "heddle/heddle.h"
#include "onnxruntime/host.h"
#include "onnxruntime/kernel.h"

namespace heddle::onnxruntime {
namespace {

/// An operator with one overload for one of the host's providers, as the host keeps it.
struct Registered : abi::CustomOp {
  const Operator* op;
  const Overload* overload;
  heddle_device device;
  const abi::Api* api;
};

const Registered& of(const abi::CustomOp* op) { return *static_cast<const Registered*>(op); }
const Operator& operator_of(const abi::CustomOp* op) { return *of(op).op; }

abi::ElementType type_of(const abi::CustomOp* op, const Port& port) {
  if (port.any) return abi::ElementType::undefined;
  return port.type != abi::ElementType::undefined ? port.type
                                                  : of(op).overload->types[port.variable];
}

abi::Characteristic characteristic_of(const Port& port) {
  return port.is_optional ? abi::Characteristic::optional : abi::Characteristic::required;
}

abi::Status* create_kernel(const abi::CustomOp* op, const abi::Api* api,
                           const abi::KernelInfo* info, void** kernel) {
  return guarded(*api, [&]() -> Status {
    HEDDLE_ASSIGN(std::unique_ptr<Kernel> made,
                  Kernel::make(operator_of(op), {of(op).device, {}}, *api, info));
    if (of(op).device != HEDDLE_CPU) HEDDLE_TRY(made->take_allocator(info));
    *kernel = made.release();
    return {};
  });
}

abi::Status* compute(void* given, abi::KernelContext* context) {
  const auto& kernel = *static_cast<const Kernel*>(given);
  return guarded(kernel.api(), [&] { return kernel.run(context); });
}

/// The first input whose type is an output's.
size_t input_like(const Operator& op, const Port& output) {
  size_t n = 0;
  while (n + 1 < op.inputs.size() && (op.inputs[n].type != abi::ElementType::undefined ||
                                      op.inputs[n].variable != output.variable))
    ++n;
  return n;
}

abi::Status* infer_shape(const abi::CustomOp* op, abi::ShapeContext* given) {
  const abi::Api& api = *of(op).api;
  return guarded(api, [&]() -> Status {
    const ShapeContext context(api, given);
    const Operator& known = operator_of(op);
    const std::optional<SymbolicDims> dims = known.shape(context);
    const abi::ElementType type = context.type(input_like(known, known.outputs[0]));
    if (!dims || type == abi::ElementType::undefined) return {};
    return context.set_output(0, type, *dims);
  });
}

Registered registered(const Operator& op, const Overload& overload, heddle_device device,
                      const abi::Api& api, bool infers_shapes) {
  Registered out{};
  out.version = abi::CustomOp::kVersion;
  out.op = &op, out.overload = &overload, out.device = device, out.api = &api;
  out.name = [](const abi::CustomOp* self) { return operator_of(self).name; };
  out.provider = [](const abi::CustomOp* self) -> const char* {
    return of(self).device == HEDDLE_CUDA ? "CUDAExecutionProvider" : nullptr;
  };
  out.input_count = [](const abi::CustomOp* self) { return operator_of(self).inputs.size(); };
  out.output_count = [](const abi::CustomOp* self) { return operator_of(self).outputs.size(); };
  out.input_type = [](const abi::CustomOp* self, size_t n) {
    return type_of(self, operator_of(self).inputs[n]);
  };
  out.output_type = [](const abi::CustomOp* self, size_t n) {
    return type_of(self, operator_of(self).outputs[n]);
  };
  out.input_characteristic = [](const abi::CustomOp* self, size_t n) {
    return characteristic_of(operator_of(self).inputs[n]);
  };
  out.output_characteristic = [](const abi::CustomOp* self, size_t n) {
    return characteristic_of(operator_of(self).outputs[n]);
  };
  out.input_memory = [](const abi::CustomOp* self, size_t n) {
    return operator_of(self).inputs[n].on_host ? abi::MemoryType::cpu_input
                                               : abi::MemoryType::provider;
  };
  const auto none = [](const abi::CustomOp*) { return 0; };
  out.variadic_input_min_arity = out.variadic_input_homogeneity = none;
  out.variadic_output_min_arity = out.variadic_output_homogeneity = none;
  out.create_kernel_v2 = create_kernel;
  out.compute_v2 = compute;
  if (infers_shapes) out.infer_output_shape = infer_shape;
  out.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  out.start_version = [](const abi::CustomOp* self) { return operator_of(self).first_version; };
  out.end_version = [](const abi::CustomOp*) { return INT_MAX; };
  return out;
}

/// Whether a host is of version 1.`minor` or later, by its name: one that is asked for a table it
/// does not have prints so.
bool is_from(const abi::ApiBase& base, long minor) {
  char* rest;
  const long major = std::strtol(base.get_version_string(), &rest, 10);
  return major > 1 || (major == 1 && *rest == '.' && std::strtol(rest + 1, nullptr, 10) >= minor);
}

/// Our domain as a host has it; sessions refer to it as long as they live.
struct HostDomain {
  std::vector<Registered> operators;
  abi::CustomOpDomain* domain = nullptr;
};

Status fill(HostDomain& made, const abi::Api& api, bool infers_shapes) {
  // A host without CUDA's provider passes its operators over; of those of one name the types of the
  // first are looked at first, whichever provider they are for.
  for (const heddle_device device : {HEDDLE_CPU, HEDDLE_CUDA}) {
    for (const Operator* op : domain().operators) {
      for (const Overload& overload : op->overloads)
        made.operators.push_back(registered(*op, overload, device, api, infers_shapes));
    }
  }
  abi::CustomOpDomain* filled;
  HEDDLE_TRY(status_from(api, api.create_custom_op_domain(domain().name, &filled)));
  for (const Registered& op : made.operators)
    HEDDLE_TRY(status_from(api, api.custom_op_domain_add(filled, &op)));
  made.domain = filled;
  return {};
}

Result<abi::CustomOpDomain*> domain_of(const abi::Api& api, bool infers_shapes) {
  static std::mutex mutex;
  static std::map<const abi::Api*, std::unique_ptr<HostDomain>> domains;
  const std::lock_guard lock(mutex);
  std::unique_ptr<HostDomain>& known = domains[&api];
  if (!known) {
    auto made = std::make_unique<HostDomain>();
    HEDDLE_TRY(fill(*made, api, infers_shapes));
    known = std::move(made);
  }
  return known->domain;
}

}  // namespace
}  // namespace heddle::onnxruntime

namespace ort = heddle::onnxruntime;

extern "C" {

/// What a session's register_custom_ops_library calls.
HEDDLE_API ort::abi::Status* RegisterCustomOps(ort::abi::SessionOptions* options,
                                               const ort::abi::ApiBase* base);
HEDDLE_API uint64_t heddle_onnxruntime_calls(void);

ort::abi::Status* RegisterCustomOps(ort::abi::SessionOptions* options,
                                    const ort::abi::ApiBase* base) {
  const ort::abi::Api* const api = base->get_api(ort::abi::kApiVersion);
  if (!api) {
    // The first function of the first version's table makes a failure: all hosts have that.
    const ort::abi::Api* const first = base->get_api(1);
    if (!first) return nullptr;
    return ort::guarded(*first, [&] {
      return heddle::error(heddle::Code::graph_not_supported,
                           "Heddle's operators need ONNX Runtime 1.{} or later, this is {}.",
                           ort::abi::kApiVersion, base->get_version_string());
    });
  }
  return ort::guarded(*api, [&]() -> heddle::Status {
    const bool infers_shapes = ort::is_from(*base, ort::abi::kShapeInferenceVersion);
    HEDDLE_ASSIGN(ort::abi::CustomOpDomain* const domain, ort::domain_of(*api, infers_shapes));
    return ort::status_from(*api, api->add_custom_op_domain(options, domain));
  });
}

uint64_t heddle_onnxruntime_calls(void) { return ort::calls(); }

}  // extern "C"
