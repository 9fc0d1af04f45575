// Programs that are almost attention: one operation, operand, constant or axis is changed at
// random. Each mutant must be refused or still compute what it computed.
#include <algorithm>
#include <cmath>
#include <random>

#include "hlo/build.h"
#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/judgement.h"
#include "hlo/interpreter/random_arguments.h"
#include "rewrite/programs.h"
#include "support/part.h"

namespace heddle::testing {
namespace {

using hlo::Instruction;
using hlo::Opcode;

/// What becomes otherwise: operations as they are, or the axes of what they read too, where all are
/// of one size and a program stays one.
enum class Changes : uint8_t { operations, axes_too };

class Mutator {
 public:
  Mutator(uint64_t seed, Changes changes) : engine_(seed), changes_(changes) {}

  /// Changes one thing; what it was, or nothing if the drawn instruction has nothing to change.
  std::string mutate(hlo::Module& module) {
    std::vector<Instruction*> all;
    for (hlo::Computation* computation : module.computations())
      for (Instruction* x : computation->instructions()) all.push_back(x);
    Instruction* x = all[draw(all.size())];
    switch (draw(changes_ == Changes::axes_too ? 8 : 4)) {
      case 0:
        return change_operation(x);
      case 1:
        return change_operand(x);
      case 2:
        return change_attribute(x);
      case 3:
        return change_constant(x);
      case 4:
        return swap_operands(x);
      case 5:
        return swap_axes_of_a_side(x);
      case 6:
        return turn(x);
      default:
        return add_along_an_axis(x);
    }
  }

 private:
  size_t draw(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }

  std::string change_operation(Instruction* x) {
    static constexpr Opcode kBinary[] = {Opcode::add,    Opcode::subtract, Opcode::multiply,
                                         Opcode::divide, Opcode::maximum,  Opcode::minimum};
    if (std::find(std::begin(kBinary), std::end(kBinary), x->opcode()) != std::end(kBinary)) {
      const Opcode other = kBinary[draw(std::size(kBinary))];
      if (other == x->opcode()) return "";
      replace(x, other, {x->operand(0), x->operand(1)});
      return x->name() + " becomes " + std::string(hlo::name(other));
    }
    if (x->is(Opcode::select)) {
      replace(x, Opcode::select, {x->operand(0), x->operand(2), x->operand(1)});
      return x->name() + " selects the other way round";
    }
    if (x->is(Opcode::negate) || x->is(Opcode::exponential) || x->is(Opcode::tanh)) {
      replace(x, x->is(Opcode::negate) ? Opcode::abs : Opcode::negate, {x->operand(0)});
      return x->name() + " becomes another function";
    }
    return "";
  }

  std::string change_operand(Instruction* x) {
    if (x->operand_count() == 0 || x->is(Opcode::while_) || is_in_reducer(x)) return "";
    const int i = static_cast<int>(draw(x->operand_count()));
    std::vector<Instruction*> candidates;
    for (Instruction* y : x->computation()->dependency_order()) {
      if (y == x) break;
      if (y != x->operand(i) && hlo::same_but_layout(y->shape(), x->operand(i)->shape()))
        candidates.push_back(y);
    }
    if (candidates.empty()) return "";
    Instruction* other = candidates[draw(candidates.size())];
    const std::string what =
        x->name() + " reads " + other->name() + " instead of " + x->operand(i)->name();
    x->set_operand(i, other);
    return what;
  }

