// Executions of a plan on the arrays of a Python program, read in C. A binding that asks each array
// in Python for its address, type and strides takes longer over that than a GPU's launch takes.
#include <array>
#include <cstdint>
#include <optional>

#include "api/executable.h"
#include "heddle/heddle.h"

namespace heddle::api {
namespace {

/// DLPack's DLTensor.
struct DlTensor {
  void* data;
  int32_t device, device_id;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* dims;
  const int64_t* strides;  ///< in elements; null: row-major
  uint64_t byte_offset;

  void* address() const { return static_cast<char*>(data) + byte_offset; }
};

struct DlType {
  uint8_t code, bits;
};

/// DLPack's name of a data type, by heddle_dtype.
constexpr auto kTypes = [] {
  constexpr uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4m3fn = 10,
                    kE5m2 = 12;
  std::array<DlType, HEDDLE_BOOLEAN + 1> types{};
  types[HEDDLE_F64] = {kFloat, 64};
  types[HEDDLE_F32] = {kFloat, 32};
  types[HEDDLE_BF16] = {kBfloat, 16};
  types[HEDDLE_F16] = {kFloat, 16};
  types[HEDDLE_F8E4M3] = {kE4m3fn, 8};
  types[HEDDLE_F8E5M2] = {kE5m2, 8};
  types[HEDDLE_I64] = {kInt, 64};
  types[HEDDLE_I32] = {kInt, 32};
  types[HEDDLE_I8] = {kInt, 8};
  types[HEDDLE_U64] = {kUint, 64};
  types[HEDDLE_U32] = {kUint, 32};
  types[HEDDLE_U8] = {kUint, 8};
  types[HEDDLE_BOOLEAN] = {kBool, 8};
  return types;
}();

int32_t dl_device(heddle_device device) {
  constexpr int32_t kCpu = 1, kCuda = 2;
  return device == HEDDLE_CUDA ? kCuda : kCpu;
}

bool has_type(const DlTensor& tensor, heddle_dtype dtype) {
  const size_t index = static_cast<size_t>(dtype);
  return index < kTypes.size() && tensor.code == kTypes[index].code &&
         tensor.bits == kTypes[index].bits && tensor.lanes == 1;
}

int64_t element_count(const DlTensor& tensor) {
  int64_t elements = 1;
  for (int32_t d = 0; d < tensor.rank; ++d) elements *= tensor.dims[d];
  return elements;
}

bool is_row_major(const DlTensor& tensor) {
  if (!tensor.strides) return true;
  int64_t step = 1;
  for (int32_t d = tensor.rank; d-- > 0;) {
    if (tensor.dims[d] > 1 && tensor.strides[d] != step) return false;
    step *= tensor.dims[d];
  }
  return true;
}

/// Elements from the first to past the last.
int64_t span(const DlTensor& tensor) {
  const int64_t elements = element_count(tensor);
  if (!tensor.strides || elements == 0) return elements;
  int64_t reach = 1;
  for (int32_t d = 0; d < tensor.rank; ++d) {
    if (tensor.dims[d] > 1) reach += (tensor.dims[d] - 1) * tensor.strides[d];
  }
  return reach;
}

/// An object as an array; none if it is of another type, or its library does not let it be read.
std::optional<DlTensor> read(const heddle_python& python, void* object) {
  void* const type = python.type_of(object);
  python.release(type);  // the object has it
  if (type != python.array_type) return std::nullopt;
  DlTensor tensor;
  if (python.read_array(object, &tensor) == 0) return tensor;
  python.clear_error();
  return std::nullopt;
}

/// The addresses of the arrays in a tuple; false if one is not what is expected.
bool find_arrays(const heddle_python_call& call, void* tuple, void** addresses) {
  for (size_t i = 0; i < call.count; ++i) {
    void* const object = call.python->tuple_item(tuple, static_cast<ptrdiff_t>(i));
    if (!object) {
      call.python->clear_error();
      return false;
    }
    const heddle_python_array& expected = call.arrays[i];
    const std::optional<DlTensor> tensor = read(*call.python, object);
    if (!tensor || !has_type(*tensor, expected.dtype) ||
        tensor->device != dl_device(expected.device) || span(*tensor) < expected.elements) {
      return false;
    }
    addresses[i] = tensor->address();
  }
  return true;
}

/// The address of the workspace, null of one that is not needed; false if it does not do.
bool find_workspace(const heddle_python_call& call, void* object, void*& address) {
  const std::optional<DlTensor> tensor = read(*call.python, object);
  if (!tensor) return false;
  address = tensor->address();
  if (call.workspace_bytes == 0) return true;
  return tensor->device == dl_device(call.device) && is_row_major(*tensor) &&
         static_cast<uint64_t>(element_count(*tensor)) * tensor->bits * tensor->lanes / 8 >=
             call.workspace_bytes;
}

}  // namespace
}  // namespace heddle::api

extern "C" int heddle_python_execute(const heddle_python_call* call, void* tuple, void* workspace,
                                     void* stream) {
  using namespace heddle::api;
  constexpr int kNotAsExpected = -1;
  std::array<void*, Executable::kMaxPorts> addresses;
  void* scratch = nullptr;
  if (!call || !call->python || !tuple || !workspace || (call->count > 0 && !call->arrays) ||
      call->count > addresses.size() || !find_arrays(*call, tuple, addresses.data()) ||
      !find_workspace(*call, workspace, scratch)) {
    return kNotAsExpected;
  }
  void* const state = call->python->let_others_run();
  const heddle_status status = heddle_plan_execute(call->plan, call->uids, addresses.data(),
                                                   call->count, nullptr, 0, scratch, stream);
  call->python->run_again(state);
  return status;
}
