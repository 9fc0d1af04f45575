#include <algorithm>
#include <iterator>

#include "hlo/proto_fields.h"
#include "hlo/proto_instruction.h"
#include "hlo/proto_literal.h"
#include "hlo/proto_shape.h"
#include "hlo/quoting.h"

namespace heddle::hlo::proto {
namespace {

namespace field = instruction_field;

// PrecisionConfig: what the numbers are called in text.
constexpr std::string_view kAlgorithms[] = {
    "",
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
    "dot_bf16_bf16_f32_x9",
};
constexpr std::string_view kPrecisions[] = {"default", "high", "highest", "packed_nibble"};
constexpr std::string_view kRngAlgorithms[] = {"rng_default", "rng_three_fry", "rng_philox"};
constexpr std::string_view kApiVersions[] = {"", "", "API_VERSION_STATUS_RETURNING",
                                             "API_VERSION_STATUS_RETURNING_UNIFIED",
                                             "API_VERSION_TYPED_FFI"};

template <size_t n>
std::string_view spelled(const std::string_view (&names)[n], int64_t number) {
  return number >= 0 && number < static_cast<int64_t>(n) ? names[number] : std::string_view();
}

std::vector<std::vector<int64_t>> integer_lists(std::string_view bytes, size_t count) {
  std::vector<std::vector<int64_t>> lists(count + 1);  // by field number; 0 stays empty
  for (Message at = message(bytes); at.next();) {
    if (at.tag() <= count) {
      take_integers(at, lists[at.tag()]);
    } else {
      at.skip();
    }
  }
  return lists;
}

/// Field number -> value of a message of single integers.
std::vector<int64_t> integers(std::string_view bytes, size_t count) {
  std::vector<int64_t> values(count + 1, 0);
  for (Message at = message(bytes); at.next();) {
    if (at.tag() <= count) {
      values[at.tag()] = take_integer(at);
    } else {
      at.skip();
    }
  }
  return values;
}

/// The fields of one message in their order, gathered before the attributes' order is known.
class InstructionReader {
 public:
  Result<InstructionFields> read(std::string_view bytes) {
    for (Message at = message(bytes); at.next();) HEDDLE_TRY(take(at));
    name_attributes();
    return std::move(out_);
  }

 private:
  Status take(Message& at);
  Status take_reference(Message& at);
  Status take_list(Message& at);
  void take_precision(std::string_view bytes);
  void take_window(std::string_view bytes);
  void take_padding(std::string_view bytes);
  void name_attributes();
  void name_dimensions();
  void name_indexing();
  void name_custom_call();

  template <class T>
  void add(std::string_view name, T value) {
    out_.attributes.push_back({std::string(name), AttributeValue(std::move(value))});
  }
  void add_flag(std::string_view name, bool value) {
    if (value) add(name, true);
  }
  void add_list(std::string_view name, std::vector<int64_t>& list) {
    if (!list.empty()) add(name, std::move(list));
  }
  void add_word(std::string_view name, std::string_view word) {
    if (!word.empty()) add(name, Verbatim{std::string(word)});
  }