  std::string change_attribute(Instruction* x) {
    if (x->is(Opcode::compare)) {
      static constexpr const char* kDirections[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
      const std::string direction = kDirections[draw(6)];
      if (direction == x->direction()) return "";
      x->set("direction", hlo::Verbatim{direction});
      return x->name() + " compares " + direction;
    }
    for (const char* name : {"dimensions", "lhs_contracting_dims", "rhs_contracting_dims",
                             "lhs_batch_dims", "rhs_batch_dims"}) {
      const auto dims = x->integers(name);
      if (dims.empty() || draw(2) == 0) continue;
      std::vector<int64_t> changed(dims.begin(), dims.end());
      if (changed.size() > 1 && draw(2) == 0) {
        std::swap(changed[0], changed[draw(changed.size())]);
      } else {
        changed[draw(changed.size())] += draw(2) == 0 ? 1 : -1;
      }
      if (std::equal(changed.begin(), changed.end(), dims.begin())) return "";
      x->set(name, changed);
      return x->name() + " has other " + name;
    }
    if (x->is(Opcode::iota) && x->shape().rank() > 1) {
      x->set("iota_dimension", 1 - x->iota_dimension());
      return x->name() + " counts along another axis";
    }
    return "";
  }

  std::string change_constant(Instruction* x) {
    if (!x->is(Opcode::constant)) return "";
    if (hlo::is_integral(x->shape().type()) && x->literal()->element_count() > 0) {
      hlo::Literal literal = *x->literal();
      const auto i = static_cast<int64_t>(draw(literal.element_count()));
      const double value = literal.get(i);
      literal.set(i, value > 0 && draw(2) == 0 ? value - 1 : value + 1);
      x->set_literal(literal);
      return x->name() + " is another whole number";
    }
    if (!x->shape().is_scalar() || !hlo::is_floating(x->shape().type())) return "";
    static constexpr double kValues[] = {0, 1, -1, 0.5, -100, -1e4, -1e30, 1e30, 2};
    hlo::Literal literal = *x->literal();
    literal.set(0, kValues[draw(std::size(kValues))]);
    x->set_literal(literal);
    return x->name() + " is another constant";
  }

  std::string swap_operands(Instruction* x) {
    if (x->operand_count() < 2 || is_in_reducer(x)) return "";
    const int i = static_cast<int>(draw(x->operand_count()));
    const int j = static_cast<int>(draw(x->operand_count()));
    Instruction *const a = x->operand(i), *const b = x->operand(j);
    if (a == b || !hlo::same_but_layout(a->shape(), b->shape())) return "";
    x->set_operand(i, b);
    x->set_operand(j, a);
    return x->name() + " reads " + a->name() + " and " + b->name() + " the other way round";
  }

  std::string swap_axes_of_a_side(Instruction* x) {
    if (!x->is(Opcode::dot)) return "";
    const size_t side = draw(2);
    const auto rank = static_cast<size_t>(x->operand(static_cast<int>(side))->shape().rank());
    const auto a = static_cast<int64_t>(draw(rank)), b = static_cast<int64_t>(draw(rank));
    if (a == b) return "";
    static constexpr const char* kNames[][2] = {{"lhs_batch_dims", "lhs_contracting_dims"},
                                                {"rhs_batch_dims", "rhs_contracting_dims"}};
    for (const char* name : kNames[side]) {
      const auto dims = x->integers(name);
      if (dims.empty()) continue;
      std::vector<int64_t> changed(dims.begin(), dims.end());
      for (int64_t& dim : changed) dim = dim == a ? b : dim == b ? a : dim;
      x->set(name, changed);
    }
    return x->name() + " has two axes of operand " + std::to_string(side) + " swapped";
  }

  /// Transposed, reversed: for one reader or all of them.
  std::string turn(Instruction* x) {
    const int rank = x->shape().is_array() ? x->shape().rank() : 0;
    if (rank < 1) return "";
    const auto a = static_cast<int64_t>(draw(rank)), b = static_cast<int64_t>(draw(rank));
    if (a == b) {
      return give(x, x->computation()->add(Opcode::reverse, x->shape(), {x},
                                           {{"dimensions", std::vector<int64_t>{a}}}));
    }
    hlo::Dimensions permutation(rank);
    for (int i = 0; i < rank; ++i) permutation[i] = i == a ? b : i == b ? a : i;
    const auto turned = hlo::make_transpose(x, permutation);
    return turned ? give(x, *turned) : "";
  }

  /// 1, 2, 3, ... along an axis, added or multiplied: what does not vary there does then.
  std::string add_along_an_axis(Instruction* x) {
    if (!x->shape().is_array() || x->shape().rank() < 1 || !hlo::is_floating(x->shape().type()))
      return "";
    const auto axis = static_cast<int64_t>(draw(x->shape().rank()));
    const auto number = hlo::make_iota(*x->computation(), x->shape().without_layout(), axis);
    const auto one = hlo::make_splat(*x->computation(), x->shape().type(), 1, x->shape().dims());
    if (!number || !one) return "";
    const auto by = hlo::make_binary(Opcode::add, *number, *one);
    const auto changed = hlo::make_binary(draw(2) == 0 ? Opcode::add : Opcode::multiply, x, *by);
    return changed ? give(x, *changed) : "";
  }

  /// Lets one reader of `x`, or each, read `changed` instead, which is made of it.
  std::string give(Instruction* x, Instruction* changed) {
    std::vector<Instruction*> readers(x->users().begin(), x->users().end());
    std::erase(readers, changed);
    if (readers.empty()) return "";
    if (draw(2) == 0) readers = {readers[draw(readers.size())]};
    for (Instruction* reader : readers)
      for (int i = 0; i < reader->operand_count(); ++i)
        if (reader->operand(i) == x) reader->set_operand(i, changed);
    return x->name() + " is " + changed->name() + " to " + readers[0]->name() +
           (readers.size() > 1 ? " and all others" : "");
  }

  /// What a reduction by f(a, b) = g(b) gives is left open by HLO.
  static bool is_in_reducer(const Instruction* x) {
    return x->computation()->parameters().size() == 2 && x->shape().is_scalar();
  }

  static void replace(Instruction* x, Opcode opcode, std::vector<Instruction*> operands) {
    x->replace_all_uses_with(
        x->computation()->add(opcode, x->shape(), std::move(operands), {}, x->name()));
  }

  std::mt19937_64 engine_;
  Changes changes_;
};

/// A mutant of a loop may run for ever, and one that is NaN everywhere has no meaning to keep.
bool tells_something(const hlo::Module& module) {
  const auto arguments = hlo::random_arguments(module, 1);
  hlo::EvaluateOptions options;
  options.precision = hlo::Precision::f64;
  options.max_iterations = 1000;
  if (!arguments) return false;
  const auto result = hlo::evaluate(module, *arguments, options);
  if (!result) return false;
  const auto is_finite = [](const hlo::Literal& output) {
    for (int64_t i = 0; i < output.element_count(); ++i)
      if (std::isfinite(output.get(i))) return true;
    return output.element_count() == 0;
  };
  const std::vector<hlo::Literal> outputs = hlo::flattened(*result);
  return std::all_of(outputs.begin(), outputs.end(), is_finite);
}

/// Does do_one(programs, seed, what changed) for those of `count` mutants that are the part's, hold
/// a fusion and have a meaning.
template <class DoOne>
void for_fused_mutants(const std::string& text, Changes changes, int count, const DoOne& do_one) {
  int tried = 0;
  for (uint64_t seed = 0; tried < count && seed < 50 * static_cast<uint64_t>(count); ++seed) {
    const auto module = parsed(text);
    const std::string what = Mutator(seed, changes).mutate(*module);
    if (what.empty() || !module->verify().is_ok()) continue;
    ++tried;
    if (!part().has(seed)) continue;
    const Rewritten programs = rewritten(hlo::write_text(*module));
    if (!programs.report.fusions.empty() && tells_something(*programs.original))
      do_one(programs, seed, what);
  }
  EXPECT_EQ(tried, count);
}

class Mutants : public ::testing::TestWithParam<const char*> {};

TEST_P(Mutants, AreRefusedOrStillAgree) {
  const std::string text = std::string(GetParam()).starts_with("forms/")
                               ? program_text(GetParam())
                               : small_program(GetParam());
  std::vector<hlo::Draw> draws = draws_of(GetParam());
  std::erase_if(draws, [](hlo::Draw draw) { return draw > hlo::Draw::hidden; });  // in no time
  int fused = 0;
  for_fused_mutants(text, Changes::operations, 40,
                    [&](const Rewritten& programs, uint64_t seed, const std::string& what) {
                      ++fused;
                      EXPECT_TRUE(same_meaning(programs, 1e-6, 1, draws))
                          << "seed " << seed << ": " << what;
                    });
  // Else nothing was compared; of a part, nothing may have been there to compare.
  if (part().is_whole()) {
    EXPECT_GT(fused, 0);
  }
}

/// Whether exponentials of the entry overflow, or what divides there is next to nothing: f64 has no
/// meaning of such a module to keep.
bool is_extreme(const hlo::Module& module, const std::vector<hlo::Literal>& arguments) {
  const auto copy = module.copy();
  std::vector<Instruction*> large, small;
  for (Instruction* x : copy->entry()->instructions()) {
    if (x->is(Opcode::exponential)) large.push_back(x);
    if (x->is(Opcode::divide)) small.push_back(x->operand(1));
  }
  hlo::EvaluateOptions options;
  options.precision = hlo::Precision::f64;
  const auto any = [&](const std::vector<Instruction*>& of, const auto& holds) {
    if (of.empty()) return false;
    copy->entry()->set_root(*hlo::make_tuple(*copy->entry(), of));
    const auto values = hlo::evaluate(*copy, arguments, options);
    if (!values) return true;
    const std::vector<hlo::Literal> literals = hlo::flattened(*values);
    return std::any_of(literals.begin(), literals.end(), [&](const hlo::Literal& literal) {
      for (int64_t i = 0; i < literal.element_count(); ++i)
        if (holds(literal.get(i))) return true;
      return false;
    });
  };
  return any(large, [](double x) { return !(x < 1e100); }) ||
         any(small, [](double x) { return !(std::abs(x) > 1e-100); });
}

/// Whether an output is all that rounding leaves of numbers that cancel: next to nothing beside
/// others.
bool is_cancelled(const hlo::Module& module, const std::vector<hlo::Literal>& arguments) {
  hlo::EvaluateOptions options;
  options.precision = hlo::Precision::f64;
  const auto value = hlo::evaluate(module, arguments, options);
  if (!value) return true;
  std::vector<double> sizes;
  for (const hlo::Literal& output : hlo::flattened(*value)) {
    if (!hlo::is_floating(output.shape().type())) continue;
    sizes.push_back(0);
    for (int64_t i = 0; i < output.element_count(); ++i)
      if (std::isfinite(output.get(i)))
        sizes.back() = std::max(sizes.back(), std::abs(output.get(i)));
  }
  const double largest = *std::max_element(sizes.begin(), sizes.end());
  return std::any_of(sizes.begin(), sizes.end(),
                     [&](double size) { return size < 1e-12 * largest; });
}

class EqualAxes : public ::testing::TestWithParam<const char*> {};

TEST_P(EqualAxes, AreRefusedOrStillAgree) {
  const std::string text = program_text(std::string("forms/equal_axes_") + GetParam());
  const std::vector<hlo::Draw> draws = draws_of(std::string("equal_axes_") + GetParam());
  int compared = 0;
  const auto compare = [&](const Rewritten& programs, uint64_t seed, const std::string& what) {
    for (const hlo::Draw draw : draws) {
      const auto arguments = hlo::random_arguments(*programs.original, seed, draw);
      ASSERT_TRUE(arguments) << arguments.status().message();
      if (is_extreme(*programs.original, *arguments) ||
          is_cancelled(*programs.original, *arguments))
        continue;
      ++compared;
      EXPECT_TRUE(same_meaning(programs, 1e-6, seed, {draw})) << "seed " << seed << ": " << what;
    }
  };
  for_fused_mutants(text, Changes::axes_too, 120, compare);
  if (part().is_whole()) {
    EXPECT_GT(compared, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, EqualAxes,
    ::testing::Values("biases_grad", "biases_grad.simplified", "slopes_in_a_window_grad",
                      "slopes_in_a_window_grad.simplified", "groups_and_sinks_grad",
                      "groups_and_sinks_grad.simplified", "dropped_grad", "dropped_grad.simplified",
                      "segments_grad", "segments_grad.simplified", "rotated_grad",
                      "rotated_grad.simplified", "projections_grad", "projections_grad.simplified"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

/// The smallest share of its norm, in f64 and in the modules' own types, by which some output of
/// two modules differs; 0 if one gives no number where the other does.
double difference(const hlo::Module& one, const hlo::Module& other,
                  const std::vector<hlo::Literal>& arguments) {
  double smallest = INFINITY;
  for (const auto precision : {hlo::Precision::f64, hlo::Precision::faithful}) {
    hlo::EvaluateOptions options;
    options.precision = precision;
    options.max_iterations = 1000;
    const auto a = hlo::evaluate(one, arguments, options);
    const auto b = hlo::evaluate(other, arguments, options);
    if (!a || !b) return 0;
    const std::vector<hlo::Literal> of_one = hlo::flattened(*a), of_other = hlo::flattened(*b);
    double largest = 0;
    for (size_t i = 0; i < of_one.size(); ++i) {
      double distance = 0, norm = 0;
      for (int64_t j = 0; j < of_one[i].element_count(); ++j) {
        const double x = of_one[i].get(j), y = of_other[i].get(j);
        if (!std::isfinite(x) || !std::isfinite(y)) return 0;
        distance += (x - y) * (x - y);
        norm += x * x;
      }
      if (norm > 0) largest = std::max(largest, std::sqrt(distance / norm));
    }
    smallest = std::min(smallest, largest);
  }
  return smallest;
}

/// What judges the rewriter must see by itself that a module is another.
TEST_P(Mutants, AreToldFromTheirOriginals) {
  constexpr double kAnother = 0.01;
  const std::string text = std::string(GetParam()).starts_with("forms/")
                               ? program_text(GetParam())
                               : small_program(GetParam());
  const auto original = parsed(text);
  const auto arguments = hlo::random_arguments(*original, 1);
  ASSERT_TRUE(arguments) << arguments.status().message();
  int others = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    if (!part().has(seed)) continue;
    const auto module = parsed(text);
    const std::string what = Mutator(seed, Changes::operations).mutate(*module);
    if (what.empty() || !module->verify().is_ok()) continue;
    if (difference(*original, *module, *arguments) < kAnother) continue;
    const auto outputs = hlo::judge(*original, *module, *arguments);
    ASSERT_TRUE(outputs) << outputs.status().message();
    ++others;
    EXPECT_TRUE(std::any_of(outputs->begin(), outputs->end(),
                            [](const auto& output) { return !output.complaint.empty(); }))
        << "seed " << seed << ": " << what;
  }
  if (part().is_whole()) {
    EXPECT_GT(others, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Mutants,
    ::testing::Values(
        "fwd_causal_kv4.optimized", "grad_causal_kv4", "grad_causal_kv1.optimized",
        "grad_late_norm_kv4", "grad_softcap_kv4", "grad_jaxnn_kv1",
        "scan_grad_causal_kv4.optimized", "forms/flash_by_hand_grad", "forms/bias_per_head_grad",
        "forms/dropped_out_grad", "forms/dropped_by_generator_grad", "forms/nested_selects_grad",
        "forms/grouped_by_tile_grad", "forms/scan", "forms/scan_dropped_out", "forms/scan_reversed",
        "forms/scan_with_mask", "forms/mask_of_keys_grad", "forms/mask_of_either_grad",
        "forms/segments_grad", "forms/lengths_of_both_grad", "forms/lengths_and_causal_grad",
        "forms/alibi_grad", "forms/alibi_of_constants_grad", "forms/alibi_and_bias_grad",
        "forms/sink_column_grad", "forms/sink_column_in_groups_grad", "forms/sink_by_hand_grad",
        "forms/sink_padded_grad", "forms/sink_beside_padded_values_grad",
        "forms/sink_and_mask_grad", "forms/scan_with_sinks", "forms/scan_with_sinks_checkpoint",
        "forms/sink_below_a_maximum_grad", "forms/gradient_of_values_only",
        "forms/scan_of_values_only", "forms/fill_added_within_reach_grad",
        "forms/biases_of_heads_and_of_entries_grad", "forms/rope_of_first_halves_grad",
        "forms/keys_of_content_and_of_positions_grad", "forms/products_of_two_pairs_grad"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name)
        if (c == '.' || c == '/') c = '_';
      return name;
    });

}  // namespace
}  // namespace heddle::testing
