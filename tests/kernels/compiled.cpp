#include "kernels/compiled.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <set>

#include "engine/cuda/compiler.h"
#include "engine/cuda/target.h"

namespace heddle::engine::cuda {
namespace {

constexpr int kRegistersOfBlock = 65536, kMostRegisters = 255;

/// Opcodes ("HGMMA", without their modifiers) of each kernel of a cubin.
using Opcodes = std::map<std::string, std::set<std::string>>;

// A line of code: "        /*0a30*/              @!P0 BRA `(.L_x_1) ;", a kernel: ".text.NAME:".
Opcodes read_opcodes(std::FILE* disassembly) {
  Opcodes opcodes;
  std::set<std::string>* kernel = nullptr;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), disassembly)) {
    std::string_view line(buffer.data());
    if (line.starts_with(".text.")) {
      kernel = &opcodes[std::string(line.substr(6, line.find(':') - 6))];
      continue;
    }
    const size_t address = line.find("/*"), end = line.find("*/");
    if (!kernel || address == line.npos || end == line.npos) continue;
    line.remove_prefix(end + 2);
    size_t start = line.find_first_not_of(" \t{");
    if (start != line.npos && line[start] == '@') {
      start = line.find_first_not_of(' ', line.find(' ', start));
    }
    if (start == line.npos) continue;
    const size_t stop = line.find_first_of(" .;\n", start);
    kernel->insert(std::string(line.substr(start, stop - start)));
  }
  return opcodes;
}

Opcodes disassemble(const Cubin& cubin) {
  const char* nvdisasm = std::getenv("HEDDLE_NVDISASM");
  if (!nvdisasm) {
    ADD_FAILURE() << "HEDDLE_NVDISASM is not set: tests/kernels/run sets it";
    return {};
  }
  std::string path = ::testing::TempDir() + "heddle-kernel-XXXXXX";
  const int file = ::mkstemp(path.data());
  if (file < 0 || ::write(file, cubin.image.data(), cubin.image.size()) !=
                      static_cast<ssize_t>(cubin.image.size())) {
    ADD_FAILURE() << path << " cannot be written";
    return {};
  }
  ::close(file);
  // Without the data flow analysis, which takes most of its time.
  const std::string command = fmt::format("'{}' --print-code --no-dataflow '{}'", nvdisasm, path);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  Opcodes opcodes = read_opcodes(pipe);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  ::unlink(path.c_str());
  return opcodes;
}

/// Of this thread, which is all that NVRTC computes in: what else the machine does costs nothing.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Compiles, and says how long it took, for tests/kernels/run to sum up.
Result<Cubin> compile_timed(const std::string& source, const std::string& name,
                            const std::string& architecture) {
  const double begin = processor_seconds();
  Result<Cubin> cubin = compile(source, name, architecture);
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  fmt::print("compiled {:.3f} {} {} {}.{}\n", processor_seconds() - begin, name, architecture,
             test.test_suite_name(), test.name());
  return cubin;
}

void expect_within_launch(const KernelResources& resources, const LoweredKernel& kernel,
                          const std::string& architecture) {
  EXPECT_EQ(resources.stack_bytes, 0);
  EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0);
  // Registers come in eights.
  const int budget = std::min(kRegistersOfBlock / kernel.threads / 8 * 8, kMostRegisters);
  EXPECT_LE(resources.registers, budget);
  EXPECT_LE(resources.shared_bytes + kernel.shared_bytes,
            target_named(architecture)->shared_limit());
}

const std::vector<std::string>& instructions_of(const std::string& kernel,
                                                const std::vector<Instructed>& instructed) {
  static const std::vector<std::string> none;
  for (const Instructed& one : instructed)
    if (one.kernel == kernel) return one.instructions;
  return none;
}

void expect_instructions(const Opcodes& opcodes, const std::string& kernel,
                         const std::vector<std::string>& instructions) {
  ASSERT_TRUE(opcodes.contains(kernel));
  const std::set<std::string>& used = opcodes.at(kernel);
  for (const std::string& instruction : instructions)
    EXPECT_TRUE(used.contains(instruction)) << "no " << instruction;
  for (const char* local : {"LDL", "STL"})
    EXPECT_FALSE(used.contains(local)) << local << " reaches local memory";
  // The warp-level product of older chips has no place beside the warp group's.
  EXPECT_FALSE(used.contains("HGMMA") && used.contains("HMMA"));
}

/// Some units serve many problems, and are to run there in the same way.
bool is_checked(const KernelUnit& unit, const std::string& architecture,
                const std::vector<LoweredKernel>& kernels) {
  static std::set<std::string> checked;
  std::string check = architecture + unit.source;
  for (const LoweredKernel& kernel : kernels)
    check += fmt::format("{} {} {}", kernel.name, kernel.threads, kernel.shared_bytes);
  return !checked.insert(check).second;
}

void expect_unit_clean(const KernelUnit& unit, const std::string& architecture,
                       const std::vector<LoweredKernel>& kernels,
                       const std::vector<Instructed>& instructed) {
  SCOPED_TRACE(unit.name);
  ASSERT_FALSE(kernels.empty());
  if (is_checked(unit, architecture, kernels)) return;
  const Result<Cubin> cubin = compile_timed(unit.source, kernels.front().name, architecture);
  ASSERT_TRUE(cubin.is_ok()) << cubin.status().message();
  // What the assembler says when a wgmma loses its overlap, or setmaxnreg is ignored.
  for (const char* complaint : {"serialized", "C75"}) {
    EXPECT_EQ(cubin->log.find(complaint), std::string::npos) << cubin->log;
  }
  std::map<std::string, KernelResources> compiled;
  for (const KernelResources& resources : cubin->kernels) compiled[resources.kernel] = resources;
  std::set<std::string> names;  // one may be launched more than once
  for (const LoweredKernel& kernel : kernels) names.insert(kernel.name);
  EXPECT_EQ(compiled.size(), names.size());
  std::optional<Opcodes> opcodes;
  for (const LoweredKernel& kernel : kernels) {
    SCOPED_TRACE(kernel.name);
    ASSERT_TRUE(compiled.contains(kernel.name));
    expect_within_launch(compiled[kernel.name], kernel, architecture);
    const std::vector<std::string>& instructions = instructions_of(kernel.name, instructed);
    if (instructions.empty()) continue;
    if (!opcodes) opcodes = disassemble(*cubin);
    expect_instructions(*opcodes, kernel.name, instructions);
  }
}

}  // namespace

void expect_clean(const Result<Lowering>& lowering, const std::string& architecture,
                  const std::vector<Instructed>& instructed) {
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  for (size_t n = 0; n < lowering->units.size(); ++n) {
    std::vector<LoweredKernel> kernels;
    for (const LoweredKernel& kernel : lowering->kernels)
      if (kernel.unit == n) kernels.push_back(kernel);
    expect_unit_clean(lowering->units[n], architecture, kernels, instructed);
  }
  for (const Instructed& one : instructed) {
    EXPECT_TRUE(
        std::any_of(lowering->kernels.begin(), lowering->kernels.end(),
                    [&one](const LoweredKernel& kernel) { return kernel.name == one.kernel; }))
        << one.kernel;
  }
}

}  // namespace heddle::engine::cuda
