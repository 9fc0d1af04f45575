"""`enable()`: scaled_dot_product_attention of unmodified programs, served by Heddle.

torch's function of that name is one operator of its dispatcher, which Python, torch.nn and torch.compile's tracing all call.
Heddle puts itself before it on the CPU and on CUDA; what it does not serve is handed to torch's own code as it came.
"""

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from heddle import _library
from heddle._enabled import Enabled
from heddle._library import Error
from heddle.arrays._attention_graph import DIFFERENTIABLE, Config
from heddle.arrays._dlpack import row_major
from heddle.torch import _calls, _internals
from heddle.torch._attention_ops import attend, planned, run

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_KEYS = ("CPU", "CUDA", "Autograd")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_REASONS = 256  # different ones that are counted
_SOME = 64  # what a size that a compiler leaves open is taken to be


_lock = threading.Lock()
_library_of_operators = None  # while enabled
_tag = None  # of torch.compile's caches, before
_served, _left = 0, Counter()


def enable() -> Enabled:
    """From here on, torch.nn.functional.scaled_dot_product_attention runs in Heddle on CPUs and NVIDIA GPUs, with its gradient.

    It is served wherever it is called from: a program's own code, torch.nn.MultiheadAttention and other modules, functions
    under torch.compile (compiled ones are compiled again). Results mean what torch's mean: a row that a mask leaves without a
    key is 0; is_causal is aligned to the upper left. Dropout draws other bits than torch's, from its generator's next
    number. What is not served runs as before: `explain()` says what, and why. Enabling twice is enabling once.

    Use it as a statement, undone by `disable()`, or as a context: `with heddle.torch.enable(): ...`.
    """
    global _library_of_operators, _tag
    _library.load()
    with _lock:
        if _library_of_operators is None:
            _library_of_operators = _internals.put_before(_OPERATOR, _sdpa, _KEYS)
            _tag = _internals.mark_caches(f"heddle {_library.identity()}")
            _forget_compiled()
    return Enabled(disable)


def disable() -> None:
    """Undoes `enable()`. Does nothing if it is not enabled."""
    global _library_of_operators
    with _lock:
        if _library_of_operators is None:
            return
        _internals.take_back(_library_of_operators, _OPERATOR)
        _library_of_operators = None
        _internals.mark_caches(_tag)
        _forget_compiled()


def explain() -> str:
    """How many calls were served since this process began, and how many were left to torch, by reason.

    Calls of a compiled function count where it is traced, once or several times, and not when it runs.
    """
    lines = [f"scaled_dot_product_attention: {_served} served, {sum(_left.values())} left to torch"]
    return "\n".join([*lines, *(f"{count:8} {reason}" for reason, count in _left.most_common())])


def _forget_compiled():
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """The operator, of torch's own signature."""
    given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    reason, tensors = _why_not_now(given), given
    if reason is None:
        if query.dim() == 3 and all([x.dim() == 3 for x in (key, value)]) and (attn_mask is None or attn_mask.dim() <= 3):
            tensors = [x.unsqueeze(-3) if x.dim() == 3 else x for x in given]
        operands = dict(zip(("q", "k", "v"), tensors, strict=False))
        if attn_mask is not None:
            operands["mask" if attn_mask.dtype is torch.bool else "bias"] = tensors[3]
        wanted = ()
        if torch.is_grad_enabled():
            wanted = tuple([name for name in DIFFERENTIABLE if name in operands and operands[name].requires_grad])
        reason, config, call = _decided(_calls.described(operands), dropout_p, is_causal, scale, enable_gqa,
                                        torch.are_deterministic_algorithms_enabled(), wanted)
    _count(reason)
    if reason is not None:
        return _OPERATOR.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if call is not None and not wanted and not config.dropout and not _internals.is_traced(tensors):
        with _calls.current(query):
            o = run(*call, operands)[0]
    else:
        if config.dropout:
            operands["seed"] = torch.randint(2**62, (), device=query.device)
            operands["offset"] = torch.zeros((), dtype=torch.int64, device=query.device)
        o = attend(operands, config, "BNTH", False)[0]
    return o.squeeze(-3) if query.dim() == 3 else o


def _why_not_now(tensors):
    """Why a call is left to torch, of what `_decided` is not told."""
    if _internals.is_transformed():
        return "a transform of torch.func is at work"
    for x in tensors:
        if not _internals.is_ordinary(x):
            return "a tensor is of a subclass"
        if x.is_nested or x.layout is not torch.strided:
            return "a tensor is nested or not strided"
    if _internals.has_tangents():
        return "tangents are taken"
    if not (torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
            or torch.backends.cuda.cudnn_sdp_enabled()):
        return "the program asks for torch's MATH backend alone"
    return None


