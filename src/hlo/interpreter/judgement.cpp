#include "hlo/interpreter/judgement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "hlo/interpreter/random_arguments.h"

namespace heddle::hlo {
namespace {

// Rows of fewer elements are taken together: the original may be right in them by luck.
constexpr int64_t kShortestRow = 16;
// Roundings of the output's type that every row is allowed.
constexpr double kRoundings = 8;
// A row may have this many times the usual error of its output: some rows' scores are nearly equal.
// And more of them, or of roundings of the narrowest floats, but never half of the row, if both
// modules agree in f64: where a softmax is 1 at one key the original's gradients cancel without a
// rounding, and those of a call, which subtract O's product, do not.
constexpr double kOfUsual = 8, kMoreOfUsual = 64, kMoreRoundings = 128, kMost = 0.5;
// Farther from f64 than this many roundings, or this much of the row, the original may mean
// something else than f64 says.
constexpr double kManyRoundings = 0x1p14, kFar = 0.05;
// Of a row that rounding moves by this much, f64 tells what is meant, or the original if the
// rewritten module stays near to it.
constexpr double kLost = 0.1, kNear = 0.25;
// Rounding errors of one row differ by this much by chance.
constexpr double kChance = 8;
// Beyond twice the original's, of the deviation that its error has by chance.
constexpr double kDeviations = 3;
// How often the original is evaluated again, on arguments nearby, before a rewritten module that
// agrees with it in f64 is refused for its errors as a whole: those of one evaluation may be a
// tenth of what they usually are where one score's rounding decides them.
constexpr uint64_t kRepetitions = 4;
// What f64 may differ by: programs hold constants in f32, and scores of 1e3 enlarge the difference.
constexpr double kExact = 1e-3;

double rounding_step(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return 0x1p-53;
    case ElementType::f32:
    case ElementType::c64:
      return 0x1p-24;
    case ElementType::f16:
      return 0x1p-11;
    case ElementType::bf16:
      return 0x1p-8;
    case ElementType::c128:
      return 0x1p-53;
    default:
      return is_floating(type) ? 0x1p-3 : 0;
  }
}

/// Of the narrowest floats the module computes with.
double coarsest_step(const Module& module) {
  double step = 0;
  for (const Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions())
      if (x->shape().is_array()) step = std::max(step, rounding_step(x->shape().type()));
  return step;
}

/// A copy whose f64 evaluation means what the module means in its own types.
std::unique_ptr<Module> with_fills_for_f64(const Module& module) {
  std::unique_ptr<Module> copy = module.copy();
  for (Computation* computation : copy->computations())
    for (Instruction* x : computation->instructions()) {
      const ElementType type = x->shape().type();
      if (!x->is(Opcode::constant) || !x->shape().is_scalar() || x->literal()->is_elided())
        continue;
      if (type != ElementType::f32 && type != ElementType::bf16)
        continue;  // f16 holds no such fills
      Literal fill = *x->literal();
      fill.set(0, fill_for_f64(fill.get(0)));
      x->set_literal(std::move(fill));
    }
  return copy;
}

/// As numbers; a complex one is two.
std::vector<double> values(const Literal& literal) {
  std::vector<double> all;
  const int64_t count = literal.element_count();
  all.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    if (is_complex(literal.shape().type())) {
      all.push_back(literal.get_complex(i).real());
      all.push_back(literal.get_complex(i).imag());
    } else {
      all.push_back(literal.get(i));
    }
  }
  return all;
}

/// Sums of squares over a row's compared elements.
struct Row {
  double norm = 0;       // of f64
  double before = 0;     // of the original
  double original = 0;   // the original's distance from f64
  double rewritten = 0;  // the rewritten module's
  double between = 0;    // the distance of the two
  double noise = 0;      // how far nearby arguments move the original
  double exact = 0;      // the distance of the two in f64
};

double square(double x) { return x * x; }

/// An output of the original, in f64 and in its own types.
struct TruthAndBefore {
  Literal truth, before;
};

