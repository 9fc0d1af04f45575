// Small programs and what they give, as text.
#pragma once

#include <string>
#include <string_view>

#include "hlo/interpreter/evaluate.h"
#include "hlo/read.h"
#include "hlo/write.h"

namespace heddle::hlo {

/// The value of a program without parameters in HLO's literal syntax, or the failure's sentence.
inline std::string value_of(const std::string& module_text, const EvaluateOptions& options = {}) {
  auto module = read_text(module_text, "test");
  if (!module) return module.status().message();
  auto value = evaluate(**module, {}, options);
  return value ? to_string(*value) : value.status().message();
}

/// The same for the instructions of an entry; `computations` stand before it.
inline std::string value(const std::string& instructions, const std::string& computations = "",
                         Precision precision = Precision::faithful) {
  EvaluateOptions options;
  options.precision = precision;
  return value_of("HloModule test\n" + computations + "ENTRY main {\n" + instructions + "\n}\n",
                  options);
}

inline const std::string kAdd =
    "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n";

}  // namespace heddle::hlo
