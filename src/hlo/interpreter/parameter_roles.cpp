#include "hlo/interpreter/parameter_roles.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>

#include "hlo/interpreter/value_uses.h"

namespace heddle::hlo {
namespace {

// Of following one value backwards or forwards. Programs need a few dozen steps.
constexpr int kMaxSteps = 256;

bool only_moves(const Instruction& x) {
  switch (x.opcode()) {
    case Opcode::bitcast:
    case Opcode::broadcast:
    case Opcode::convert:
    case Opcode::copy:
    case Opcode::opt_barrier:
    case Opcode::reshape:
    case Opcode::slice:
    case Opcode::transpose:
      return true;
    default:
      return false;
  }
}

/// What the parameters of called computations are, where those are called once.
class Passed {
 public:
  explicit Passed(const Module& module) {
    std::map<const Computation*, int> calls;
    for (const Computation* computation : module.computations())
      for (const Instruction* x : computation->instructions())
        for (const Computation* callee : x->called_computations()) {
          if (++calls[callee] > 1 || !(x->is(Opcode::call) || x->is(Opcode::fusion))) {
            callers_.erase(callee);
          } else {
            callers_[callee] = x;
          }
        }
  }

  /// The value that a parameter stands for; a parameter of which that is not known, itself.
  const Instruction* operator()(const Instruction* parameter) const {
    const auto found = callers_.find(parameter->computation());
    const int64_t number = parameter->parameter_number();
    if (found == callers_.end() || number >= found->second->operand_count()) return parameter;
    return found->second->operand(static_cast<int>(number));
  }

 private:
  std::map<const Computation*, const Instruction*> callers_;
};

/// Where the elements of `x` come from: back over what moves them or adds a number to them.
const Instruction* source(const Instruction* x, const Passed& passed) {
  for (int step = 0; step < kMaxSteps; ++step) {
    const Instruction* before = x;
    if (only_moves(*x) && x->operand_count() > 0) {
      x = x->operand(0);
    } else if (x->is(Opcode::add) || x->is(Opcode::subtract) || x->is(Opcode::multiply)) {
      for (const int i : {0, 1}) {
        const Instruction* other = x->operand(1 - i);
        while (only_moves(*other) && other->operand_count() > 0) other = other->operand(0);
        if (other->is(Opcode::constant) && other->shape().is_scalar()) {
          x = x->operand(i);
          break;
        }
      }
    } else if (x->is(Opcode::parameter)) {
      x = passed(x);
    }
    if (x == before) return x;
  }
  return x;
}

/// The one number that `x` holds everywhere, if it is written in the program.
std::optional<double> number(const Instruction* x, const Passed& passed) {
  for (int step = 0; step < kMaxSteps; ++step) {
    if (x->is(Opcode::constant) && x->shape().is_scalar() && !x->literal()->is_elided() &&
        !is_complex(x->shape().type()))
      return x->literal()->get(0);
    const Instruction* before = x;
    if (only_moves(*x) && x->operand_count() > 0) {
      x = x->operand(0);
    } else if (x->is(Opcode::parameter)) {
      x = passed(x);
    }
    if (x == before) return std::nullopt;
  }
  return std::nullopt;
}

bool is_batched_product(const Instruction& x) {
  return x.is(Opcode::dot) && !x.lhs_batch_dims().empty();
}

/// Whether `found` holds for `start` or what uses something made of it element by element.
template <class Found>
bool leads_to(const Instruction& start, const Found& found) {
  if (found(start)) return true;
  std::vector<const Instruction*> pending = {&start};
  std::set<const Instruction*> seen;
  while (!pending.empty() && static_cast<int>(seen.size()) < kMaxSteps) {
    const Instruction* x = pending.back();
    pending.pop_back();
    if (!seen.insert(x).second) continue;
    for (const Instruction* user : x->users()) {
      if (found(*user)) return true;
      const bool follows = is_elementwise(user->opcode()) || only_moves(*user) ||
                           user->is(Opcode::concatenate) || user->is(Opcode::pad);
      if (follows) pending.push_back(user);
    }
  }
  return false;
}

/// Whether a product in batches is among what `x` is made of element by element.
bool holds_product(const Instruction* start, const Passed& passed) {
  std::vector<const Instruction*> pending = {start};
  std::set<const Instruction*> seen;
  while (!pending.empty() && static_cast<int>(seen.size()) < kMaxSteps) {
    const Instruction* x = pending.back();
    pending.pop_back();
    if (!seen.insert(x).second) continue;
    if (is_batched_product(*x)) return true;
    if (is_elementwise(x->opcode()) || only_moves(*x))
      for (const Instruction* operand : x->operands()) pending.push_back(operand);
    if (x->is(Opcode::parameter) && passed(x) != x) pending.push_back(passed(x));
  }
  return false;
}

bool is_one_of(const Instruction& x, std::initializer_list<Opcode> opcodes) {
  return std::find(opcodes.begin(), opcodes.end(), x.opcode()) != opcodes.end();
}

bool is_wave(const Instruction& x) { return is_one_of(x, {Opcode::sine, Opcode::cosine}); }

// Times what masks are before they are added to scores.
constexpr double kHuge = 1e3;

/// How one parameter is used.
class Uses {
 public:
  using Comparisons = std::map<const Instruction*, std::set<const Instruction*>>;