class OutputJudge {
 public:
  /// The output may always be `floor` from f64, and a row `row_floor`; `coarsest` is the rounding
  /// of the narrowest floats.
  OutputJudge(const Literal& truth, const Literal& before, const Literal& after, double floor,
              double row_floor, double coarsest)
      : shape_(before.shape()),
        truth_(values(truth)),
        before_(values(before)),
        after_(values(after)),
        floor_(floor),
        row_floor_(row_floor),
        coarsest_(coarsest) {
    row_elements_ = is_complex(shape_.type()) ? 2 : 1;
    for (int axis = shape_.rank(); axis-- > 0 && row_elements_ < kShortestRow;)
      row_elements_ *= shape_.dim(axis);
  }

  /// `nearby` gives the same output of the original on nearby arguments, `exact` that of the
  /// rewritten module in f64, and `again` both outputs of the original, in f64 and in its own
  /// types, on the nearby arguments of a number, if they are asked for.
  template <class Nearby, class Exact, class Again>
  Result<OutputJudgement> judge(const Nearby& nearby, const Exact& exact, const Again& again) {
    OutputJudgement result;
    result.shape = shape_.without_layout();
    result.elements = static_cast<int64_t>(truth_.size());
    compare_elements(result);
    if (!result.complaint.empty()) return result;
    measure();
    if (any([this](const Row& row) { return is_far(row) || !is_within(row); })) {
      HEDDLE_ASSIGN(const Literal moved, nearby());
      measure(values(moved), before_, &Row::noise);
      even_out_noise();
      error_ = usual_error([this](const Row& row) { return is_other(row); });
    }
    if (any([this](const Row& row) { return needs_exact(row); }) || whole().is_too_far()) {
      HEDDLE_ASSIGN(const Literal meant, exact());
      measure(values(meant), truth_, &Row::exact);
    }
    if (const Whole sums = whole(); sums.is_refused() && sums.is_meant()) {
      for (uint64_t repetition = 0; repetition < kRepetitions; ++repetition) {
        HEDDLE_ASSIGN(const TruthAndBefore repeated, again(repetition));
        errors_again_.push_back(square_error(values(repeated.truth), values(repeated.before)));
      }
    }
    compare_rows(result);
    return result;
  }

 private:
  size_t row_count() const {
    return row_elements_ == 0 ? 0 : truth_.size() / static_cast<size_t>(row_elements_);
  }

  /// Which elements can be compared, and what is wrong with the others.
  void compare_elements(OutputJudgement& result) {
    is_compared_.assign(truth_.size(), false);
    for (size_t i = 0; i < truth_.size(); ++i) {
      if (!std::isfinite(before_[i])) {
        const bool is_nan = std::isnan(before_[i]);
        if (is_nan && !std::isnan(after_[i])) ++result.filled;
        // An overflow of the original's own is nobody's meaning.
        if (!is_nan && truth_[i] == before_[i] && after_[i] != before_[i])
          return refuse(result, i,
                        fmt::format("{} where the original is {}", after_[i], before_[i]));
        continue;
      }
      if (!std::isfinite(after_[i]))
        return refuse(result, i,
                      fmt::format("{} where the original is {:.6g}", after_[i], before_[i]));
      if (!std::isfinite(truth_[i])) truth_[i] = before_[i];
      is_compared_[i] = true;
      ++result.compared;
    }
  }

  void refuse(OutputJudgement& result, size_t element, std::string what) const {
    result.row = index_of(element);
    result.complaint = fmt::format("element {} is {}", result.row, std::move(what));
    result.error = result.row_error = INFINITY;
  }

  /// The distance of `a` and `b` in every row.
  void measure(const std::vector<double>& a, const std::vector<double>& b, double Row::*distance) {
    for (size_t i = 0; i < a.size(); ++i)
      if (is_compared_[i]) rows_[row_of(i)].*distance += square(a[i] - b[i]);
    for (Row& row : rows_) row.*distance = std::sqrt(row.*distance);
  }

  void measure() {
    rows_.assign(row_count(), {});
    measure(truth_, std::vector<double>(truth_.size()), &Row::norm);
    measure(before_, std::vector<double>(truth_.size()), &Row::before);
    measure(before_, truth_, &Row::original);
    measure(after_, truth_, &Row::rewritten);
    measure(after_, before_, &Row::between);
    double norms = 0;
    for (const Row& row : rows_) norms += square(row.norm);
    usual_norm_ = rows_.empty() ? 0 : std::sqrt(norms / static_cast<double>(rows_.size()));
    error_ = usual_error([this](const Row& row) { return is_far(row); });
    // Of a few numbers the original may be right by luck.
    if (static_cast<int64_t>(truth_.size()) < kShortestRow)
      floor_ = row_floor_ = std::max(row_floor_, kRoundings * coarsest_);
  }

