#include "onnxruntime/onnx/rotary_embedding.h"

#include "onnxruntime/rotation.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : int { kX, kCos, kSin, kIds };

constexpr Port kInputs[] = {
    {"X"}, {"cos_cache"}, {"sin_cache"}, {"position_ids", ElementType::i64, 0, true}};
constexpr Port kOutputs[] = {{"Y"}};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}};

class RotaryEmbedding : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<RotaryEmbedding>();
    HEDDLE_ASSIGN(node->is_interleaved_, attributes.integer("interleaved", 0));
    HEDDLE_ASSIGN(node->heads_, attributes.integer("num_heads", 0));
    HEDDLE_ASSIGN(node->columns_, attributes.integer("rotary_embedding_dim", 0));
    if (node->columns_ < 0 || node->columns_ % 2 != 0)
      return error(Code::invalid_value,
                   "rotary_embedding_dim must be even and not negative. Got {}", node->columns_);
    return std::unique_ptr<Node>(std::move(node));
  }

  /// Tables have a row for each position, or without positions one for each entry and row.
  Result<Recipe> recipe(Inputs inputs, const Wanted&, int64_t) const override {
    const Dims &x = inputs[kX].dims, &cos = inputs[kCos].dims;
    if (x.rank() != 3 && x.rank() != 4)
      return error(Code::invalid_value, "X must have 3 or 4 dimensions, got {}", x.rank());
    if (x.rank() == 3 && heads_ < 1)
      return error(Code::invalid_value,
                   "X has 3 dimensions, for which num_heads must be positive. Got {}", heads_);
    Rotation rotation{kX, kCos, kSin};
    HEDDLE_TRY(set_heads(rotation, x, heads_));
    const Dims& dims = rotation.dims;
    const int64_t half = (columns_ > 0 ? columns_ : dims[3]) / 2;
    if (2 * half > dims[3] || (columns_ == 0 && dims[3] % 2 != 0))
      return error(Code::invalid_value,
                   "rotary_embedding_dim must be even and at most the head size {}. Got {}",
                   dims[3], columns_);
    const bool has_ids = inputs[kIds].is_given();
    const Dims rows{dims[0], dims[2]};
    if (has_ids && !(inputs[kIds].dims == rows))
      return error(Code::invalid_value, "position_ids has dims {}, expected {}, batch and length",
                   to_string(inputs[kIds].dims), to_string(rows));
    const Dims expected =
        has_ids ? Dims{cos.rank() == 2 ? cos[0] : 1, half} : Dims{dims[0], dims[2], half};
    for (const auto& [input, name] : {std::pair{kCos, "cos_cache"}, {kSin, "sin_cache"}}) {
      const Dims& table = inputs[static_cast<size_t>(input)].dims;
      if (table == expected && (table[0] > 0 || !has_ids)) continue;
      return error(Code::invalid_value, "{} has dims {}, expected {}{}", name, to_string(table),
                   has_ids ? "as many rows as positions, by " : "",
                   has_ids ? fmt::format("{}", half) : to_string(expected));
    }
    rotation.positions = has_ids ? cos[0] : dims[0] * dims[2];
    rotation.half = half;
    rotation.is_interleaved = is_interleaved_ != 0;
    rotation.by = has_ids ? Rotation::Positions::given : Rotation::Positions::in_order;
    rotation.ids = kIds;
    return recipe_of(rotation, inputs);
  }

  Status prepare(Inputs inputs, const Wanted&, std::span<const Value>,
                 std::span<void* const>) const override {
    if (!inputs[kIds].is_given()) return {};
    return check_positions(inputs[kIds], inputs[kCos].dims[0]);
  }

 private:
  int64_t is_interleaved_ = 0, heads_ = 0, columns_ = 0;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kX); }

}  // namespace

const Operator kRotaryEmbedding{"RotaryEmbedding",     23,   kInputs, kOutputs, kOverloads,
                                RotaryEmbedding::make, shape};

}  // namespace heddle::onnxruntime
