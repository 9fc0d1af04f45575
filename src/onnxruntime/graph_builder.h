// A graph put together through the C interface; the first failure is kept and given at the end.
#pragma once

#include <initializer_list>
#include <optional>

#include "core/dims.h"
#include "core/dtype.h"
#include "onnxruntime/handles.h"

namespace heddle::onnxruntime {

class GraphBuilder {
 public:
  explicit GraphBuilder(const char* name);

  /// A tensor that an execution binds; of an output dims may be left out. Without strides it is
  /// dense.
  int64_t bound(int64_t uid, const char* name, DataType dtype, const Dims& dims = {},
                const Dims& strides = {});
  /// One that lies in the workspace, of f32 unless said.
  int64_t made(const char* name, const Dims& dims = {}, DataType dtype = DataType::f32);
  int64_t constant(const char* name, double value);

  /// Begins a node, to which what is set from then on belongs.
  void node(const char* op);
  void tensor(const char* port, int64_t uid);
  void number(const char* attribute, double value);
  void integer(const char* attribute, int64_t value);
  void flag(const char* attribute, bool value);
  void choice(const char* attribute, const char* value);
  /// One more op of the score's expression; gives what it makes.
  int64_t pointwise(const char* op, std::initializer_list<int64_t> inputs);

  /// The graph, validated.
  Result<GraphHandle> finish();

 private:
  void keep(heddle_status status);
  int64_t add(const heddle_tensor& tensor);

  GraphHandle graph_;
  int32_t node_ = 0;
  int64_t next_uid_ = 1001;  ///< of tensors that nobody binds
  Status status_;
};

}  // namespace heddle::onnxruntime