  /// The original's, of rows that are not `left_out`.
  template <class LeftOut>
  double usual_error(const LeftOut& left_out) const {
    double errors = 0, norms = 0;
    for (const Row& row : rows_) {
      if (left_out(row)) continue;
      errors += square(row.original);
      norms += square(row.norm);
    }
    return norms == 0 ? 0 : std::sqrt(errors / norms);
  }

  size_t row_of(size_t element) const { return element / static_cast<size_t>(row_elements_); }

  template <class Holds>
  bool any(const Holds& holds) const {
    return std::any_of(rows_.begin(), rows_.end(), holds);
  }

  /// How large a row's numbers are where they were made: what is left when numbers of the usual
  /// size cancel has the errors of these.
  double size_of(const Row& row) const { return std::max(row.norm, usual_norm_); }
  double allowance(const Row& row) const {
    return std::min(std::max(kOfUsual * error_, row_floor_), kMost) * size_of(row);
  }
  double larger_allowance(const Row& row) const {
    return std::min(std::max(kMoreRoundings * coarsest_, kMoreOfUsual * error_), kMost) *
           size_of(row);
  }

  bool is_far(const Row& row) const {
    return row.original > std::min(kFar, kManyRoundings * coarsest_) * size_of(row);
  }

  /// By chance nearby arguments may move one row less than they move others.
  void even_out_noise() {
    double noise = 0;
    int64_t count = 0;
    for (const Row& row : rows_) {
      if (!std::isfinite(row.noise)) continue;
      noise += square(row.noise);
      ++count;
    }
    if (count == 0) return;
    noise = std::sqrt(noise / static_cast<double>(count));
    for (Row& row : rows_) row.noise = row.noise < noise ? noise : row.noise;
  }

  /// Whether the original means something else than f64 says, not by rounding.
  bool is_other(const Row& row) const {
    return is_far(row) && row.original > kChance * row.noise + allowance(row);
  }

  /// Whether rounding leaves nothing of the original (NaN: nearby arguments give no finite number).
  bool is_lost(const Row& row) const {
    return !is_other(row) && !(std::max(row.original, row.noise) <= kLost * size_of(row));
  }

  /// Whether the rewritten module is as near to the original as its own rounding leaves it, and
  /// that is near.
  bool is_beside(const Row& row) const {
    return row.between <= std::min(2 * row.noise, kNear * row.before);
  }

  bool is_within(const Row& row) const {
    return row.rewritten <= 2 * row.original + allowance(row);
  }

  /// Whether f64 is asked what is meant.
  bool needs_exact(const Row& row) const {
    if (is_other(row)) return false;
    return is_lost(row) ? !is_beside(row) : !is_within(row);
  }

  /// What is found and what is allowed.
  std::pair<double, double> judged(const Row& row) const {
    if (is_other(row))
      return {std::min(row.rewritten, row.between), 2 * row.noise + allowance(row)};
    if (needs_exact(row)) {
      // Constants were rounded too when the program was written.
      const double allowed = std::max(kExact * (size_of(row) + row.original),
                                      std::min(row.noise, kMost * size_of(row)));
      if (!(row.exact <= allowed)) return {row.exact, allowed};
    } else if (is_lost(row)) {
      return {row.between, std::min(2 * row.noise, kNear * row.before)};
    }
    const double allowed = 2 * row.original + allowance(row);
    if (is_within(row) && !is_lost(row)) return {row.rewritten, allowed};
    // Both agree in f64. Of a row that is nothing but what rounding left of a sum that cancels, no
    // more is asked than that the rewritten module's is small too.
    const double by_chance = kChance * std::max(row.original, row.noise);
    const double usual = kMoreOfUsual * error_ * size_of(row);
    const bool cancels = row.original > size_of(row);
    const double by_others =
        !is_lost(row) ? larger_allowance(row) : (cancels ? kChance : 1) * usual;
    return {row.rewritten, std::max({allowed, by_chance, by_others})};
  }