@_calls.kept
def _decided(given, dropout_p, is_causal, scale, enable_gqa, deterministic, wanted):
    """Why a call of operands as `_calls.described` has them is left to torch, or None; its config and its forward if not."""
    operands = {name: _Operand(*of_it) for name, *of_it in given}
    reason = _why_not(operands, dropout_p, is_causal, scale, enable_gqa)
    if reason is not None:
        return reason, None, None
    query = operands["q"]
    config = Config(query.shape[-1]**-0.5 if scale is None else float(scale), right=0 if is_causal else None,
                    dropout=float(dropout_p), deterministic=deterministic)
    # What is planned for a head dim that is left open is not of its scale.
    planned_for = config if type(config.scale) is float else config._replace(scale=_SOME**-0.5)
    try:
        with torch.cuda.device(query.device) if query.device.type == "cuda" else nullcontext():
            return None, config, planned(tuple([(name, x.dtype, *_with_sizes(x), x.device) for name, x in operands.items()]),
                                         planned_for, "BNTH", wanted)
    except Error as error:
        return str(error), None, None
    except ValueError:
        return None, config, None  # sizes that were taken to be some do not go together


class _Operand(NamedTuple):
    dtype: torch.dtype
    shape: Sequence[int]
    stride: Sequence[int]
    device: torch.device


def _with_sizes(x):
    """Dims and strides; where a compiler leaves one open, as if it were some."""
    if all([type(dim) is int for dim in x.shape]):
        return x.shape, x.stride
    dims = tuple([dim if type(dim) is int else _SOME for dim in x.shape])
    return dims, row_major(dims)


def _why_not(operands, dropout_p, is_causal, scale, enable_gqa):
    """Why a call is left to torch, whether it is an error or not; None of one that Heddle serves."""
    query, key, value, *attn_mask = operands.values()
    ranks = [len(x.shape) for x in (query, key, value)]
    if any([x.device != query.device for x in operands.values()]):
        return "tensors are of several devices"
    if query.dtype not in _DTYPES or key.dtype != query.dtype or value.dtype != query.dtype:
        return f"the data types are {query.dtype}, {key.dtype} and {value.dtype}, expected one "\
               "of float64, float32, float16 and bfloat16"
    if ranks[0] not in (3, 4) or ranks != [ranks[0]] * 3:
        return f"the ranks are {ranks[0]}, {ranks[1]} and {ranks[2]}, expected 4, or 3"
    if any([dim == 0 for x in operands.values() for dim in x.shape]):
        return "a tensor is empty"
    if is_causal and attn_mask:
        return "both attn_mask and is_causal are given"
    if not 0 <= dropout_p < 1:
        return f"dropout_p is {dropout_p}, expected at least 0 and less than 1"
    if scale is not None and not 0 < abs(scale) < float("inf"):
        return f"scale is {scale}, expected a finite number other than 0"
    return _why_not_shapes(query, key, value, enable_gqa) or (_why_not_mask(query, key, *attn_mask) if attn_mask else None)


def _why_not_shapes(query, key, value, enable_gqa):
    batch = query.shape[0]
    if key.shape[0] != batch or value.shape[0] != batch:
        return "the batches differ"
    if key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        return "key and value do not go together with query"
    if len(query.shape) == 4:
        heads, of_key, of_value = query.shape[1], key.shape[1], value.shape[1]
        if of_key != of_value or (heads != of_key and not (enable_gqa and heads % of_key == 0)):
            return f"the heads are {heads}, {of_key} and {of_value}"
    return None


def _why_not_mask(query, key, attn_mask):
    if attn_mask.dtype is not torch.bool and attn_mask.dtype not in (torch.float32, query.dtype):
        return f"attn_mask has dtype {attn_mask.dtype} beside {query.dtype}"
    full = (*query.shape[:-1], key.shape[-2])
    if len(attn_mask.shape) > len(full) or any(
            [given != 1 and given != most for given, most in zip(reversed(attn_mask.shape), reversed(full), strict=False)]):
        return "attn_mask does not broadcast to the scores"
    return None


def _count(reason):
    """A call that was left for this reason; None: one that was served."""
    global _served
    with _lock:
        if reason is None:
            _served += 1
        elif reason in _left or len(_left) < _REASONS:
            _left[reason] += 1
        else:
            _left["other reasons"] += 1
