#include "host.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

namespace heddle::onnxruntime {

namespace abi {
struct Status {
  std::string text;
};
struct ShapeInfo {
  const Value* value;
};
struct MemoryInfo {
  int gpu = -1;  ///< -1: the host's
};
struct CustomOpDomain {};
}  // namespace abi

namespace {

Host* current = nullptr;
abi::MemoryInfo host_memory, gpu_memory[]{{0}, {1}};
/// Where the blocks are that are lent for a stream.
std::set<void*> of_streams;
abi::CustomOpDomain custom_domain;

}  // namespace

struct HostFunctions {
  static abi::Status* failed(const char* text) {
    ++current->lent_.statuses;
    return new abi::Status{text};
  }
  /// Null, or the failure that this call was told to have.
  static abi::Status* done() {
    return ++current->calls_ == current->failing_ ? failed("the host failed") : nullptr;
  }

  static abi::Status* create_status(abi::ErrorCode, const char* message) { return failed(message); }
  static const char* get_error_message(const abi::Status* status) { return status->text.c_str(); }
  static void release_status(abi::Status* status) {
    --current->lent_.statuses;
    delete status;
  }

  static abi::Status* create_custom_op_domain(const char* name, abi::CustomOpDomain** domain) {
    current->domain_ = name;
    *domain = &custom_domain;
    return done();
  }
  static abi::Status* custom_op_domain_add(abi::CustomOpDomain*, const abi::CustomOp* op) {
    current->operators_.push_back(op);
    return done();
  }
  static abi::Status* add_custom_op_domain(abi::SessionOptions*, abi::CustomOpDomain*) {
    return done();
  }

  static abi::Status* get_tensor_mutable_data(abi::Value* value, void** data) {
    *data = value->data;
    return done();
  }
  static abi::Status* get_tensor_type_and_shape(const abi::Value* value, abi::ShapeInfo** info) {
    if (abi::Status* status = done()) return status;
    ++current->lent_.infos;
    *info = new abi::ShapeInfo{value};
    return nullptr;
  }
  static void release_shape_info(abi::ShapeInfo* info) {
    --current->lent_.infos;
    delete info;
  }
  static abi::Status* get_tensor_element_type(const abi::ShapeInfo* info, abi::ElementType* type) {
    *type = info->value->type;
    return done();
  }
  static abi::Status* get_dimensions_count(const abi::ShapeInfo* info, size_t* count) {
    *count = info->value->dims.size();
    return done();
  }
  static abi::Status* get_dimensions(const abi::ShapeInfo* info, int64_t* dims, size_t count) {
    std::memcpy(dims, info->value->dims.data(), count * sizeof(int64_t));
    return done();
  }

  template <class T>
  static abi::Status* attribute(const abi::KernelInfo* info, const char* name, T* value) {
    const auto found = info->attributes.find(name);
    const T* const given =
        found == info->attributes.end() ? nullptr : std::get_if<T>(&found->second);
    if (!given) return failed("no such attribute");
    *value = *given;
    return nullptr;
  }
  static abi::Status* copy_text(const std::string& text, char* out, size_t* size) {
    if (out) std::memcpy(out, text.c_str(), text.size() + 1);
    *size = text.size() + 1;
    return done();
  }
  static abi::Status* get_attribute_string(const abi::KernelInfo* info, const char* name, char* out,
                                           size_t* size) {
    std::string text;
    if (abi::Status* status = attribute(info, name, &text)) return status;
    return copy_text(text, out, size);
  }
  static abi::Status* kernel_output_count(const abi::KernelInfo* info, size_t* count) {
    *count = info->outputs.size();
    return done();
  }
  static abi::Status* kernel_output_name(const abi::KernelInfo* info, size_t index, char* out,
                                         size_t* size) {
    return copy_text(info->outputs[index], out, size);
  }

  static abi::Status* node_name(const abi::KernelInfo* info, char* out, size_t* size) {
    return copy_text(info->name, out, size);
  }

  static abi::Status* get_input_count(const abi::KernelContext* context, size_t* count) {
    *count = context->inputs.size();
    return done();
  }
  static abi::Status* get_input(const abi::KernelContext* context, size_t index,
                                const abi::Value** value) {
    *value = context->inputs[index];
    return done();
  }
  static abi::Status* get_output(abi::KernelContext* context, size_t index, const int64_t* dims,
                                 size_t rank, abi::Value** value) {
    if (context->outputs[index]->dims != std::vector<int64_t>(dims, dims + rank))
      return failed("other dims than expected");
    *value = context->outputs[index];
    return done();
  }

