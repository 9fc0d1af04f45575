"""Tensors of torch bound to plans: what each is, and the stream and the device that a plan runs on."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps

import torch

from heddle.arrays._calls import KEPT, Inputs, Ready
from heddle.arrays._calls import kept as _kept
from heddle.arrays._dtypes import WORDS, torch_dtype
from heddle.torch import _internals

DTYPES = {torch_dtype(name): name for name in WORDS if name is not None and torch_dtype(name) is not None}


def kept(function: Callable) -> Callable:
    """A decorator: results are kept by the arguments, but for those of a call that torch.compile traces."""
    cached = _kept(KEPT)(function)

    @wraps(function)
    def call(*args, **options):
        return function(*args, **options) if torch.compiler.is_compiling() else cached(*args, **options)

    return call


def checked(op: str, tensors: Mapping[str, object]) -> None:
    """Raises TypeError or ValueError unless all that are not None are strided tensors of one CPU or NVIDIA GPU, and
    RuntimeError where derivatives are taken that no operator of Heddle has."""
    first = None
    given = [tensor for tensor in tensors.values() if isinstance(tensor, torch.Tensor)]
    if not torch.compiler.is_compiling() and _internals.is_differentiated_by_transform(given):
        raise RuntimeError(f"{op}: derivatives are taken by torch.func or in forward mode, expected backward() or "
                           "torch.autograd.grad.")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{op}: {name} is of type {type(tensor).__name__}, expected a torch.Tensor.")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise TypeError(f"{op}: {name} is a nested tensor or of layout {tensor.layout}, expected a strided one.")
        if first is None:
            first = name
            if tensor.device.type not in ("cpu", "cuda"):
                raise ValueError(f"{op}: {name} lies on {tensor.device}, expected memory of a CPU or of an NVIDIA GPU.")
        elif tensor.device != tensors[first].device:
            raise ValueError(f"{op}: {name} lies on {tensor.device} and {first} on {tensors[first].device}, expected one device.")


def described(tensors: Mapping[str, torch.Tensor]) -> tuple:
    """All of tensors but their numbers, hashable, for `inputs`."""
    return tuple([(name, x.dtype, x.shape, x.stride(), x.device) for name, x in tensors.items()])


def inputs(op: str, given: tuple, laid: Mapping[str, str], read_as: Mapping[str, Mapping[str, str]]) -> Inputs:
    """Raises TypeError or ValueError for what a graph cannot be given."""
    return Inputs(op, tuple((name, DTYPES.get(dtype), tuple(dims), tuple(strides), device.type, "torch")
                            for name, dtype, dims, strides, device in given), laid, read_as)


def run(ready: Ready, tensors: Sequence[torch.Tensor]) -> None:
    """Runs a plan on operands and then results, on the current stream of their device, which is current (`current`)."""
    device, size = tensors[0].device, ready.workspace_bytes
    stream = torch.cuda.current_stream(device).cuda_stream or None if device.type == "cuda" else None
    workspace = torch.empty(size, dtype=torch.uint8, device=device) if size else None
    ready([tensor.data_ptr() for tensor in tensors], None if workspace is None else workspace.data_ptr(), stream)


def one_by_one(operator: torch.library.CustomOpDef) -> None:
    """Lets vmap run an operator on one entry after the other."""
    def rule(info, in_dims, *arguments):
        def entry(argument, dim, n):
            if isinstance(argument, list):
                return [entry(one, of_one, n) for one, of_one in zip(argument, dim, strict=True)]
            return argument if dim is None else argument.select(dim, n)

        found = [operator(*(entry(one, dim, n) for one, dim in zip(arguments, in_dims, strict=True)))
                 for n in range(info.batch_size)]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found), 0
        stacked = [torch.stack(entries) for entries in zip(*found, strict=True)]
        return type(found[0])(stacked), type(found[0])([0] * len(stacked))

    operator.register_vmap(rule)


class current:
    """`with current(tensor)`: its GPU is the thread's."""

    __slots__ = ("_device",)

    def __init__(self, tensor: torch.Tensor) -> None:
        away = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
        self._device = torch.cuda.device(tensor.device) if away else None

    def __enter__(self) -> None:
        if self._device is not None:
            self._device.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self._device is not None:
            self._device.__exit__(*failure)
