#include "engine/cuda/score_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/parameters.h"
#include "core/lost_weights.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/score_instructions.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionStructure;
using problem::ScoreNode;
using problem::ScoreOp;

// By its bits: no decimal printing can lose any.
std::string constant_source(double value) {
  return fmt::format("__uint_as_float(0x{:08x}u)",
                     std::bit_cast<uint32_t>(static_cast<float>(value)));
}

std::string product_source(const AttentionStructure& structure, const std::string& a,
                           const std::string& b) {
  return has_max_and_sum(structure) ? fmt::format("__fmul_rn({}, {})", a, b)
                                    : fmt::format("{} * {}", a, b);
}

/// A sum of positions, in integers.
std::string whole_source(const problem::ScoreExpression& expression, int32_t index) {
  const ScoreNode& node = expression.nodes[static_cast<size_t>(index)];
  if (node.op == ScoreOp::constant) return fmt::format("{}", static_cast<int>(node.value));
  if (problem::arity(node.op) == 0) return fmt::format("cell.{}", problem::name(node.op));
  return fmt::format("({} {} {})", whole_source(expression, node.a),
                     node.op == ScoreOp::add ? "+" : "-", whole_source(expression, node.b));
}

}  // namespace

std::string node_source(const problem::ScoreExpression& expression, const ScoreNode& node,
                        Functions functions) {
  const std::string a = fmt::format("t{}", node.a), b = fmt::format("t{}", node.b),
                    c = fmt::format("t{}", node.c);
  const auto infix = [&](const char* op) { return fmt::format("{} {} {}", a, op, b); };
  const auto call = [&](const char* function) { return fmt::format("{}({})", function, a); };
  const bool f32 = functions != Functions::of_16_bits;
  const bool rounds = functions == Functions::exact;
  const auto predicate = [&](const char* op) {
    return fmt::format("{} {} {} ? 1.0f : 0.0f", a, op, b);
  };
  switch (node.op) {
    case ScoreOp::dot:
      return "cell.dot";
    case ScoreOp::row:
      return "static_cast<float>(cell.row)";
    case ScoreOp::column:
      return "static_cast<float>(cell.column)";
    case ScoreOp::batch:
      return "static_cast<float>(cell.batch)";
    case ScoreOp::head:
      return "static_cast<float>(cell.head)";
    case ScoreOp::q_length:
      return "static_cast<float>(cell.q_length)";
    case ScoreOp::kv_length:
      return "static_cast<float>(cell.kv_length)";
    case ScoreOp::gradient:
      return "cell.gradient";
    case ScoreOp::constant:
      return constant_source(node.value);
    case ScoreOp::add:
      return infix("+");
    case ScoreOp::subtract:
      return infix("-");
    case ScoreOp::multiply:
      return infix("*");
    case ScoreOp::divide:
      return fmt::format("{}({}, {})", rounds ? "__fdiv_rn" : "ptx::divide", a, b);
    case ScoreOp::minimum:
      return fmt::format("ptx::min_or_nan({}, {})", a, b);
    case ScoreOp::maximum:
      return fmt::format("ptx::max_or_nan({}, {})", a, b);
    case ScoreOp::power:
      return fmt::format("attention::{}({}, {})", f32 ? "power_f32" : "power", a, b);
    case ScoreOp::modulo:
      if (is_modulo_of_positions(expression, node)) {
        const ScoreNode& divisor = expression.nodes[static_cast<size_t>(node.b)];
        return fmt::format("static_cast<float>({} % {})", whole_source(expression, node.a),
                           static_cast<int>(divisor.value));
      }
      return fmt::format("attention::modulo({}, {})", a, b);
    case ScoreOp::negate:
      return "-" + a;
    case ScoreOp::absolute:
      return call("fabsf");
    case ScoreOp::exponential:
      return call(f32 ? "expf" : "attention::exponential");
    case ScoreOp::exponential_minus_one:
      return call("expm1f");
    case ScoreOp::logarithm:
      return call(f32 ? "logf" : "attention::logarithm");
    case ScoreOp::logarithm_plus_one:
      return call("log1pf");
    case ScoreOp::square_root:
      return call(rounds ? "__fsqrt_rn" : "ptx::square_root");
    case ScoreOp::reciprocal_square_root:
      return call("rsqrtf");
    case ScoreOp::reciprocal:
      return fmt::format("{}(1.0f, {})", rounds ? "__fdiv_rn" : "ptx::divide", a);
    case ScoreOp::tangent_hyperbolic:
      return call(f32 ? "attention::tanh_f32" : "attention::tanh");
    case ScoreOp::sigmoid:
      return call(f32 ? "attention::sigmoid_f32" : "attention::sigmoid");
    case ScoreOp::error_function:
      return call(f32 ? "erff" : "attention::error_function");
    case ScoreOp::sine:
      return call("attention::sine");
    case ScoreOp::cosine:
      return call("attention::cosine");
    case ScoreOp::tangent:
      return call("attention::tangent");
    case ScoreOp::floor:
      return call("floorf");
    case ScoreOp::ceil:
      return call("ceilf");
    case ScoreOp::equal:
      return predicate("==");
    case ScoreOp::not_equal:
      return predicate("!=");
    case ScoreOp::less:
      return predicate("<");
    case ScoreOp::less_equal:
      return predicate("<=");
    case ScoreOp::greater:
      return predicate(">");
    case ScoreOp::greater_equal:
      return predicate(">=");
    case ScoreOp::logical_and:
      return fmt::format("({} != 0.0f && {} != 0.0f) ? 1.0f : 0.0f", a, b);
    case ScoreOp::logical_or:
      return fmt::format("({} != 0.0f || {} != 0.0f) ? 1.0f : 0.0f", a, b);
    case ScoreOp::logical_not:
      return fmt::format("{} == 0.0f ? 1.0f : 0.0f", a);
    case ScoreOp::select:
      return fmt::format("{} != 0.0f ? {} : {}", a, b, c);
    case ScoreOp::load:
      break;
  }
  return "0.0f";
}

