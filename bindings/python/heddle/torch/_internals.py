"""What torch has no public name for, all in one place."""

from collections.abc import Callable, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_ORDINARY = _PLAIN | {FakeTensor, FunctionalTensor}


def is_transformed() -> bool:
    """Whether vmap, grad or another transform of torch.func is at work."""
    return torch._C._are_functorch_transforms_active()


def has_tangents() -> bool:
    """Whether derivatives are taken in forward mode."""
    return forward_ad._current_level >= 0


def is_differentiated_by_transform(tensors) -> bool:
    """Whether derivatives are taken by torch.func or in forward mode, in which operators of Python have none."""
    return has_tangents() or (is_transformed() and any([torch._C._functorch.is_gradtrackingtensor(x) for x in tensors]))


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is torch's own, or stands for one while a compiler traces."""
    return type(tensor) in _ORDINARY


def is_traced(tensors) -> bool:
    """Whether a call has to go through torch's dispatcher: a compiler, a transform or a mode watches it, or a tensor is none
    whose memory holds its numbers."""
    if torch.compiler.is_compiling() or is_transformed() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    for x in tensors:
        if type(x) not in _PLAIN or x.is_neg() or x._is_zerotensor():
            return True
    return False


def is_several(tensor: torch.Tensor) -> bool:
    """Whether it stands for several tensors, as torch.autograd.grad(is_grads_batched=True) makes of gradients: a vmap before
    torch.func's, which knows no rule of ours."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def with_memory(gradient: torch.Tensor) -> torch.Tensor:
    """What torch hands to a backward may be zeros without memory, or numbers whose sign is still to be changed."""
    return gradient.clone() if gradient.is_neg() or gradient._is_zerotensor() else gradient


def put_before(operator: torch._ops.OpOverload, kernel: Callable, keys: Sequence[str]) -> torch.library.Library:
    """Makes a function the kernel of one of torch's operators for some of the dispatcher's keys, until `take_back`."""
    library = torch.library.Library(operator.namespace, "IMPL")
    for key in keys:
        library.impl(operator._opname, kernel, key)
    operator._dispatch_cache.clear()  # where compilers look kernels up, and would find those of before
    return library


def take_back(library: torch.library.Library, operator: torch._ops.OpOverload) -> None:
    """Takes the library's kernels of an operator out of the dispatcher, and from where compilers keep them."""
    library._destroy()
    operator._dispatch_cache.clear()


def mark_caches(tag: str) -> str:
    """Gives what torch.compile keeps on disk another key; returns the tag before."""
    before, torch.compiler.config.cache_key_tag = torch.compiler.config.cache_key_tag, tag
    return before
