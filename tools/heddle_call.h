// Heddle's custom calls inside HLO modules: their graphs, and running one on the CPU engine.
#pragma once

#include <span>

#include "core/status.h"
#include "graph/graph.h"
#include "hlo/instruction.h"
#include "hlo/literal.h"
#include "hlo/module.h"

namespace heddle::tools {

inline constexpr std::string_view kHeddleTarget = "heddle";

bool is_heddle_call(const hlo::Instruction& instruction);
/// Every such call of the module.
std::vector<const hlo::Instruction*> heddle_calls(const hlo::Module& module);
/// The validated graph a call carries in its attribute `graph`.
Result<graph::Graph> graph_of(const hlo::Instruction& call);
/// Whether that graph is an attention's backward.
bool is_backward(const hlo::Instruction& call);

/// The value of a call on the CPU engine, as XLA's custom call gives it: operands in ascending uid
/// of the graph's inputs, results in ascending uid of its outputs, and the workspace (zeros here).
/// Usable as the interpreter's handler for target "heddle".
Result<hlo::Literal> run_heddle_call(const hlo::Instruction& call,
                                     std::span<const hlo::Literal> operands);

/// The same by the definition of its ops, every floating value in f64, and its fills for f64
/// (hlo/interpreter/judgement.h).
Result<hlo::Literal> define_heddle_call(const hlo::Instruction& call,
                                        std::span<const hlo::Literal> operands);

}  // namespace heddle::tools
