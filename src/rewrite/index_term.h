// Terms that a program adds to the scores and makes of row and key indices, as ALiBi's slopes times
// distances: read as an expression, so that a call computes them and no array of rows x keys is
// needed.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"
#include "rewrite/layout.h"

namespace heddle::rewrite {

/// A number, an index, an operand that does not vary along both rows and keys, or an operation.
struct IndexTerm {
  enum class Kind : uint8_t { number, index, operand, operation };
  Kind kind = Kind::number;
  double number = 0;
  int axis = 0;  // of an index: 0 batch, 1 head, 2 row, 3 column
  Element place;
  graph::PointwiseMode mode = graph::PointwiseMode::identity;
  std::vector<IndexTerm> inputs;

  bool has_index() const;
  /// The operands among its leaves.
  std::vector<const IndexTerm*> operands() const;
};

/// A monomial of elements as such a term. Nothing if it is not made of indices, needs an array of
/// rows x keys, or would be no shorter than reading one.
std::optional<IndexTerm> index_term(Elements& elements, const Algebra& algebra, const Roles& roles,
                                    const Monomial& monomial);

}  // namespace heddle::rewrite
