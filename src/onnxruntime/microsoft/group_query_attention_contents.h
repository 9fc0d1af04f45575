// What only the contents of a GroupQueryAttention's lengths and positions show to be wrong.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime::gqa {

/// What it takes of the attributes to know.
struct Reading {
  bool rotates = false;
  bool is_ring = false;      ///< the caches are windows
  bool has_columns = false;  ///< a bias or output_qk has one for each of total_sequence_length keys
};

/// Refuses, in the operator's words, lengths that a cache, a bias or the tables do not have, and
/// positions outside the tables: of rows that are tokens, as padding may hold anything. Lengths
/// alone say what a prompt is, so one of fewer tokens than rows is no wrong chunk.
Status check_contents(Inputs inputs, const Reading& reading);

}  // namespace heddle::onnxruntime::gqa
