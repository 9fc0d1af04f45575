"""How long the first plan of a graph takes, nothing cached: all of it is compiling kernels.

    python bench/gpu/first_call.py

Needs a GPU, libheddle.so (make, or HEDDLE_LIBRARY) and NVRTC. A plan that is made again, its kernels compiled, is beside it.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bindings" / "python"))

import graphs  # noqa: E402
from cells import Attention  # noqa: E402

SIZES = {"length": 2048, "batch": 2, "heads": 8}
CELLS = [Attention("", f"{'backward' if backward else 'forward'} {name}", backward=backward, **SIZES, **more)
         for name, more in (("bf16 d 64", dict(dim=64)), ("bf16 d 128", dict(dim=128)), ("bf16 d 256", dict(dim=256)),
                            ("bf16 d 128, RoPE", dict(dim=128, rope=True)), ("bf16 d 128, dropout", dict(dim=128, dropout=0.1)),
                            ("f32 d 64", dict(dim=64, dtype="f32")), ("f32 d 256", dict(dim=256, dtype="f32")))
         for backward in (False, True) if not (backward and more.get("rope"))]


def main():
    os.environ["HEDDLE_CACHE_DIR"] = ""
    import heddle

    def seconds(text):
        begin = time.perf_counter()
        heddle.Plan(text, "cuda")
        return time.perf_counter() - begin

    try:  # loads NVRTC, and the driver with the GPU
        seconds(graphs.attention(Attention("", "", length=64, dim=8, batch=1, heads=1), backward=False))
    except (heddle.Error, OSError) as failure:
        sys.exit(f"first_call.py needs a GPU, libheddle.so and NVRTC: {failure}")
    print(f"| causal, {os.cpu_count()} CPU cores | first plan, s | again, ms |\n|---|--:|--:|")
    for cell in CELLS:
        text = graphs.attention(cell, cell.backward)
        print(f"| {cell.name} | {seconds(text):.2f} | {1e3 * seconds(text):.2f} |", flush=True)


if __name__ == "__main__":
    main()
