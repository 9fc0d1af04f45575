// What a session finds in the library: RegisterCustomOps, which tells it of the domain's operators,
// and a counter.
#include <climits>
#include <map>
#include <mutex>

#include "heddle/heddle.h"
#include "onnxruntime/host.h"
#include "onnxruntime/kernel.h"

namespace heddle::onnxruntime {
namespace {

/// An operator with one overload, as the host keeps it.
struct Registered : abi::CustomOp {
  const Operator* op;
  const Overload* overload;
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
    HEDDLE_ASSIGN(std::unique_ptr<Kernel> made, Kernel::make(operator_of(op), *api, info));
    *kernel = made.release();
    return {};
  });
}

abi::Status* compute(void* given, abi::KernelContext* context) {
  const auto& kernel = *static_cast<const Kernel*>(given);
  return guarded(kernel.api(), [&] { return kernel.run(context); });
}

Registered registered(const Operator& op, const Overload& overload) {
  Registered out{};
  out.version = abi::CustomOp::kVersion;
  out.op = &op, out.overload = &overload;
  out.name = [](const abi::CustomOp* self) { return operator_of(self).name; };
  out.provider = [](const abi::CustomOp*) -> const char* { return nullptr; };
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
  out.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  out.start_version = [](const abi::CustomOp* self) { return operator_of(self).first_version; };
  out.end_version = [](const abi::CustomOp*) { return INT_MAX; };
  return out;
}

/// The domain as this host has it, which sessions refer to as long as they live.
Result<abi::CustomOpDomain*> domain_of(const abi::Api& api) {
  static const std::vector<Registered> operators = [] {
    std::vector<Registered> all;
    for (const Operator* op : domain().operators) {
      for (const Overload& overload : op->overloads) all.push_back(registered(*op, overload));
    }
    return all;
  }();
  static std::mutex mutex;
  static std::map<const abi::Api*, abi::CustomOpDomain*> domains;
  const std::lock_guard lock(mutex);
  abi::CustomOpDomain*& known = domains[&api];
  if (known) return known;
  abi::CustomOpDomain* made;
  HEDDLE_TRY(status_from(api, api.create_custom_op_domain(domain().name, &made)));
  for (const Registered& op : operators)
    HEDDLE_TRY(status_from(api, api.custom_op_domain_add(made, &op)));
  return known = made;
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
    HEDDLE_ASSIGN(ort::abi::CustomOpDomain* const domain, ort::domain_of(*api));
    return ort::status_from(*api, api->add_custom_op_domain(options, domain));
  });
}

uint64_t heddle_onnxruntime_calls(void) { return ort::calls(); }

}  // extern "C"
