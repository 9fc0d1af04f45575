"""How long the first plan of a graph takes in a process of its own, and what of it is compiling kernels.

    python bench/gpu/first_call.py                  # nothing cached; HEDDLE_KERNELS= leaves out the archive of kernels, too
    python bench/gpu/first_call.py --torch          # beside the first call of torch's attention by cuDNN

Needs a GPU and libheddle.so (make, or HEDDLE_LIBRARY); NVRTC for what is in no archive. The driver and the GPU's context are
there before the clock begins, as in any program that has arrays; NVRTC is loaded by whoever needs it. A plan that is made
again, its kernels loaded, is beside it.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bindings" / "python"))

from cells import Attention  # noqa: E402

SIZES = {"length": 2048, "batch": 2, "heads": 8}
CELLS = [Attention("", f"{'backward' if backward else 'forward'} {name}", backward=backward, **SIZES, **more)
         for name, more in (("bf16 d 64", dict(dim=64)), ("bf16 d 128", dict(dim=128)), ("bf16 d 256", dict(dim=256)),
                            ("bf16 d 128, RoPE", dict(dim=128, rope=True)), ("bf16 d 128, dropout", dict(dim=128, dropout=0.1)),
                            ("f32 d 64", dict(dim=64, dtype="f32")), ("f32 d 256", dict(dim=256, dtype="f32")))
         for backward in (False, True) if not (backward and more.get("rope"))]


def open_device():
    """Makes the first GPU's context current, as whoever has arrays on it did."""
    import ctypes

    driver, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
    failed = (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
              or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or driver.cuCtxSetCurrent(context))
    if failed:
        sys.exit(f"first_call.py needs a GPU: the driver says {failed}")


def heddle_seconds(cell):
    """Of a first plan and of the next."""
    import graphs
    import heddle

    text = graphs.attention(cell, cell.backward)
    open_device()
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        heddle.Plan(text, "cuda")
        times.append(time.perf_counter() - begin)
    return times


def torch_seconds(cell):
    """Of a first call by cuDNN and of the next, of the forward or of the backward behind one."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(cell.batch, cell.heads, cell.length, cell.dim, device="cuda", dtype=torch.bfloat16,
                           requires_grad=cell.backward) for _ in range(3))
    times = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.cuda.synchronize()
            if cell.backward:
                begin = time.perf_counter()
                o.backward(torch.ones_like(o))
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return times


def in_a_process(number, who):
    """What `--cell NUMBER --of WHO` prints; None where it does not run."""
    run = subprocess.run([sys.executable, __file__, "--cell", str(number), "--of", who], capture_output=True, text=True)
    if run.returncode:
        print(run.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    return [float(word) for word in run.stdout.split()[-2:]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true", help="cuDNN's first call beside it")
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", choices=("heddle", "torch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["HEDDLE_CACHE_DIR"] = ""
    if options.cell is not None:
        print(*(heddle_seconds if options.of == "heddle" else torch_seconds)(CELLS[options.cell]))
        return
    peers = ("heddle", "torch") if options.torch else ("heddle",)
    print(f"| causal, {os.cpu_count()} CPU cores | first plan, s | again, ms |{' cuDNN, s |' if options.torch else ''}\n"
          f"|---|--:|--:|{'--:|' if options.torch else ''}")
    for number, cell in enumerate(CELLS):
        found = {who: in_a_process(number, who) for who in peers
                 if who == "heddle" or not (cell.rope or cell.dropout or cell.dtype == "f32" or cell.dim > 128)}
        ours, theirs = found["heddle"], found.get("torch")
        row = f"| {cell.name} | {ours[0]:.2f} | {1e3 * ours[1]:.2f} |" if ours else f"| {cell.name} | - | - |"
        if options.torch:
            row += f" {theirs[0]:.2f} |" if theirs else " - |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
