"""A graph as one custom call: its operands and results in the order in which they are added."""

import jax
import jax.numpy as jnp
import numpy as np

import heddle
from heddle._plan import workspace_bytes
from heddle.jax.ffi import TARGET, register

DTYPES = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "int32": "i32",
          "int8": "i8", "uint64": "u64", "uint32": "u32", "uint8": "u8", "bool": "boolean"}


def dtype_name(dtype):
    """A graph's name of a JAX data type."""
    return DTYPES[np.dtype(dtype).name]


def row_major(dims):
    """The strides of an array without gaps, in elements."""
    strides, step = [], 1
    for dim in reversed(dims):
        strides.append(step)
        step *= dim
    return strides[::-1]


class Graph(heddle.Graph):
    """The graph of one custom call, whose operands and results are its bound tensors in the order of their uids."""

    def __init__(self, name):
        super().__init__(name, intermediate="f32")
        self._name = name
        self._results = []  # (dims, dtype) of the arrays that the call gives

    def operand(self, name, dtype, dims, strides=None):
        """A tensor that the caller gives."""
        return self.tensor(name, dims, strides or row_major(dims), dtype_name(dtype))

    def result(self, name, dtype, dims, strides=None):
        """A tensor that the call returns, as an array of its elements in memory order."""
        strides = strides or row_major(dims)
        order = sorted(range(len(dims)), key=lambda i: (-strides[i], i))
        self._results.append((tuple(dims[i] for i in order), dtype))
        return self.tensor(name, dims, strides, dtype_name(dtype))

    def constant(self, name, value, rank, dtype=np.float32):
        """A scalar known now."""
        return self.tensor(name, [1] * rank, dtype=dtype_name(dtype), constant=value)

    def run(self, operands, platform):
        """The call's results, each of the dims it has in memory. Raises ValueError with the library's sentence."""
        register()
        text = self.text
        try:
            size = workspace_bytes(text, platform)
        except heddle.Error as error:
            raise heddle.Error(f"{self._name}: {error}", error.status) from None
        shapes = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in self._results]
        shapes.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
        return jax.ffi.ffi_call(TARGET, shapes)(*operands, graph=text)[:-1]
