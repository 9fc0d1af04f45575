"""A call of an op on arrays: what each array is, the plan that their kind takes, and the memory that it runs on."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache, wraps
from typing import NamedTuple

from heddle import _checks
from heddle._graph import Graph, Tensor
from heddle._plan import Plan
from heddle.arrays import _memory, _new
from heddle.arrays._dlpack import row_major
from heddle.arrays._dtypes import BYTES, WORDS, numpy_dtype

_ALIGNED = 0x100  # NPY_ARRAY_ALIGNED
_NOTHING = nullcontext()
KEPT = 1024  # plans of each op, the last that were used
# What wider numbers are held to before they become i32: a length of 2^32 is all rows that there are, not none.
LEAST_I32, MOST_I32 = -2**31, 2**31 - 1


class Kind(NamedTuple):
    """All of an array but its numbers: what a plan is made for."""

    dtype: str  # Heddle's name
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    @classmethod
    def dense(cls, dtype: str, dims: Sequence[int]) -> "Kind":
        """Of an array without gaps, row major."""
        return cls(dtype, tuple(dims), row_major(dims))

    def permuted(self, *axes: int) -> "Kind":
        """Its dims in another order; None is a dim of 1."""
        return Kind(self.dtype, *(tuple(fill if axis is None else values[axis] for axis in axes)
                                  for fill, values in ((1, self.dims), (0, self.strides))))


class Ready:
    """A plan of a graph whose bound tensors have the uids 1, 2, ... of operands and then results, in the order of calls."""

    __slots__ = ("_launch", "_plan", "workspace_bytes")

    def __init__(self, graph: Graph, device: str, count: int) -> None:
        self._plan = Plan(graph, device)
        self._launch = self._plan.launcher(range(1, count + 1)).launch
        self.workspace_bytes = self._plan.workspace_bytes

    def __call__(self, addresses: Sequence[int], workspace: int | None, stream: int | None = None) -> None:
        """Addresses of operands and then results."""
        self._launch(addresses, workspace, stream)


def cached(function: Callable, size: int) -> Callable:
    """What the function gave for equal arguments, of equal types, is given again; the last `size` are kept.

    Raises TypeError for arguments that have no hash, and for arrays: a tensor of torch has one that stays when its number, a
    scale say, is another.
    """
    def compared(*args, **options):
        if any(map(_is_array, (*args, *options.values()))):
            raise TypeError("An array is not compared by its numbers.")
        return function(*args, **options)

    return lru_cache(size, typed=True)(compared)


def _is_array(value):
    return any(map(_is_array, value)) if isinstance(value, tuple) else hasattr(value, "__dlpack__")


def kept(size: int) -> Callable:
    """A decorator: what the function gave for equal arguments, of equal types, it gives again; the last `size` are kept.

    Arguments that cannot be compared are taken, too, and nothing is kept then.
    """
    def decorate(function):
        again = cached(function, size)

        @wraps(function)
        def call(*args, **options):
            try:
                return again(*args, **options)
            except TypeError:
                pass  # of an argument that is not compared, or the function's own, which is raised again
            return function(*args, **options)

        return call

    return decorate


def bound(graph: Graph, kinds: Mapping[str, Kind]) -> dict[str, Tensor]:
    """A bound tensor of the graph for each kind, by name; the next free uids in their order."""
    return {name: graph.tensor(name, kind.dims, kind.strides, kind.dtype) for name, kind in kinds.items()}


@cache
def own_ops(library: str) -> object | None:
    """The module whose ops serve the arrays of a library with gradients and compilers of its own; None of others."""
    if library == "torch":
        import heddle.torch

        return heddle.torch
    if library in ("jax", "jaxlib"):
        import heddle.jax

        return heddle.jax
    return None


def library_of(array: object) -> str:
    """The library that a program's array is of; torch's for a Parameter or another subclass of its tensors."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(array) is numpy.ndarray:
        return "numpy"
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return type(array).__module__.partition(".")[0]


def described(op: str, arrays: Mapping[str, object]) -> tuple:
    """All of the arrays of a call but their numbers, hashable, for `Inputs`.

    Raises TypeError or ValueError in a sentence for what is no array. Of NumPy's arrays nothing is looked into: a small call
    takes microseconds.
    """
    numpy = sys.modules.get("numpy")
    plain = numpy.ndarray if numpy is not None else ()
    return tuple([(name, array.dtype, array.shape, array.strides, array.flags.num) if type(array) is plain else
                  (name, *_looked_into(f"{op}: {name}", array, plain)) for name, array in arrays.items()])


def _looked_into(what, array, plain):
    expected = "expected an array (of NumPy, torch, JAX, CuPy or with DLPack)"
    if hasattr(array, "mask"):
        raise TypeError(f"{what} is an array with a mask of its own, {expected}.")
    if isinstance(array, plain):  # a file's, say, which lies anywhere in it
        return array.dtype, array.shape, array.strides, array.flags.num
    memory = _memory.memory_of_array(what, array)
    if memory is None:
        raise TypeError(f"{what} is of type {type(array).__name__}, {expected}.")
    return memory.dtype, memory.dims, memory.strides, memory.device or "cpu", library_of(array)


