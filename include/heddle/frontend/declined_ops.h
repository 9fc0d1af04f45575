// Attributes of ops that Heddle's graphs do not have: programs with them compile, and their graphs
// are declined with a sentence at validate().
#pragma once

#include "heddle/frontend/tensor.h"

namespace heddle::frontend {

enum class ReductionMode_t { NOT_SET, ADD, MUL, MIN, MAX, AMAX, AVG, NORM1, NORM2, MUL_NO_ZEROS };

namespace graph {

class Matmul_attributes {
 public:
  Matmul_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Matmul_attributes& set_compute_data_type(DataType_t) { return *this; }
  Matmul_attributes& set_m_override(Tensor) { return *this; }
  Matmul_attributes& set_n_override(Tensor) { return *this; }
  Matmul_attributes& set_k_override(Tensor) { return *this; }
  Matmul_attributes& set_padding(double) { return *this; }

 private:
  friend class Graph;
  std::string name_;
};

class Reduction_attributes {
 public:
  Reduction_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Reduction_attributes& set_compute_data_type(DataType_t) { return *this; }
  Reduction_attributes& set_mode(ReductionMode_t) { return *this; }
  Reduction_attributes& set_is_deterministic(bool) { return *this; }

 private:
  friend class Graph;
  std::string name_;
};

}  // namespace graph
}  // namespace heddle::frontend
