// What a program uses its parameters for, read off their uses, as far as it decides which values
// tell a right program from a wrong one.
#pragma once

#include <cstdint>
#include <vector>

#include "hlo/module.h"

namespace heddle::hlo {

enum class Role : uint8_t {
  value,      // any number
  positive,   // a float whose root or logarithm is taken
  projected,  // a float that makes queries or keys: a weight, or an operand of a product in batches
  bias,       // a float that is added to scores
  mask,       // hides: 0 or 1, of any type
  index,      // an integer that says which of `bound` slices is taken: token ids
  length,     // an integer that ends a range of `bound`
  position,   // an integer of which angles or distances are made
  segment,    // an integer that is compared with others of its kind
  key,        // an integer whose bits are what counts
};

struct ParameterRole {
  Role role = Role::value;
  int64_t bound = 0;     // exclusive, of indices and positions; inclusive of lengths; 0: none shown
  int64_t padding = 0;   // the index that stands for nothing
  double deviation = 1;  // of floats: 1/sqrt(n) of weights that a product contracts n of
};

/// One for each of the entry's parameters; of a tuple's elements nothing is read.
std::vector<ParameterRole> parameter_roles(const Module& module);

}  // namespace heddle::hlo
