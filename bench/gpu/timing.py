"""Times on a GPU that compare: everything measured in turn, in shuffled order, medians."""

import random
import statistics

import torch


def interleaved_milliseconds(runs, rounds=15):
    """Median time of one call of each of `runs` (name -> function).

    A GPU under its power limit slows down within milliseconds and recovers as slowly: only calls that share the same
    stretch of time compare. Short calls are timed several at once.
    """
    def timed(run, count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        return start, end

    calls = {}
    for name, run in runs.items():
        run()
        start, end = timed(run, 1)
        end.synchronize()
        calls[name] = max(1, min(10, round(0.5 / max(start.elapsed_time(end), 1e-3))))
    events = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            events[name].append(timed(runs[name], calls[name]))
    torch.cuda.synchronize()
    return {name: statistics.median(start.elapsed_time(end) for start, end in pairs) / calls[name]
            for name, pairs in events.items()}


def gpu():
    """The GPU's name, and its driver's version."""
    import ctypes

    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{torch.cuda.get_device_name()}, CUDA {version.value // 1000}.{version.value % 1000 // 10}"
