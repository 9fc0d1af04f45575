// Arguments for a module's parameters that let wrong and right programs differ.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "hlo/literal.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// What is drawn for each role (parameter_roles.h); no two rows of a draw are made alike.
enum class Draw : uint8_t {
  ordinary,  // masks that leave every row a key, padding at the ends, positions of their own in
             // each batch entry; floats normal with mean 0 and standard deviation 1, weights less
  hidden,    // rows, entries and heads hidden whole, padding on the left, lengths 0, 1 and full,
             // biases with -inf, with the least finite number and with -1e9
  large,     // queries and keys so large that scores reach 1e3
  small,     // activations a tenth as large, masks that hide where the others show, short lengths
};
inline constexpr Draw kDraws[] = {Draw::ordinary, Draw::hidden, Draw::large, Draw::small};

std::string_view name(Draw draw);

/// Inputs for the entry's parameters, the same for the same seed, each by its role; u32 and u64
/// (generator keys) over their whole range. Fails with out_of_memory if they take more than
/// `max_bytes` together.
Result<std::vector<Literal>> random_arguments(const Module& module, uint64_t seed,
                                              Draw draw = Draw::ordinary,
                                              int64_t max_bytes = int64_t{8} << 30);

/// The same arguments with floats moved by two roundings, each of which is `step` of a number at
/// most; whole numbers, which masks and flags are, stay. What a program that rounds so gives
/// differently is like its own rounding error.
std::vector<Literal> nearby_arguments(const std::vector<Literal>& arguments, double step,
                                      uint64_t seed);

}  // namespace heddle::hlo
