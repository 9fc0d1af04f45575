"""An HLO text module compiled and run by JAX's own XLA on the CPU.

This is the one file that uses JAX's private names (as of JAX 0.10); everything else goes through it.
"""

import statistics
import time

import jax
import jaxlib._hlo as hlo
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir


class XlaModule:
    """One compiled module. Raises RuntimeError with XLA's own words if the text does not parse or compile."""

    def __init__(self, text):
        proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        computation = xla_client.XlaComputation(proto)
        self.parameters = [(tuple(shape.dimensions()), np.dtype(shape.numpy_dtype()))
                           for shape in computation.program_shape().parameter_shapes()]
        stablehlo = _jax.mlir.xla_computation_to_mlir_module(computation)
        device = jax.devices("cpu")[0]
        with mlir.make_ir_context():
            self._executable = device.client.compile_and_load(
                ir.Module.parse(stablehlo), xla_client.DeviceList((device,)), xla_client.CompileOptions())

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
        hlo.hlo_module_from_text(text)
    except Exception as error:  # jaxlib raises several types here
        return str(error)
    return None
