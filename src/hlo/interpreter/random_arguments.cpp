#include "hlo/interpreter/random_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "core/philox.h"
#include "hlo/interpreter/parameter_roles.h"

namespace heddle::hlo {
namespace {

// A stream of random words for each parameter, so that one does not depend on the sizes of others.
class Stream {
 public:
  Stream(uint64_t seed, uint32_t parameter, uint32_t purpose)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        parameter_(parameter),
        purpose_(purpose) {}

  uint32_t word() {
    if (next_ == 4) {
      block_ = philox_4x32_10({static_cast<uint32_t>(count_), static_cast<uint32_t>(count_ >> 32),
                               parameter_, purpose_},
                              key_);
      ++count_;
      next_ = 0;
    }
    return block_[next_++];
  }
  double uniform() { return (word() + 0.5) / 4294967296.0; }  // in (0, 1)
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));  // Box and Muller
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  bool chance(double probability) { return uniform() < probability; }
  /// In [low, high]; of 32 random bits, sizes beyond that are never indexed far.
  int64_t integer(int64_t low, int64_t high) {
    return high <= low ? low
                       : low + static_cast<int64_t>(word() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t parameter_, purpose_;
  uint64_t count_ = 0;
  std::array<uint32_t, 4> block_{};
  int next_ = 4;
};

constexpr int64_t kDefaultBound = 8;
constexpr uint32_t kNearby = 100;  // beside the draws' own numbers

// Standard deviations by which queries and keys make scores of 1e3: of operands of the product, and
// of weights that a hundred values are multiplied by before.
constexpr double kLargeOperand = 30, kLargeWeight = 8;
constexpr double kSmall = 0.1;

/// Puts one parameter's value into an array, row by row along its last axis.
class Filler {
 public:
  Filler(Literal& value, const ParameterRole& role, Draw draw, Stream& stream)
      : value_(value), role_(role), draw_(draw), stream_(stream), dims_(value.shape().dims()) {
    type_ = value.shape().type();
    length_ = dims_.empty() ? 1 : dims_.back();
    rows_ = length_ == 0 ? 0 : value.element_count() / length_;
  }

  void fill() {
    if (is_complex(type_)) return complex();
    if (is_floating(type_) && role_.role != Role::mask) return floats();
    switch (role_.role) {
      case Role::mask:
        return mask();
      case Role::index:
        return indices();
      case Role::length:
        return lengths();
      case Role::position:
        return positions();
      case Role::segment:
        return segments();
      case Role::key:
        return each([this](int64_t) {
          const uint64_t upper = uint64_t{stream_.word()} << 32;
          return static_cast<int64_t>(upper | stream_.word());
        });
      default:
        return each([this](int64_t) { return stream_.integer(0, kDefaultBound - 1); });
    }
  }

 private:
  template <class Value>
  void each(Value value) {
    for (int64_t i = 0; i < value_.element_count(); ++i) put(i, value(i));
  }

  void put(int64_t i, int64_t x) {
    if (is_floating(type_)) {
      value_.set(i, static_cast<double>(x));
    } else {
      value_.set_integer(i, x);
    }
  }

  void complex() {
    for (int64_t i = 0; i < value_.element_count(); ++i) {
      const double real = stream_.normal();
      value_.set_complex(i, {real, stream_.normal()});
    }
  }

  void floats() {
    double deviation = role_.deviation;
    if (draw_ == Draw::large && role_.role == Role::projected)
      deviation *= deviation == 1 ? kLargeOperand : kLargeWeight;
    // Weights and what is added stay: the program's own numbers shall not become small beside them.
    if (draw_ == Draw::small && deviation == 1 && dims_.size() > 1) deviation *= kSmall;
    // A single float is a rate, a scale or an epsilon.
    const bool is_positive = role_.role == Role::positive || dims_.empty();
    if (dims_.empty()) deviation *= kSmall;
    for (int64_t i = 0; i < value_.element_count(); ++i) {
      const double x = deviation * stream_.normal();
      value_.set(i, is_positive ? std::abs(x) : x);
    }
    if (role_.role == Role::bias && draw_ == Draw::hidden) hide_by_bias();
  }

  /// Some elements of every row, and some rows whole by finite numbers.
  void hide_by_bias() {
    const double least = least_finite();
    for (int64_t row = 0; row < rows_; ++row) {
      const bool is_whole = stream_.chance(0.2);
      const double whole = stream_.chance(0.5) ? least : std::max(least, -1e9);
      for (int64_t i = row * length_; i < (row + 1) * length_; ++i) {
        if (is_whole) {
          value_.set(i, whole);
        } else if (stream_.chance(0.3)) {
          const double fills[] = {-std::numeric_limits<double>::infinity(), least,
                                  std::max(least, -1e9)};
          value_.set(i, fills[stream_.integer(0, 2)]);
        }
      }
    }
  }

  double least_finite() const {
    if (type_ == ElementType::f16) return -65504;
    if (type_ == ElementType::bf16) return -0x1.fep127;
    return type_ == ElementType::f64 ? -0x1.fffffffffffffp1023 : -0x1.fffffep127;
  }

  // How a row of a mask looks.
  enum class Pattern : uint8_t { prefix, suffix, some, all, none };

  /// 1 is visible, but in small draws, where programs whose ones hide find rows with keys.
  void mask() {
    const bool turned = draw_ == Draw::small;
    const bool is_hidden = draw_ == Draw::hidden;
    // Of rows x keys: the key of a row's own number.
    const bool is_square = dims_.size() > 1 && dims_[dims_.size() - 2] == length_;
    const std::vector<bool> hidden = is_hidden ? hidden_rows() : std::vector<bool>();
    for (int64_t row = 0; row < rows_; ++row) {
      const Pattern pattern = is_hidden && hidden[row] ? Pattern::none : this->pattern(row);
      const int64_t shown = stream_.integer((length_ + 1) / 2, length_ - 1);
      for (int64_t i = 0; i < length_; ++i) {
        bool visible = stream_.chance(0.7);
        if (pattern == Pattern::prefix) visible = i < shown;
        if (pattern == Pattern::suffix) visible = i >= length_ - shown;
        if (pattern == Pattern::all || pattern == Pattern::none) visible = pattern == Pattern::all;
        if (!is_hidden) visible = visible || i == 0 || (is_square && row % length_ == i);
        put(row * length_ + i, visible != turned ? 1 : 0);
      }
    }
  }

  Pattern pattern(int64_t row) {
    if (draw_ != Draw::hidden) return stream_.chance(0.5) ? Pattern::prefix : Pattern::some;
    // Never all of them hidden: some row stays to be compared.
    if (row == 0) return Pattern::suffix;
    const Pattern patterns[] = {Pattern::prefix, Pattern::suffix, Pattern::some, Pattern::all,
                                Pattern::none};
    return patterns[stream_.integer(0, 4)];
  }

  /// Of each axis with rows one number whose rows are all hidden, but never the first.
  std::vector<bool> hidden_rows() {
    std::vector<bool> hidden(static_cast<size_t>(rows_), false);
    int64_t inner = rows_;
    for (size_t axis = 0; axis + 1 < dims_.size(); ++axis) {
      inner /= dims_[axis];
      if (dims_[axis] < 2) continue;
      const int64_t which = stream_.integer(1, dims_[axis] - 1);
      for (int64_t row = 0; row < rows_; ++row)
        if (row / inner % dims_[axis] == which) hidden[row] = true;
    }
    return hidden;
  }

  /// Padding at the end of rows, in hidden draws at their start, the second row all padding.
  void indices() {
    const int64_t padding = role_.padding;
    for (int64_t row = 0; row < rows_; ++row) {
      const bool is_hidden = draw_ == Draw::hidden;
      int64_t padded = length_ < 4 ? 0 : stream_.integer(0, is_hidden ? length_ / 2 : length_ / 4);
      if (is_hidden && row % 2 == 1) padded = length_;
      for (int64_t i = 0; i < length_; ++i) {
        const bool pads = is_hidden ? i < padded : i >= length_ - padded;
        put(row * length_ + i, pads ? padding : stream_.integer(0, role_.bound - 1));
      }
    }
  }

  void lengths() {
    const int64_t full = role_.bound;
    each([&](int64_t i) {
      if (draw_ == Draw::large) return full;
      if (draw_ == Draw::ordinary) return stream_.integer(std::min<int64_t>(2, full), full);
      if (draw_ == Draw::small) return stream_.integer(1, (full + 2) / 3);
      const int64_t ends[] = {0, full, 1, stream_.integer(0, full)};
      return ends[i % 4];
    });
  }

  /// Each row starts elsewhere and leaves a gap; in hidden draws it starts anew somewhere.
  void positions() {
    const int64_t most = size_of(type_) == 1 ? 100 : 1 << 20;  // what a byte holds
    const int64_t shown = role_.bound > 0 ? role_.bound : 4 * std::max(length_, kDefaultBound);
    const int64_t far = std::min(shown, most);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t room = std::max<int64_t>(0, far - length_);
      const int64_t start = stream_.integer(0, room / 2);
      const int64_t turn = stream_.integer(1, std::max<int64_t>(1, length_ - 1));
      const int64_t gap = stream_.integer(0, room - start);
      for (int64_t i = 0; i < length_; ++i) {
        int64_t position = start + i + (i < turn ? 0 : gap);
        if (draw_ == Draw::hidden) position = i < turn ? start + i : i - turn;
        if (draw_ == Draw::small) position = stream_.integer(0, far - 1);
        put(row * length_ + i, std::min(position, far - 1));
      }
    }
  }

  /// Runs of a few numbers, the last of them 0; in hidden draws a row of no two alike.
  void segments() {
    constexpr int64_t kRuns = 4;
    for (int64_t row = 0; row < rows_; ++row) {
      const bool is_alone = draw_ == Draw::hidden && row % 2 == 1;
      const bool returns = draw_ == Draw::hidden || draw_ == Draw::small;
      int64_t segment = 1;
      for (int64_t i = 0; i < length_; ++i) {
        if (i > 0 && stream_.chance(static_cast<double>(kRuns) / static_cast<double>(length_)))
          segment = returns ? stream_.integer(0, 2) : segment + 1;
        const bool pads = !returns && length_ > kRuns && i >= length_ - length_ / 8 - row % 2;
        put(row * length_ + i, is_alone ? i + 1 : pads ? 0 : segment);
      }
    }
  }

  Literal& value_;
  const ParameterRole& role_;
  Draw draw_;
  Stream& stream_;
  std::vector<int64_t> dims_;
  ElementType type_;
  int64_t length_, rows_;
};

Result<Literal> random_value(const Shape& shape, const ParameterRole& role, Draw draw,
                             Stream& stream, const std::shared_ptr<MemoryMeter>& meter) {
  if (shape.is_tuple()) {
    std::vector<Literal> elements;
    for (const Shape& element : shape.elements()) {
      HEDDLE_ASSIGN(Literal value, random_value(element, role, draw, stream, meter));
      elements.push_back(std::move(value));
    }
    return Literal::tuple(std::move(elements));
  }
  if (shape.is_dynamic() || !shape.is_array()) {
    return error(Code::graph_not_supported, "no random value of {} can be made",
                 to_string_without_layout(shape));
  }
  HEDDLE_ASSIGN(Literal value, Literal::uninitialized(shape, meter));
  Filler(value, role, draw, stream).fill();
  return value;
}

}  // namespace

