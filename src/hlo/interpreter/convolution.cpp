// Convolutions as products of matrices: a row for each place of the result, with what its window
// holds, a column for each feature of the kernel.
#include <algorithm>
#include <cstring>
#include <optional>

#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/product.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {
namespace {

/// Which dimension of an array is what: two named by letters, the others by digits.
struct Labels {
  int first = -1, second = -1;
  std::vector<int> spatial;
};

/// Of `text`, such as b01f with `letters` "bf"; nothing if it is no labelling of `rank` dimensions.
std::optional<Labels> labels_of(std::string_view text, std::string_view letters, int rank) {
  if (static_cast<int>(text.size()) != rank || rank < 2) return std::nullopt;
  Labels labels;
  labels.spatial.assign(rank - 2, -1);
  for (int i = 0; i < rank; ++i) {
    const char c = text[i];
    int* place = nullptr;
    if (c == letters[0]) place = &labels.first;
    if (c == letters[1]) place = &labels.second;
    if (c >= '0' && c - '0' < rank - 2) place = &labels.spatial[c - '0'];
    if (place == nullptr || *place != -1) return std::nullopt;
    *place = i;
  }
  return labels;
}

/// The operands' and the result's labels, and how many groups of features or batch entries are
/// convolved each with its own part of the kernel.
struct Convolution {
  Labels lhs, rhs, out;
  int64_t feature_groups = 1, batch_groups = 1;

  int64_t groups() const { return std::max(feature_groups, batch_groups); }
};

/// How many places a window has along a dimension of `size`.
int64_t places(int64_t size, const WindowDimension& w) {
  const int64_t base = size == 0 ? 0 : (size - 1) * w.lhs_dilate + 1;
  const int64_t padded = base + w.pad_low + w.pad_high, reach = (w.size - 1) * w.rhs_dilate + 1;
  return padded < reach ? 0 : (padded - reach) / w.stride + 1;
}

bool is_sane(const WindowDimension& w) {
  constexpr int64_t kLimit = int64_t{1} << 30;  // products of two and sums stay far from overflow
  const auto in = [](int64_t value, int64_t low) { return value >= low && value <= kLimit; };
  return in(w.size, 1) && in(w.stride, 1) && in(w.lhs_dilate, 1) && in(w.rhs_dilate, 1) &&
         in(w.pad_low, -kLimit) && in(w.pad_high, -kLimit);
}

Result<Convolution> read(const Instruction& x, const Shape& lhs, const Shape& rhs) {
  const std::string_view text = x.text("dim_labels");
  const size_t kernel = text.find('_'), result = text.find("->");
  const auto refused = [&] {
    return refuse(x, fmt::format("with dim_labels '{}' and a window of {} dimensions is not known",
                                 text, x.window().size()));
  };
  if (kernel == text.npos || result == text.npos || result < kernel) return refused();
  const auto lhs_labels = labels_of(text.substr(0, kernel), "bf", lhs.rank());
  const auto rhs_labels = labels_of(text.substr(kernel + 1, result - kernel - 1), "io", rhs.rank());
  const auto out_labels = labels_of(text.substr(result + 2), "bf", x.shape().rank());
  if (!lhs_labels || !rhs_labels || !out_labels || lhs.rank() != rhs.rank() ||
      lhs.rank() != x.shape().rank() || x.window().size() != lhs_labels->spatial.size())
    return refused();
  Convolution c{*lhs_labels, *rhs_labels, *out_labels, x.integer("feature_group_count").value_or(1),
                x.integer("batch_group_count").value_or(1)};
  const int64_t batch = lhs.dim(c.lhs.first), features = lhs.dim(c.lhs.second);
  const int64_t inputs = rhs.dim(c.rhs.first), outputs = rhs.dim(c.rhs.second);
  bool fits = c.feature_groups >= 1 && c.batch_groups >= 1 &&
              std::min(c.feature_groups, c.batch_groups) == 1 && outputs % c.groups() == 0 &&
              batch % c.batch_groups == 0 && features == inputs * c.feature_groups &&
              x.shape().dim(c.out.first) == batch / c.batch_groups &&
              x.shape().dim(c.out.second) == outputs;
  for (size_t i = 0; i < x.window().size(); ++i) {
    const WindowDimension& w = x.window()[i];
    fits = fits && is_sane(w) && w.size == rhs.dim(c.rhs.spatial[i]) &&
           x.shape().dim(c.out.spatial[i]) == places(lhs.dim(c.lhs.spatial[i]), w);
  }
  if (fits) return c;
  return refuse(x, fmt::format("of {} and {} does not give {}", to_string_without_layout(lhs),
                               to_string_without_layout(rhs), to_string_without_layout(x.shape())));
}

/// The sizes or strides of the spatial dimensions, in the order of the window.
std::vector<int64_t> spatial(const Labels& labels, std::span<const int64_t> of_dimensions) {
  std::vector<int64_t> result;
  for (int dimension : labels.spatial) result.push_back(of_dimensions[dimension]);
  return result;
}

/// The next index of `sizes`, row-major; false after the last.
bool advance(std::vector<int64_t>& index, const std::vector<int64_t>& sizes) {
  for (size_t i = sizes.size(); i-- > 0;) {
    if (++index[i] < sizes[i]) return true;
    index[i] = 0;
  }
  return false;
}

/// Where in the left operand's spatial dimensions `tap` of the kernel lies for `place` of the
/// result; nothing where it lies on padding or in a gap of the dilation.
std::optional<int64_t> offset_of(std::span<const WindowDimension> window,
                                 const std::vector<int64_t>& place, const std::vector<int64_t>& tap,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < window.size(); ++i) {
    const WindowDimension& w = window[i];
    const int64_t step = w.reversed ? w.size - 1 - tap[i] : tap[i];
    const int64_t at = place[i] * w.stride + step * w.rhs_dilate - w.pad_low;
    if (at < 0 || at % w.lhs_dilate != 0 || at / w.lhs_dilate >= sizes[i]) return std::nullopt;
    offset += at / w.lhs_dilate * strides[i];
  }
  return offset;
}

