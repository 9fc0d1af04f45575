// Which labels are batch, heads, rows, keys and depth, and how a program's array is seen as a
// [B, H, S, D] tensor: by strides where they say it, else by a copy in canonical order.
#pragma once

#include <optional>
#include <vector>

#include "core/dims.h"
#include "rewrite/match.h"

namespace heddle::rewrite {

/// Labels by role, most significant first. Query heads are group x repeat, key heads group.
struct Roles {
  Index batch, group, repeat, rows, keys, depth, value_depth;

  Index query_heads() const {
    Index heads = group;
    heads.insert(heads.end(), repeat.begin(), repeat.end());
    return heads;
  }
};

/// Fails with a reason if the operands do not share axes as attention's do.
Result<Roles> roles_of(const Elements& elements, const Algebra& algebra, const Match& match);

/// The labels of the four dimensions of a tensor.
struct Axes {
  Index batch, heads, rows, columns;

  /// All labels in the order [B, S, H, D], the order of copies.
  Index canonical() const;
};

struct TensorView {
  Dims dims, strides;  // [B, H, S, D], in elements
  bool direct = true;  // strides of the array itself; else of its canonical copy
};

/// Whether `element` varies along no axis that a tensor of the call over `axes` lacks. Whatever a
/// call reads or writes must pass this: else one of many values would be taken for all.
bool varies_within(const Element& element, const Axes& axes);

/// How the row-major array `place.x`, labelled, is seen along `axes`. A label of `axes` that the
/// array does not have is broadcast (by copy). Along a label that `axes` do not have the array
/// repeats itself (local_element), and its first copy is seen; nothing if that would take a copy.
std::optional<TensorView> view_of(const Elements& elements, const Element& place, const Axes& axes);

/// An element of `home`'s own instructions that holds the leaf `element`, labelled alike, perhaps
/// repeated along further labels; nothing if `home` does not hold it.
std::optional<Element> local_element(Elements& elements, int home, const Element& element);

}  // namespace heddle::rewrite
