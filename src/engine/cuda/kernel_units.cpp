#include "engine/cuda/kernel_units.h"

#include <algorithm>
#include <cctype>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/host_values.h"
#include "engine/cuda/problem_stages.h"
#include "engine/cuda/rms_norm.h"
#include "engine/cuda/rms_norm_backward.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/score_source.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::OperandId;

constexpr int kOldestArchitecture = 80, kHopper = 90;

void add_new(const std::vector<KernelUnit>& units, std::vector<KernelUnit>& all) {
  for (const KernelUnit& unit : units) {
    if (std::find(all.begin(), all.end(), unit) == all.end()) all.push_back(unit);
  }
}

Result<std::vector<KernelUnit>> units_of(const Stages& stages, const std::string& architecture) {
  std::vector<KernelUnit> all;
  for (const problem::Problem& step : stages.steps) {
    HEDDLE_ASSIGN(const std::vector<KernelUnit> units, kernel_units(step, architecture));
    add_new(units, all);
  }
  return all;
}

// As the plans of attention_forward_sm90.h and attention_backward_sm90.h.
template <class Attention, class Configure, class UnitsOf>
Result<std::vector<KernelUnit>> hopper_units(const Attention& problem, Configure configure,
                                             UnitsOf units_of) {
  HEDDLE_ASSIGN(const auto config, configure(problem));
  std::vector<OperandId> loads;
  std::vector<KernelUnit> units = units_of(problem, config, loads);
  HEDDLE_TRY(check_loads(loads));
  return units;
}
Result<std::vector<KernelUnit>> hopper_units(const AttentionProblem& problem) {
  return hopper_units(problem, configure_forward_sm90, units_of_forward_sm90);
}
Result<std::vector<KernelUnit>> hopper_units(const AttentionBackwardProblem& problem) {
  return hopper_units(problem, configure_backward_sm90, units_of_backward_sm90);
}

Status add_general_units(const AttentionProblem& problem, std::vector<KernelUnit>& units) {
  HEDDLE_ASSIGN(const ForwardSm80Config config, configure_forward_sm80(problem));
  std::vector<OperandId> loads;
  units.push_back({"attention_forward", source_of_forward_sm80(problem.structure, config, loads)});
  HEDDLE_TRY(check_loads(loads));
  if (problem.structure.dropout.dump != problem::kAbsent)
    units.push_back(dump_unit(problem.structure));
  return {};
}
Status add_general_units(const AttentionBackwardProblem& problem, std::vector<KernelUnit>& units) {
  HEDDLE_ASSIGN(const std::vector<BackwardSm80Step> steps, configure_backward_sm80(problem));
  for (const BackwardSm80Step& step : steps) {
    std::vector<OperandId> loads;
    KernelUnit unit;
    unit.source = source_of_backward_sm80(problem.structure, step, loads, unit.name);
    HEDDLE_TRY(check_loads(loads));
    units.push_back(std::move(unit));
  }
  return {};
}

/// As the engine plans them: Hopper's, beside general ones in f32, or the general ones alone.
template <class Attention>
Result<std::vector<KernelUnit>> attention_units(const Attention& problem, bool is_f32,
                                                const std::string& architecture) {
  std::vector<KernelUnit> units;
  if (architecture == kHopperArchitecture) {
    Result<std::vector<KernelUnit>> hopper = hopper_units(problem);
    if (hopper.is_ok()) {
      units = std::move(*hopper);
      if (!is_f32) return units;
    } else if (hopper.status().code() != Code::graph_not_supported) {
      return hopper.status();
    }
  }
  HEDDLE_TRY(add_general_units(problem, units));
  return units;
}

Result<std::vector<KernelUnit>> units_of(const AttentionProblem& problem,
                                         const std::string& architecture) {
  return attention_units(problem, is_f32(problem.structure), architecture);
}
Result<std::vector<KernelUnit>> units_of(const AttentionBackwardProblem& problem,
                                         const std::string& architecture) {
  return attention_units(problem, is_f32(problem.structure.forward), architecture);
}

Result<std::vector<KernelUnit>> units_of(const problem::NormProblem& problem, const std::string&) {
  NormShape shape(problem.operands, problem.layouts, problem.normalised_dims);
  HEDDLE_ASSIGN(const RmsNormConfig config, configure_rms_norm(problem, shape));
  return std::vector<KernelUnit>{rms_norm_unit(problem, shape, config)};
}

Result<std::vector<KernelUnit>> units_of(const problem::NormBackwardProblem& problem,
                                         const std::string&) {
  NormShape shape(problem.operands, problem.layouts, problem.normalised_dims);
  HEDDLE_ASSIGN(const RmsNormBackwardConfig config, configure_rms_norm_backward(problem, shape));
  return std::vector<KernelUnit>{rms_norm_backward_unit(problem, shape, config)};
}

Result<std::vector<KernelUnit>> units_of(const problem::RopeProblem& problem, const std::string&) {
  HEDDLE_ASSIGN(const RopeConfig config, configure_rope(problem));
  return std::vector<KernelUnit>{rope_unit(problem, config)};
}

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

Status check_architecture(const std::string& architecture) {
  const auto refused = [&](std::string_view why) {
    return error(Code::invalid_value, "The architecture is '{}', {}", architecture, why);
  };
  if (architecture == kHopperArchitecture) return {};
  const bool is_number = architecture.starts_with("sm_") && architecture.size() > 3 &&
                         architecture.size() < 8 &&
                         std::all_of(architecture.begin() + 3, architecture.end(),
                                     [](unsigned char digit) { return std::isdigit(digit) != 0; });
  if (!is_number) return refused("expected sm_80, sm_86, sm_90a or another such name.");
  const int number = std::stoi(architecture.substr(3));
  if (number == kHopper) return refused("but devices of compute capability 9.0 run sm_90a.");
  if (number < kOldestArchitecture) return refused("but kernels need sm_80 or later.");
  return {};
}

Result<std::vector<KernelUnit>> kernel_units(const problem::Problem& problem,
                                             const std::string& architecture) {
  if (const std::vector<HostValue> values = host_values(problem); !values.empty()) {
    HEDDLE_ASSIGN(std::vector<KernelUnit> units,
                  kernel_units(with_values_on_device(problem, values), architecture));
    units.push_back(host_values_unit(values.size()));
    return units;
  }
  if (const std::optional<Stages> stages = stages_of(problem, architecture))
    return units_of(*stages, architecture);
  return std::visit([&](const auto& one) { return units_of(one, architecture); }, problem);
}

std::vector<KernelUnit> common_kernel_units(const std::string& architecture) {
  std::vector<KernelUnit> all;
  const auto add = [&](const problem::Problem& problem) {
    const Result<std::vector<KernelUnit>> units = kernel_units(problem, architecture);
    if (units.is_ok()) add_new(*units, all);
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
  return all;
}

}  // namespace heddle::engine::cuda
