"""tests/gpu/run on a machine without a GPU."""

import os
import subprocess


def test_without_a_gpu_one_sentence_says_so(root, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no driver")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "HEDDLE_GPU_TESTS": "false"}
    for arguments in ([], ["--sanitizers"], ["--gtest_filter=*"]):
        run = subprocess.run([root / "tests" / "gpu" / "run", *arguments], env=environment, capture_output=True, text=True)
        assert run.returncode == 1 and run.stdout == ""
        assert run.stderr.startswith("tests/gpu/run: there is no NVIDIA GPU to test on: ") and run.stderr.count("\n") == 1
