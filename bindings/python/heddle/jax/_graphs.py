"""A graph put together tensor by tensor, and the custom call that runs it."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from heddle._library import Error
from heddle._plan import workspace_bytes
from heddle.jax.ffi import TARGET, register

DTYPES = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "int32": "i32",
          "int8": "i8", "uint64": "u64", "uint32": "u32", "uint8": "u8", "bool": "boolean"}


def dtype_name(dtype):
    """The text form's name of a JAX data type."""
    return DTYPES[np.dtype(dtype).name]


def row_major(dims):
    """The strides of an array without gaps, in elements."""
    strides, step = [], 1
    for dim in reversed(dims):
        strides.append(step)
        step *= dim
    return strides[::-1]


class Graph:
    """Collects the tensors and nodes of one custom call; operands and results keep the order they are added in."""

    def __init__(self, name):
        self._name = name
        self._tensors, self._nodes = [], []
        self._results = []  # (dims, dtype) of the arrays that the call gives

    def _add(self, name, dtype, **more):
        uid = len(self._tensors) + 1
        self._tensors.append({"uid": uid, "name": name, "dtype": dtype_name(dtype), **more})
        return uid

    def operand(self, name, dtype, dims, strides=None):
        """A tensor that the caller gives."""
        return self._add(name, dtype, dims=list(dims), strides=list(strides or row_major(dims)))

    def result(self, name, dtype, dims, strides=None):
        """A tensor that the call returns, as an array of its elements in memory order."""
        strides = list(strides or row_major(dims))
        order = sorted(range(len(dims)), key=lambda i: (-strides[i], i))
        self._results.append((tuple(dims[i] for i in order), dtype))
        return self._add(name, dtype, dims=list(dims), strides=strides)

    def constant(self, name, value, rank, dtype=np.float32):
        """A scalar known now."""
        return self._add(name, dtype, dims=[1] * rank, constant=_number(value))

    def value(self, name, dtype=None):
        """A value inside a score expression."""
        uid = len(self._tensors) + 1
        typed = {} if dtype is None else {"dtype": dtype_name(dtype)}
        self._tensors.append({"uid": uid, "name": name, "virtual": True, **typed})
        return uid

    def node(self, op, **fields):
        """A node; fields that are None are left out."""
        self._nodes.append({"op": op, **{key: value for key, value in fields.items() if value is not None}})

    def text(self):
        """The text form."""
        return json.dumps({"heddle_graph": 1, "name": self._name, "intermediate_dtype": "f32",
                           "tensors": self._tensors, "nodes": self._nodes}, separators=(",", ":"))

    def run(self, operands, platform):
        """The call's results, each of the dims it has in memory. Raises ValueError with the library's sentence."""
        register()
        text = self.text()
        try:
            size = workspace_bytes(text, platform)
        except Error as error:
            raise Error(f"{self._name}: {error}", error.status) from None
        shapes = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in self._results]
        shapes.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
        return jax.ffi.ffi_call(TARGET, shapes)(*operands, graph=text)[:-1]


def _number(value):
    """A number as the text form writes it: JSON has no numerals for the ones that are not finite."""
    return float(value) if np.isfinite(value) else str(np.float64(value))