std::string_view name(Draw draw) {
  switch (draw) {
    case Draw::ordinary:
      return "ordinary";
    case Draw::hidden:
      return "hidden";
    case Draw::large:
      return "large";
    case Draw::small:
      return "small";
  }
  return "";
}

Result<std::vector<Literal>> random_arguments(const Module& module, uint64_t seed, Draw draw,
                                              int64_t max_bytes) {
  const auto meter = std::make_shared<MemoryMeter>(MemoryMeter{0, max_bytes});
  const std::vector<ParameterRole> roles = parameter_roles(module);
  std::vector<Literal> arguments;
  for (const Instruction* parameter : module.entry()->parameters()) {
    Stream stream(seed, static_cast<uint32_t>(parameter->parameter_number()),
                  static_cast<uint32_t>(draw));
    HEDDLE_ASSIGN(Literal value,
                  random_value(parameter->shape(), roles[arguments.size()], draw, stream, meter));
    arguments.push_back(std::move(value));
  }
  return arguments;
}

std::vector<Literal> nearby_arguments(const std::vector<Literal>& arguments, double step,
                                      uint64_t seed) {
  std::vector<Literal> nearby = arguments;
  for (size_t i = 0; i < nearby.size(); ++i) {
    if (!nearby[i].shape().is_array() || !is_floating(nearby[i].shape().type())) continue;
    Stream stream(seed, static_cast<uint32_t>(i), kNearby);
    for (int64_t j = 0; j < nearby[i].element_count(); ++j) {
      const double x = nearby[i].get(j);
      if (x == std::trunc(x) || !std::isfinite(x)) continue;
      nearby[i].set(j, x * (1 + (stream.chance(0.5) ? 2 : -2) * step));
    }
  }
  return nearby;
}

}  // namespace heddle::hlo