  InstructionFields out_;
  std::vector<int64_t> dimensions_, slice_sizes_, gather_sizes_;
  std::vector<SliceDimension> slice_;
  std::vector<PaddingDimension> padding_;
  std::optional<std::vector<WindowDimension>> window_;
  std::vector<std::vector<int64_t>> dot_, gather_, scatter_;
  std::vector<Shape> operand_layouts_;
  std::string direction_, comparison_type_, target_, config_, kind_, precision_;
  int64_t tuple_index_ = 0, exponent_bits_ = 0, mantissa_bits_ = 0, algorithm_ = 0;
  int64_t rng_algorithm_ = 0, api_version_ = 0, k_ = 0;
  bool constrain_layout_ = false, side_effect_ = false, stable_ = false, sorted_ = false;
  bool unique_ = false, largest_ = false, composite_ = false, sharded_ = false;
};

Status InstructionReader::take_reference(Message& at) {
  switch (at.tag()) {
    case field::id:
      out_.id = take_integer(at);
      break;
    case field::operand_ids:
      take_integers(at, out_.operand_ids);
      break;
    case field::control_predecessor_ids:
      take_integers(at, out_.control_predecessor_ids);
      break;
    case field::called_computation_ids:
      take_integers(at, out_.called_computation_ids);
      break;
    default:
      at.skip();
  }
  return {};
}

Status InstructionReader::take_list(Message& at) {
  switch (at.tag()) {
    case field::dimensions:
      take_integers(at, dimensions_);
      break;
    case field::dynamic_slice_sizes:
      take_integers(at, slice_sizes_);
      break;
    case field::gather_slice_sizes:
      take_integers(at, gather_sizes_);
      break;
    case field::slice: {
      const std::vector<int64_t> range = integers(take_bytes(at), 3);
      slice_.push_back({range[1], range[2], range[3]});
      break;
    }
    case field::padding:
      take_padding(take_bytes(at));
      break;
    case field::window:
      take_window(take_bytes(at));
      break;
    case field::dot_dimensions:
      dot_ = integer_lists(take_bytes(at), 4);
      break;
    case field::gather_dimensions:
      gather_ = integer_lists(take_bytes(at), 6);
      break;
    case field::scatter_dimensions:
      scatter_ = integer_lists(take_bytes(at), 6);
      break;
    case field::operand_layouts: {
      HEDDLE_ASSIGN(Shape shape, read_shape(take_bytes(at)));
      operand_layouts_.push_back(std::move(shape));
      break;
    }
    default:
      return take_reference(at);
  }
  return {};
}

Status InstructionReader::take(Message& at) {
  switch (at.tag()) {
    case field::name:
      out_.name = take_bytes(at);
      break;
    case field::opcode:
      out_.opcode = take_bytes(at);
      break;
    case field::shape: {
      HEDDLE_ASSIGN(out_.shape, read_shape(take_bytes(at)));
      break;
    }
    case field::literal: {
      HEDDLE_ASSIGN(out_.literal, read_literal(take_bytes(at)));
      break;
    }
    case field::parameter_number:
      out_.parameter_number = take_integer(at);
      break;
    case field::fusion_kind:
      kind_ = take_bytes(at);
      break;
    case field::tuple_index:
      tuple_index_ = take_integer(at);
      break;
    case field::exponent_bits:
      exponent_bits_ = take_integer(at);
      break;
    case field::mantissa_bits:
      mantissa_bits_ = take_integer(at);
      break;
    case field::custom_call_target:
      target_ = take_bytes(at);
      break;
    case field::sharding:
      sharded_ = true;
      at.skip();
      break;
    case field::backend_config:
      config_ = take_bytes(at);
      break;
    case field::precision:
      take_precision(take_bytes(at));
      break;
    case field::constrain_layout:
      constrain_layout_ = take_flag(at);
      break;
    case field::is_stable:
      stable_ = take_flag(at);
      break;
    case field::comparison_direction:
      direction_ = take_bytes(at);
      break;
    case field::custom_call_has_side_effect:
      side_effect_ = take_flag(at);
      break;
    case field::indices_are_sorted:
      sorted_ = take_flag(at);
      break;
    case field::unique_indices:
      unique_ = take_flag(at);
      break;
    case field::rng_algorithm:
      rng_algorithm_ = take_integer(at);
      break;
    case field::comparison_type:
      comparison_type_ = take_bytes(at);
      break;
    case field::api_version:
      api_version_ = take_integer(at);
      break;
    case field::k:
      k_ = take_integer(at);
      break;
    case field::largest:
      largest_ = take_flag(at);
      break;
    case field::is_composite:
      composite_ = take_flag(at);
      break;
    default:
      return take_list(at);
  }
  return {};
}

void InstructionReader::take_precision(std::string_view bytes) {
  std::vector<int64_t> operands;
  for (Message at = message(bytes); at.next();) {
    if (at.tag() == 1) {
      take_integers(at, operands);
    } else if (at.tag() == 2) {
      algorithm_ = take_integer(at);
    } else {
      at.skip();
    }
  }
  if (std::all_of(operands.begin(), operands.end(), [](int64_t p) { return p == 0; })) return;
  for (const int64_t operand : operands) {
    precision_ += precision_.empty() ? "{" : ",";
    precision_ += spelled(kPrecisions, operand);
  }
  precision_ += '}';
}

void InstructionReader::take_window(std::string_view bytes) {
  window_.emplace();
  for (Message at = message(bytes); at.next();) {
    if (at.tag() != 1) {
      at.skip();
      continue;
    }
    const std::vector<int64_t> w = integers(take_bytes(at), 7);
    window_->push_back({.size = w[1],
                        .stride = w[2],
                        .pad_low = w[3],
                        .pad_high = w[4],
                        .lhs_dilate = std::max<int64_t>(w[6], 1),
                        .rhs_dilate = std::max<int64_t>(w[5], 1),
                        .reversed = w[7] != 0});
  }
}

void InstructionReader::take_padding(std::string_view bytes) {
  for (Message at = message(bytes); at.next();) {
    if (at.tag() != 1) {
      at.skip();
      continue;
    }
    const std::vector<int64_t> pad = integers(take_bytes(at), 3);
    padding_.push_back({pad[1], pad[2], pad[3]});
  }
}

void InstructionReader::name_dimensions() {
  switch (opcode_from_name(out_.opcode)) {
    case Opcode::iota:
      if (!dimensions_.empty()) add("iota_dimension", dimensions_.front());
      return;
    case Opcode::broadcast:
    case Opcode::concatenate:
    case Opcode::map:
    case Opcode::reduce:
    case Opcode::reverse:
    case Opcode::sort:
    case Opcode::transpose:
      add("dimensions", std::move(dimensions_));  // also where there are none
      return;
    default:
      add_list("dimensions", dimensions_);
  }
}

void InstructionReader::name_indexing() {
  if (!gather_.empty()) {
    add("offset_dims", gather_[1]);
    add("collapsed_slice_dims", gather_[2]);
    add("start_index_map", gather_[3]);
    add_list("operand_batching_dims", gather_[5]);
    add_list("start_indices_batching_dims", gather_[6]);
    add("index_vector_dim", gather_[4].empty() ? int64_t{0} : gather_[4].back());
    add("slice_sizes", std::move(gather_sizes_));
  }
  if (!scatter_.empty()) {
    add("update_window_dims", scatter_[1]);
    add("inserted_window_dims", scatter_[2]);
    add("scatter_dims_to_operand_dims", scatter_[3]);
    add_list("input_batching_dims", scatter_[5]);
    add_list("scatter_indices_batching_dims", scatter_[6]);
    add("index_vector_dim", scatter_[4].empty() ? int64_t{0} : scatter_[4].back());
  }
  add_flag("indices_are_sorted", sorted_);
  add_flag("unique_indices", unique_);
}

void InstructionReader::name_custom_call() {
  if (!target_.empty()) add("custom_call_target", target_);
  if (constrain_layout_) add("operand_layout_constraints", std::move(operand_layouts_));
  add_flag("custom_call_has_side_effect", side_effect_);
  add_word("api_version", spelled(kApiVersions, api_version_));
}

/// Attributes in the order of text.
void InstructionReader::name_attributes() {
  const Opcode opcode = opcode_from_name(out_.opcode);
  name_dimensions();
  if (!dot_.empty()) {
    add_list("lhs_batch_dims", dot_[3]);
    add("lhs_contracting_dims", std::move(dot_[1]));
    add_list("rhs_batch_dims", dot_[4]);
    add("rhs_contracting_dims", std::move(dot_[2]));
  }
  if (opcode == Opcode::dot || opcode == Opcode::convolution) {
    add_word("operand_precision", precision_);
    add_word("algorithm", spelled(kAlgorithms, algorithm_));
  }
  if (opcode == Opcode::get_tuple_element) add("index", tuple_index_);
  if (!slice_.empty()) add("slice", std::move(slice_));
  if (opcode == Opcode::dynamic_slice) add("dynamic_slice_sizes", std::move(slice_sizes_));
  if (opcode == Opcode::pad) add("padding", std::move(padding_));
  if (window_) add("window", std::move(*window_));
  name_indexing();
  add_word("direction", direction_);
  // Text names the type only where it is not the operands' own; only this one changes a meaning.
  if (comparison_type_ == "TOTALORDER") add_word("type", comparison_type_);
  if (exponent_bits_ != 0 || mantissa_bits_ != 0) {
    add("exponent_bits", exponent_bits_);
    add("mantissa_bits", mantissa_bits_);
  }
  if (opcode == Opcode::topk) {
    add("k", k_);
    add("largest", largest_);
  }
  add_flag("is_stable", stable_);
  if (opcode == Opcode::rng_bit_generator) {
    add_word("algorithm", spelled(kRngAlgorithms, rng_algorithm_));
  }
  if (opcode == Opcode::custom_call) name_custom_call();
  add_word("kind", kind_);
  if (composite_) add_word("is_composite", "true");
  // Whom a value lives with is not read, only that something is said of it.
  if (sharded_) add_word("sharding", "{unread}");
  if (!config_.empty()) {
    add_word("backend_config", config_.front() == '{' ? config_ : quote(config_));
  }
}

}  // namespace

Result<InstructionFields> read_instruction(std::string_view bytes) {
  return InstructionReader().read(bytes);
}

}  // namespace heddle::hlo::proto
