#include "onnxruntime/microsoft/rotary_embedding.h"

#include "onnxruntime/rotation.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : int { kX, kIds, kCos, kSin };

constexpr Port kInputs[] = {
    {"input"}, {"position_ids", ElementType::i64}, {"cos_cache"}, {"sin_cache"}};
constexpr Port kOutputs[] = {{"output"}};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}};

class RotaryEmbedding : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<RotaryEmbedding>();
    HEDDLE_ASSIGN(node->is_interleaved_, attributes.integer("interleaved", 0));
    HEDDLE_ASSIGN(node->heads_, attributes.integer("num_heads", 0));
    HEDDLE_ASSIGN(node->columns_, attributes.integer("rotary_embedding_dim", 0));
    if (node->heads_ < 0)
      return error(Code::invalid_value, "num_heads must not be negative. Got {}", node->heads_);
    if (node->columns_ < 0 || node->columns_ % 2 != 0)
      return error(Code::invalid_value,
                   "rotary_embedding_dim must be even and not negative. Got {}", node->columns_);
    if (node->columns_ > 0 && node->heads_ == 0)
      return error(Code::invalid_value,
                   "num_heads must be provided if rotary_embedding_dim is specified");
    return std::unique_ptr<Node>(std::move(node));
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted&, int64_t) const override {
    const Dims &x = inputs[kX].dims, &cos = inputs[kCos].dims, &ids = inputs[kIds].dims;
    if (x.rank() != 3 && x.rank() != 4)
      return error(Code::invalid_value,
                   "Input 'input' is expected to have 3 or 4 dimensions, got {}", x.rank());
    for (const auto& [input, name] : {std::pair{kCos, "cos_cache"}, {kSin, "sin_cache"}}) {
      const Dims& table = inputs[static_cast<size_t>(input)].dims;
      if (table.rank() != 2)
        return error(Code::invalid_value, "Input '{}' is expected to have 2 dimensions, got {}",
                     name, table.rank());
    }
    if (!(cos == inputs[kSin].dims))
      return error(Code::invalid_value,
                   "Inputs 'cos_cache' and 'sin_cache' should have the same shape, got {} and {}",
                   to_string(cos), to_string(inputs[kSin].dims));
    if (cos[0] < 1 || cos[1] < 1)
      return error(Code::invalid_value, "Input 'cos_cache' has dims {}, of which none may be 0",
                   to_string(cos));
    Rotation rotation{kX, kCos, kSin};
    HEDDLE_TRY(set_heads(rotation, x, heads_ > 0 ? heads_ : x[2] / (2 * cos[1])));
    const int64_t size = rotation.dims[3];
    if (2 * cos[1] != (columns_ > 0 ? columns_ : size) || 2 * cos[1] > size)
      return error(Code::invalid_value,
                   "Input 'cos_cache' dimension 1 should be same as head_size / 2 or "
                   "rotary_embedding_dim / 2, got {}",
                   cos[1]);
    rotation.positions = cos[0], rotation.half = cos[1];
    rotation.is_interleaved = is_interleaved_ != 0;
    if (ids.rank() > 2)
      return error(Code::invalid_value,
                   "Input 'position_ids' is expected to have 0, 1, or 2 dimensions, got {}",
                   ids.rank());
    rotation.ids = kIds;
    if (is_start(inputs)) {
      rotation.by = Rotation::Positions::from_start;
      return recipe_of(rotation, inputs);
    }
    if (!(ids == Dims{rotation.dims[0], rotation.dims[2]}))
      return error(Code::invalid_value,
                   "Input 'position_ids' has dims {}, expected batch_size and sequence_length, "
                   "[{}, {}], or one element",
                   to_string(ids), rotation.dims[0], rotation.dims[2]);
    return recipe_of(rotation, inputs);
  }

  Status prepare(Inputs inputs, const Wanted&, std::span<const Value>,
                 std::span<void* const>) const override {
    const Dims& x = inputs[kX].dims;
    const int64_t positions = inputs[kCos].dims[0];
    HEDDLE_TRY(check_positions(inputs[kIds], positions));
    if (!is_start(inputs)) return {};
    const int64_t rows = x.rank() == 4 ? x[2] : x[1],
                  start = *static_cast<const int64_t*>(inputs[kIds].data);
    if (rows > positions - start) {
      return error(Code::invalid_value,
                   "position_ids base value {} with sequence_length {} exceeds cos/sin cache range "
                   "[0, {})",
                   start, rows, positions);
    }
    return {};
  }

 private:
  /// Whether the rows of all entries count on from one position.
  static bool is_start(Inputs inputs) {
    const Dims& ids = inputs[kIds].dims;
    return ids.rank() == 0 || (ids.rank() == 1 && ids[0] == 1);
  }

  int64_t is_interleaved_ = 0, heads_ = 0, columns_ = 0;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kX); }

}  // namespace

// scale and is_packed_batching change nothing, as in ONNX Runtime's own kernel.
const Operator kMicrosoftRotaryEmbedding{"RotaryEmbedding",     1,    kInputs, kOutputs, kOverloads,
                                         RotaryEmbedding::make, shape};

}  // namespace heddle::onnxruntime
