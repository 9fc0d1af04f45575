#include "hlo/interpreter/value_uses.h"

#include <compare>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace heddle::hlo {
namespace {

// Whether elements keep their values, or nearly so, on their way from this operand to the result.
bool passes_on(const Instruction& user, const Instruction* value) {
  switch (user.opcode()) {
    case Opcode::add:  // `index + size` where the index is negative
    case Opcode::subtract:
    case Opcode::multiply:  // by a mask
      return is_integral(user.shape().type());
    case Opcode::broadcast:
    case Opcode::clamp:
    case Opcode::concatenate:
    case Opcode::convert:
    case Opcode::copy:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::opt_barrier:
    case Opcode::reshape:
    case Opcode::reverse:
    case Opcode::slice:
    case Opcode::transpose:
      return true;
    case Opcode::dynamic_slice:
    case Opcode::gather:
    case Opcode::pad:
      return user.operand(0) == value;
    case Opcode::select:
      return user.operand(1) == value || user.operand(2) == value;
    default:
      return false;
  }
}

// Calls on the way to where a value is, the innermost last: a chain, by index into all of them.
constexpr int kNoCall = -1;

struct Place {
  const Instruction* value;
  int64_t element;  // of its tuple; -1: the instruction's value itself
  int call;         // by which its computation was entered
  friend auto operator<=>(const Place&, const Place&) = default;
};

// Of looking at users and their operands. Far more than one value has uses in programs; hostile
// text can lead each of its values to each element of its tuples.
constexpr int64_t kMaxWork = 1 << 16;

class Follower {
 public:
  explicit Follower(const std::function<void(const Instruction&, const Instruction*)>& visit)
      : visit_(visit) {}

  void follow(const Instruction* start) {
    pending_.push_back({start, -1, kNoCall});
    while (!pending_.empty()) {
      const Place place = pending_.back();
      pending_.pop_back();
      if (!seen_.insert(place).second) continue;
      for (const Instruction* user : place.value->users()) {
        work_ += 1 + user->operand_count();
        if (work_ > kMaxWork) return;
        use(*user, place);
      }
      leave(place);
    }
  }

 private:
  void use(const Instruction& user, const Place& place) {
    const auto [value, element, call] = place;
    if (element < 0) visit_(user, value);
    switch (user.opcode()) {
      case Opcode::get_tuple_element:
        if (user.tuple_index() == element) pending_.push_back({&user, -1, call});
        return;
      case Opcode::tuple:
        if (element >= 0) return;  // tuples in tuples are not followed
        for (int i = 0; i < user.operand_count(); ++i) {
          if (user.operand(i) == value) pending_.push_back({&user, i, call});
        }
        return;
      case Opcode::while_:
        enter(*user.condition(), 0, element, kNoCall);
        enter(*user.body(), 0, element, kNoCall);
        pending_.push_back({&user, element, call});
        return;
      case Opcode::call:
      case Opcode::fusion: {
        const Computation* callee = user.is(Opcode::call) ? user.to_apply() : user.called("calls");
        const int entered = chained(&user, call);
        for (int i = 0; i < user.operand_count(); ++i) {
          if (user.operand(i) == value) enter(*callee, i, element, entered);
        }
        return;
      }
      default:
        if (passes_on(user, value)) pending_.push_back({&user, element, call});
    }
  }

  void enter(const Computation& callee, int parameter, int64_t element, int call) {
    pending_.push_back({callee.parameter(parameter), element, call});
  }

  // Out of a called computation, to where it was called: others call it with other values.
  void leave(const Place& place) {
    if (!place.value->is_root() || place.call == kNoCall) return;
    const auto [caller, before] = calls_[static_cast<size_t>(place.call)];
    pending_.push_back({caller, place.element, before});
  }

  int chained(const Instruction* caller, int before) {
    const auto [found, is_new] =
        numbers_.try_emplace({caller, before}, static_cast<int>(calls_.size()));
    if (is_new) calls_.emplace_back(caller, before);
    return found->second;
  }

  const std::function<void(const Instruction&, const Instruction*)>& visit_;
  std::vector<Place> pending_;
  std::set<Place> seen_;
  std::vector<std::pair<const Instruction*, int>> calls_;
  std::map<std::pair<const Instruction*, int>, int> numbers_;
  int64_t work_ = 0;
};

}  // namespace

void for_each_use(const Instruction* value,
                  const std::function<void(const Instruction&, const Instruction*)>& visit) {
  Follower(visit).follow(value);
}

}  // namespace heddle::hlo
