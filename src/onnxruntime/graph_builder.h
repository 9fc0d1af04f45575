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
  int64_t constant(const char* name, double value, DataType dtype = DataType::f32);
  /// Whole numbers that ops compute are f32's, exact up to here.
  static constexpr int64_t kMostWhole = int64_t{1} << 24;
  /// One of them, at most kMostWhole.
  int64_t whole(int64_t value);
  /// A number that lies in the host's memory at each execution.
  int64_t by_value(int64_t uid, const char* name, DataType dtype);

  /// Begins a node, to which what is set from then on belongs.
  void node(const char* op);
  void tensor(const char* port, int64_t uid);
  void number(const char* attribute, double value);
  void integer(const char* attribute, int64_t value);
  void flag(const char* attribute, bool value);
  void choice(const char* attribute, const char* value);
  /// One more op of the score's expression; gives what it makes. `axis` is gen_index's.
  int64_t pointwise(const char* op, std::initializer_list<int64_t> inputs, int32_t axis = 0);

  /// A node of its own that computes `y` element by element; gives `y`.
  int64_t elementwise(const char* mode, std::initializer_list<int64_t> inputs, int64_t y);
  /// The index along an axis, of that many steps.
  int64_t index(int axis, int64_t steps);
  /// One length, a number of i32, for every entry of the batch, as ops take them.
  int64_t lengths(const char* name, int64_t batch, int64_t each);

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
