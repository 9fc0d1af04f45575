#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/ports.h"
#include "reference/evaluate.h"

namespace heddle::testing {

using graph::TensorId;
using reference::Values;

namespace {

bool differ_in_kind(double expected, double actual) {
  if (std::isnan(expected)) return !std::isnan(actual);
  if (!std::isfinite(expected) || !std::isfinite(actual)) return !(actual == expected);
  return false;
}

void accumulate(double expected, double actual, Error& error, double& squares) {
  if (differ_in_kind(expected, actual)) {
    error.max = squares = std::numeric_limits<double>::infinity();
  } else if (std::isfinite(expected)) {
    const double difference = std::fabs(expected - actual);
    error.max = std::fmax(error.max, difference);
    error.max_magnitude = std::fmax(error.max_magnitude, std::fabs(expected));
    error.rms_magnitude += expected * expected;
    squares += difference * difference;
  }
}

template <class Actual>
Error measure(const reference::Array& expected, Actual&& actual) {
  Error error;
  double squares = 0;
  for (size_t n = 0; n < expected.values.size(); ++n) {
    if (!expected.written[n]) continue;
    accumulate(expected.values[n], actual(n), error, squares);
    ++error.count;
  }
  const double n = std::fmax(error.count, 1);
  error.rms = std::sqrt(squares / n);
  error.rms_magnitude = std::sqrt(error.rms_magnitude / n);
  return error;
}

/// The first element (or byte) of `block` that no written element covers and that is not what it
/// was: poison, or what memory `before` holds.
::testing::AssertionResult untouched(const graph::Tensor& tensor, TensorId id,
                                     const Values& expected, const Block& block,
                                     const unsigned char* before) {
  const int64_t bytes = size_of(*tensor.dtype);
  std::vector<uint8_t> owned(static_cast<size_t>(block.size()), 0);
  const reference::Array& result = expected.result(id);
  for (size_t n = 0; n < result.values.size(); ++n) {
    if (!result.written[n]) continue;
    const int64_t at = expected.offset_of(id, static_cast<int64_t>(n)) * bytes;
    std::fill_n(owned.begin() + at, bytes, 1);
  }
  for (int64_t at = 0; at < block.size(); ++at) {
    const unsigned char was = before ? before[at] : kPoison;
    if (!owned[static_cast<size_t>(at)] && block.data()[at] != was) {
      return ::testing::AssertionFailure()
             << tensor.name << ": byte " << at << " (element " << at / bytes << ") of "
             << block.size() << " belongs to no written element and was written";
    }
  }
  return ::testing::AssertionSuccess();
}

/// The codes that an element of a cache holds, in the order of their numbers.
std::vector<int> codes_of(DataType type, double element) {
  if (type == DataType::i8) return {static_cast<int>(element)};
  if (type == DataType::u8) return {static_cast<int>(element) & 15, static_cast<int>(element) >> 4};
  uint8_t bits = 0;
  store(type, &bits, 0, element);
  const int size = bits & 127;
  return {bits & 128 && size != 127 ? -size : size};  // a NaN has no sign
}

/// Codes are the definition's, but for a few next to them where a number is close to halfway.
::testing::AssertionResult codes_agree(const graph::Tensor& tensor, TensorId id,
                                       const Values& expected, const Block& block) {
  const reference::Array& result = expected.result(id);
  int64_t count = 0, off = 0;
  for (size_t n = 0; n < result.values.size(); ++n) {
    if (!result.written[n]) continue;
    const auto is = codes_of(*tensor.dtype, load(*tensor.dtype, block.data(),
                                                 expected.offset_of(id, static_cast<int64_t>(n))));
    const auto must =
        codes_of(*tensor.dtype, reference::Precision::round_to(*tensor.dtype, result.values[n]));
    for (size_t c = 0; c < is.size(); ++c, ++count) {
      off += is[c] != must[c];
      if (std::abs(is[c] - must[c]) > 1)
        return ::testing::AssertionFailure() << tensor.name << ": element " << n << " has code "
                                             << is[c] << " in place of " << must[c];
    }
  }
  if (off <= 1 + count / 500) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << tensor.name << ": " << off << " of " << count << " codes are not the definition's";
}

bool is_of_fp8(const graph::Node& node) {
  return std::holds_alternative<graph::SdpaFp8>(node.op) ||
         std::holds_alternative<graph::SdpaFp8Backward>(node.op);
}

/// Whether a result is of numbers that were but rounded to codes. What attention makes of fp8
/// operands is as far off as its weights, which are rounded before.
bool holds_codes(const graph::Tensor& tensor, const graph::Node& node) {
  if (is_of_fp8(node)) return false;
  return tensor.dtype == DataType::i8 || tensor.dtype == DataType::u8 ||
         tensor.dtype == DataType::f8e4m3;
}

/// How many of dO's rows there are to each row of a tensor: of a sum over rows, so many terms.
double rows_summed(const graph::Graph& graph, const graph::Node& node, TensorId id) {
  const auto* op = std::get_if<graph::SdpaBackward>(&node.op);
  if (!op) return 1;
  const auto rows = [&](TensorId of) {
    const Dims& dims = graph[of].dims;
    double count = 1;
    for (int n = 0; n + 1 < dims.rank(); ++n) count *= static_cast<double>(dims[n]);
    return count;
  };
  return std::fmax(rows(op->d_o) / std::fmax(rows(id), 1), 1);
}

/// How much longer the sums that cancel in a backward, of dO by V and by O, are than those whose
/// steps a tolerance counts.
double columns_summed(const graph::Graph& graph, const graph::Node& node) {
  const auto* op = std::get_if<graph::SdpaBackward>(&node.op);
  return op ? std::fmax(static_cast<double>(graph[op->d_o].dims[3]) / 128, 1) : 1;
}

}  // namespace

double rounding_step(DataType type) {
  switch (type) {
    case DataType::bf16:
      return std::exp2(-8);
    case DataType::f16:
      return std::exp2(-11);
    case DataType::f64:
      return std::exp2(-53);
    default:
      return std::exp2(-24);
  }
}

Error error_of(const graph::Graph& graph, TensorId id, const Values& expected, const void* actual) {
  return measure(expected.result(id), [&](size_t n) {
    return load(*graph[id].dtype, actual, expected.offset_of(id, static_cast<int64_t>(n)));
  });
}

Definition::Definition(Program& program, reference::Precision naive)
    : graph_(program.graph),
      io_(naive.type),
      inputs_(program.buffers()),
      exact_(reference::evaluate(graph_, inputs_)),
      naive_(reference::evaluate(graph_, inputs_, naive)) {}

::testing::AssertionResult Definition::is_met_by(const Program& run, Tolerance tolerance) const {
  if (!exact_) return ::testing::AssertionFailure() << exact_.status().message();
  for (const graph::Node& node : graph_.nodes) {
    // Other programs hold NaN only where attention must not look; rope alone rotates whatever is
    // there.
    const bool may_be_undefined =
        run.may_be_undefined || std::holds_alternative<graph::Rope>(node.op);
    for (const graph::Port& port : graph::ports(node)) {
      if (!port.output || port.inner) continue;
      const Block* const block = run.block(port.tensor);
      if (!block) continue;
      const int64_t uid = graph_[port.tensor].uid;
      const unsigned char* before =
          run.in_place.contains(uid) ? static_cast<const unsigned char*>(inputs_.at(uid)) : nullptr;
      Tolerance here = tolerance;
      if (port.name.starts_with("amax_")) {
        const bool is_of_o = port.name == "amax_o";
        here.floor_steps += (is_of_o ? tolerance.part_of_amax_o : tolerance.part_of_amax) /
                            rounding_step(DataType::f32);
      }
      here.cancellation_steps *=
          std::sqrt(rows_summed(graph_, node, port.tensor)) * columns_summed(graph_, node);
      const auto met = holds_codes(graph_[port.tensor], node)
                           ? holds_the_codes(*block, before, port.tensor)
                           : is_met_by(*block, before, port.tensor, may_be_undefined, here);
      if (!met) {
        return ::testing::AssertionFailure()
               << met.message() << "; seed " << run.seed << ", variant " << run.variant;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Definition::holds_the_codes(const Block& block,
                                                       const unsigned char* before,
                                                       TensorId id) const {
  const auto agree = codes_agree(graph_[id], id, *exact_, block);
  return agree ? untouched(graph_[id], id, *exact_, block, before) : agree;
}

::testing::AssertionResult Definition::is_met_by(const Block& block, const unsigned char* before,
                                                 TensorId id, bool may_be_undefined,
                                                 Tolerance tolerance) const {
  const graph::Tensor& tensor = graph_[id];
  const auto& defined = exact_->result(id).values;
  if (!may_be_undefined &&
      std::any_of(defined.begin(), defined.end(), [](double x) { return std::isnan(x); })) {
    return ::testing::AssertionFailure() << tensor.name << ": the definition is NaN";
  }
  const Error error = error_of(graph_, id, *exact_, block.data());
  const reference::Array& low = naive_->result(id);
  const Error allowed = measure(exact_->result(id), [&](size_t n) {
    return reference::Precision::round_to(*tensor.dtype, low.values[n]);
  });
  const double floor = tolerance.floor_steps * rounding_step(*tensor.dtype);
  // In f64 programs the definition's own sums are no more exact than the result.
  const double left =
      tolerance.cancellation_steps *
      (io_ == DataType::f64 ? 64 * rounding_step(DataType::f64) : rounding_step(DataType::f32));
  const double max = 2 * (tolerance.factor * allowed.max + left) + floor * error.max_magnitude;
  const double rms = tolerance.factor * (1 + 1 / std::fmax(error.count, 1)) * allowed.rms +
                     floor * error.rms_magnitude + left;
  // What leaves the type's range in the naive computation is no measure of the result.
  if (!std::isfinite(allowed.max)) return untouched(tensor, id, *exact_, block, before);
  if (!std::isfinite(error.max) || !(error.max <= max) || !(error.rms <= rms)) {
    return ::testing::AssertionFailure()
           << tensor.name << " " << to_string(tensor.dims) << ": error max " << error.max
           << ", rms " << error.rms << "; naive max " << allowed.max << ", rms " << allowed.rms
           << "; magnitude " << error.max_magnitude;
  }
  return untouched(tensor, id, *exact_, block, before);
}

::testing::AssertionResult matches_reference(Program& program, reference::Precision naive,
                                             Tolerance tolerance) {
  return Definition(program, naive).is_met_by(program, tolerance);
}

}  // namespace heddle::testing
