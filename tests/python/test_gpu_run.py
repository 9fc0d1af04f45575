"""What tests/gpu/run says at its start of a machine that lacks something."""

import os
import subprocess


def test_without_a_gpu_one_sentence_says_so(root, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no driver")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "HEDDLE_GPU_TESTS": "false"}
    for arguments in ([], ["--sanitizers"], ["--gtest_filter=*"]):
        run = subprocess.run([root / "tests" / "gpu" / "run", *arguments], env=environment, capture_output=True, text=True)
        assert run.returncode == 1 and run.stdout == ""
        assert run.stderr.startswith("tests/gpu/run: there is no NVIDIA GPU to test on: ") and run.stderr.count("\n") == 1


def test_a_build_made_elsewhere_is_there_with_its_command(root, tmp_path):
    library = tmp_path / "lib" / "libheddle.so"
    for missing in (library, tmp_path / "bin" / "heddle"):
        environment = {**os.environ, "HEDDLE_GPU_TESTS": "false", "HEDDLE_LIBRARY": str(library)}
        run = subprocess.run([root / "tests" / "gpu" / "run"], env=environment, capture_output=True, text=True)
        assert run.returncode == 1 and run.stdout == ""
        assert run.stderr.startswith(f"tests/gpu/run: {missing} is not there: ") and run.stderr.count("\n") == 1
        library.parent.mkdir(exist_ok=True)
        library.touch()