class Inputs:
    """The arrays of a call as `described`, held to be what a graph may be given, and those of one device.

    laid: name -> "in rows" whose elements lie side by side, "densely", without any gaps in row major order, or "anyhow"; an
    array that is not is copied at each call, as is one with negative strides. read_as: name -> types that the graph does not
    take, and what arrays of them are converted to. Raises TypeError or ValueError in a sentence.
    """

    def __init__(self, op: str, given: tuple, laid: Mapping[str, str], read_as: Mapping[str, Mapping[str, str]]) -> None:
        self.op, self.kinds, self.device = op, {}, None
        self.copies = {}  # name -> the type of the copy
        for name, dtype, dims, strides, *of_home in given:
            what, aligned = f"{op}: {name}", True
            if len(of_home) == 1:
                aligned, device, library = bool(of_home[0] & _ALIGNED), "cpu", "numpy"
                dtype = _memory.name_of(what, dtype)
                strides = tuple(step // BYTES.get(dtype, 1) for step in strides)
            else:
                device, library = of_home
            if dtype is None:
                raise TypeError(f"{what} has a data type that Heddle has no name for.")
            if device == "cuda" and library not in ("cupy", "torch"):
                raise TypeError(f"{what} is of {library} and lies on a GPU, expected an array of torch, JAX or CuPy there.")
            self.device = self.device or device
            if device != self.device:
                raise ValueError(f"{what} lies on the device {device} and {given[0][0]} on {self.device}, expected one device.")
            kind, read = Kind(dtype, dims, strides), read_as.get(name, {}).get(dtype)
            if read or not aligned or not _is_laid(laid.get(name, "in rows"), dims, strides):
                self.copies[name] = read or dtype
                kind = Kind.dense(read or dtype, dims)
            self.kinds[name] = kind

    @property
    def library(self):
        """NumPy for the host's memory, CuPy for a GPU's: what makes and converts arrays beside the caller's own."""
        if self.device == "cuda":
            return sys.modules["cupy"]
        import numpy

        return numpy

    def made(self, sample: object, results: Mapping[str, Kind]) -> list:
        """Arrays for results, of the library of `sample`."""
        return [_new.empty(f"{self.op}: {name}", sample, kind.dims, kind.dtype) for name, kind in results.items()]

    def run(self, ready: Ready, arrays: Sequence, results: Mapping[str, Kind]) -> list:
        """The results of a plan, which takes these arrays in their order, the first of them the caller's."""
        sample, size = arrays[0], ready.workspace_bytes
        if self.device == "cpu" and size <= _new.MOST_OF_A_THREAD:
            made = self.made(sample, results)
            ready([_memory.address_of(array) for array in (*arrays, *made)], _new.of_this_thread(size))
            return made
        with sample.device if self.device == "cuda" else _NOTHING:
            made = self.made(sample, results)
            addresses = [_memory.address_of(array) for array in (*arrays, *made)]
            scratch = self.library.empty(size, "uint8")
            ready(addresses, _memory.address_of(scratch) or None, self._stream())
        return made

    def copied(self, arrays: dict[str, object]) -> dict[str, object]:
        """The arrays, those that the plan does not take as they lie replaced by copies."""
        for name, dtype in self.copies.items():
            array = _new.dense(f"{self.op}: {name}", arrays[name])
            if dtype == "i32":
                array = array.clip(LEAST_I32, MOST_I32)
            arrays[name] = array.astype(numpy_dtype(dtype))
        return arrays

    def _stream(self):
        return self.library.cuda.get_current_stream().ptr or None if self.device == "cuda" else None


def _is_laid(laid, dims, strides):
    if laid == "densely":
        return strides == row_major(dims) or _memory.is_dense(dims, strides)
    if laid == "in rows" and len(strides) > 0 and strides[-1] != 1 and dims[-1] > 1:
        return False
    return all([stride >= 0 for stride in strides])


def dtype_among(op: str, name: str, kind: Kind, names: Sequence[str]) -> None:
    """Raises TypeError unless an array has one of these data types."""
    if kind.dtype not in names:
        raise TypeError(f"{op}: {name} has dtype {WORDS[kind.dtype]}, expected {' or '.join(WORDS[one] for one in names)}.")


def number(op: str, name: str, value: object) -> float:
    """A float. Raises TypeError for what is none, and for a tensor whose gradient is wanted: none reaches a number."""
    if getattr(value, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise TypeError(f"{op}: {name} requires a gradient, which is only possible for arrays; pass {name}.detach().")
    return _checks.number(f"{op}: {name}", value)


def flag(op: str, name: str, value: object) -> bool:
    """A bool, of Python or of NumPy. Raises TypeError for anything else."""
    if type(value) is not bool and type(value).__name__ not in ("bool_", "bool"):
        raise TypeError(f"{op}: {name} is {type(value).__name__}, expected True or False.")
    return bool(value)


def one_of(op: str, name: str, value: object, allowed: Sequence) -> None:
    """Raises ValueError unless value is one of `allowed`."""
    if not any(isinstance(value, type(x)) and value == x for x in allowed):
        raise ValueError(f"{op}: {name} is {value!r}, expected {' or '.join(map(repr, allowed))}.")
