// Whether a program has the same numbers at two runs of columns: of one array, of joined copies of
// it, of what is computed alike of such.
#pragma once

#include "rewrite/column_terms.h"

namespace heddle::rewrite {

bool same_number(Elements& elements, Runs& runs, const ColumnFactor& a, const ColumnFactor& b);

}  // namespace heddle::rewrite
