"""Tensors of torch bound to plans: what each is, and the stream and the device that a plan runs on."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch

from heddle.arrays import _memory, _new
from heddle.arrays._calls import KEPT, Inputs, Ready, cached
from heddle.arrays._dtypes import WORDS, torch_dtype
from heddle.torch import _internals

DTYPES = {torch_dtype(name): name for name in WORDS if name is not None and torch_dtype(name) is not None}
_NOTHING = nullcontext()


def kept(function: Callable) -> Callable:
    """A decorator: as `heddle.arrays._calls.kept`, but for what a call gives that torch.compile traces."""
    again = cached(function, KEPT)

    @wraps(function)
    def call(*args, **options):
        if not torch.compiler.is_compiling():
            try:
                return again(*args, **options)
            except TypeError:
                pass  # of an argument that is not compared, or the function's own, which is raised again
        return function(*args, **options)

    return call


def checked(op: str, tensors: Mapping[str, object]) -> None:
    """Raises TypeError or ValueError unless all that are not None are strided tensors of one CPU or NVIDIA GPU, and
    RuntimeError where derivatives are taken that no operator of Heddle has."""
    first = None
    if (_internals.has_tangents() or _internals.is_transformed()) and not torch.compiler.is_compiling():
        given = [tensor for tensor in tensors.values() if isinstance(tensor, torch.Tensor)]
        if _internals.is_differentiated_by_transform(given):
            raise RuntimeError(f"{op}: derivatives are taken by torch.func or in forward mode, expected backward() or "
                               "torch.autograd.grad.")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{op}: {name} is of type {type(tensor).__name__}, expected a torch.Tensor.")
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
            raise TypeError(f"{op}: {name} is {kind}, expected a strided one.")
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
    addresses = [tensor.data_ptr() for tensor in tensors]
    if any([address & 7 for address in addresses]):
        tensors = [_at_whole_elements(tensor) for tensor in tensors]
        addresses = [tensor.data_ptr() for tensor in tensors]
    if device.type == "cpu" and size <= _new.MOST_OF_A_THREAD:
        ready(addresses, _new.of_this_thread(size))
        return
    stream = torch.cuda.current_stream(device).cuda_stream or None if device.type == "cuda" else None
    workspace = torch.empty(size, dtype=torch.uint8, device=device) if size else None
    ready(addresses, None if workspace is None else workspace.data_ptr(), stream)


def _at_whole_elements(tensor):
    """The tensor, or one of its strides elsewhere: torch.frombuffer takes any address."""
    if tensor.data_ptr() % tensor.element_size() == 0:
        return tensor
    reach = _memory.span(tensor.shape, tensor.stride())
    memory = tensor.detach().as_strided((reach,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


def gradient(op: str, given: torch.Tensor) -> torch.Tensor:
    """What torch hands to a backward, as a tensor with memory. Raises RuntimeError for several gradients at once."""
    if _internals.is_several(given):
        raise RuntimeError(f"{op}: several gradients are taken at once (is_grads_batched, vectorize), expected one after the other, "
                           "or torch.vmap.")
    return _internals.with_memory(given)


def one_by_one(operator: torch.library.CustomOpDef) -> None:
    """Lets vmap run an operator on one entry after the other."""
    def rule(info, in_dims, *arguments):
        def entry(argument, dim, n):
            if isinstance(argument, list):
                return [entry(one, of_one, n) for one, of_one in zip(argument, dim, strict=True)]
            if dim is None:
                return argument
            if info.batch_size == 0:  # an entry that says the results' shapes
                return argument.new_zeros(argument.shape[:dim] + argument.shape[dim + 1:])
            return argument.select(dim, n)

        found = [operator(*(entry(one, dim, n) for one, dim in zip(arguments, in_dims, strict=True)))
                 for n in range(max(info.batch_size, 1))]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found)[:info.batch_size], 0
        stacked = [torch.stack(entries)[:info.batch_size] for entries in zip(*found, strict=True)]
        return type(found[0])(stacked), type(found[0])([0] * len(stacked))

    operator.register_vmap(rule)


def current(tensor: torch.Tensor) -> AbstractContextManager:
    """`with current(tensor)`: its GPU is the thread's."""
    away = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
    return torch.cuda.device(tensor.device) if away else _NOTHING