namespace {

/// A node of an attention's expression.
std::string score_node_source(const problem::ScoreExpression& expression, const ScoreNode& node,
                              const AttentionStructure& structure,
                              std::vector<problem::OperandId>& loads,
                              const problem::AttentionFacts* facts, problem::OperandId tiled) {
  if (node.op == ScoreOp::multiply)
    return product_source(structure, fmt::format("t{}", node.a), fmt::format("t{}", node.b));
  if (node.op != ScoreOp::load)
    return node_source(expression, node,
                       is_f32(structure) ? Functions::of_f32 : Functions::of_16_bits);
  if (node.operand == tiled) return "cell.tiled";
  const auto at = std::find(loads.begin(), loads.end(), node.operand);
  const auto number = at - loads.begin();
  if (at == loads.end()) loads.push_back(node.operand);
  const auto operand = static_cast<size_t>(node.operand);
  const bool per_row = !facts || facts->operand(node.operand).per_row;
  const bool per_column = !facts || facts->operand(node.operand).per_column;
  return fmt::format(
      "attention::load<{}, {}, {}>(cell.loads[{}], cell.batch, cell.head, cell.row, "
      "cell.column)",
      device_type(structure.operands[operand].dtype), per_row, per_column, number);
}

/// Whether dividing by the node may be multiplying by its reciprocal, which an f32 then holds: a
/// division per score costs as much as the rest of a soft cap.
bool has_reciprocal(const ScoreNode& node) {
  return node.op == ScoreOp::constant && std::isnormal(static_cast<float>(node.value)) &&
         std::isnormal(static_cast<float>(1.0 / node.value));
}

/// Whether the value only ever multiplies or divides, as a slope of ALiBi or a soft cap does.
bool only_scales(const problem::ScoreExpression& expression, int32_t value) {
  return value != expression.root &&
         std::all_of(expression.nodes.begin(), expression.nodes.end(), [&](const ScoreNode& node) {
           const bool uses = node.a == value || node.b == value || node.c == value;
           return !uses || node.op == ScoreOp::multiply || node.op == ScoreOp::divide;
         });
}

}  // namespace

