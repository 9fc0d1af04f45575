#include "hlo/interpreter/product.h"

#include <algorithm>

#include "hlo/interpreter/codec.h"
#include "hlo/interpreter/parallel.h"

namespace heddle::hlo {
namespace {

// The compiler vectorises the loops below for whichever of these the machine has.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HEDDLE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HEDDLE_CLONES
#endif

constexpr int kRows = 4;
template <class T>
constexpr int kColumns = 64 / sizeof(T) * 2;

// A tile of the product: out[r][c] = sum over k of a[r][k] * b[k][c]. `b` is packed in panels of
// kColumns columns, so both operands are read in order.
template <class T>
[[gnu::always_inline]] inline void multiply_tile(const T* a, int64_t depth, const T* b, T* out) {
  T sum[kRows][kColumns<T>] = {};
  for (int64_t k = 0; k < depth; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const T factor = a[r * depth + k];
      for (int c = 0; c < kColumns<T>; ++c) sum[r][c] += factor * b[k * kColumns<T> + c];
    }
  }
  std::copy(&sum[0][0], &sum[0][0] + kRows * kColumns<T>, out);
}

HEDDLE_CLONES void multiply(const float* a, int64_t depth, const float* b, float* out) {
  multiply_tile<float>(a, depth, b, out);
}
HEDDLE_CLONES void multiply(const double* a, int64_t depth, const double* b, double* out) {
  multiply_tile<double>(a, depth, b, out);
}

// Contracted this many at a time: a panel of the right operand stays in the second-level cache.
constexpr int64_t kDepth = 1024;

// One panel's columns of all rows: out = lhs * panel over `depth` contracted elements where
// `first`, else out += it.
template <class T>
void multiply_panel(const T* lhs, int64_t rows, int64_t row_stride, int64_t depth, const T* panel,
                    int64_t width, bool first, T* out, int64_t columns, std::vector<T>& strip) {
  constexpr int kWidth = kColumns<T>;
  T tile[kRows * kWidth];
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t height = std::min<int64_t>(kRows, rows - row);
    for (int64_t r = 0; r < kRows; ++r) {
      const T* from = lhs + (row + std::min(r, height - 1)) * row_stride;  // the last one repeats
      std::copy(from, from + depth, strip.begin() + r * depth);
    }
    multiply(strip.data(), depth, panel, tile);
    for (int64_t r = 0; r < height; ++r) {
      T* const to = out + (row + r) * columns;
      for (int64_t c = 0; c < width; ++c) {
        to[c] = first ? tile[r * kWidth + c] : to[c] + tile[r * kWidth + c];
      }
    }
  }
}

// out[batch][rows][columns] = lhs[batch][rows][depth] * rhs[batch][depth][columns], all dense.
template <class T>
void multiply_batches(const ProductExtents& extents, const T* lhs, const T* rhs, T* out) {
  const auto [batch, rows, columns, depth] = extents;
  constexpr int kWidth = kColumns<T>;
  if (depth == 0) std::fill(out, out + batch * rows * columns, T(0));
  const int64_t panels = (columns + kWidth - 1) / kWidth;
  if (rows == 0 || depth == 0) return;
  // Structured bindings cannot be captured under their names.
  const ProductExtents sizes = extents;
  parallel_ranges(batch * panels, 1, [=](int64_t begin, int64_t end) {
    const int64_t longest = std::min(sizes.depth, kDepth);
    std::vector<T> panel(longest * kWidth);
    std::vector<T> strip(longest * kRows);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / panels;
      const int64_t left = task % panels * kWidth;
      const int64_t width = std::min<int64_t>(kWidth, sizes.columns - left);
      for (int64_t start = 0; start < sizes.depth; start += kDepth) {
        const int64_t length = std::min(kDepth, sizes.depth - start);
        const T* from = rhs + (b * sizes.depth + start) * sizes.columns + left;
        for (int64_t k = 0; k < length; ++k) {
          std::copy(from + k * sizes.columns, from + k * sizes.columns + width,
                    panel.data() + k * kWidth);
          std::fill(panel.data() + k * kWidth + width, panel.data() + (k + 1) * kWidth, T(0));
        }
        multiply_panel(lhs + b * sizes.rows * sizes.depth + start, sizes.rows, sizes.depth, length,
                       panel.data(), width, start == 0, out + b * sizes.rows * sizes.columns + left,
                       sizes.columns, strip);
      }
    }
  });
}

// The operand as the operation's algorithm takes it: `algorithm=dot_bf16_bf16_f32` rounds f32
// factors.
Result<Literal> factor(Machine& machine, const Instruction& x, Literal value, ElementType type) {
  const bool rounds = machine.storage() == FloatStorage::own &&
                      x.text("algorithm").starts_with("dot_bf16_bf16") &&
                      value.shape().type() == ElementType::f32;
  if (rounds) {
    HEDDLE_ASSIGN(value, convert_to(value, ElementType::bf16, machine.meter()));
  }
  return convert_to(value, type, machine.meter());
}

}  // namespace

Status spend_on_product(Machine& machine, const Instruction& x, const ProductExtents& extents) {
  const double of_each = static_cast<double>(extents.rows) * static_cast<double>(extents.columns) *
                         static_cast<double>(extents.depth);
  const double work =
      static_cast<double>(extents.batch) * (of_each + double{Machine::kElementsPerValue});
  return machine.spend(x, static_cast<int64_t>(std::min(work, 9e18)));
}

Result<Literal> floating_product(Machine& machine, const Instruction& x,
                                 const ProductExtents& extents, Literal lhs, Literal rhs,
                                 const std::vector<int64_t>& dims) {
  const ElementType result = machine.storage_type(x.shape().type());
  const bool wide = result == ElementType::f64 || lhs.shape().type() == ElementType::f64 ||
                    rhs.shape().type() == ElementType::f64;
  const ElementType type = wide ? ElementType::f64 : ElementType::f32;
  HEDDLE_ASSIGN(lhs, factor(machine, x, std::move(lhs), type));
  HEDDLE_ASSIGN(rhs, factor(machine, x, std::move(rhs), type));
  HEDDLE_ASSIGN(Literal out, Literal::uninitialized(Shape(type, dims), machine.meter()));
  if (wide) {
    multiply_batches(extents, lhs.as<double>(), rhs.as<double>(), out.mutable_as<double>());
  } else {
    multiply_batches(extents, lhs.as<float>(), rhs.as<float>(), out.mutable_as<float>());
  }
  return convert_to(out, result, machine.meter());
}

}  // namespace heddle::hlo
