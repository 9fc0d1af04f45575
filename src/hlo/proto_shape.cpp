#include "hlo/proto_shape.h"

#include <algorithm>
#include <protozero/pbf_writer.hpp>

#include "hlo/proto_fields.h"

namespace heddle::hlo::proto {
namespace {

constexpr int kMaxDepth = 64;  // of tuples in tuples

// Indexed by ElementType.
constexpr int64_t kNumbers[kElementTypeCount] = {
    1,   // pred
    26,  // s2
    21,  // s4
    2,   // s8
    3,   // s16
    4,   // s32
    5,   // s64
    27,  // u2
    22,  // u4
    6,   // u8
    7,   // u16
    8,   // u32
    9,   // u64
    32,  // f4e2m1fn
    29,  // f8e3m4
    28,  // f8e4m3
    20,  // f8e4m3fn
    23,  // f8e4m3b11fnuz
    25,  // f8e4m3fnuz
    19,  // f8e5m2
    24,  // f8e5m2fnuz
    33,  // f8e8m0fnu
    10,  // f16
    16,  // bf16
    11,  // f32
    12,  // f64
    15,  // c64
    18,  // c128
    17,  // token
    14,  // opaque
    13,  // tuple
};

bool is_permutation_of_rank(std::vector<int64_t> order, size_t rank) {
  if (order.size() != rank) return false;
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < rank; ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

Result<Shape> read(std::string_view bytes, int depth) {
  if (depth == kMaxDepth) {
    return error(Code::malformed_input, "a shape's tuples are nested {} deep or more", kMaxDepth);
  }
  std::optional<ElementType> type;
  int64_t type_number = 0;
  std::vector<int64_t> dims, dynamic;
  std::vector<Shape> elements;
  std::optional<Layout> layout;
  for (Message at = message(bytes); at.next();) {
    switch (at.tag()) {
      case shape_field::element_type:
        type_number = take_integer(at);
        break;
      case shape_field::dimensions:
        take_integers(at, dims);
        break;
      case shape_field::is_dynamic:
        take_integers(at, dynamic);
        break;
      case shape_field::tuple_shapes: {
        HEDDLE_ASSIGN(Shape element, read(take_bytes(at), depth + 1));
        elements.push_back(std::move(element));
        break;
      }
      case shape_field::layout: {
        layout.emplace();
        for (Message in = message(take_bytes(at)); in.next();) {
          if (in.tag() == layout_field::minor_to_major) {
            take_integers(in, layout->minor_to_major);
          } else {
            in.skip();
          }
        }
        break;
      }
      default:
        at.skip();
    }
  }
  type = element_type(type_number);
  if (!type) {
    return error(Code::malformed_input, "a shape has element type number {}, which is not known",
                 type_number);
  }
  if (*type == ElementType::tuple) {
    if (!dims.empty()) return error(Code::malformed_input, "a tuple's shape has dimensions");
    return Shape::tuple(std::move(elements));
  }
  if (!elements.empty()) {
    return error(Code::malformed_input, "the shape of {} has elements like a tuple's", name(*type));
  }
  if (layout && !is_permutation_of_rank(layout->minor_to_major, dims.size())) {
    return error(Code::malformed_input,
                 "the layout of a shape of rank {} must be a permutation of its dimensions",
                 dims.size());
  }
  Shape shape(*type, std::move(dims));
  for (int i = 0; i < shape.rank() && i < static_cast<int>(dynamic.size()); ++i) {
    if (dynamic[i]) shape.set_dynamic(i);
  }
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape.dim(i) < 0 && !(shape.dim(i) == kUnbounded && shape.is_dynamic(i))) {
      return error(Code::malformed_input, "a shape has a dimension of size {}", shape.dim(i));
    }
  }
  // As in text: the layout of a scalar says nothing.
  if (shape.is_array() && shape.rank() > 0) shape.set_layout(std::move(layout));
  return shape;
}

}  // namespace

int64_t number(ElementType type) { return kNumbers[static_cast<int>(type)]; }

std::optional<ElementType> element_type(int64_t number) {
  const auto* const found = std::find(std::begin(kNumbers), std::end(kNumbers), number);
  if (found == std::end(kNumbers)) return std::nullopt;
  return static_cast<ElementType>(found - std::begin(kNumbers));
}

Result<Shape> read_shape(std::string_view bytes) { return read(bytes, 0); }

std::string write_shape(const Shape& shape) {
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_enum(shape_field::element_type, static_cast<int32_t>(number(shape.type())));
  if (!shape.dims().empty()) {
    out.add_packed_int64(shape_field::dimensions, shape.dims().begin(), shape.dims().end());
  }
  for (const Shape& element : shape.elements()) {
    out.add_message(shape_field::tuple_shapes, write_shape(element));
  }
  if (shape.layout() || shape.is_scalar()) {
    std::string layout;
    protozero::pbf_writer in(layout);
    if (shape.layout() && shape.rank() > 0) {
      const std::vector<int64_t>& order = shape.layout()->minor_to_major;
      in.add_packed_int64(layout_field::minor_to_major, order.begin(), order.end());
    }
    in.add_int64(layout_field::tail_padding_alignment, 1);
    out.add_message(shape_field::layout, layout);
  }
  if (!shape.dims().empty()) {
    std::vector<bool> dynamic;
    for (int i = 0; i < shape.rank(); ++i) dynamic.push_back(shape.is_dynamic(i));
    out.add_packed_bool(shape_field::is_dynamic, dynamic.begin(), dynamic.end());
  }
  return bytes;
}

Result<ProgramShape> read_program_shape(std::string_view bytes) {
  ProgramShape shape;
  for (Message at = message(bytes); at.next();) {
    switch (at.tag()) {
      case program_shape_field::parameters: {
        HEDDLE_ASSIGN(Shape parameter, read_shape(take_bytes(at)));
        shape.parameters.push_back(std::move(parameter));
        break;
      }
      case program_shape_field::result: {
        HEDDLE_ASSIGN(shape.result, read_shape(take_bytes(at)));
        break;
      }
      default:
        at.skip();
    }
  }
  return shape;
}

std::string write_program_shape(const ProgramShape& shape,
                                const std::vector<std::string>& parameter_names) {
  std::string bytes;
  protozero::pbf_writer out(bytes);
  for (const Shape& parameter : shape.parameters) {
    out.add_message(program_shape_field::parameters, write_shape(parameter));
  }
  out.add_message(program_shape_field::result, write_shape(shape.result));
  for (const std::string& name : parameter_names) {
    out.add_string(program_shape_field::parameter_names, name);
  }
  return bytes;
}

}  // namespace heddle::hlo::proto
