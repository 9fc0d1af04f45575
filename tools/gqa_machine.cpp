#include "tools/gqa_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cpu/isa.h"
#include "engine/cuda/device.h"
#include "engine/marks.h"
#include "engine/memory.h"
#include "tools/machine_peak.h"
#include "tools/processors.h"

namespace heddle::tools {
namespace {

Result<double> measure_copy_rate() {
  constexpr size_t kBytes = size_t{256} << 20;  // caches hold less
  constexpr engine::Device kGpu = engine::Device::cuda;
  HEDDLE_ASSIGN(const DeviceBuffer from, DeviceBuffer::make(kGpu, kBytes));
  HEDDLE_ASSIGN(const DeviceBuffer to, DeviceBuffer::make(kGpu, kBytes));
  HEDDLE_ASSIGN(engine::Marks marks, engine::Marks::make(kGpu, 2));
  HEDDLE_TRY(engine::clear(kGpu, from.data(), kBytes, nullptr));
  double least = 0;
  for (int round = 0; round < 6; ++round) {
    HEDDLE_TRY(marks.set(0, nullptr));
    HEDDLE_TRY(engine::copy(kGpu, to.data(), from.data(), kBytes, nullptr));
    HEDDLE_TRY(marks.set(1, nullptr));
    HEDDLE_ASSIGN(const double seconds, marks.seconds(0, 1));
    if (round == 0) continue;  // the memory is there
    least = least == 0 ? seconds : std::min(least, seconds);
  }
  return 2 * static_cast<double>(kBytes) / least / 1e9;
}

Result<GqaMachine> find_gpu() {
  const Result<engine::cuda::Driver>& driver = engine::cuda::driver();
  if (!driver.is_ok())
    return error(Code::invalid_cuda_device, "--device cuda takes an NVIDIA GPU: {}",
                 driver.status().message());
  HEDDLE_ASSIGN(const engine::cuda::Device gpu, engine::cuda::current_device(*driver));
  GqaMachine machine{.device = engine::Device::cuda, .name = gpu.name};
  machine.instruction_set = fmt::format("sm_{}", gpu.compute_capability);
  HEDDLE_ASSIGN(machine.memory_rate, measure_copy_rate());
  return machine;
}

}  // namespace

std::string GqaMachine::words() const {
  return is_gpu() ? name : fmt::format("{} threads", threads);
}

Result<GqaMachine> find_machine(const GqaOptions& options) {
  if (options.device == "cuda") return find_gpu();
  GqaMachine machine{.name = processor_name()};
  machine.threads = options.threads == 0 ? usable_processors() : options.threads;
  HEDDLE_TRY(keep_to(machine.threads));
  machine.instruction_set = engine::cpu::name(engine::cpu::active_isa().isa);
  machine.memory_rate = measure_read_rate(machine.threads);
  return machine;
}

}  // namespace heddle::tools
