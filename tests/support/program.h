// A graph together with memory for its tensors, as a caller would hold it: every byte that no
// element owns (gaps between strides, tails of ragged packing, rows past a length) is poison, and
// so are the outputs before a run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "graph/graph.h"
#include "reference/values.h"
#include "support/random.h"

namespace heddle::testing {

/// Every byte of poison: NaN in each float type, -1 in each signed integer.
inline constexpr unsigned char kPoison = 0xFF;

/// 64-byte aligned memory, poisoned, with a poisoned guard behind its end.
class Block {
 public:
  explicit Block(int64_t bytes = 0);
  Block(const Block& other);
  Block& operator=(const Block& other);
  Block(Block&&) = default;
  Block& operator=(Block&&) = default;

  unsigned char* data() { return data_.get(); }
  const unsigned char* data() const { return data_.get(); }
  /// Bytes with the guard.
  int64_t size() const { return size_; }
  void poison();

 private:
  struct Free {
    void operator()(unsigned char* data) const;
  };
  std::unique_ptr<unsigned char, Free> data_;
  int64_t size_ = 0;
};

struct Program {
  graph::Graph graph;
  std::unordered_map<int64_t, Block> memory;  ///< by uid
  /// Tensors bound to the memory of another, by uid: caches to that of their past.
  std::unordered_map<int64_t, int64_t> in_place;
  uint64_t seed = 0, variant = 0;  ///< what drew it
  bool may_be_undefined = false;   ///< results may be NaN

  reference::Buffers buffers();
  /// A tensor with the next free uid (added to the name if that is taken); without strides it is
  /// dense.
  graph::TensorId add(std::string name, DataType dtype, Dims dims, Dims strides = {});
  /// A poisoned buffer that holds the tensor; a ragged one takes `elements`.
  void allocate(graph::TensorId id, int64_t elements = 0);
  bool is_allocated(graph::TensorId id) const { return block(id) != nullptr; }
  /// The memory that the tensor is bound to, its own or another's; null if there is none.
  const Block* block(graph::TensorId id) const;

  void set(graph::TensorId id, double value, int64_t i0, int64_t i1 = 0, int64_t i2 = 0,
           int64_t i3 = 0);
  void set_integer(graph::TensorId id, int64_t value, int64_t i0 = 0);
  /// Sets every element, rows of batch entry b at or past length(b) excepted if `length` is given.
  void fill(graph::TensorId id, const std::function<double()>& value,
            const std::function<int64_t(int64_t)>& length = nullptr);
};

/// Strides for [B,H,S,D]: batch, head and row nested in a random order with random gaps between
/// them, columns innermost with stride 1; dims of 1 have garbage for a stride. Gaps are multiples
/// of 8 elements, which a vector load wants, or (`unaligned`) of any size, but for none.
Dims random_strides(Random& random, const Dims& dims, bool unaligned = false);

}  // namespace heddle::testing
