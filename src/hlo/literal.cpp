#include "hlo/literal.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "core/dtype.h"
#include "hlo/minifloat.h"

namespace heddle::hlo {
namespace {

template <class T>
T read(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void write(std::byte* data, int64_t index, T value) {
  std::memcpy(data + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Truncated towards zero; out of range saturates, NaN is 0. `bits` is the type's width.
int64_t saturate_signed(double value, int bits) {
  if (std::isnan(value)) return 0;
  const double limit = std::ldexp(1.0, bits - 1);
  const int64_t largest = static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1);
  if (value >= limit) return largest;
  if (value < -limit) return -largest - 1;
  return static_cast<int64_t>(value);
}

uint64_t saturate_unsigned(double value, int bits) {
  if (!(value > 0)) return 0;
  if (value >= std::ldexp(1.0, bits)) return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return static_cast<uint64_t>(value);
}

int64_t load_integer(ElementType type, const std::byte* data, int64_t index) {
  switch (type) {
    case ElementType::pred:
      return read<uint8_t>(data, index) != 0;
    case ElementType::s2:
    case ElementType::s4:
    case ElementType::s8:
      return read<int8_t>(data, index);
    case ElementType::s16:
      return read<int16_t>(data, index);
    case ElementType::s32:
      return read<int32_t>(data, index);
    case ElementType::s64:
      return read<int64_t>(data, index);
    case ElementType::u2:
    case ElementType::u4:
    case ElementType::u8:
      return read<uint8_t>(data, index);
    case ElementType::u16:
      return read<uint16_t>(data, index);
    case ElementType::u32:
      return read<uint32_t>(data, index);
    case ElementType::u64:
      return static_cast<int64_t>(read<uint64_t>(data, index));
    default:
      return static_cast<int64_t>(load(type, data, index));
  }
}

// Wraps to the type's width, as arithmetic does.
void store_integer(ElementType type, std::byte* data, int64_t index, int64_t value) {
  switch (type) {
    case ElementType::pred:
      return write<uint8_t>(data, index, value != 0);
    case ElementType::s2:
      return write<int8_t>(data, index, static_cast<int8_t>((value & 1) - (value & 2)));
    case ElementType::s4:
      return write<int8_t>(data, index, static_cast<int8_t>((value & 7) - (value & 8)));
    case ElementType::u2:
      return write<uint8_t>(data, index, value & 3);
    case ElementType::u4:
      return write<uint8_t>(data, index, value & 15);
    case ElementType::s8:
    case ElementType::u8:
      return write(data, index, static_cast<uint8_t>(value));
    case ElementType::s16:
    case ElementType::u16:
      return write(data, index, static_cast<uint16_t>(value));
    case ElementType::s32:
    case ElementType::u32:
      return write(data, index, static_cast<uint32_t>(value));
    case ElementType::s64:
    case ElementType::u64:
      return write(data, index, value);
    default:
      return store(type, data, index, static_cast<double>(value));
  }
}

int integer_bits(ElementType type) {
  switch (type) {
    case ElementType::s2:
    case ElementType::u2:
      return 2;
    case ElementType::s4:
    case ElementType::u4:
      return 4;
    default:
      return static_cast<int>(size_of(type)) * 8;
  }
}

}  // namespace

double load(ElementType type, const std::byte* data, int64_t index) {
  switch (type) {
    case ElementType::f64:
      return read<double>(data, index);
    case ElementType::f32:
    case ElementType::c64:
      return read<float>(data, type == ElementType::f32 ? index : 2 * index);
    case ElementType::c128:
      return read<double>(data, 2 * index);
    case ElementType::bf16:
      return load(DataType::bf16, data, index);
    case ElementType::f16:
      return load(DataType::f16, data, index);
    case ElementType::u64:
      return static_cast<double>(read<uint64_t>(data, index));
    case ElementType::token:
    case ElementType::opaque:
    case ElementType::tuple:
      return 0;
    default:
      if (is_minifloat(type)) return minifloat_to_double(type, read<uint8_t>(data, index));
      return static_cast<double>(load_integer(type, data, index));
  }
}

void store(ElementType type, std::byte* data, int64_t index, double value) {
  switch (type) {
    case ElementType::pred:
      return write<uint8_t>(data, index, value != 0);
    case ElementType::f64:
      return write(data, index, value);
    case ElementType::f32:
      return write(data, index, static_cast<float>(value));
    case ElementType::c64:
      write(data, 2 * index, static_cast<float>(value));
      return write(data, 2 * index + 1, 0.0f);
    case ElementType::c128:
      write(data, 2 * index, value);
      return write(data, 2 * index + 1, 0.0);
    case ElementType::bf16:
      return store(DataType::bf16, data, index, value);
    case ElementType::f16:
      return store(DataType::f16, data, index, value);
    case ElementType::token:
    case ElementType::opaque:
    case ElementType::tuple:
      return;
    default:
      if (is_minifloat(type)) return write(data, index, double_to_minifloat(type, value));
      if (is_signed_integral(type)) {
        return store_integer(type, data, index, saturate_signed(value, integer_bits(type)));
      }
      return store_integer(type, data, index,
                           static_cast<int64_t>(saturate_unsigned(value, integer_bits(type))));
  }
}

Literal::Bytes::Bytes(int64_t size, std::shared_ptr<MemoryMeter> meter)
    : data(new std::byte[size]), size(size), meter(std::move(meter)) {
  if (this->meter) this->meter->used += size;
}

Literal::Bytes::~Bytes() {
  if (meter) meter->used -= size;
}

Literal::Literal() : Literal(scalar(ElementType::pred, 0)) {}

Result<Literal> Literal::uninitialized(const Shape& shape, std::shared_ptr<MemoryMeter> meter) {
  if (shape.is_tuple()) {
    std::vector<Literal> elements;
    for (const Shape& element : shape.elements()) {
      HEDDLE_ASSIGN(Literal part, uninitialized(element, meter));
      elements.push_back(std::move(part));
    }
    return tuple(std::move(elements));
  }
  Literal literal{Shape(shape)};
  const std::optional<int64_t> count = checked_element_count(shape.dims());
  if (!count) {
    return error(Code::invalid_value, "{} has a dynamic size or more than 2^48 elements",
                 to_string_without_layout(shape));
  }
  const int64_t size = shape.is_array() ? size_of(shape.type()) * *count : 0;
  if (meter && size > meter->limit - meter->used) {
    return error(Code::out_of_memory, "{} would exceed the limit of {} bytes",
                 to_string_without_layout(shape), meter->limit);
  }
  try {
    literal.bytes_ = std::make_shared<Bytes>(size, std::move(meter));
  } catch (const std::bad_alloc&) {
    return error(Code::out_of_memory, "no memory for a value of {}",
                 to_string_without_layout(shape));
  }
  return literal;
}

Result<Literal> Literal::zeros(const Shape& shape) {
  HEDDLE_ASSIGN(Literal literal, uninitialized(shape));
  const auto clear = [](Literal& part, auto&& self) -> void {
    if (part.byte_count() > 0) std::memset(part.mutable_data(), 0, part.byte_count());
    if (!part.tuple_) return;
    for (Literal& element : part.tuple_->elements) self(element, self);
  };
  clear(literal, clear);
  return literal;
}

Literal Literal::elided(const Shape& shape) {
  Literal literal{Shape(shape)};
  literal.elided_ = true;
  return literal;
}

Literal Literal::tuple(std::vector<Literal> elements) {
  std::vector<Shape> shapes;
  shapes.reserve(elements.size());
  for (const Literal& element : elements) shapes.push_back(element.shape());
  Literal literal{Shape()};
  literal.tuple_ =
      std::make_shared<Tuple>(Tuple{Shape::tuple(std::move(shapes)), std::move(elements)});
  return literal;
}

Literal Literal::scalar(ElementType type, double value) {
  Literal literal(Shape::scalar(type));
  literal.bytes_ = std::make_shared<Bytes>(size_of(type), nullptr);
  store(type, literal.bytes_->data.get(), 0, value);
  return literal;
}

Literal Literal::scalar_integer(ElementType type, int64_t value) {
  Literal literal = scalar(type, 0);
  literal.set_integer(0, value);
  return literal;
}

Result<Literal> Literal::from_bytes(const Shape& shape, std::span<const std::byte> bytes) {
  const std::optional<int64_t> count = checked_element_count(shape.dims());
  if (!shape.is_array() || !count ||
      static_cast<int64_t>(bytes.size()) != *count * size_of(shape.type())) {
    return error(Code::invalid_value, "{} bytes given for a value of {}", bytes.size(),
                 to_string_without_layout(shape));
  }
  HEDDLE_ASSIGN(Literal literal, zeros(shape));
  if (!bytes.empty()) std::memcpy(literal.mutable_data(), bytes.data(), bytes.size());
  return literal;
}

void Literal::reinterpret_shape(const Shape& shape) {
  if (tuple_) {
    tuple_ = std::make_shared<Tuple>(Tuple{shape, tuple_->elements});
  } else {
    shape_ = shape;
  }
}

const std::vector<Literal>& Literal::elements() const {
  static const std::vector<Literal> none;
  return tuple_ ? tuple_->elements : none;
}

std::vector<Literal> Literal::take_elements() {
  if (tuple_ && tuple_.use_count() == 1) return std::move(tuple_->elements);
  return elements();
}

std::byte* Literal::mutable_data() {
  if (!bytes_) return nullptr;
  if (bytes_.use_count() > 1) {
    auto copy = std::make_shared<Bytes>(bytes_->size, bytes_->meter);
    std::memcpy(copy->data.get(), bytes_->data.get(), bytes_->size);
    bytes_ = std::move(copy);
  }
  return bytes_->data.get();
}

double Literal::get(int64_t index) const { return load(shape_.type(), data(), index); }
int64_t Literal::get_integer(int64_t index) const {
  return load_integer(shape_.type(), data(), index);
}

std::complex<double> Literal::get_complex(int64_t index) const {
  switch (shape_.type()) {
    case ElementType::c64:
      return {read<float>(data(), 2 * index), read<float>(data(), 2 * index + 1)};
    case ElementType::c128:
      return {read<double>(data(), 2 * index), read<double>(data(), 2 * index + 1)};
    default:
      return get(index);
  }
}

void Literal::set(int64_t index, double value) {
  store(shape_.type(), mutable_data(), index, value);
}

void Literal::set_integer(int64_t index, int64_t value) {
  store_integer(shape_.type(), mutable_data(), index, value);
}

void Literal::set_complex(int64_t index, std::complex<double> value) {
  switch (shape_.type()) {
    case ElementType::c64:
      write(mutable_data(), 2 * index, static_cast<float>(value.real()));
      return write(mutable_data(), 2 * index + 1, static_cast<float>(value.imag()));
    case ElementType::c128:
      write(mutable_data(), 2 * index, value.real());
      return write(mutable_data(), 2 * index + 1, value.imag());
    default:
      return set(index, value.real());
  }
}

bool Literal::is_elided() const {
  if (elided_) return true;
  for (const Literal& element : elements()) {
    if (element.is_elided()) return true;
  }
  return false;
}

bool Literal::is_splat() const {
  if (elided_ || !shape_.is_array() || byte_count() == 0) return false;
  const int64_t size = size_of(shape_.type());
  return std::memcmp(data(), data() + size, byte_count() - size) == 0;
}

bool operator==(const Literal& a, const Literal& b) {
  if (!same_but_layout(a.shape(), b.shape()) || a.elided_ != b.elided_) return false;
  if (a.elements() != b.elements() || a.byte_count() != b.byte_count()) return false;
  return a.byte_count() == 0 || std::memcmp(a.data(), b.data(), a.byte_count()) == 0;
}

}  // namespace heddle::hlo
