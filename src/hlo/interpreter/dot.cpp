#include <algorithm>

#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/product.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {
namespace {

// Wraps around, as integer arithmetic does; narrower results are what remains of the low bits.
void multiply_integers(const ProductExtents& extents, const Literal& lhs, const Literal& rhs,
                       Literal& out) {
  const auto [batch, rows, columns, depth] = extents;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        uint64_t sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += static_cast<uint64_t>(lhs.get_integer((b * rows + i) * depth + k)) *
                 static_cast<uint64_t>(rhs.get_integer((b * depth + k) * columns + j));
        }
        out.set_integer((b * rows + i) * columns + j, static_cast<int64_t>(sum));
      }
    }
  }
}

// `value` with its dimensions in `order`, dense.
Result<Literal> permuted(Machine& machine, const Literal& value,
                         const std::vector<int64_t>& order) {
  std::vector<int64_t> dims;
  std::vector<int64_t> from;
  const std::vector<int64_t> strides = row_major_strides(value.shape().dims());
  for (int64_t dimension : order) {
    dims.push_back(value.shape().dim(static_cast<int>(dimension)));
    from.push_back(strides[dimension]);
  }
  if (std::is_sorted(order.begin(), order.end())) return value;
  HEDDLE_ASSIGN(Literal out,
                Literal::uninitialized(Shape(value.shape().type(), dims), machine.meter()));
  strided_copy(size_of(out.shape().type()), dims, value.data(), from, out.mutable_data(),
               row_major_strides(dims));
  return out;
}

std::vector<int64_t> free_dimensions(int rank, std::span<const int64_t> batch,
                                     std::span<const int64_t> contracting) {
  std::vector<int64_t> free;
  for (int i = 0; i < rank; ++i) {
    if (std::find(batch.begin(), batch.end(), i) == batch.end() &&
        std::find(contracting.begin(), contracting.end(), i) == contracting.end()) {
      free.push_back(i);
    }
  }
  return free;
}

int64_t product(const Shape& shape, std::span<const int64_t> dimensions) {
  int64_t count = 1;
  for (int64_t dimension : dimensions) count *= shape.dim(static_cast<int>(dimension));
  return count;
}

void append(std::vector<int64_t>& to, std::span<const int64_t> more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

Result<Literal> evaluate_dot(Machine& machine, const Instruction& x, Operands operands) {
  const Shape lhs_shape = operands[0].shape();
  const Shape rhs_shape = operands[1].shape();
  for (const Shape* of : {&lhs_shape, &rhs_shape}) {
    const bool known =
        !is_complex(of->type()) && (!is_integral(x.shape().type()) || !is_floating(of->type()));
    if (!known) {
      return refuse(x, fmt::format("of {} that gives {} is not known", name(of->type()),
                                   name(x.shape().type())));
    }
  }
  const auto lhs_free =
      free_dimensions(lhs_shape.rank(), x.lhs_batch_dims(), x.lhs_contracting_dims());
  const auto rhs_free =
      free_dimensions(rhs_shape.rank(), x.rhs_batch_dims(), x.rhs_contracting_dims());
  ProductExtents extents;
  extents.batch = product(lhs_shape, x.lhs_batch_dims());
  extents.rows = product(lhs_shape, lhs_free);
  extents.columns = product(rhs_shape, rhs_free);
  extents.depth = product(lhs_shape, x.lhs_contracting_dims());
  HEDDLE_TRY(spend_on_product(machine, x, extents));

  std::vector<int64_t> lhs_order(x.lhs_batch_dims().begin(), x.lhs_batch_dims().end());
  append(lhs_order, lhs_free);
  append(lhs_order, x.lhs_contracting_dims());
  std::vector<int64_t> rhs_order(x.rhs_batch_dims().begin(), x.rhs_batch_dims().end());
  append(rhs_order, x.rhs_contracting_dims());
  append(rhs_order, rhs_free);
  HEDDLE_ASSIGN(Literal lhs, permuted(machine, operands[0], lhs_order));
  HEDDLE_ASSIGN(Literal rhs, permuted(machine, operands[1], rhs_order));
  operands.clear();

  const ElementType result = machine.storage_type(x.shape().type());
  if (is_integral(result)) {
    HEDDLE_ASSIGN(Literal out, machine.result_of(x));
    multiply_integers(extents, lhs, rhs, out);
    return out;
  }
  if (!is_floating(result)) return refuse(x, fmt::format("of {} is not known", name(result)));
  return floating_product(machine, x, extents, std::move(lhs), std::move(rhs), x.shape().dims());
}

}  // namespace heddle::hlo
