// Where `heddle bench gqa` and `heddle profile gqa` run, and what it can do at most.
#pragma once

#include <string>

#include "tools/gqa_options.h"

namespace heddle::tools {

struct GqaMachine {
  engine::Device device = engine::Device::cpu;
  std::string name;             ///< the processor's, or the GPU's
  int threads = 0;              ///< 0 on a GPU
  std::string instruction_set;  ///< or the GPU's architecture
  /// GB/s: on a CPU read by all threads, on a GPU copied, what is read and what is written
  /// together.
  double memory_rate = 0;

  bool is_gpu() const { return device == engine::Device::cuda; }
  /// For titles: "2 threads", the GPU's name.
  std::string words() const;
};

/// Takes half a second; of a CPU it keeps the process to the threads that the options name. Refuses
/// a GPU where there is none.
Result<GqaMachine> find_machine(const GqaOptions& options);

}  // namespace heddle::tools
