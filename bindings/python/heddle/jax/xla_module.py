"""An HLO text module compiled and run by JAX's own XLA on the CPU."""

import statistics
import time

import jax
import numpy as np

from heddle.jax import _internals


class XlaModule:
    """One compiled module. Raises RuntimeError with XLA's own words if the text does not parse or compile."""

    def __init__(self, text):
        proto = _internals.proto_of_text(text)
        self.parameters = [(shape, np.dtype(dtype)) for shape, dtype in _internals.parameters_of_proto(proto)]
        self._executable = _internals.compile_proto(proto, jax.devices("cpu")[0])

    @property
    def temporary_bytes(self):
        """The peak of what XLA allocates beside arguments and results, in bytes."""
        return self._executable.get_compiled_memory_stats().temp_size_in_bytes

    def __call__(self, *arguments):
        """The module's results, in order, for one array an entry parameter."""
        results = self._executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()
        return jax.block_until_ready([result[0] for result in results])

    def seconds(self, *arguments, runs=5):
        """The median wall time of `runs` calls, after one that is not counted."""
        self(*arguments)
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            self(*arguments)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def parses(text):
    """Whether XLA's own parser accepts an HLO text module: None, or its complaint."""
    try:
        _internals.proto_of_text(text)
    except Exception as error:  # jaxlib raises several types here
        return str(error)
    return None
