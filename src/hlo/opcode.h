// The operations of HLO by name. An operation that is not listed is `unknown`: its spelling is kept
// by the instruction and written back, and only evaluation refuses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace heddle::hlo {

// HEDDLE_HLO_OPCODES(X): X(enumerator, spelling in text)
#define HEDDLE_HLO_OPCODES(X)                             \
  X(abs, "abs")                                           \
  X(acos, "acos")                                         \
  X(acosh, "acosh")                                       \
  X(add, "add")                                           \
  X(add_dependency, "add-dependency")                     \
  X(after_all, "after-all")                               \
  X(all_gather, "all-gather")                             \
  X(all_reduce, "all-reduce")                             \
  X(all_to_all, "all-to-all")                             \
  X(and_, "and")                                          \
  X(asin, "asin")                                         \
  X(asinh, "asinh")                                       \
  X(atan2, "atan2")                                       \
  X(atanh, "atanh")                                       \
  X(batch_norm_grad, "batch-norm-grad")                   \
  X(batch_norm_inference, "batch-norm-inference")         \
  X(batch_norm_training, "batch-norm-training")           \
  X(bitcast, "bitcast")                                   \
  X(bitcast_convert, "bitcast-convert")                   \
  X(broadcast, "broadcast")                               \
  X(call, "call")                                         \
  X(cbrt, "cbrt")                                         \
  X(ceil, "ceil")                                         \
  X(cholesky, "cholesky")                                 \
  X(clamp, "clamp")                                       \
  X(collective_broadcast, "collective-broadcast")         \
  X(collective_permute, "collective-permute")             \
  X(compare, "compare")                                   \
  X(complex, "complex")                                   \
  X(concatenate, "concatenate")                           \
  X(conditional, "conditional")                           \
  X(constant, "constant")                                 \
  X(convert, "convert")                                   \
  X(convolution, "convolution")                           \
  X(copy, "copy")                                         \
  X(cosh, "cosh")                                         \
  X(cosine, "cosine")                                     \
  X(count_leading_zeros, "count-leading-zeros")           \
  X(custom_call, "custom-call")                           \
  X(divide, "divide")                                     \
  X(domain, "domain")                                     \
  X(dot, "dot")                                           \
  X(dynamic_reshape, "dynamic-reshape")                   \
  X(dynamic_slice, "dynamic-slice")                       \
  X(dynamic_update_slice, "dynamic-update-slice")         \
  X(erf, "erf")                                           \
  X(exponential, "exponential")                           \
  X(exponential_minus_one, "exponential-minus-one")       \
  X(fft, "fft")                                           \
  X(floor, "floor")                                       \
  X(fusion, "fusion")                                     \
  X(gather, "gather")                                     \
  X(get_dimension_size, "get-dimension-size")             \
  X(get_tuple_element, "get-tuple-element")               \
  X(imag, "imag")                                         \
  X(infeed, "infeed")                                     \
  X(iota, "iota")                                         \
  X(is_finite, "is-finite")                               \
  X(log, "log")                                           \
  X(log_plus_one, "log-plus-one")                         \
  X(logistic, "logistic")                                 \
  X(map, "map")                                           \
  X(maximum, "maximum")                                   \
  X(minimum, "minimum")                                   \
  X(multiply, "multiply")                                 \
  X(negate, "negate")                                     \
  X(not_, "not")                                          \
  X(opt_barrier, "opt-barrier")                           \
  X(or_, "or")                                            \
  X(outfeed, "outfeed")                                   \
  X(pad, "pad")                                           \
  X(parameter, "parameter")                               \
  X(partition_id, "partition-id")                         \
  X(popcnt, "popcnt")                                     \
  X(power, "power")                                       \
  X(real, "real")                                         \
  X(recv, "recv")                                         \
  X(recv_done, "recv-done")                               \
  X(reduce, "reduce")                                     \
  X(reduce_precision, "reduce-precision")                 \
  X(reduce_scatter, "reduce-scatter")                     \
  X(reduce_window, "reduce-window")                       \
  X(remainder, "remainder")                               \
  X(replica_id, "replica-id")                             \
  X(reshape, "reshape")                                   \
  X(reverse, "reverse")                                   \
  X(rng, "rng")                                           \
  X(rng_bit_generator, "rng-bit-generator")               \
  X(rng_get_and_update_state, "rng-get-and-update-state") \
  X(round_nearest_afz, "round-nearest-afz")               \
  X(round_nearest_even, "round-nearest-even")             \
  X(rsqrt, "rsqrt")                                       \
  X(scatter, "scatter")                                   \
  X(select, "select")                                     \
  X(select_and_scatter, "select-and-scatter")             \
  X(send, "send")                                         \
  X(send_done, "send-done")                               \
  X(set_dimension_size, "set-dimension-size")             \
  X(shift_left, "shift-left")                             \
  X(shift_right_arithmetic, "shift-right-arithmetic")     \
  X(shift_right_logical, "shift-right-logical")           \
  X(sign, "sign")                                         \
  X(sine, "sine")                                         \
  X(sinh, "sinh")                                         \
  X(slice, "slice")                                       \
  X(sort, "sort")                                         \
  X(sqrt, "sqrt")                                         \
  X(stochastic_convert, "stochastic-convert")             \
  X(subtract, "subtract")                                 \
  X(tan, "tan")                                           \
  X(tanh, "tanh")                                         \
  X(topk, "topk")                                         \
  X(transpose, "transpose")                               \
  X(triangular_solve, "triangular-solve")                 \
  X(tuple, "tuple")                                       \
  X(while_, "while")                                      \
  X(xor_, "xor")

enum class Opcode : uint8_t {
#define HEDDLE_HLO_ENUMERATOR(enumerator, spelling) enumerator,
  HEDDLE_HLO_OPCODES(HEDDLE_HLO_ENUMERATOR)
#undef HEDDLE_HLO_ENUMERATOR
      unknown,
};
inline constexpr int kOpcodeCount = static_cast<int>(Opcode::unknown);

/// The spelling in text; "unknown" for Opcode::unknown.
std::string_view name(Opcode opcode);
Opcode opcode_from_name(std::string_view name);

/// One operand, result element = f(operand element): exponential, negate, not, ...
bool is_elementwise_unary(Opcode opcode);
/// Two operands of one shape: add, maximum, xor, shifts, power, ... (compare is not one of them).
bool is_elementwise_binary(Opcode opcode);
/// Unary, binary, compare, select, clamp, convert, bitcast-convert's equal-width form excluded.
bool is_elementwise(Opcode opcode);
bool is_commutative(Opcode opcode);
/// Whether an instruction may not be removed although nobody uses it, by its opcode alone
/// (infeed, outfeed, send, recv, collectives, rng state, ...). See also
/// Instruction::has_side_effect.
bool has_side_effect(Opcode opcode);

}  // namespace heddle::hlo
