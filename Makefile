# Heddle's few commands. Each does its whole set-up first (Debian packages, a Python environment
# inside the checkout, the build) and does nothing twice.
#
#   make         the heddle command and libraries: build/bin/heddle, build/lib/libheddle.so and those for ONNX Runtime
#   make demo    a GPT training step, its attention found and fused, run inside XLA on the CPU
#   make test    every test: C++ through ctest, Python through pytest
#   make check-all  all that CI runs parts of, whole: the sanitizers, the kernel matrix, models, longer fuzzing; takes hours
#   make torch   tests of heddle.torch, with PyPI's torch
#   make elixir  the Elixir package: its tests, Dialyzer, its training example, and all of it against JAX
#   make aarch64 the library for Linux on aarch64, cross-compiled, and tests of it in an emulator of a process
#   make wheel   the Python wheel, into out/wheel
#   make docs    the documentation as a site, into out/docs
#   make bench   Heddle beside its peers on this CPU, into out/bench
#   make format  clang-format over the sources
#   make clean   removes build/, out/ and what the Elixir package built (the Python environments stay)

BUILD := build
JOBS := $(shell nproc)
PYTHON_ENV := .venv
BENCH_ENV := .venv-bench

.PHONY: heddle all-targets demo test torch wheel docs elixir aarch64 check-all bench format clean packages python python-bench
.DEFAULT_GOAL := heddle

packages:
	@scripts/setup-debian scripts/packages-build.txt

python: packages
	@scripts/setup-python $(PYTHON_ENV) tests/python/requirements.txt

python-bench: packages
	@scripts/setup-python $(BENCH_ENV) bench/requirements.txt

# Ninja runs cmake again by itself when a CMakeLists.txt or the list of sources changes.
$(BUILD)/build.ninja: | packages
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release

heddle: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS) heddle heddle_shared heddle_onnxruntime_microsoft heddle_onnxruntime_onnx

all-targets: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS)

demo: heddle python
	$(PYTHON_ENV)/bin/python examples/gpt/demo.py

test: all-targets python
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS)
	$(PYTHON_ENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/python
	$(PYTHON_ENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal tests/gpu/test_onnxruntime_cuda.py -k cpu

torch: heddle
	.ci/run torch

wheel: packages
	scripts/make-wheel

docs: packages
	scripts/make-docs

# The VM's own schedulers do not spin while the kernels have the cores; file names are UTF-8 whatever the locale.
elixir: export ERL_FLAGS := +sbwt none +sbwtdcpu none +sbwtdio none +fnu
# A driver without a GPU, that what is for one runs too.
elixir: export HEDDLE_FAKE_CUDA := $(abspath $(BUILD))/tests/engine_cuda/fake
elixir: heddle python
	ninja -C $(BUILD) -j $(JOBS) fake_cuda fake_nvrtc fake_builtins
	@scripts/setup-debian scripts/packages-elixir.txt
	cd bindings/elixir && mix format --check-formatted
	cd bindings/elixir && CXXFLAGS='-O2 -Wall -Wextra -Werror' mix test --warnings-as-errors
	cd bindings/elixir && mix compile --warnings-as-errors && ./dialyze
	cd bindings/elixir && mix run ../../examples/elixir/policy.exs
	$(PYTHON_ENV)/bin/python -m pytest -q -n $(JOBS) tests/elixir

# HEDDLE_TEST_PART=3/32 runs a part of what tests draw by seeds. Those left out take minutes in an emulator, a test each.
# What is not a kernel is compiled with -O1, in less time: nothing is measured here.
aarch64_tests := core problem graph reference engine_cpu
aarch64: export GTEST_FILTER := *:-AttentionPath.MemoryEfficient*:Workspace.*:Repeatable.*:RandomForward.HiddenRows
aarch64: packages
	@scripts/setup-debian scripts/packages-aarch64.txt
	@scripts/unpack-debian arm64 build-aarch64/debian scripts/libraries-aarch64.txt
	cmake -S . -B build-aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' \
	  -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake
	ninja -C build-aarch64 -j $(JOBS) heddle_shared $(aarch64_tests:%=tests/%/all)
	set -e; for room in $(aarch64_tests); do \
	  ctest --test-dir build-aarch64/tests/$$room --output-on-failure --no-tests=error -j $(JOBS); done

check-all:
	.ci/run --all

bench: heddle python-bench
	$(BENCH_ENV)/bin/python bench/cpu.py

format:
	git ls-files '*.h' '*.cpp' '*.cuh' '*.cu' | xargs clang-format -i

clean:
	rm -rf $(BUILD) out bindings/elixir/_build bindings/elixir/obj bindings/elixir/priv
