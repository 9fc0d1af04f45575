#include "hlo/opcode.h"

#include <array>
#include <unordered_map>

namespace heddle::hlo {
namespace {

constexpr std::array<std::string_view, kOpcodeCount + 1> kNames = {
#define HEDDLE_HLO_NAME(enumerator, spelling) spelling,
    HEDDLE_HLO_OPCODES(HEDDLE_HLO_NAME)
#undef HEDDLE_HLO_NAME
        "unknown",
};

}  // namespace

std::string_view name(Opcode opcode) { return kNames[static_cast<int>(opcode)]; }

Opcode opcode_from_name(std::string_view name) {
  static const auto* const by_name = [] {
    auto* map = new std::unordered_map<std::string_view, Opcode>;
    for (int i = 0; i < kOpcodeCount; ++i) map->emplace(kNames[i], static_cast<Opcode>(i));
    return map;
  }();
  auto found = by_name->find(name);
  return found == by_name->end() ? Opcode::unknown : found->second;
}

bool is_elementwise_unary(Opcode opcode) {
  switch (opcode) {
    case Opcode::abs:
    case Opcode::acos:
    case Opcode::acosh:
    case Opcode::asin:
    case Opcode::asinh:
    case Opcode::atanh:
    case Opcode::cbrt:
    case Opcode::ceil:
    case Opcode::copy:
    case Opcode::cosh:
    case Opcode::cosine:
    case Opcode::count_leading_zeros:
    case Opcode::erf:
    case Opcode::exponential:
    case Opcode::exponential_minus_one:
    case Opcode::floor:
    case Opcode::imag:
    case Opcode::is_finite:
    case Opcode::log:
    case Opcode::log_plus_one:
    case Opcode::logistic:
    case Opcode::negate:
    case Opcode::not_:
    case Opcode::popcnt:
    case Opcode::real:
    case Opcode::reduce_precision:
    case Opcode::round_nearest_afz:
    case Opcode::round_nearest_even:
    case Opcode::rsqrt:
    case Opcode::sign:
    case Opcode::sine:
    case Opcode::sinh:
    case Opcode::sqrt:
    case Opcode::tan:
    case Opcode::tanh:
      return true;
    default:
      return false;
  }
}

bool is_elementwise_binary(Opcode opcode) {
  switch (opcode) {
    case Opcode::add:
    case Opcode::and_:
    case Opcode::atan2:
    case Opcode::complex:
    case Opcode::divide:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::multiply:
    case Opcode::or_:
    case Opcode::power:
    case Opcode::remainder:
    case Opcode::shift_left:
    case Opcode::shift_right_arithmetic:
    case Opcode::shift_right_logical:
    case Opcode::subtract:
    case Opcode::xor_:
      return true;
    default:
      return false;
  }
}

bool is_elementwise(Opcode opcode) {
  return is_elementwise_unary(opcode) || is_elementwise_binary(opcode) ||
         opcode == Opcode::compare || opcode == Opcode::select || opcode == Opcode::clamp ||
         opcode == Opcode::convert;
}

bool is_commutative(Opcode opcode) {
  switch (opcode) {
    case Opcode::add:
    case Opcode::and_:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::multiply:
    case Opcode::or_:
    case Opcode::xor_:
      return true;
    default:
      return false;
  }
}

bool has_side_effect(Opcode opcode) {
  switch (opcode) {
    case Opcode::all_gather:
    case Opcode::all_reduce:
    case Opcode::all_to_all:
    case Opcode::collective_broadcast:
    case Opcode::collective_permute:
    case Opcode::domain:
    case Opcode::infeed:
    case Opcode::outfeed:
    case Opcode::recv:
    case Opcode::recv_done:
    case Opcode::reduce_scatter:
    case Opcode::rng:
    case Opcode::rng_get_and_update_state:
    case Opcode::send:
    case Opcode::send_done:
    case Opcode::unknown:
      return true;
    default:
      return false;
  }
}

}  // namespace heddle::hlo
