#include "engine/cuda/common_kernels.h"

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::OperandId;

struct CommonCase {
  DataType dtype;
  int head_dim;
  bool causal;
  int64_t length;
};

/// Dense [1, 1, length, head_dim] tensors: kernels do not depend on batch, heads or strides.
AttentionProblem common_forward(const CommonCase& c) {
  AttentionProblem problem;
  const auto operand = [&](DataType dtype, int64_t columns) {
    const Dims dims{1, 1, c.length, columns};
    problem.structure.operands.push_back({.dtype = dtype});
    problem.sizes.layouts.push_back({.dims = dims, .strides = *dense_strides(dims)});
    return static_cast<OperandId>(problem.structure.operands.size()) - 1;
  };
  for (OperandId* id :
       {&problem.structure.q, &problem.structure.k, &problem.structure.v, &problem.structure.o})
    *id = operand(c.dtype, c.head_dim);
  problem.structure.stats = operand(DataType::f32, 1);
  problem.structure.qk_head_dim = problem.structure.v_head_dim = c.head_dim;
  if (c.causal) {
    problem.structure.bounds.push_back({.upper = true, .anchor = problem::Anchor::top_left});
    problem.sizes.bound_constants.push_back(1);
  }
  problem.sizes.batch = problem.sizes.q_heads = 1;
  problem.sizes.k_heads = problem.sizes.v_heads = 1;
  problem.sizes.q_length = problem.sizes.kv_length = c.length;
  return problem;
}

AttentionBackwardProblem common_backward(const CommonCase& c) {
  AttentionBackwardProblem problem;
  AttentionProblem forward = common_forward(c);
  for (OperandId* id : {&problem.structure.d_o, &problem.structure.d_q, &problem.structure.d_k,
                        &problem.structure.d_v}) {
    forward.structure.operands.push_back({.dtype = c.dtype});
    forward.sizes.layouts.push_back(forward.sizes.layouts.front());
    *id = static_cast<OperandId>(forward.structure.operands.size()) - 1;
  }
  problem.structure.forward = std::move(forward.structure);
  problem.sizes = std::move(forward.sizes);
  return problem;
}

}  // namespace

std::vector<KernelUnit> common_kernel_units(const Target& target) {
  Lowering all;
  const auto add = [&](const Problem& problem) {
    if (const Result<Lowering> lowering = lower(problem, target)) all.add_kernels(*lowering);
  };
  for (DataType dtype : {DataType::bf16, DataType::f16}) {
    for (int head_dim : {64, 128, 256}) {
      for (bool causal : {false, true}) {
        // A decoded token, a short prompt, a long one: where tiles change.
        for (int64_t length : {1, 1024, 16384}) {
          const CommonCase c{dtype, head_dim, causal, length};
          add(common_forward(c));
          if (length > 1) add(common_backward(c));
        }
      }
    }
  }
  return std::move(all.units);
}

}  // namespace heddle::engine::cuda
