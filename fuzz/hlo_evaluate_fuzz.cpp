// Any module the reader accepts evaluates, within small limits, to a value or a sentence.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/random_arguments.h"
#include "hlo/read.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace heddle::hlo;
  const auto module = read_text(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!module) return 0;
  const auto arguments =
      random_arguments(**module, size, kDraws[size % std::size(kDraws)], 1 << 17);
  if (!arguments) return 0;
  EvaluateOptions options;
  // A product of matrices that fill these bytes takes a million multiplications: 500 of them end
  // within seconds also under the sanitizers.
  options.max_iterations = 10;
  options.max_steps = 500;
  options.max_bytes = 1 << 18;
  for (Precision precision : {Precision::faithful, Precision::f64}) {
    options.precision = precision;
    (void)evaluate(**module, *arguments, options);
  }
  return 0;
}
