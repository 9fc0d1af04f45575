"""Scaled dot-product attention of tensors as one fused call, forward and backward, linear in memory.

Vaswani et al., "Attention Is All You Need", 2017; Dao, "FlashAttention-2", 2023.
"""

import torch

from heddle import _checks
from heddle.arrays import _attention_graph
from heddle.arrays._attention_graph import LAYOUTS, OP
from heddle.arrays._calls import LEAST_I32, MOST_I32, flag, one_of
from heddle.torch import _calls, _internals
from heddle.torch._attention_ops import attend


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, bias: torch.Tensor | None = None,
              mask: torch.Tensor | None = None, causal: bool | str = False,
              window: int | tuple[int | None, int | None] | None = None, scale: float | None = None,
              soft_cap: float | None = None, dropout: tuple | None = None, sink: torch.Tensor | None = None,
              q_lengths: torch.Tensor | None = None, kv_lengths: torch.Tensor | None = None,
              segment_ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None, return_lse: bool = False,
              deterministic: bool = False, layout: str = "BTNH") -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`heddle.attention` of tensors, differentiable once in q, k, v, bias and sink, by O and the log-sum-exp.

    Args: those of `heddle.attention`, and of dropout the seed and the offset may be tensors of one integer, on q's device.
    Under `torch.autocast` q, k and v are converted to its dtype. Where `torch.use_deterministic_algorithms` asks for it, a call is
    deterministic whatever it says.

    Returns: as `heddle.attention`, on q's device and its current stream.

    Raises:
      TypeError: an argument is no tensor or has another dtype.
      ValueError: shapes or devices do not go together, or a value is outside what is allowed.
      heddle.Error: no engine of the device runs it; the sentence says why.
      RuntimeError: a second derivative is taken.
    """
    given = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "sink": sink, "q_lengths": q_lengths, "kv_lengths": kv_lengths}
    if segment_ids is not None:
        given["q_segments"], given["kv_segments"] = _attention_graph.split_segments(segment_ids)
    probability, *words = _attention_graph.split_dropout(dropout)
    return_lse = flag(OP, "return_lse", return_lse)
    deterministic = flag(OP, "deterministic", deterministic) or torch.are_deterministic_algorithms_enabled()
    one_of(OP, "layout", layout, LAYOUTS)
    _calls.checked(OP, given)
    tensors = {name: x for name, x in given.items() if x is not None}
    if segment_ids is not None:
        _check_ids([tensors[name] for name in _attention_graph.SEGMENTS])
    _convert(tensors)
    config = _config(q.shape[-1] if q.dim() else 1, causal, tuple(window) if isinstance(window, list) else window, scale, soft_cap,
                     probability, deterministic)
    if config.dropout:
        tensors |= {name: _word(name, word, q.device) for name, word in zip(("seed", "offset"), words, strict=True)}
    found = attend(tensors, config, layout, return_lse)
    return found if return_lse else found[0]


@_calls.kept
def _config(dim, causal, window, scale, soft_cap, probability, deterministic):
    return _attention_graph.config(dim, causal=causal, window=window, scale=scale, soft_cap=soft_cap, probability=probability,
                                   deterministic=deterministic)


def _check_ids(tensors):
    """On a CPU, where looking at numbers waits for nothing."""
    if tensors[0].device.type != "cpu" or _internals.is_traced(tensors):
        return
    for ids in tensors:
        if ids.numel() > 0 and ids.dtype in (torch.int32, torch.int64):
            _attention_graph.check_ids(int(ids.min()), int(ids.max()))


def _convert(tensors):
    """Into types that graphs take, and q, k and v into autocast's."""
    if torch.is_autocast_enabled(tensors["q"].device.type):
        dtype = torch.get_autocast_dtype(tensors["q"].device.type)
        for name in "qkv":
            if tensors[name].is_floating_point():
                tensors[name] = tensors[name].to(dtype)
    for name, x in tensors.items():
        if x.dtype is torch.int64 and name in _attention_graph.READ_AS:
            tensors[name] = x.clamp(LEAST_I32, MOST_I32).to(torch.int32)
        elif name == "sink" and x.dtype in (torch.float16, torch.bfloat16):
            tensors[name] = x.to(torch.float32)


def _word(name, given, device):
    """The seed or offset of dropout as a graph takes it."""
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or given.dtype not in (torch.int32, torch.int64) or given.device != device:
            raise TypeError(f"{OP}: dropout's {name} is {given.dtype}{list(given.shape)} on {given.device}, expected one int32 "
                            f"or int64 on {device}.")
        return given.reshape(())
    return torch.full((), _checks.whole(f"{OP}: dropout's {name}", given), dtype=torch.int64, device=device)
