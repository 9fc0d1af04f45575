"""Arrays of any library as memory: where it is, how much of it, and what lies in it."""

import operator
import sys
from functools import lru_cache
from typing import NamedTuple

from heddle.arrays import _dlpack
from heddle.arrays._dtypes import BYTES, name_elsewhere


_name = lru_cache(256)(name_elsewhere)


class Memory(NamedTuple):
    """Of an address alone only the address is known."""

    address: int
    dtype: str | None = None  # Heddle's name
    device: str | None = None  # "cpu" or "cuda"; None also for what both reach
    dims: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None  # in elements
    bytes_there: int | None = None  # from the address on
    writable: bool = True


def memory_of_array(what, given):
    """The memory of an array of torch, NumPy, JAX, CuPy or any library with DLPack; None of anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return _of_torch(what, given)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(given, numpy.ndarray):
        return _of_numpy(what, given)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(given, jax.Array):
        return _of_jax(what, given)
    if getattr(given, "__cuda_array_interface__", None) is not None:
        return _of_cuda(what, given)
    if hasattr(given, "__dlpack__"):
        return _of_dlpack(what, given)
    return None


def memory_of(what, given):
    """The memory of an array, or of an address, an int. Raises TypeError for anything else."""
    memory = memory_of_array(what, given)
    if memory is not None:
        return memory
    try:
        address = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        address = None
    if address is None:
        raise TypeError(f"{what} is of type {type(given).__name__}, expected an array (of torch, NumPy, JAX, CuPy or with "
                        "DLPack) or an address, an int.")
    if not 0 <= address < 2**64:
        raise ValueError(f"{what} is {address}, expected an address, from 0 to 2**64 - 1.")
    return Memory(address)


def memory_in_place(what, given):
    """`memory_of` what is read and written as it lies there. Raises ValueError for a view of torch whose numbers are those with
    the other sign, and TypeError for an array that hides some of its numbers."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor) and given.is_neg():
        raise ValueError(f"{what} is a view of numbers that lie in memory with the other sign, expected one without "
                         "(torch's resolve_neg).")
    if hasattr(given, "mask"):
        raise TypeError(f"{what} is an array with a mask of its own, expected one without.")
    return memory_of(what, given)


def address_of(array):
    """Where the elements of an array begin that `memory_of` knows; of NumPy's in less than a microsecond."""
    try:
        return array.__array_interface__["data"][0]
    except AttributeError:
        return memory_in_place("An array", array).address


def name_of(what, dtype):
    """Heddle's name of a data type of NumPy; None if it has none. Raises TypeError for another machine's byte order."""
    if not getattr(dtype, "isnative", True):
        raise TypeError(f"{what} has data type {dtype}, of another byte order, expected this machine's.")
    return _name(dtype)


def span(dims, strides):
    """Elements from the first to past the last; 0 of an empty tensor."""
    if 0 in dims:
        return 0
    return 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True) if dim > 1)


def is_dense(dims, strides):
    """Whether elements lie in row major order without gaps; the strides of dims of 1 say nothing."""
    step = 1
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim > 1 and stride != step:
            return False
        step *= max(dim, 1)
    return True


def is_packed(dims, strides):
    """Whether elements lie without gaps, their axes in any order: what is written from the first on is theirs."""
    axes = sorted(zip(strides, dims, strict=True), reverse=True)
    return is_dense([dim for _, dim in axes], [stride for stride, _ in axes])


def _in_elements(what, steps, itemsize):
    """Strides, of bytes. Raises ValueError for those that fall between elements."""
    itemsize = max(itemsize, 1)  # NumPy has types of none
    if any([step % itemsize for step in steps]):
        raise ValueError(f"{what} has elements of {itemsize} bytes at strides of {tuple(steps)}, expected multiples.")
    return tuple([step // itemsize for step in steps])


def _bytes(dtype, dims, strides):
    return None if dtype is None else span(dims, strides) * BYTES[dtype]


def _of_torch(what, tensor):
    if tensor.is_nested or tensor.layout is not sys.modules["torch"].strided:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise TypeError(f"{what} is {kind}, expected a strided one.")
    device = tensor.device.type
    if device not in ("cpu", "cuda"):
        raise ValueError(f"{what} lies on {tensor.device}, expected memory of a CPU or of an NVIDIA GPU.")
    there = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    return Memory(tensor.data_ptr(), _name(tensor.dtype), device, tuple(tensor.shape), tuple(tensor.stride()), there)


def _of_numpy(what, array):
    address, read_only = array.__array_interface__["data"]
    if array.dtype.hasobject:
        raise TypeError(f"{what} is an array of Python's objects, expected one of numbers.")
    strides = _in_elements(what, array.strides, array.itemsize)
    return Memory(address, name_of(what, array.dtype), "cpu", array.shape, strides, _end(array, address) - address,
                  not read_only)


def _end(array, address):
    """Past the last byte of a NumPy array: a view's memory reaches as far as that of what it is a view of."""
    if array.flags.c_contiguous:
        end = address + array.nbytes
    else:
        steps = zip(array.shape, array.strides, strict=True)
        end = address + sum((n - 1) * step for n, step in steps if step > 0) + array.itemsize if array.size else address
    base = array.base
    while base is not None and not hasattr(base, "flags"):
        base = getattr(base, "base", None)  # as_strided has a stand-in between
    return end if base is None else max(end, _end(base, base.__array_interface__["data"][0]))


def _of_jax(what, array):
    """Immutable, so never an output; and computed on streams of XLA's own, which are waited for."""
    if isinstance(array, sys.modules["jax"].core.Tracer):
        raise TypeError(f"{what} is traced by JAX, expected an array with memory.")
    array.block_until_ready()
    devices = array.devices()
    if len(devices) != 1:
        raise ValueError(f"{what} lies on {len(devices)} devices of JAX, expected one.")
    platform = next(iter(devices)).platform
    places = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}
    if platform not in places:
        raise ValueError(f"{what} lies on JAX's platform {platform}, expected memory of a CPU or of an NVIDIA GPU.")
    dtype, dims = _name(array.dtype), tuple(array.shape)
    strides = _dlpack.row_major(dims)
    return Memory(array.unsafe_buffer_pointer(), dtype, places[platform], dims, strides, _bytes(dtype, dims, strides), False)


def _of_cuda(what, array):
    interface = array.__cuda_array_interface__
    address, read_only = interface["data"]
    dtype, dims = name_of(what, array.dtype) if hasattr(array, "dtype") else None, tuple(interface["shape"])
    steps = interface.get("strides")
    strides = _in_elements(what, steps, int(interface["typestr"][2:])) if steps else _dlpack.row_major(dims)
    return Memory(address or 0, dtype, "cuda", dims, strides, _bytes(dtype, dims, strides), not read_only)


def _of_dlpack(what, array):
    address, dtype, device, dims, strides, writable = _dlpack.read(what, array)
    places = {_dlpack.CPU: "cpu", _dlpack.CUDA: "cuda", _dlpack.PINNED: None, _dlpack.MANAGED: None}
    if device not in places:
        raise ValueError(f"{what} lies on a device of DLPack's kind {device}, expected memory of a CPU or an NVIDIA GPU.")
    return Memory(address, dtype, places[device], dims, strides, _bytes(dtype, dims, strides), writable)