  /// `comparisons` says of every comparison which parameters met in it, by this parameter and those
  /// read before.
  Uses(const Instruction* parameter, const Passed& passed, Comparisons& comparisons)
      : parameter_(parameter), passed_(passed), comparisons_(comparisons) {}

  void read() {
    for_each_use(parameter_, [this](const Instruction& user, const Instruction* operand) {
      visit(user, operand);
    });
  }

  ParameterRole role() const {
    ParameterRole role;
    const ElementType type = parameter_->shape().type();
    if (!is_activation_) role.deviation = 1 / std::sqrt(static_cast<double>(contracted_));
    if (type == ElementType::pred) {
      role.role = Role::mask;
    } else if (is_floating(type)) {
      role.role = role_of_floats();
    } else if (is_integral(type)) {
      role.role = role_of_integers();
      role.bound = role.role == Role::length ? counted_ : bound_;
      if (role.role == Role::position && bound_ == 0) role.bound = counted_;
      if (bound_ > 0 && padding_ > 0 && padding_ < bound_) role.padding = padding_;
    }
    return role;
  }

 private:
  void visit(const Instruction& user, const Instruction* value) {
    switch (user.opcode()) {
      case Opcode::gather:
        if (user.operand(1) == value) index(user, user.integers("start_index_map"));
        return;
      case Opcode::scatter:
        if (user.operand(user.operand_count() / 2) == value)
          index(user, user.integers("scatter_dims_to_operand_dims"));
        return;
      case Opcode::dynamic_slice:
      case Opcode::dynamic_update_slice: {
        const int first = user.is(Opcode::dynamic_slice) ? 1 : 2;
        for (int i = first; i < user.operand_count(); ++i)
          if (user.operand(i) == value) limit(bound_, user.operand(0)->shape().dim(i - first));
        return;
      }
      case Opcode::compare:
        return compared(user, value);
      case Opcode::subtract:
        if (user.operand(1) == value && number(user.operand(0), passed_) == 1.0) hides_ = true;
        return combined(user);
      case Opcode::multiply:
        if (std::abs(number(user.operand(user.operand(0) == value ? 1 : 0), passed_).value_or(0)) >=
            kHuge)
          hides_ = true;
        return combined(user);
      case Opcode::dot:
        return multiplied(user, value);
      case Opcode::and_:
      case Opcode::or_:
      case Opcode::not_:
      case Opcode::reduce_window:
        hides_ = true;
        return;
      case Opcode::convert:
        if (user.shape().type() == ElementType::pred) hides_ = true;
        return;
      case Opcode::add:
        if (is_floating(user.shape().type()) &&
            holds_product(user.operand(user.operand(0) == value ? 1 : 0), passed_) &&
            leads_to(user, [](const Instruction& x) { return x.is(Opcode::exponential); }))
          biases_ = true;
        return combined(user);
      case Opcode::shift_left:
      case Opcode::shift_right_logical:
      case Opcode::xor_:
      case Opcode::rng_bit_generator:
        has_bits_ = true;
        return;
      default:
        return combined(user);
    }
  }

  /// What element-wise arithmetic may end in.
  void combined(const Instruction& user) {
    if (!is_elementwise(user.opcode()) || user.is(Opcode::select)) return;
    if (is_integral(parameter_->shape().type())) {
      turns_ = turns_ || leads_to(user, is_wave);
      counts_ = counts_ || user.is(Opcode::multiply) || user.is(Opcode::divide);
    } else if (is_one_of(user, {Opcode::sqrt, Opcode::rsqrt, Opcode::log})) {
      rooted_ = true;
    } else if (is_one_of(user, {Opcode::add, Opcode::multiply, Opcode::divide})) {
      rooted_ = rooted_ || is_rooted_later(user);
    }
  }

  /// A variance or a second moment: sums and multiples of it go under a root.
  static bool is_rooted_later(const Instruction& x) {
    for (const Instruction* user : x.users()) {
      const bool is_sum = is_one_of(*user, {Opcode::add, Opcode::divide, Opcode::convert});
      if (is_one_of(*user, {Opcode::sqrt, Opcode::rsqrt, Opcode::log})) return true;
      for (const Instruction* next : is_sum ? user->users() : std::span<Instruction* const>())
        if (is_one_of(*next, {Opcode::sqrt, Opcode::rsqrt, Opcode::log})) return true;
    }
    return false;
  }

