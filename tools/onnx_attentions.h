// The attentions of an ONNX model, and what Heddle's libraries for ONNX Runtime do with each: asked
// of the code that makes a session's kernels.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnxruntime/plans.h"
#include "tools/onnx_model.h"

namespace heddle::tools::onnx {

enum class Served : uint8_t {
  yes,       ///< by a path
  by_shape,  ///< taken; the model leaves open which dims it comes in, and they choose the path
  no,
};

struct Attention {
  std::string where;  ///< node and, inside of others, their names
  std::string type;   ///< domain and operator
  Served served = Served::no;
  std::string answer;  ///< the path and why, what is open, or why none
};

/// Numbers for dims that the model has names for.
using DimValues = std::map<std::string, int64_t>;

/// Every attention-like node of the model's graphs and functions, in their order: operators of
/// Heddle's libraries, other attention operators of ONNX and ONNX Runtime, and softmaxes between
/// two products. `target`: what the session's nodes run on.
std::vector<Attention> attentions_of(const Model& model, const DimValues& dims,
                                     const onnxruntime::Target& target);

/// For people.
std::string to_people(const std::vector<Attention>& attentions);

}  // namespace heddle::tools::onnx