class Product {
 public:
  Product(Machine& machine, const Instruction& x, const Convolution& c, const Shape& lhs,
          const Shape& rhs)
      : machine_(machine), x_(x), c_(c) {
    taps_ = spatial(c.rhs, rhs.dims());
    places_ = spatial(c.out, x.shape().dims());
    inputs_ = rhs.dim(c.rhs.first);
    batch_ = lhs.dim(c.lhs.first) / c.batch_groups;
    extents_.batch = c.groups();
    extents_.rows = batch_ * count(places_);
    extents_.columns = rhs.dim(c.rhs.second) / c.groups();
    extents_.depth = count(taps_) * inputs_;
  }

  const ProductExtents& extents() const { return extents_; }

  /// [groups][batch][places][taps][inputs]: what each window holds.
  Result<Literal> windows(const Literal& lhs) {
    const Shape& shape = lhs.shape();
    HEDDLE_ASSIGN(Literal out,
                  dense(shape.type(), {extents_.batch, extents_.rows, extents_.depth}));
    const int64_t size = size_of(shape.type());
    std::memset(out.mutable_data(), 0, static_cast<size_t>(out.element_count() * size));
    if (out.element_count() == 0) return out;
    const std::vector<int64_t> strides = row_major_strides(shape.dims());
    const int64_t feature = strides[c_.lhs.second], entry = strides[c_.lhs.first];
    const int64_t group = c_.batch_groups > 1 ? batch_ * entry : inputs_ * feature;
    const std::vector<int64_t> dims{extents_.batch, batch_, inputs_}, from{group, entry, feature};
    const std::vector<int64_t> to{extents_.rows * extents_.depth, count(places_) * extents_.depth,
                                  1};
    const auto sizes = spatial(c_.lhs, shape.dims()), steps = spatial(c_.lhs, strides);
    std::byte* target = out.mutable_data();
    std::vector<int64_t> place(places_.size());
    do {
      std::vector<int64_t> tap(taps_.size());
      do {
        if (const auto at = offset_of(x_.window(), place, tap, sizes, steps))
          strided_copy(size, dims, lhs.data() + *at * size, from, target, to);
        target += inputs_ * size;
      } while (advance(tap, taps_));
    } while (advance(place, places_));
    return out;
  }