bool only_hides(const problem::ScoreExpression& expression) {
  std::vector<bool> reads_dot, is_dot_or_hidden;
  for (const ScoreNode& node : expression.nodes) {
    const auto of = [](const std::vector<bool>& nodes, int32_t n) {
      return n >= 0 && nodes[static_cast<size_t>(n)];
    };
    reads_dot.push_back(node.op == ScoreOp::dot || of(reads_dot, node.a) || of(reads_dot, node.b) ||
                        of(reads_dot, node.c));
    is_dot_or_hidden.push_back(node.op == ScoreOp::dot ||
                               (node.op == ScoreOp::constant && node.value == -HUGE_VAL) ||
                               (node.op == ScoreOp::select && !of(reads_dot, node.a) &&
                                of(is_dot_or_hidden, node.b) && of(is_dot_or_hidden, node.c)));
  }
  const auto root = static_cast<size_t>(expression.root);
  return reads_dot[root] && is_dot_or_hidden[root];
}

bool may_have_finite_mask_rows(const problem::ScoreExpression& expression,
                               const AttentionStructure& structure,
                               const problem::AttentionFacts* facts) {
  if (only_hides(expression)) return false;
  for (size_t n = 0; n < expression.nodes.size(); ++n) {
    const ScoreNode& node = expression.nodes[n];
    if (node.op == ScoreOp::constant && std::isfinite(node.value) &&
        weights_are_lost(-std::abs(node.value)))
      return true;
    if (node.op != ScoreOp::load) continue;
    const auto operand = static_cast<size_t>(node.operand);
    if (structure.operands[operand].dtype == DataType::boolean) continue;
    const bool is_one_number =
        facts && !facts->operand(node.operand).per_row && !facts->operand(node.operand).per_column;
    if (!is_one_number || !only_scales(expression, static_cast<int32_t>(n))) return true;
  }
  return false;
}

std::string score_source(const std::string& name, const problem::ScoreExpression& expression,
                         const AttentionStructure& structure,
                         std::vector<problem::OperandId>& loads,
                         const problem::AttentionFacts* facts, problem::OperandId tiled) {
  std::string body;
  if (!expression.is_identity()) {
    for (size_t n = 0; n < expression.nodes.size(); ++n) {
      const ScoreNode& node = expression.nodes[n];
      std::string value = score_node_source(expression, node, structure, loads, facts, tiled);
      if (node.op == ScoreOp::divide) {
        const ScoreNode& divisor = expression.nodes[static_cast<size_t>(node.b)];
        if (has_reciprocal(divisor))
          value = product_source(structure, fmt::format("t{}", node.a),
                                 constant_source(1.0 / divisor.value));
      }
      body += fmt::format("    [[maybe_unused]] const float t{} = {};\n", n, value);
    }
    body += fmt::format("    return t{};\n", expression.root);
  } else {
    body = "    return cell.dot;\n";
  }
  return fmt::format(
      "struct {} {{\n"
      "  static constexpr bool kIdentity = {}, kFiniteMaskRows = {};\n"
      "  static constexpr int kSideBySide = {};\n"
      "  template <class Cell>\n"
      "  static HEDDLE_DEVICE float value(const Cell& cell) {{\n{}  }}\n"
      "}};\n",
      name, expression.is_identity(), may_have_finite_mask_rows(expression, structure, facts),
      cells_side_by_side(expression, is_f32(structure)), body);
}

Status check_loads(const std::vector<problem::OperandId>& loads) {
  if (loads.size() <= attention::kMaxLoads) return {};
  return error(Code::graph_not_supported,
               "cuda: the score reads {} operands; the kernel takes at most {}", loads.size(),
               attention::kMaxLoads);
}

}  // namespace heddle::engine::cuda
