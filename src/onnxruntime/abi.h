// What Heddle uses of ONNX Runtime's C interface, declared from its documentation: the functions of
// its table by their place, and the struct by which a library of operators describes one. Places
// never change, later versions append; so one declaration serves every version from kApiVersion on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::onnxruntime::abi {

/// ONNX Runtime 1.18: the first whose table has all that is used here.
inline constexpr uint32_t kApiVersion = 18;
/// Hosts infer shapes past operators of a library; 1.22 crashes where a node lacks an optional
/// input. The oldest, 1.32, that was seen not to.
inline constexpr int kShapeInferenceVersion = 32;

// The host's own, of which only addresses are known here.
struct Status;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct ShapeInfo;
struct MemoryInfo;
struct ShapeContext;
struct OpAttribute;

enum class ErrorCode : int { fail = 1, invalid_argument = 2, not_implemented = 9 };

enum class ElementType : int {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  i32 = 6,
  i64 = 7,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  bf16 = 16,
  f8e4m3 = 17,
};

enum class Characteristic : int { required = 0, optional = 1 };
enum class AttributeType : int { integer = 1 };
enum class MemoryType : int { provider = 0, cpu_input = -2 };

struct Allocator {
  uint32_t version;
  void* (*alloc)(Allocator* self, size_t bytes);
  void (*free)(Allocator* self, void* memory);
  const MemoryInfo* (*info)(const Allocator* self);
};

/// The table: places 0 to 278 are named where they are used.
struct Api {
  Status* (*create_status)(ErrorCode code, const char* message);  // 0
  void* unused_1;
  const char* (*get_error_message)(const Status* status);  // 2
  void* unused_3[23];
  Status* (*create_custom_op_domain)(const char* name, CustomOpDomain** domain);       // 26
  Status* (*custom_op_domain_add)(CustomOpDomain* domain, const struct CustomOp* op);  // 27
  Status* (*add_custom_op_domain)(SessionOptions* options, CustomOpDomain* domain);    // 28
  void* unused_29[22];
  Status* (*get_tensor_mutable_data)(Value* value, void** data);  // 51
  void* unused_52[5];
  Status* (*create_shape_info)(ShapeInfo** info);                                 // 57
  Status* (*set_tensor_element_type)(ShapeInfo* info, ElementType type);          // 58
  Status* (*set_dimensions)(ShapeInfo* info, const int64_t* dims, size_t count);  // 59
  Status* (*get_tensor_element_type)(const ShapeInfo* info, ElementType* type);   // 60
  Status* (*get_dimensions_count)(const ShapeInfo* info, size_t* count);          // 61
  Status* (*get_dimensions)(const ShapeInfo* info, int64_t* dims, size_t count);  // 62
  /// Names of dims that have no number; "" for the others.
  Status* (*get_symbolic_dimensions)(const ShapeInfo* info, const char** names,
                                     size_t count);  // 63
  void* unused_64;
  Status* (*get_tensor_type_and_shape)(const Value* value, ShapeInfo** info);  // 65
  void* unused_66[6];
  Status* (*memory_info_id)(const MemoryInfo* info, int* id);  // 72
  void* unused_73[12];
  Status* (*get_attribute_float)(const KernelInfo* info, const char* name, float* value);    // 85
  Status* (*get_attribute_int64)(const KernelInfo* info, const char* name, int64_t* value);  // 86
  /// `size` counts the end of the string; with no memory given it is asked for.
  Status* (*get_attribute_string)(const KernelInfo* info, const char* name, char* value,
                                  size_t* size);                                          // 87
  Status* (*get_input_count)(const KernelContext* context, size_t* count);                // 88
  Status* (*get_output_count)(const KernelContext* context, size_t* count);               // 89
  Status* (*get_input)(const KernelContext* context, size_t index, const Value** value);  // 90
  /// Makes the output with these dims; null if the node has no such output.
  Status* (*get_output)(KernelContext* context, size_t index, const int64_t* dims, size_t rank,
                        Value** value);  // 91
  void* unused_92;
  void (*release_status)(Status* status);  // 93
  void* unused_94[5];
  void (*release_shape_info)(ShapeInfo* info);  // 99
  void* unused_100[32];
  void (*release_allocator)(Allocator* allocator);  // 132
  void* unused_133[60];
  /// A CUstream, of a kernel of CUDA's provider.
  Status* (*get_gpu_stream)(const KernelContext* context, void** stream);          // 193
  Status* (*get_tensor_memory_info)(const Value* value, const MemoryInfo** info);  // 194
  void* unused_195[36];
  Status* (*kernel_output_count)(const KernelInfo* info, size_t* count);  // 231
  void* unused_232;
  Status* (*kernel_output_name)(const KernelInfo* info, size_t index, char* name,
                                size_t* size);  // 233
  void* unused_234[10];
  Status* (*node_name)(const KernelInfo* info, char* name, size_t* size);  // 244
  void* unused_245[8];
  /// The session's own allocator of that memory, to be released.
  Status* (*get_allocator)(const KernelContext* context, const MemoryInfo* info,
                           Allocator** allocator);  // 253
  void* unused_254[13];
  Status* (*shape_input_count)(const ShapeContext* context, size_t* count);  // 267
  /// The host's own, not to be released.
  Status* (*shape_input)(const ShapeContext* context, size_t index, ShapeInfo** info);  // 268
  Status* (*shape_attribute)(const ShapeContext* context, const char* name,
                             const OpAttribute** attribute);  // 269
  Status* (*set_shape_output)(const ShapeContext* context, size_t index,
                              const ShapeInfo* info);                                     // 270
  Status* (*set_symbolic_dimensions)(ShapeInfo* info, const char** names, size_t count);  // 271
  Status* (*read_attribute)(const OpAttribute* attribute, AttributeType type, void* data,
                            size_t bytes, size_t* read);  // 272
  void* unused_273[4];
  /// Memory for what is queued on the kernel's stream; the allocator of that memory frees it.
  Status* (*get_scratch_buffer)(const KernelContext* context, const MemoryInfo* info, size_t bytes,
                                void** memory);  // 277
  /// The allocator of the memory that the kernel's provider computes in, to be released.
  Status* (*kernel_allocator)(const KernelInfo* info, MemoryType type,
                              Allocator** allocator);  // 278
};

