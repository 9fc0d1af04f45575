#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

#include "core/philox.h"
#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/value_uses.h"

namespace heddle::hlo {
namespace {

// A stream of random words for each parameter, so that one does not depend on the sizes of others.
class Stream {
 public:
  Stream(uint64_t seed, uint32_t parameter)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(parameter) {}

  uint32_t word() {
    if (next_ == 4) {
      block_ = philox_4x32_10(
          {static_cast<uint32_t>(count_), static_cast<uint32_t>(count_ >> 32), stream_, 0}, key_);
      ++count_;
      next_ = 0;
    }
    return block_[next_++];
  }
  double uniform() { return (word() + 0.5) / 4294967296.0; }  // in (0, 1)
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));  // Box and Muller
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t stream_;
  uint64_t count_ = 0;
  std::array<uint32_t, 4> block_{};
  int next_ = 4;
};

// The exclusive bound that a use of integer `value` shows: the size of what it indexes, or of the
// iota it is compared with. 0 if it shows none.
int64_t bound_shown_by(const Instruction& user, const Instruction* value) {
  int64_t bound = 0;
  const auto limit = [&](int64_t size) {
    if (size > 0 && (bound == 0 || size < bound)) bound = size;
  };
  const auto limit_by = [&](std::string_view map) {
    for (int64_t dimension : user.integers(map)) {
      limit(user.operand(0)->shape().dim(static_cast<int>(dimension)));
    }
  };
  switch (user.opcode()) {
    case Opcode::gather:
      if (user.operand(1) == value) limit_by("start_index_map");
      break;
    case Opcode::scatter:
      if (user.operand(user.operand_count() / 2) == value) limit_by("scatter_dims_to_operand_dims");
      break;
    case Opcode::dynamic_slice:
    case Opcode::dynamic_update_slice: {
      const int first = user.is(Opcode::dynamic_slice) ? 1 : 2;
      for (int i = first; i < user.operand_count(); ++i) {
        if (user.operand(i) == value) limit(user.operand(0)->shape().dim(i - first));
      }
      break;
    }
    case Opcode::compare: {
      if (user.direction() != "EQ") break;
      const Instruction* other = user.operand(user.operand(0) == value ? 1 : 0);
      while (other->is(Opcode::broadcast) || other->is(Opcode::reshape)) other = other->operand(0);
      if (other->is(Opcode::iota)) {
        limit(other->shape().dim(static_cast<int>(other->iota_dimension())));
      }
      break;
    }
    default:
      break;
  }
  return bound;
}

int64_t index_bound(const Instruction* value) {
  int64_t bound = 0;
  for_each_use(value, [&](const Instruction& user, const Instruction* operand) {
    const int64_t shown = bound_shown_by(user, operand);
    if (shown > 0 && (bound == 0 || shown < bound)) bound = shown;
  });
  return bound;
}

// A weight is what a dot without batch dimensions contracts: like a trained one it gets a standard
// deviation of 1/sqrt(length contracted), else activations of a deep program grow until its
// softmaxes saturate and its gradients say nothing. Queries, keys and values meet in dots with
// batch dimensions.
double standard_deviation(const Instruction* value) {
  int64_t longest = 1;
  for_each_use(value, [&](const Instruction& user, const Instruction* operand) {
    if (!user.is(Opcode::dot) || !user.lhs_batch_dims().empty()) return;
    const bool is_lhs = user.operand(0) == operand;
    int64_t length = 1;
    for (int64_t dimension : is_lhs ? user.lhs_contracting_dims() : user.rhs_contracting_dims()) {
      length *= operand->shape().dim(static_cast<int>(dimension));
    }
    longest = std::max(longest, length);
  });
  return 1 / std::sqrt(static_cast<double>(longest));
}

constexpr int64_t kDefaultBound = 8;

Result<Literal> random_value(const Shape& shape, int64_t bound, double deviation, Stream& stream,
                             const std::shared_ptr<MemoryMeter>& meter) {
  if (shape.is_tuple()) {
    std::vector<Literal> elements;
    for (const Shape& element : shape.elements()) {
      HEDDLE_ASSIGN(Literal value, random_value(element, bound, deviation, stream, meter));
      elements.push_back(std::move(value));
    }
    return Literal::tuple(std::move(elements));
  }
  if (shape.is_dynamic() || !shape.is_array()) {
    return error(Code::graph_not_supported, "no random value of {} can be made",
                 to_string_without_layout(shape));
  }
  HEDDLE_ASSIGN(Literal value, Literal::uninitialized(shape, meter));
  const ElementType type = shape.type();
  const int64_t count = value.element_count();
  for (int64_t i = 0; i < count; ++i) {
    if (type == ElementType::pred) {
      value.set_integer(i, stream.word() & 1);
    } else if (is_floating(type)) {
      value.set(i, deviation * stream.normal());
    } else if (is_complex(type)) {
      const double real = stream.normal();
      value.set_complex(i, {real, stream.normal()});
    } else if (bound == 0 && (type == ElementType::u32 || type == ElementType::u64)) {
      const uint64_t upper = uint64_t{stream.word()} << 32;
      value.set_integer(i, static_cast<int64_t>(upper | stream.word()));
    } else {
      const auto range = static_cast<uint64_t>(bound > 0 ? bound : kDefaultBound);
      // Of 32 random bits; sizes beyond that are never indexed far.
      value.set_integer(i, static_cast<int64_t>(stream.word() % range));
    }
  }
  return value;
}

}  // namespace

Result<std::vector<Literal>> random_arguments(const Module& module, uint64_t seed,
                                              int64_t max_bytes) {
  const auto meter = std::make_shared<MemoryMeter>(MemoryMeter{0, max_bytes});
  std::vector<Literal> arguments;
  for (const Instruction* parameter : module.entry()->parameters()) {
    Stream stream(seed, static_cast<uint32_t>(parameter->parameter_number()));
    const Shape& shape = parameter->shape();
    const int64_t bound = is_integral(shape.type()) ? index_bound(parameter) : 0;
    const double deviation = is_floating(shape.type()) ? standard_deviation(parameter) : 1;
    HEDDLE_ASSIGN(Literal value, random_value(shape, bound, deviation, stream, meter));
    arguments.push_back(std::move(value));
  }
  return arguments;
}

}  // namespace heddle::hlo
