#include "onnxruntime/onnx/operators.h"

namespace heddle::onnxruntime {

const Domain& domain() { return kOnnxDomain; }

}  // namespace heddle::onnxruntime