static_assert(offsetof(Api, add_custom_op_domain) == 28 * sizeof(void*));
static_assert(offsetof(Api, get_tensor_mutable_data) == 51 * sizeof(void*));
static_assert(offsetof(Api, get_dimensions) == 62 * sizeof(void*));
static_assert(offsetof(Api, get_tensor_type_and_shape) == 65 * sizeof(void*));
static_assert(offsetof(Api, memory_info_id) == 72 * sizeof(void*));
static_assert(offsetof(Api, get_attribute_float) == 85 * sizeof(void*));
static_assert(offsetof(Api, get_output) == 91 * sizeof(void*));
static_assert(offsetof(Api, release_status) == 93 * sizeof(void*));
static_assert(offsetof(Api, release_shape_info) == 99 * sizeof(void*));
static_assert(offsetof(Api, release_allocator) == 132 * sizeof(void*));
static_assert(offsetof(Api, get_gpu_stream) == 193 * sizeof(void*));
static_assert(offsetof(Api, get_tensor_memory_info) == 194 * sizeof(void*));
static_assert(offsetof(Api, kernel_output_count) == 231 * sizeof(void*));
static_assert(offsetof(Api, kernel_output_name) == 233 * sizeof(void*));
static_assert(offsetof(Api, node_name) == 244 * sizeof(void*));
static_assert(offsetof(Api, set_dimensions) == 59 * sizeof(void*));
static_assert(offsetof(Api, get_symbolic_dimensions) == 63 * sizeof(void*));
static_assert(offsetof(Api, get_allocator) == 253 * sizeof(void*));
static_assert(offsetof(Api, shape_input_count) == 267 * sizeof(void*));
static_assert(offsetof(Api, read_attribute) == 272 * sizeof(void*));
static_assert(offsetof(Api, get_scratch_buffer) == 277 * sizeof(void*));
static_assert(offsetof(Api, kernel_allocator) == 278 * sizeof(void*));

struct ApiBase {
  const Api* (*get_api)(uint32_t version);  ///< null: the host is older
  const char* (*get_version_string)();
};

/// An operator with its types, as the host reads it for as long as a session lives.
struct CustomOp {
  static constexpr uint32_t kVersion = 17;  ///< of this struct: the fields below

  uint32_t version;
  void* (*create_kernel)(const CustomOp* op, const Api* api, const KernelInfo* info);
  const char* (*name)(const CustomOp* op);
  const char* (*provider)(const CustomOp* op);  ///< null: the CPU's
  ElementType (*input_type)(const CustomOp* op, size_t index);
  size_t (*input_count)(const CustomOp* op);
  ElementType (*output_type)(const CustomOp* op, size_t index);
  size_t (*output_count)(const CustomOp* op);
  void (*compute)(void* kernel, KernelContext* context);
  void (*destroy)(void* kernel);
  Characteristic (*input_characteristic)(const CustomOp* op, size_t index);
  Characteristic (*output_characteristic)(const CustomOp* op, size_t index);
  MemoryType (*input_memory)(const CustomOp* op, size_t index);
  int (*variadic_input_min_arity)(const CustomOp* op);
  int (*variadic_input_homogeneity)(const CustomOp* op);
  int (*variadic_output_min_arity)(const CustomOp* op);
  int (*variadic_output_homogeneity)(const CustomOp* op);
  Status* (*create_kernel_v2)(const CustomOp* op, const Api* api, const KernelInfo* info,
                              void** kernel);
  Status* (*compute_v2)(void* kernel, KernelContext* context);
  Status* (*infer_output_shape)(const CustomOp* op, ShapeContext* shapes);  ///< may be null
  int (*start_version)(const CustomOp* op);
  int (*end_version)(const CustomOp* op);
};

}  // namespace heddle::onnxruntime::abi
