// Constant and run-time values: dense row-major arrays, tuples of them, and unknown ones.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "hlo/shape.h"

namespace heddle::hlo {

/// Counts the bytes of the Literals made with it, so that a limit can be kept.
struct MemoryMeter {
  int64_t used = 0;
  int64_t limit = 0;
};

/// A value of an HLO shape. Elements lie row-major whatever the shape's layout says, each in
/// size_of(type) bytes (pred and the 2- and 4-bit integers in a byte, sign-extended). Copies share
/// their elements, a tuple's too, until one of them is written to, so a Literal is passed by value
/// freely.
class Literal {
 public:
  /// A scalar pred, false.
  Literal();
  /// Zeros of `shape`. Fails with out_of_memory if they cannot be had.
  static Result<Literal> zeros(const Shape& shape);
  /// The same with elements undefined. With a `meter`, fails too if its limit would be exceeded;
  /// the bytes are counted until the last Literal sharing them is gone. Meters are not thread-safe.
  static Result<Literal> uninitialized(const Shape& shape,
                                       std::shared_ptr<MemoryMeter> meter = nullptr);
  /// A value nobody knows: text printed as `{...}`. Its shape is known, its elements are not.
  static Literal elided(const Shape& shape);
  static Literal tuple(std::vector<Literal> elements);
  /// A scalar of `type` holding `value` rounded once to it (booleans: value != 0).
  static Literal scalar(ElementType type, double value);
  static Literal scalar_integer(ElementType type, int64_t value);
  /// An array from row-major elements of the matching C++ type (float for f32, ...).
  template <class T>
  static Result<Literal> array(const Shape& shape, std::span<const T> values) {
    return from_bytes(shape, std::as_bytes(values));
  }
  /// Fails unless `bytes` is exactly what the shape takes.
  static Result<Literal> from_bytes(const Shape& shape, std::span<const std::byte> bytes);

  const Shape& shape() const;
  /// Changes the shape to one with as many elements of the same type.
  void reinterpret_shape(const Shape& shape);
  /// Whether the value, or that of an element of the tuple, is unknown.
  bool is_elided() const;
  int64_t element_count() const { return shape().element_count(); }

  const std::byte* data() const { return bytes_ ? bytes_->data.get() : nullptr; }
  /// Unshares first.
  std::byte* mutable_data();
  int64_t byte_count() const { return bytes_ ? bytes_->size : 0; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data());
  }
  template <class T>
  T* mutable_as() {
    return reinterpret_cast<T*>(mutable_data());
  }
  /// Whether no other Literal shares the elements, so that writing needs no copy.
  bool is_unshared() const { return bytes_ && bytes_.use_count() == 1; }

  /// A tuple's; empty for others.
  const std::vector<Literal>& elements() const;
  /// The elements, moved out if no other Literal shares them.
  std::vector<Literal> take_elements();

  /// Element `index` (row-major) by value as f64; the real part of a complex one.
  double get(int64_t index) const;
  /// Element `index` of an integer or pred array; exact for s64, and modulo 2^64 for u64.
  int64_t get_integer(int64_t index) const;
  /// Element `index` of any array type but the integers.
  std::complex<double> get_complex(int64_t index) const;
  /// Stores `value` rounded once to the element type; integers take it truncated and saturated.
  void set(int64_t index, double value);
  void set_integer(int64_t index, int64_t value);
  void set_complex(int64_t index, std::complex<double> value);

  /// Whether every element is known and has the same bits as the first (so: a splat).
  bool is_splat() const;

  /// Same shape up to layout, same bits. Elided literals equal elided literals of that shape.
  friend bool operator==(const Literal& a, const Literal& b);

 private:
  explicit Literal(Shape shape) : shape_(std::move(shape)) {}

  struct Bytes {
    explicit Bytes(int64_t size, std::shared_ptr<MemoryMeter> meter);
    ~Bytes();
    std::unique_ptr<std::byte[]> data;
    int64_t size;
    std::shared_ptr<MemoryMeter> meter;
  };
  struct Tuple;

  Shape shape_;  // of arrays and of elided tuples
  bool elided_ = false;
  std::shared_ptr<Bytes> bytes_;
  std::shared_ptr<Tuple> tuple_;
};

struct Literal::Tuple {
  Shape shape;
  std::vector<Literal> elements;
};

inline const Shape& Literal::shape() const { return tuple_ ? tuple_->shape : shape_; }

/// The one conversion of scalars: `bits`' element at `index` of an array of `type`, as f64.
double load(ElementType type, const std::byte* data, int64_t index);
/// Rounded once to `type`, to nearest even.
void store(ElementType type, std::byte* data, int64_t index, double value);

}  // namespace heddle::hlo
