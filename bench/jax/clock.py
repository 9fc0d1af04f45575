"""The clock of one GPU: programs compiled beforehand, run in turn, so that what else the machine does meets all alike."""

import random
import statistics
import time

import jax


def batch_of(call, seconds=0.03):
    """How many calls in a row fill about `seconds` of the GPU, so that launching them hides behind running them."""
    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready([call() for _ in range(4)])
    return max(1, min(1000, round(4 * seconds / (time.perf_counter() - start))))


def medians(calls, rounds=15):
    """{name: median seconds of one call} of {name: call}: in every round each has a batch of calls, in an order of chance.

    A GPU's clock falls while it works hard and recovers while it does not: who always ran after a slow one would be flattered.
    """
    sizes = {name: batch_of(call) for name, call in calls.items()}
    times = {name: [] for name in calls}
    order = random.Random(1)
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            start = time.perf_counter()
            for _ in range(sizes[name]):
                last = calls[name]()
            jax.block_until_ready(last)
            times[name].append((time.perf_counter() - start) / sizes[name])
    return {name: statistics.median(values) for name, values in times.items()}