  /// A weight is what a dot without batch dimensions contracts: like a trained one it gets a
  /// standard deviation of 1/sqrt(length contracted), else activations of a deep program grow until
  /// its softmaxes saturate and its gradients say nothing. Activations stand on the left of
  /// weights, and have a batch. Queries, keys and values meet in dots with batch dimensions.
  void multiplied(const Instruction& product, const Instruction* value) {
    if (is_batched_product(product)) {
      projects_ = true;
      return;
    }
    const bool is_lhs = product.operand(0) == value;
    int64_t length = 1;
    for (const int64_t dimension :
         is_lhs ? product.lhs_contracting_dims() : product.rhs_contracting_dims())
      length *= value->shape().dim(static_cast<int>(dimension));
    contracted_ = std::max(contracted_, length);
    const auto last = is_lhs ? product.lhs_contracting_dims() : std::span<const int64_t>();
    if (parameter_->shape().rank() > 2 && last.size() == 1 && last[0] + 1 == value->shape().rank())
      is_activation_ = true;
    projects_ = projects_ || leads_to(product, is_batched_product);
    counts_ = true;
    turns_ = turns_ || leads_to(product, is_wave);
  }

  void compared(const Instruction& comparison, const Instruction* value) {
    const Instruction* other = comparison.operand(comparison.operand(0) == value ? 1 : 0);
    const std::string_view direction = comparison.direction();
    const bool is_equality = direction == "EQ" || direction == "NE";
    const bool is_itself = comparison.operand(0) == comparison.operand(1);
    std::set<const Instruction*>& sides = comparisons_[&comparison];
    sides.insert(value);
    if (sides.size() > 1 || is_itself) (is_equality ? equated_ : ordered_) = true;
    if (const std::optional<double> constant = number(other, passed_)) {
      // `index < 0` is asked of every index: negative ones count from the end.
      const bool is_of_indices = *constant == 0 && (direction == "LT" || direction == "GE");
      const bool is_float = is_floating(value->shape().type());
      if (is_float ? is_equality : !is_of_indices) hides_ = true;
      if (!is_float && is_equality) padding_ = static_cast<int64_t>(*constant);
      return;
    }
    other = source(other, passed_);
    if (!other->is(Opcode::iota)) return;
    limit(is_equality ? bound_ : counted_,
          other->shape().dim(static_cast<int>(other->iota_dimension())));
  }

  static void limit(int64_t& bound, int64_t size) {
    if (size > 0 && (bound == 0 || size < bound)) bound = size;
  }

  void index(const Instruction& user, std::span<const int64_t> map) {
    for (const int64_t dimension : map)
      limit(bound_, user.operand(0)->shape().dim(static_cast<int>(dimension)));
  }

  Role role_of_floats() const {
    if (hides_) return Role::mask;
    if (biases_) return Role::bias;
    if (rooted_) return Role::positive;
    return projects_ && !is_activation_ ? Role::projected : Role::value;
  }

  Role role_of_integers() const {
    const ElementType type = parameter_->shape().type();
    const bool is_word = type == ElementType::u32 || type == ElementType::u64;
    if (is_word && bound_ == 0 && counted_ == 0 && !equated_ && !ordered_ && !turns_ &&
        (has_bits_ || !hides_))
      return Role::key;
    if (turns_ || ordered_) return Role::position;
    if (bound_ > 0) return Role::index;
    if (counted_ > 0)
      return parameter_->shape().element_count() < counted_ ? Role::length : Role::position;
    if (equated_) return Role::segment;
    if (hides_) return Role::mask;
    return counts_ ? Role::position : Role::value;
  }

  const Instruction* parameter_;
  const Passed& passed_;
  Comparisons& comparisons_;
  int64_t bound_ = 0, counted_ = 0, contracted_ = 1, padding_ = 0;
  bool hides_ = false, biases_ = false, rooted_ = false, projects_ = false;
  bool turns_ = false, ordered_ = false, equated_ = false, counts_ = false, has_bits_ = false;
  bool is_activation_ = false;
};

}  // namespace

std::vector<ParameterRole> parameter_roles(const Module& module) {
  const Passed passed(module);
  Uses::Comparisons comparisons;
  std::vector<ParameterRole> roles;
  const std::vector<Instruction*>& parameters = module.entry()->parameters();
  // Twice: of two parameters that meet in a comparison, the first is then read with the second.
  for (const Instruction* parameter : parameters) Uses(parameter, passed, comparisons).read();
  for (const Instruction* parameter : parameters) {
    if (!parameter->shape().is_array()) {
      roles.emplace_back();
      continue;
    }
    Uses uses(parameter, passed, comparisons);
    uses.read();
    roles.push_back(uses.role());
  }
  return roles;
}

}  // namespace heddle::hlo
