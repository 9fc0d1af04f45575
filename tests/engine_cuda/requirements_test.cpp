// What a machine must have: what is missing, too old or no library is named.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/shared_object.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using Requirements = FakeMachine;

/// Says it where a death test looks.
[[noreturn]] void leave(const Status& status) {
  std::fputs(status.message().c_str(), stderr);
  std::_Exit(status.is_ok() ? 0 : 1);
}

TEST_F(Requirements, ACompilerThatIsNoneOrTooOldIsNamed) {
  const auto with = [](const char* path, const char* version) {
    setenv("HEDDLE_NVRTC", path, 1);
    setenv("FAKE_NVRTC_VERSION", version, 1);
    leave(compiled_kernel({"k", ""}, "sm_90a").status());
  };
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(with("/no/such", "13000"), ExitedWithCode(1),
              "NVRTC, the CUDA run-time compiler, could not be loaded .tried /no/such.: ");
  EXPECT_EXIT(with("libcuda.so.1", "13000"), ExitedWithCode(1),
              "libcuda.so.1 has no nvrtcVersion: it is too old, or another library");
  EXPECT_EXIT(with(FAKE_NVRTC, "12020"), ExitedWithCode(1),
              "libfake_nvrtc.so is NVRTC 12.2; Heddle needs 12.3 or newer: HEDDLE_NVRTC chooses");
  EXPECT_EXIT(with(FAKE_NVRTC, "12030"), ExitedWithCode(0), "");
}

TEST_F(Requirements, ACompilerThatDoesNotKnowTheGpuIsNamed) {
  const Status status = compiled_kernel({"k", source()}, "sm_130").status();
  EXPECT_EQ(status.message(),
            std::string(FAKE_NVRTC) +
                " is NVRTC 13.0, which compiles for sm_80, sm_90, sm_120, not for "
                "sm_130: HEDDLE_NVRTC chooses another");
}

TEST_F(Requirements, ALibraryThatIsThereAndDoesNotLoadIsNamed) {
  const std::string broken = root_ / "libcuda.so.1";
  std::ofstream(broken) << "no library";
  const std::vector<std::string> names{"/no/such/1", broken, "/no/such/2"};
  EXPECT_EQ(SharedObject::open("the driver", names).status().message(),
            "the driver could not be loaded (tried /no/such/1, " + broken +
                ", /no/such/2): " + broken + ": file too short");
}

TEST_F(Requirements, ACompilerFindsWhatItOpensByNameWhereItLies) {
  const auto after_compiling = [this] {
    if (dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD)) std::_Exit(2);
    (void)compiled_kernel({"k", source()}, "sm_90a");
    std::_Exit(dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD) ? 0 : 1);
  };
  EXPECT_EXIT(after_compiling(), ::testing::ExitedWithCode(0), "");
}

TEST_F(Requirements, ADriverOrDeviceThatIsTooOldIsNamed) {
  const auto with = [](const char* version, const char* capability) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    leave(cuda_engine().plan(forward_of({})).status());
  };
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(with("11080", "90"), ExitedWithCode(1),
              "the NVIDIA driver supports CUDA 11.8; Heddle needs 12.0 or newer");
  EXPECT_EXIT(with("12000", "75"), ExitedWithCode(1),
              "cuda: No GPU has compute capability 7.5; kernels need 8.0 or newer");
  EXPECT_EXIT(with("12000", "120"), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace heddle::engine::cuda
