#include "rewrite/sink_column.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;
using hlo::Shape;

namespace {

/// A dimension of keys and one column before or after them.
struct Axis {
  int dim = 0;
  int64_t keys = 0;
  bool column_first = false;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Parts {
  Axis axis;
  Instruction* keys = nullptr;
  Instruction* column = nullptr;
};

std::vector<int64_t> with(std::vector<int64_t> dims, int dim, int64_t size) {
  dims[dim] = size;
  return dims;
}

/// The axis, if `x` puts a column beside something.
std::optional<Axis> axis_of(const Instruction* x) {
  if (x->is(Opcode::concatenate) && x->operand_count() == 2) {
    const int dim = static_cast<int>(x->dimensions()[0]);
    const int64_t a = x->operand(0)->shape().dim(dim), b = x->operand(1)->shape().dim(dim);
    if (a > 1 && b == 1) return Axis{dim, a, false};
    if (a == 1 && b > 1) return Axis{dim, b, true};
  }
  if (x->is(Opcode::pad)) {
    std::optional<Axis> axis;
    for (int dim = 0; dim < x->shape().rank(); ++dim) {
      const hlo::PaddingDimension& p = x->padding()[dim];
      if (p.low == 0 && p.high == 0 && p.interior == 0) continue;
      const int64_t keys = x->operand(0)->shape().dim(dim);
      if (axis || p.interior != 0 || p.low < 0 || p.high < 0 || p.low + p.high != 1 || keys < 2)
        return std::nullopt;
      axis = Axis{dim, keys, p.low == 1};
    }
    return axis;
  }
  return std::nullopt;
}

/// Whether a column is computed as scores are, from a product.
bool is_score(const Instruction* column) {
  while (column->operand_count() > 0 && !column->is(Opcode::dot)) column = column->operand(0);
  return column->is(Opcode::dot);
}

/// Whether `x` is a product, laid out or rounded otherwise.
bool is_product(const Instruction* x) {
  while (x->is(Opcode::transpose) || x->is(Opcode::reshape) || x->is(Opcode::convert) ||
         x->is(Opcode::copy))
    x = x->operand(0);
  return x->is(Opcode::dot);
}

bool computes_elementwise(const Instruction* x) {
  return hlo::is_elementwise(x->opcode()) &&
         (hlo::is_floating(x->shape().type()) || x->shape().type() == hlo::ElementType::pred);
}

/// Whether `x` goes, element by element, into something that `ends` says yes to.
template <class Ends>
bool goes_into(const Instruction* x, Ends ends) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen;
  while (!work.empty()) {
    const Instruction* from = work.back();
    work.pop_back();
    for (const Instruction* user : from->users()) {
      if (!computes_elementwise(user) || !seen.insert(user).second) continue;
      if (ends(user)) return true;
      work.push_back(user);
    }
  }
  return false;
}

/// Whether a loop reads `x` back from what another kept.
bool is_read_back(const Instruction* x) {
  while (x->is(Opcode::reshape) || x->is(Opcode::transpose) || x->is(Opcode::convert))
    x = x->operand(0);
  return x->is(Opcode::dynamic_slice);
}

/// Whether `x` is one of a softmax's scores and a sink, or the gradient of its weights in a loop
/// that reads these back.
bool belongs_to_softmax(const Instruction* x, const Axis& axis) {
  if (!hlo::is_floating(x->shape().type())) return false;
  if (goes_into(x, [](const Instruction* y) { return y->is(Opcode::exponential); }))
    return x->is(Opcode::pad) || !is_score(x->operand(axis.column_first ? 0 : 1));
  return x->is(Opcode::pad) && goes_into(x, [](const Instruction* y) {
           return y->is(Opcode::multiply) &&
                  (is_read_back(y->operand(0)) || is_read_back(y->operand(1)));
         });
}

bool is_zero(const Instruction* x) {
  while (x->is(Opcode::broadcast) || x->is(Opcode::reshape) || x->is(Opcode::transpose) ||
         x->is(Opcode::convert))
    x = x->operand(0);
  const hlo::Literal* literal = x->literal();
  return literal && !literal->is_elided() && literal->is_splat() && literal->get(0) == 0;
}

/// The dimension of `x` that has as many elements before it as `before` says, and so many itself.
std::optional<int> dimension_at(const Shape& shape, int64_t before, int64_t size) {
  int64_t elements = 1;
  for (int dim = 0; dim < shape.rank(); elements *= shape.dim(dim++))
    if (elements == before && shape.dim(dim) == size) return dim;
  return std::nullopt;
}

int64_t elements_before(const Shape& shape, int dim) {
  int64_t elements = 1;
  for (int i = 0; i < dim; ++i) elements *= shape.dim(i);
  return elements;
}

bool holds(std::span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

std::span<const int64_t> contracted(const Instruction* dot, int operand) {
  return operand == 0 ? dot->lhs_contracting_dims() : dot->rhs_contracting_dims();
}

/// Of a dot's operand, or of the result, the dimensions that are the operand's alone.
struct OwnDimensions {
  std::vector<int> of_operand, of_result;
};

OwnDimensions own_dimensions(const Instruction* dot, int operand) {
  const auto free = [&](int i) {
    const auto batch = i == 0 ? dot->lhs_batch_dims() : dot->rhs_batch_dims();
    std::vector<int> dims;
    for (int dim = 0; dim < dot->operand(i)->shape().rank(); ++dim)
      if (!holds(batch, dim) && !holds(contracted(dot, i), dim)) dims.push_back(dim);
    return dims;
  };
  OwnDimensions own{free(operand), {}};
  size_t first = dot->lhs_batch_dims().size();
  if (operand == 1) first += free(0).size();
  for (size_t i = 0; i < own.of_operand.size(); ++i)
    own.of_result.push_back(static_cast<int>(first + i));
  return own;
}

/// The same dot of other operands.
Instruction* dot_like(const Instruction* x, Shape shape, std::vector<Instruction*> operands) {
  if (x->shape().layout()) shape.set_default_layout();
  Instruction* dot = x->operand(0)->computation()->add(
      Opcode::dot, std::move(shape), std::move(operands), x->attributes(), x->name());
  dot->set_wire(x->wire());
  return dot;
}

/// Whether a part of `x` is cut out, as of the gradient of values that zeros were put beside.
bool is_cut(const Instruction* x) {
  const auto users = x->users();
  return std::any_of(users.begin(), users.end(), [](const Instruction* user) {
    return user->is(Opcode::slice) || user->is(Opcode::pad) ||
           ((user->is(Opcode::transpose) || user->is(Opcode::convert)) && is_cut(user));
  });
}

/// The operation by which a reduction combines two values; nothing if it does anything else.
std::optional<Opcode> combined_by(const Instruction* reduce) {
  const Instruction* root = reduce->to_apply()->root();
  if ((root->is(Opcode::add) || root->is(Opcode::maximum)) &&
      root->operand(0)->is(Opcode::parameter) && root->operand(1)->is(Opcode::parameter) &&
      root->operand(0) != root->operand(1))
    return root->opcode();
  return std::nullopt;
}

constexpr int kMaxLevels = 64;

class Splitter {
 public:
  bool run(hlo::Computation& computation) {
    const std::vector<Instruction*> order = computation.dependency_order();
    for (Instruction* x : order) {
      const auto axis = axis_of(x);
      if (axis && belongs_to_softmax(x, *axis)) {
        if (const auto parts = apart(x, *axis)) parts_[x] = *parts;
      } else if (const Parts* from = parts_of_operand(x)) {
        pass_on(x, *from);
      }
    }
    rejoin(order);
    return !parts_.empty();
  }

 private:
  /// The parts of an operand, if one has any.
  const Parts* parts_of_operand(const Instruction* x) const {
    for (const Instruction* operand : x->operands())
      if (const auto found = parts_.find(operand); found != parts_.end()) return &found->second;
    return nullptr;
  }

  /// `x`, which reads what has parts, gets parts too or reads one of them; or stays as it is.
  void pass_on(Instruction* x, const Parts& from) {
    if (x->is(Opcode::slice) || x->is(Opcode::pad) || x->is(Opcode::reduce) || sums_over(x, from)) {
      const auto instead = x->is(Opcode::reduce) ? reduced(x, from)
                           : x->is(Opcode::dot)  ? weighed(x)
                                                 : cut_off(x, from);
      if (!instead) return;
      x->replace_all_uses_with(*instead);
      replaced_.insert(x);
      return;
    }
    if (const auto parts = passed_on(x, from)) parts_[x] = *parts;
  }

  Result<Parts> passed_on(Instruction* x, const Parts& from) {
    switch (x->opcode()) {
      case Opcode::transpose: {
        const auto dims = x->dimensions();
        Axis axis = from.axis;
        axis.dim = static_cast<int>(std::find(dims.begin(), dims.end(), axis.dim) - dims.begin());
        return both(from, axis, [&](Instruction* part) {
          return hlo::make_transpose(part, {dims.begin(), dims.end()}, x->name());
        });
      }
      case Opcode::reshape: {
        const int64_t before = elements_before(x->operand(0)->shape(), from.axis.dim);
        const auto dim = dimension_at(x->shape(), before, from.axis.keys + 1);
        if (!dim) return cannot(x);
        Axis axis = from.axis;
        axis.dim = *dim;
        return both(from, axis, [&](Instruction* part) {
          const int64_t size = part->shape().dim(from.axis.dim);
          return hlo::make_reshape(part, with(x->shape().dims(), axis.dim, size), x->name());
        });
      }
      case Opcode::broadcast: {
        const auto dims = x->dimensions();
        Axis axis = from.axis;
        axis.dim = static_cast<int>(dims[from.axis.dim]);
        return both(from, axis, [&](Instruction* part) {
          const int64_t size = part->shape().dim(from.axis.dim);
          return hlo::make_broadcast(part, with(x->shape().dims(), axis.dim, size),
                                     {dims.begin(), dims.end()}, x->name());
        });
      }
      case Opcode::dot: {
        const int operand = with_parts(x);
        if (parts_.contains(x->operand(1 - operand)) || !is_cut(x) || x->has("sharding"))
          return cannot(x);
        const OwnDimensions own = own_dimensions(x, operand);
        const auto at = std::find(own.of_operand.begin(), own.of_operand.end(), from.axis.dim);
        if (at == own.of_operand.end()) return cannot(x);
        Axis axis = from.axis;
        axis.dim = own.of_result[at - own.of_operand.begin()];
        return both(from, axis, [&](Instruction* part) -> Result<Instruction*> {
          std::vector<Instruction*> operands(x->operands().begin(), x->operands().end());
          operands[operand] = part;
          const int64_t size = part->shape().dim(from.axis.dim);
          return dot_like(x, Shape(x->shape().type(), with(x->shape().dims(), axis.dim, size)),
                          std::move(operands));
        });
      }
      default:
        return computes_elementwise(x) ? elementwise(x, from.axis) : cannot(x);
    }
  }

  /// Which of a dot's operands has parts.
  int with_parts(const Instruction* dot) const { return parts_.contains(dot->operand(0)) ? 0 : 1; }

  bool sums_over(const Instruction* x, const Parts& from) const {
    return x->is(Opcode::dot) && holds(contracted(x, with_parts(x)), from.axis.dim);
  }

  /// Weights of keys and column that multiply values with zeros beside them: the keys' alone.
  Result<Instruction*> weighed(const Instruction* x) {
    const int operand = with_parts(x);
    const Parts& from = parts_.at(x->operand(operand));
    const auto sums = contracted(x, operand);
    const auto at = std::find(sums.begin(), sums.end(), from.axis.dim) - sums.begin();
    Axis axis = from.axis;
    axis.dim = static_cast<int>(contracted(x, 1 - operand)[at]);
    const auto values = beside_zeros(x->operand(1 - operand), axis);
    if (!values || x->has("sharding")) return cannot(x);
    std::vector<Instruction*> operands{from.keys, values->keys};
    if (operand == 1) std::swap(operands[0], operands[1]);
    return dot_like(x, Shape(x->shape().type(), x->shape().dims()), std::move(operands));
  }

  /// The parts of what has zeros for its column, as values beside which a sink has none, and what
  /// is computed of these: the weights' gradients.
  std::optional<Parts> beside_zeros(Instruction* x, const Axis& axis, int levels = kMaxLevels) {
    if (const auto known = beside_.find(x); known != beside_.end() && known->second.axis == axis)
      return known->second;
    auto parts = found_beside_zeros(x, axis, levels);
    if (!parts) return std::nullopt;
    return beside_[x] = *parts;
  }

  Result<Parts> found_beside_zeros(Instruction* x, const Axis& axis, int levels) {
    const auto& dims = x->shape().dims();
    const auto zeros = [&] {
      return hlo::make_splat(*x->computation(), x->shape().type(), 0, with(dims, axis.dim, 1));
    };
    if (axis_of(x) == axis) {
      const int column = x->is(Opcode::concatenate) && axis.column_first ? 0 : 1;
      if (!is_zero(x->operand(column))) return cannot(x);
      Parts parts{axis, x->operand(1 - column), nullptr};
      HEDDLE_ASSIGN(parts.column, zeros());
      return parts;
    }
    int operand = 0;
    Axis before = axis;
    if (x->is(Opcode::transpose)) {
      before.dim = static_cast<int>(x->dimensions()[axis.dim]);
    } else if (x->is(Opcode::broadcast) && holds(x->dimensions(), axis.dim)) {
      const auto own = x->dimensions();
      before.dim = static_cast<int>(std::find(own.begin(), own.end(), axis.dim) - own.begin());
    } else if (x->is(Opcode::reshape)) {
      const auto dim = dimension_at(x->operand(0)->shape(), elements_before(x->shape(), axis.dim),
                                    axis.keys + 1);
      if (!dim) return cannot(x);
      before.dim = *dim;
    } else if (x->is(Opcode::dot) && !x->has("sharding")) {
      OwnDimensions own = own_dimensions(x, operand);
      auto at = std::find(own.of_result.begin(), own.of_result.end(), axis.dim);
      if (at == own.of_result.end()) {
        own = own_dimensions(x, operand = 1);
        at = std::find(own.of_result.begin(), own.of_result.end(), axis.dim);
      }
      if (at == own.of_result.end()) return cannot(x);
      before.dim = own.of_operand[at - own.of_result.begin()];
    } else if (!x->is(Opcode::convert)) {
      return cannot(x);
    }
    if (levels == 0 || x->operand(operand)->shape().dim(before.dim) != axis.keys + 1)
      return cannot(x);
    const auto from = beside_zeros(x->operand(operand), before, levels - 1);
    if (!from) return cannot(x);
    const auto of_keys = [&]() -> Result<Instruction*> {
      std::vector<int64_t> sizes = with(dims, axis.dim, axis.keys);
      std::vector<int64_t> own(x->dimensions().begin(), x->dimensions().end());
      switch (x->opcode()) {
        case Opcode::transpose:
          return hlo::make_transpose(from->keys, std::move(own), x->name());
        case Opcode::broadcast:
          return hlo::make_broadcast(from->keys, std::move(sizes), std::move(own), x->name());
        case Opcode::reshape:
          return hlo::make_reshape(from->keys, std::move(sizes), x->name());
        case Opcode::convert:
          return hlo::make_convert(from->keys, x->shape().type(), x->name());
        default: {
          std::vector<Instruction*> operands(x->operands().begin(), x->operands().end());
          operands[operand] = from->keys;
          return dot_like(x, Shape(x->shape().type(), std::move(sizes)), std::move(operands));
        }
      }
    };
    Parts parts{axis, nullptr, nullptr};
    HEDDLE_ASSIGN(parts.keys, of_keys());
    HEDDLE_ASSIGN(parts.column, zeros());
    return parts;
  }

  static Status cannot(const Instruction* x) {
    return error(Code::graph_not_supported, "%{} is computed over keys and a column", x->name());
  }

  template <class Make>
  static Result<Parts> both(const Parts& from, const Axis& axis, Make make) {
    Parts parts{axis, nullptr, nullptr};
    HEDDLE_ASSIGN(parts.keys, make(from.keys));
    HEDDLE_ASSIGN(parts.column, make(from.column));
    return parts;
  }

  Result<Parts> elementwise(Instruction* x, const Axis& axis, int levels = kMaxLevels) {
    if (x->has("sharding")) return cannot(x);  // it speaks of the whole
    std::vector<Instruction*> keys, column;
    for (Instruction* operand : x->operands()) {
      if (operand->shape().is_scalar()) {
        keys.push_back(operand);
        column.push_back(operand);
        continue;
      }
      HEDDLE_ASSIGN(const Parts parts, apart(operand, axis, levels - 1));
      keys.push_back(parts.keys);
      column.push_back(parts.column);
    }
    const auto same = [&](std::vector<Instruction*> operands, int64_t size) {
      Shape shape(x->shape().type(), with(x->shape().dims(), axis.dim, size));
      if (x->shape().layout()) shape.set_default_layout();
      Instruction* part = x->computation()->add(x->opcode(), std::move(shape), std::move(operands),
                                                x->attributes(), x->name());
      part->set_wire(x->wire());
      return part;
    };
    return Parts{axis, same(std::move(keys), axis.keys), same(std::move(column), 1)};
  }

  /// The parts of any value along `axis`; what it is computed from is taken apart for `levels`
  /// operations, and then cut in two.
  Result<Parts> apart(Instruction* x, const Axis& axis, int levels = kMaxLevels) {
    if (const auto known = parts_.find(x); known != parts_.end() && known->second.axis == axis)
      return known->second;
    if (axis_of(x) == axis) {
      if (x->is(Opcode::concatenate))
        return Parts{axis, x->operand(axis.column_first ? 1 : 0),
                     x->operand(axis.column_first ? 0 : 1)};
      HEDDLE_ASSIGN(Instruction * column,
                    hlo::make_broadcast(x->operand(1), with(x->shape().dims(), axis.dim, 1), {}));
      return Parts{axis, x->operand(0), column};
    }
    if (const auto parts = beside_zeros(x, axis)) return *parts;
    const auto dims = x->dimensions();
    if (x->is(Opcode::broadcast) && !holds(dims, axis.dim)) {
      const Parts whole{axis, x, x};
      int64_t size = axis.keys;
      return both(whole, axis, [&](Instruction*) {
        const int64_t now = std::exchange(size, 1);
        return hlo::make_broadcast(x->operand(0), with(x->shape().dims(), axis.dim, now),
                                   {dims.begin(), dims.end()}, x->name());
      });
    }
    if (levels > 0 && computes_elementwise(x)) {
      if (const auto known = beside_.find(x); known != beside_.end() && known->second.axis == axis)
        return known->second;
      HEDDLE_ASSIGN(const Parts parts, elementwise(x, axis, levels));
      return beside_[x] = parts;
    }
    // Scores of all that are no keys and a column, but rows or heads, or keys of which the first
    // has a bias of its own.
    if (is_product(x)) return cannot(x);
    const auto cut = [&](int64_t first, int64_t count) {
      std::vector<hlo::SliceDimension> slice;
      for (int64_t size : x->shape().dims()) slice.push_back({0, size, 1});
      slice[axis.dim] = {first, first + count, 1};
      return hlo::make_slice(x, std::move(slice), x->name());
    };
    Parts parts{axis, nullptr, nullptr};
    HEDDLE_ASSIGN(parts.keys, cut(axis.column_first ? 1 : 0, axis.keys));
    HEDDLE_ASSIGN(parts.column, cut(axis.column_first ? 0 : axis.keys, 1));
    return parts;
  }

  /// The part that a slice (or a pad by less than nothing) is; nothing if it is none.
  static Result<Instruction*> cut_off(const Instruction* x, const Parts& from) {
    std::vector<hlo::SliceDimension> kept(x->slice().begin(), x->slice().end());
    for (int dim = 0; x->is(Opcode::pad) && dim < x->shape().rank(); ++dim) {
      const hlo::PaddingDimension& p = x->padding()[dim];
      if (p.low > 0 || p.high > 0 || p.interior != 0) return cannot(x);
      kept.push_back({-p.low, x->operand(0)->shape().dim(dim) + p.high, 1});
    }
    for (int dim = 0; dim < x->shape().rank(); ++dim) {
      const hlo::SliceDimension& s = kept[dim];
      const bool whole = s.start == 0 && s.limit == x->operand(0)->shape().dim(dim);
      if (s.stride != 1 || (dim != from.axis.dim && !whole)) return cannot(x);
    }
    const hlo::SliceDimension& s = kept[from.axis.dim];
    const int64_t keys = from.axis.column_first ? 1 : 0;
    const int64_t column = from.axis.column_first ? 0 : from.axis.keys;
    if (s.start == keys && s.limit == keys + from.axis.keys) return from.keys;
    if (s.start == column && s.limit == column + 1) return from.column;
    return cannot(x);
  }

  /// A reduction over keys and column: the keys reduced, combined with the column.
  Result<Instruction*> reduced(Instruction* x, const Parts& from) {
    const auto by = combined_by(x);
    if (x->operand_count() != 2 || parts_.contains(x->operand(1)) || !by ||
        x->dimensions().size() != 1 || x->dimensions()[0] != from.axis.dim)
      return cannot(x);
    HEDDLE_ASSIGN(Instruction * keys, hlo::make_reduce(from.keys, x->operand(1), {from.axis.dim},
                                                       x->to_apply(), x->name()));
    HEDDLE_ASSIGN(Instruction * column, hlo::make_reshape(from.column, x->shape().dims()));
    return hlo::make_binary(*by, keys, column, x->name());
  }

  /// What still reads a value whole reads its parts, joined: the value is computed once.
  void rejoin(const std::vector<Instruction*>& order) {
    for (Instruction* x : order) {
      const auto found = parts_.find(x);
      if (found == parts_.end() || axis_of(x)) continue;
      const auto users = x->users();
      const bool is_read =
          x->is_root() || std::any_of(users.begin(), users.end(), [&](const Instruction* user) {
            return !parts_.contains(user) && !replaced_.contains(user);
          });
      if (!is_read) continue;
      const Parts& parts = found->second;
      std::vector<Instruction*> both{parts.keys, parts.column};
      if (parts.axis.column_first) std::swap(both[0], both[1]);
      if (const auto joined = hlo::make_concatenate(both, parts.axis.dim, x->name()))
        x->replace_all_uses_with(*joined);
    }
  }

  std::unordered_map<const Instruction*, Parts> parts_;   // of what is made of a column
  std::unordered_map<const Instruction*, Parts> beside_;  // of what such values are combined with
  std::set<const Instruction*> replaced_;                 // by a part
};

}  // namespace

bool take_sink_columns_apart(hlo::Computation& computation) { return Splitter().run(computation); }

}  // namespace heddle::rewrite
