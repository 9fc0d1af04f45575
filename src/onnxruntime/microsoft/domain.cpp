#include "onnxruntime/microsoft/operators.h"

namespace heddle::onnxruntime {

const Domain& domain() { return kMicrosoftDomain; }

}  // namespace heddle::onnxruntime