  void compare_rows(OutputJudgement& result) const {
    double worst = -1;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto [found, allowed] = judged(rows_[i]);
      const double share = found == 0 ? 0 : found / allowed;
      if (share <= worst) continue;
      worst = std::isnan(share) ? INFINITY : share;
      const double scale = size_of(rows_[i]) > 0 ? size_of(rows_[i]) : 1;
      result.row = index_of(i * static_cast<size_t>(row_elements_));
      result.row_error = found / scale;
      result.row_allowed = allowed / scale;
      result.row_original = rows_[i].original / scale;
    }
    if (worst > 1)
      result.complaint = fmt::format(
          "row {} is {:.2e} from the original, and {:.2e} is allowed: the original itself is "
          "{:.2e} from its value in f64",
          result.row, result.row_error, result.row_allowed, result.row_original);
    compare_whole(result);
  }

  /// Sums over the rows that mean in f64 what they mean in their own type.
  struct Whole {
    double norm = 0, original = 0, rewritten = 0, exact = 0, allowed = 0;
    bool is_too_far() const { return rewritten > allowed; }
    // Errors of few scores, nearly equal ones, go into all rows of a weight's gradient.
    bool is_meant() const { return exact <= kExact * norm; }
    bool is_refused() const { return rewritten > (is_meant() ? 2 : 1) * allowed; }
  };

  /// Of the rows that a whole is of.
  double square_error(const std::vector<double>& truth, const std::vector<double>& before) const {
    double error = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
      const Row& row = rows_[row_of(i)];
      const double distance = before[i] - truth[i];
      if (is_compared_[i] && std::isfinite(distance) && !is_other(row) && !is_lost(row))
        error += square(distance);
    }
    return error;
  }

  Whole whole() const {
    Whole sums;
    double fourth = 0;
    for (const Row& row : rows_) {
      if (is_other(row) || is_lost(row)) continue;
      sums.norm += square(row.norm);
      sums.original += square(row.original);
      sums.rewritten += square(row.rewritten);
      sums.exact += square(row.exact);
      fourth += square(square(row.original));
    }
    // A norm that few rows decide varies by chance as few drawn numbers do.
    const double deciding = fourth == 0 ? INFINITY : square(sums.original) / fourth;
    for (const double error : errors_again_) sums.original += error;
    sums.original /= static_cast<double>(1 + errors_again_.size());
    for (double* sum : {&sums.norm, &sums.original, &sums.rewritten, &sums.exact})
      *sum = std::sqrt(*sum);
    sums.allowed = 2 * sums.original * (1 + kDeviations / std::sqrt(deciding)) + floor_ * sums.norm;
    return sums;
  }

  void compare_whole(OutputJudgement& result) const {
    const Whole sums = whole();
    if (sums.norm == 0) return;
    result.error = sums.rewritten / sums.norm;
    if (!result.complaint.empty() || !sums.is_refused()) return;
    result.complaint = fmt::format(
        "it is {:.2e} from its value in f64 as a whole, and {:.2e} is allowed: the original itself "
        "is {:.2e} from it",
        result.error, sums.allowed / sums.norm, sums.original / sums.norm);
  }

  std::string index_of(size_t element) const {
    auto at = static_cast<int64_t>(element);
    if (is_complex(shape_.type())) at /= 2;
    std::vector<int64_t> index(shape_.dims().size());
    for (size_t axis = index.size(); axis-- > 0;) {
      index[axis] = at % shape_.dim(static_cast<int>(axis));
      at /= shape_.dim(static_cast<int>(axis));
    }
    return fmt::format("[{}]", fmt::join(index, ", "));
  }

  Shape shape_;
  std::vector<double> truth_, before_, after_;
  double floor_, row_floor_, coarsest_;
  int64_t row_elements_ = 1;
  std::vector<bool> is_compared_;
  std::vector<Row> rows_;
  double usual_norm_ = 0, error_ = 0;
  std::vector<double> errors_again_;  // squares
};

