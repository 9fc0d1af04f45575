#include <array>
#include <cmath>
#include <numbers>
#include <unordered_set>

#include "core/philox.h"
#include "hlo/interpreter/evaluate.h"

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

// Whether elements keep their values, or nearly so, on their way from this operand to the result.
bool passes_on(const Instruction& user, const Instruction* value) {
  switch (user.opcode()) {
    case Opcode::add:  // `index + size` where the index is negative
    case Opcode::subtract:
    case Opcode::broadcast:
    case Opcode::clamp:
    case Opcode::concatenate:
    case Opcode::convert:
    case Opcode::copy:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::reshape:
    case Opcode::reverse:
    case Opcode::slice:
    case Opcode::transpose:
      return true;
    case Opcode::dynamic_slice:
      return user.operand(0) == value;
    case Opcode::select:
      return user.operand(1) == value || user.operand(2) == value;
    default:
      return false;
  }
}

// The exclusive bound that the uses of integer `value` show, 0 if they show none: the size of what
// it indexes, or of the iota it is compared with.
class IndexBound {
 public:
  int64_t of(const Instruction* value) {
    bound_ = 0;
    seen_.clear();
    follow(value);
    return bound_;
  }

 private:
  void limit(int64_t size) {
    if (size > 0 && (bound_ == 0 || size < bound_)) bound_ = size;
  }

  void follow(const Instruction* start) {
    std::vector<const Instruction*> pending = {start};
    while (!pending.empty()) {
      const Instruction* value = pending.back();
      pending.pop_back();
      if (!seen_.insert(value).second) continue;
      for (const Instruction* user : value->users()) {
        look_at(*user, value);
        if (passes_on(*user, value)) pending.push_back(user);
        if (!user->is(Opcode::call) && !user->is(Opcode::fusion)) continue;
        const Computation* callee =
            user->is(Opcode::call) ? user->to_apply() : user->called("calls");
        for (int i = 0; i < user->operand_count(); ++i) {
          if (user->operand(i) == value) pending.push_back(callee->parameter(i));
        }
      }
      if (value->is_root() && !value->computation()->is_entry()) {
        for (const Instruction* caller : value->module()->callers(value->computation())) {
          if (caller->is(Opcode::call) || caller->is(Opcode::fusion)) pending.push_back(caller);
        }
      }
    }
  }

  void look_at(const Instruction& user, const Instruction* value) {
    if (user.is(Opcode::gather) && user.operand(1) == value) {
      for (int64_t dimension : user.integers("start_index_map")) {
        limit(user.operand(0)->shape().dim(static_cast<int>(dimension)));
      }
    } else if (user.is(Opcode::scatter) && user.operand(user.operand_count() / 2) == value) {
      for (int64_t dimension : user.integers("scatter_dims_to_operand_dims")) {
        limit(user.operand(0)->shape().dim(static_cast<int>(dimension)));
      }
    } else if (user.is(Opcode::dynamic_slice)) {
      for (int i = 1; i < user.operand_count(); ++i) {
        if (user.operand(i) == value) limit(user.operand(0)->shape().dim(i - 1));
      }
    } else if (user.is(Opcode::dynamic_update_slice)) {
      for (int i = 2; i < user.operand_count(); ++i) {
        if (user.operand(i) == value) limit(user.operand(0)->shape().dim(i - 2));
      }
    } else if (user.is(Opcode::compare) && user.direction() == "EQ") {
      const Instruction* other = user.operand(user.operand(0) == value ? 1 : 0);
      while (other->is(Opcode::broadcast) || other->is(Opcode::reshape)) other = other->operand(0);
      if (other->is(Opcode::iota)) {
        limit(other->shape().dim(static_cast<int>(other->iota_dimension())));
      }
    }
  }

  int64_t bound_ = 0;
  std::unordered_set<const Instruction*> seen_;
};

constexpr int64_t kDefaultBound = 8;

Result<Literal> random_value(const Shape& shape, int64_t bound, Stream& stream) {
  if (shape.is_tuple()) {
    std::vector<Literal> elements;
    for (const Shape& element : shape.elements()) {
      HEDDLE_ASSIGN(Literal value, random_value(element, bound, stream));
      elements.push_back(std::move(value));
    }
    return Literal::tuple(std::move(elements));
  }
  if (shape.is_dynamic() || !shape.is_array()) {
    return error(Code::graph_not_supported, "no random value of {} can be made",
                 to_string_without_layout(shape));
  }
  HEDDLE_ASSIGN(Literal value, Literal::zeros(shape));
  const ElementType type = shape.type();
  const int64_t count = value.element_count();
  for (int64_t i = 0; i < count; ++i) {
    if (type == ElementType::pred) {
      value.set_integer(i, stream.word() & 1);
    } else if (is_floating(type)) {
      value.set(i, stream.normal());
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

Result<std::vector<Literal>> random_arguments(const Module& module, uint64_t seed) {
  std::vector<Literal> arguments;
  IndexBound bounds;
  for (const Instruction* parameter : module.entry()->parameters()) {
    Stream stream(seed, static_cast<uint32_t>(parameter->parameter_number()));
    const Shape& shape = parameter->shape();
    const int64_t bound = is_integral(shape.type()) ? bounds.of(parameter) : 0;
    HEDDLE_ASSIGN(Literal value, random_value(shape, bound, stream));
    arguments.push_back(std::move(value));
  }
  return arguments;
}

}  // namespace heddle::hlo
