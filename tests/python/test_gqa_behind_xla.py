"""heddle.gqa where XLA's threads, which take subnormal numbers of f32 for 0, were the first to call Heddle."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax, ml_dtypes, numpy as np
import heddle.jax
from test_gqa import F32, draw

q, k, v = (jax.random.normal(jax.random.key(i), (2, 256, 8, 64)) for i in range(3))
jax.block_until_ready(jax.jit(heddle.jax.attention)(q, k, v))  # whose workers stay

node = draw(11, bits=8, past=600, rows=4, ragged=False)
rng = np.random.default_rng(12)
for name, scale in (("past_key", "k_scale"), ("past_value", "v_scale")):  # codes of 7 and less are subnormal
    codes = rng.integers(-7, 8, node.inputs[name].shape)
    node.inputs[name] = (codes * 2.0**-9).astype(ml_dtypes.float8_e4m3fn)
    node.inputs[scale] = np.full_like(node.inputs[scale], 128)
ours = node.by_heddle()
exact = node.output_from(ours["present_key"], ours["present_value"])
assert np.abs(exact).max() > 0.1
np.testing.assert_allclose(node.valid(ours["output"]), node.valid(exact), **F32)
"""


def test_subnormal_codes_are_what_they_stand_for():
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "bindings" / "python")]
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