Result<std::vector<Literal>> outputs(const Module& module, const std::vector<Literal>& arguments,
                                     EvaluateOptions options, Precision precision) {
  options.precision = precision;
  HEDDLE_ASSIGN(const Literal result, evaluate(module, arguments, options));
  std::vector<Literal> leaves;
  for (Literal& leaf : flattened(result))
    if (leaf.shape().is_array()) leaves.push_back(std::move(leaf));
  return leaves;
}

}  // namespace

double fill_for_f64(double constant) {
  constexpr double kSwallowsInF32 = 5e8, kSwallowsInF64 = 1e20, kLarger = 0x1p60;
  const double size = std::abs(constant);
  return size >= kSwallowsInF32 && size < kSwallowsInF64 ? constant * kLarger : constant;
}

std::vector<Literal> flattened(const Literal& value) {
  if (!value.shape().is_tuple()) return {value};
  std::vector<Literal> leaves;
  for (const Literal& element : value.elements())
    for (Literal& leaf : flattened(element)) leaves.push_back(std::move(leaf));
  return leaves;
}

Result<std::vector<OutputJudgement>> judge(const Module& original, const Module& rewritten,
                                           const std::vector<Literal>& arguments,
                                           const JudgeOptions& options) {
  HEDDLE_ASSIGN(const std::vector<Literal> truth, outputs(*with_fills_for_f64(original), arguments,
                                                          options.original, Precision::f64));
  HEDDLE_ASSIGN(const std::vector<Literal> before,
                outputs(original, arguments, options.original, Precision::faithful));
  HEDDLE_ASSIGN(const std::vector<Literal> after,
                outputs(rewritten, arguments, options.rewritten, Precision::faithful));
  if (before.size() != after.size())
    return error(Code::invalid_value, "the rewritten module has {} outputs, the original {}",
                 after.size(), before.size());
  const double coarsest = coarsest_step(original);
  std::optional<std::vector<Literal>> moved, meant;  // only where they are asked for
  std::array<std::pair<std::vector<Literal>, std::vector<Literal>>, kRepetitions> repeated;
  std::vector<OutputJudgement> judgements;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!same_dims(after[i].shape(), before[i].shape()) ||
        after[i].shape().type() != before[i].shape().type())
      return error(Code::invalid_value,
                   "output {} is {} in the rewritten module, {} in the original", i,
                   to_string(after[i].shape()), to_string(before[i].shape()));
    const auto nearby = [&]() -> Result<Literal> {
      if (!moved) {
        HEDDLE_ASSIGN(moved, outputs(original, nearby_arguments(arguments, coarsest, options.seed),
                                     options.original, Precision::faithful));
      }
      return (*moved)[i];
    };
    const auto exact = [&]() -> Result<Literal> {
      if (!meant) {
        HEDDLE_ASSIGN(meant, outputs(*with_fills_for_f64(rewritten), arguments, options.exact,
                                     Precision::f64));
      }
      return (*meant)[i];
    };
    const auto again = [&](uint64_t number) -> Result<TruthAndBefore> {
      auto& [in_f64, in_own_types] = repeated[number];
      if (in_f64.empty()) {
        const auto near = nearby_arguments(arguments, coarsest, options.seed + number);
        HEDDLE_ASSIGN(
            in_f64, outputs(*with_fills_for_f64(original), near, options.original, Precision::f64));
        HEDDLE_ASSIGN(in_own_types, outputs(original, near, options.original, Precision::faithful));
      }
      return TruthAndBefore{in_f64[i], in_own_types[i]};
    };
    const double step = rounding_step(before[i].shape().type());
    OutputJudge judge(truth[i], before[i], after[i], step, kRoundings * step, coarsest);
    HEDDLE_ASSIGN(OutputJudgement judgement, judge.judge(nearby, exact, again));
    judgements.push_back(std::move(judgement));
  }
  return judgements;
}

OutputJudgement judge(const Literal& expected, const Literal& actual, double tolerance) {
  const auto itself = [&]() -> Result<Literal> { return expected; };
  const auto again = [&](uint64_t) -> Result<TruthAndBefore> {
    return TruthAndBefore{expected, expected};
  };
  return *OutputJudge(expected, expected, actual, tolerance, tolerance, 0)
              .judge(itself, itself, again);
}

}  // namespace heddle::hlo
