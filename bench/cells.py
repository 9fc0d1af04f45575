"""What is measured on the CPU, and how: the cells, their tensors, their work and the clock."""

import statistics
import time
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

HEADS = 8
HEAD_DIMS = (64, 128)
SEQUENCES = (512, 2048, 4096)
DTYPES = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Cell:
    """One row of the table: batch 1, 8 heads, as many keys as queries."""

    dtype: str
    head_dim: int
    sequence: int
    causal: bool
    backward: bool  # forward and backward together, or forward alone

    def as_json(self):
        return asdict(self)

    @property
    def name(self):
        return (f"{self.dtype} d{self.head_dim} S{self.sequence} {'causal' if self.causal else 'full'} "
                f"{'forward+backward' if self.backward else 'forward'}")

    @property
    def flops(self):
        """4 H S^2 d of the two products of the forward, halved when causal; the backward is 2.5 times that."""
        forward = 4 * HEADS * self.sequence**2 * self.head_dim / (2 if self.causal else 1)
        return forward * (3.5 if self.backward else 1)


def all_cells():
    order = product(DTYPES, HEAD_DIMS, SEQUENCES, (False, True), (False, True))
    return [Cell(dtype, d, s, causal, backward) for dtype, d, s, causal, backward in order]


def write_tensors(folder):
    """query, key, value and the output's gradient, [1, heads, S, d] f32, for every S and d.

    Values are normal, rounded to 8 bits of mantissa so that every dtype holds the same numbers.
    """
    rng = np.random.default_rng(20261121)
    for d, s in product(HEAD_DIMS, SEQUENCES):
        for name in ("query", "key", "value", "output_gradient"):
            bits = rng.standard_normal((1, HEADS, s, d), np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
            np.save(folder / f"{name}_d{d}_s{s}.npy", bits.view(np.float32))


def read_tensors(folder, cell):
    return [np.load(folder / f"{name}_d{cell.head_dim}_s{cell.sequence}.npy")
            for name in ("query", "key", "value", "output_gradient")]


def median_seconds(call, minimum_runs=3, seconds=0.5):
    """Median wall time of `call`, after one run that is not counted; runs for about `seconds`."""
    call()
    times = []
    while len(times) < minimum_runs or (sum(times) < seconds and len(times) < 50):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_bytes(call):
    """How far the process's resident memory rises above where it stood, while `call` runs once (Linux)."""
    def resident(field):
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")  # resets the high-water mark
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def projection(output, direction):
    """One number of an output, to see that two peers computed the same: its component along `direction`."""
    output, direction = np.asarray(output, np.float64), np.asarray(direction, np.float64)
    return float((output * direction).sum() / np.sqrt((direction * direction).sum()))