  static abi::Status* get_tensor_memory_info(const abi::Value* value,
                                             const abi::MemoryInfo** info) {
    *info = value->gpu < 0 ? &host_memory : &gpu_memory[value->gpu];
    return done();
  }
  static abi::Status* memory_info_id(const abi::MemoryInfo* info, int* id) {
    *id = std::max(info->gpu, 0);
    return done();
  }
  static abi::Status* get_gpu_stream(const abi::KernelContext* context, void** stream) {
    *stream = context->stream;
    return done();
  }
  static abi::Status* get_allocator(const abi::KernelContext*, const abi::MemoryInfo* info,
                                    abi::Allocator** allocator) {
    if (info->gpu >= 0) return failed("a GPU's kernel has its own allocator");
    if (abi::Status* status = done()) return status;
    ++current->lent_.allocators;
    *allocator = new abi::Allocator{abi::kApiVersion,
                                    [](abi::Allocator*, size_t bytes) -> void* {
                                      if (current->out_of_memory_) return nullptr;
                                      ++current->lent_.blocks;
                                      return std::malloc(bytes);
                                    },
                                    [](abi::Allocator*, void* memory) {
                                      --current->lent_.blocks;
                                      std::free(memory);
                                    },
                                    nullptr};
    return nullptr;
  }
  /// Of a GPU's memory: it lends nothing by itself, and takes back what was lent for a stream.
  static abi::Status* kernel_allocator(const abi::KernelInfo* info, abi::MemoryType type,
                                       abi::Allocator** allocator) {
    if (abi::Status* status = done()) return status;
    if (info->gpu < 0 || type != abi::MemoryType::provider) return failed("no GPU's kernel");
    ++current->lent_.allocators;
    *allocator = new abi::Allocator{
        abi::kApiVersion, [](abi::Allocator*, size_t) -> void* { return nullptr; },
        [](abi::Allocator*, void* memory) {
          if (of_streams.erase(memory) == 0) std::abort();
          --current->lent_.blocks_of_streams;
          std::free(memory);
        },
        info->gpu == 0
        ? [](const abi::Allocator*) -> const abi::MemoryInfo* { return &gpu_memory[0]; }
        : [](const abi::Allocator*) -> const abi::MemoryInfo* { return &gpu_memory[1]; }};
    return nullptr;
  }
  static abi::Status* get_scratch_buffer(const abi::KernelContext* context,
                                         const abi::MemoryInfo* info, size_t bytes, void** memory) {
    if (abi::Status* status = done()) return status;
    if (info->gpu < 0 || !context->stream) return failed("no memory of a stream's");
    if (current->out_of_memory_) {
      *memory = nullptr;
      return nullptr;
    }
    ++current->lent_.blocks_of_streams, ++current->blocks_for_streams_;
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    of_streams.insert(*memory);
    return nullptr;
  }
  static void release_allocator(abi::Allocator* allocator) {
    --current->lent_.allocators;
    delete allocator;
  }

  static void fill(abi::Api& api) {
    api.create_status = create_status, api.get_error_message = get_error_message;
    api.release_status = release_status;
    api.create_custom_op_domain = create_custom_op_domain;
    api.custom_op_domain_add = custom_op_domain_add;
    api.add_custom_op_domain = add_custom_op_domain;
    api.get_tensor_mutable_data = get_tensor_mutable_data;
    api.get_tensor_element_type = get_tensor_element_type;
    api.get_dimensions_count = get_dimensions_count, api.get_dimensions = get_dimensions;
    api.get_tensor_type_and_shape = get_tensor_type_and_shape;
    api.release_shape_info = release_shape_info;
    api.get_attribute_float = attribute<float>, api.get_attribute_int64 = attribute<int64_t>;
    api.get_attribute_string = get_attribute_string;
    api.kernel_output_count = kernel_output_count, api.kernel_output_name = kernel_output_name;
    api.node_name = node_name;
    api.get_input_count = get_input_count, api.get_input = get_input, api.get_output = get_output;
    api.get_tensor_memory_info = get_tensor_memory_info, api.memory_info_id = memory_info_id;
    api.get_gpu_stream = get_gpu_stream, api.get_scratch_buffer = get_scratch_buffer;
    api.kernel_allocator = kernel_allocator;
    api.get_allocator = get_allocator, api.release_allocator = release_allocator;
  }
};

Host::Host() {
  current = this;
  HostFunctions::fill(api_);
  base_.get_api = [](uint32_t version) -> const abi::Api* {
    return version <= abi::kApiVersion ? &current->api_ : nullptr;
  };
  base_.get_version_string = [] { return "1.18.0"; };
}

std::string Host::sentence(abi::Status* status) {
  if (!status) return {};
  const std::string text = status->text;
  api_.release_status(status);
  return text;
}

}  // namespace heddle::onnxruntime