  /// [groups][taps][inputs][outputs of a group].
  Result<Literal> kernel(const Literal& rhs) {
    HEDDLE_ASSIGN(Literal out,
                  dense(rhs.shape().type(), {extents_.batch, extents_.depth, extents_.columns}));
    const std::vector<int64_t> strides = row_major_strides(rhs.shape().dims());
    const int64_t output = strides[c_.rhs.second];
    std::vector<int64_t> dims{extents_.batch}, from{extents_.columns * output};
    dims.insert(dims.end(), taps_.begin(), taps_.end());
    for (int64_t stride : spatial(c_.rhs, strides)) from.push_back(stride);
    dims.insert(dims.end(), {inputs_, extents_.columns});
    from.insert(from.end(), {strides[c_.rhs.first], output});
    strided_copy(size_of(rhs.shape().type()), dims, rhs.data(), from, out.mutable_data(),
                 row_major_strides(dims));
    return out;
  }

  /// The result's dimensions in the order of its product, [groups][batch][places][outputs of a
  /// group], dealt out to those of the instruction.
  Result<Literal> arranged(const Literal& product) {
    HEDDLE_ASSIGN(Literal out, machine_.result_of(x_));
    const std::vector<int64_t> strides = row_major_strides(x_.shape().dims());
    const int64_t feature = strides[c_.out.second];
    std::vector<int64_t> dims{extents_.batch, batch_};
    std::vector<int64_t> to{extents_.columns * feature, strides[c_.out.first]};
    dims.insert(dims.end(), places_.begin(), places_.end());
    for (int64_t stride : spatial(c_.out, strides)) to.push_back(stride);
    dims.push_back(extents_.columns);
    to.push_back(feature);
    strided_copy(size_of(out.shape().type()), dims, product.data(), row_major_strides(dims),
                 out.mutable_data(), to);
    return out;
  }

 private:
  static int64_t count(const std::vector<int64_t>& sizes) {
    int64_t product = 1;
    for (int64_t size : sizes) product *= size;
    return product;
  }
  Result<Literal> dense(ElementType type, std::vector<int64_t> dims) {
    return Literal::uninitialized(Shape(type, std::move(dims)), machine_.meter());
  }

  Machine& machine_;
  const Instruction& x_;
  const Convolution& c_;
  ProductExtents extents_;
  std::vector<int64_t> taps_, places_;
  int64_t inputs_ = 0, batch_ = 0;
};

}  // namespace

Result<Literal> evaluate_convolution(Machine& machine, const Instruction& x, Operands operands) {
  const bool arrays = std::all_of(operands.begin(), operands.end(),
                                  [](const Literal& of) { return of.shape().is_array(); });
  if (operands.size() != 2 || !arrays || !x.shape().is_array())
    return refuse(x, "takes two arrays");
  for (const Literal& operand : operands) {
    if (!is_floating(operand.shape().type()) || !is_floating(x.shape().type()))
      return refuse(x, fmt::format("of {} that gives {} is not known", name(operand.shape().type()),
                                   name(x.shape().type())));
  }
  HEDDLE_ASSIGN(const Convolution convolution, read(x, operands[0].shape(), operands[1].shape()));
  Product product(machine, x, convolution, operands[0].shape(), operands[1].shape());
  const ProductExtents& extents = product.extents();
  if (x.shape().element_count() == 0) return machine.result_of(x);
  HEDDLE_TRY(spend_on_product(machine, x, extents));
  HEDDLE_ASSIGN(Literal windows, product.windows(operands[0]));
  HEDDLE_ASSIGN(Literal kernel, product.kernel(operands[1]));
  operands.clear();
  HEDDLE_ASSIGN(const Literal value,
                floating_product(machine, x, extents, std::move(windows), std::move(kernel),
                                 {extents.batch, extents.rows, extents.columns}));
  return product.arranged(value);
}

}  // namespace heddle::hlo
