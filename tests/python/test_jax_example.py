"""examples/jax/train_gpt.py learns, and as plain JAX does."""

import os
import re
import subprocess
import sys


def losses(root, *options):
    small = ["--steps", "41", "--batch", "2", "--sequence", "48", "--layers", "1", "--width", "32", "--heads", "2",
             "--kv-heads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(root / "bindings" / "python")}
    found = subprocess.run([sys.executable, root / "examples" / "jax" / "train_gpt.py", *small, *options], text=True,
                           capture_output=True, timeout=300, stdin=subprocess.DEVNULL, env=environment)
    assert found.returncode == 0, found.stderr
    assert "The old woman " in found.stdout
    return [float(x) for x in re.findall(r"loss ([0-9.]+)", found.stdout)]


def test_learns_as_plain_jax_does(root):
    ours, plain = losses(root), losses(root, "--plain")
    assert len(ours) == 3 and ours[-1] < ours[0] - 0.5
    assert all(abs(a - b) < 0.01 for a, b in zip(ours, plain))
