#include "hlo/proto_literal.h"

#include <cstring>
#include <protozero/pbf_writer.hpp>

#include "hlo/proto_fields.h"
#include "hlo/proto_shape.h"

namespace heddle::hlo::proto {
namespace {

constexpr uint32_t kShape = 1, kTuple = 10;
constexpr int kMaxDepth = 64;

enum class Encoding : uint8_t { varint, fixed, bytes, unread };

struct Storage {
  uint32_t field = 0;
  Encoding encoding = Encoding::unread;
};

/// Where a LiteralProto keeps the elements of a type.
Storage storage(ElementType type) {
  switch (type) {
    case ElementType::pred:
      return {2, Encoding::varint};
    case ElementType::u8:
      return {3, Encoding::bytes};
    case ElementType::s32:
      return {4, Encoding::varint};
    case ElementType::s64:
      return {5, Encoding::varint};
    case ElementType::u32:
      return {6, Encoding::varint};
    case ElementType::u64:
      return {7, Encoding::varint};
    case ElementType::f32:
      return {8, Encoding::fixed};
    case ElementType::f64:
      return {9, Encoding::fixed};
    case ElementType::f16:
      return {11, Encoding::bytes};
    case ElementType::c64:
      return {12, Encoding::fixed};
    case ElementType::bf16:
      return {13, Encoding::bytes};
    case ElementType::s8:
      return {15, Encoding::bytes};
    case ElementType::u16:
      return {16, Encoding::bytes};
    case ElementType::s16:
      return {17, Encoding::bytes};
    case ElementType::c128:
      return {18, Encoding::fixed};
    default:
      return {};
  }
}

void append_element(std::string& out, ElementType type, int64_t value) {
  // Little-endian, as protobuf's fixed fields and the machines that XLA runs on are.
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, static_cast<size_t>(size_of(type)));
}

void take_fixed(Message& at, std::string& out) {
  switch (at.wire_type()) {
    case protozero::pbf_wire_type::fixed32: {
      const uint32_t value = at.get_fixed32();
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
      return;
    }
    case protozero::pbf_wire_type::fixed64: {
      const uint64_t value = at.get_fixed64();
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
      return;
    }
    default:
      out += take_bytes(at);
  }
}

/// Elements that lie in the order of the layout, moved to row-major.
void to_row_major(const Shape& shape, const std::vector<int64_t>& minor_to_major,
                  std::string& elements) {
  const auto size = static_cast<size_t>(size_of(shape.type()));
  const int rank = shape.rank();
  std::vector<int64_t> stride(rank);
  int64_t next = 1;
  for (const int64_t dim : minor_to_major) {
    stride[dim] = next;
    next *= shape.dim(static_cast<int>(dim));
  }
  std::string moved(elements.size(), '\0');
  std::vector<int64_t> index(rank, 0);
  const int64_t count = shape.element_count();
  for (int64_t i = 0, from = 0; i < count; ++i) {
    std::memcpy(moved.data() + i * size, elements.data() + from * size, size);
    for (int d = rank - 1; d >= 0; --d) {
      from += stride[d];
      if (++index[d] < shape.dim(d)) break;
      from -= stride[d] * shape.dim(d);
      index[d] = 0;
    }
  }
  elements = std::move(moved);
}

bool is_row_major(const Layout& layout) {
  for (size_t i = 1; i < layout.minor_to_major.size(); ++i) {
    if (layout.minor_to_major[i] > layout.minor_to_major[i - 1]) return false;
  }
  return true;
}

// Text spells each of them: f32[2,0] is {{}, {}}.
constexpr int64_t kMaxRowsOfNothing = 65536;

int64_t rows_of_nothing(const Shape& shape) {
  int64_t rows = 1;
  for (const int64_t dim : shape.dims()) {
    if (dim == 0) return rows;
    rows = dim > kMaxRowsOfNothing / rows ? kMaxRowsOfNothing + 1 : rows * dim;
  }
  return 0;
}

Result<Literal> read(std::string_view bytes, int depth) {
  if (depth == kMaxDepth) {
    return error(Code::malformed_input, "a constant's tuples are nested {} deep or more",
                 kMaxDepth);
  }
  Shape shape;
  bool has_shape = false;
  for (Message at = message(bytes); at.next();) {
    if (at.tag() == kShape) {
      HEDDLE_ASSIGN(shape, read_shape(take_bytes(at)));
      has_shape = true;
    } else {
      at.skip();
    }
  }
  if (!has_shape) return error(Code::malformed_input, "a constant has no shape");
  const Storage kept = storage(shape.type());
  std::vector<Literal> parts;
  std::string elements;
  for (Message at = message(bytes); at.next();) {
    if (shape.is_tuple() && at.tag() == kTuple) {
      HEDDLE_ASSIGN(Literal part, read(take_bytes(at), depth + 1));
      parts.push_back(std::move(part));
    } else if (at.tag() == kept.field && kept.encoding == Encoding::varint) {
      std::vector<int64_t> values;
      take_integers(at, values);
      for (const int64_t value : values) append_element(elements, shape.type(), value);
    } else if (at.tag() == kept.field && kept.encoding == Encoding::fixed) {
      take_fixed(at, elements);
    } else if (at.tag() == kept.field && kept.encoding == Encoding::bytes) {
      elements = take_bytes(at);
    } else {
      at.skip();
    }
  }
  if (shape.is_tuple()) {
    if (parts.size() != shape.elements().size()) {
      return error(Code::malformed_input, "a constant of {} has {} parts",
                   to_string_without_layout(shape), parts.size());
    }
    return Literal::tuple(std::move(parts));
  }
  if (kept.encoding == Encoding::unread) return Literal::elided(shape);
  const std::optional<int64_t> count = checked_element_count(shape.dims());
  if (!count || *count * size_of(shape.type()) != static_cast<int64_t>(elements.size())) {
    return error(Code::malformed_input, "a constant of {} has {} bytes",
                 to_string_without_layout(shape), elements.size());
  }
  if (rows_of_nothing(shape) > kMaxRowsOfNothing) {
    return error(Code::malformed_input, "a constant of {} has rows without elements, more than {}",
                 to_string_without_layout(shape), kMaxRowsOfNothing);
  }
  if (*count > 0 && shape.layout() && !is_row_major(*shape.layout())) {
    to_row_major(shape, shape.layout()->minor_to_major, elements);
  }
  return Literal::from_bytes(shape, std::as_bytes(std::span(elements)));
}

}  // namespace

Result<Literal> read_literal(std::string_view bytes) { return read(bytes, 0); }

Result<std::string> write_literal(const Literal& literal) {
  const Shape& shape = literal.shape();
  const Storage kept = storage(shape.type());
  if (!shape.is_array() || literal.is_elided() || kept.encoding == Encoding::unread) {
    return error(Code::graph_not_supported, "a new constant of {} cannot be written in protobuf",
                 to_string_without_layout(shape));
  }
  Shape dense = shape;
  dense.set_default_layout();
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_message(kShape, write_shape(dense));
  const auto size = static_cast<size_t>(literal.byte_count());
  const char* const data = reinterpret_cast<const char*>(literal.data());
  if (kept.encoding == Encoding::varint) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < literal.element_count(); ++i) values.push_back(literal.get_integer(i));
    out.add_packed_int64(kept.field, values.begin(), values.end());
  } else {
    out.add_bytes(kept.field, data, size);
  }
  return bytes;
}

}  // namespace heddle::hlo::proto
