"""Attention as an operator of torch, with gradients, under torch.compile too."""

import math
from contextlib import nullcontext

import torch
from torch.library import custom_op

from heddle import _checks
from heddle.cudnn._handle import create_handle, set_stream
from heddle.cudnn._pygraph import pygraph
from heddle.cudnn._types import data_type, diagonal_alignment, heur_mode

__all__ = ["scaled_dot_product_attention"]

# Of all that a graph is made of -> the graph.
_fprop_cache: dict[tuple, pygraph] = {}
_bprop_cache: dict[tuple, pygraph] = {}
_FORWARD, _BACKWARD = ("q", "k", "v"), ("q", "k", "v", "o", "d_o", "stats")
_EXTRAS = ("seq_len_q", "seq_len_kv", "cumulative_seq_len_q", "cumulative_seq_len_kv")


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
                                 scale: float | None = None, enable_gqa: bool = False, *, diagonal_alignment: int = 0,
                                 left_bound: int = -1, right_bound: int = -1, seq_len_q: torch.Tensor | None = None,
                                 seq_len_kv: torch.Tensor | None = None, cumulative_seq_len_q: torch.Tensor | None = None,
                                 cumulative_seq_len_kv: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(scale Q K^T, masked) V of query [B, Hq, Sq, D], key [B, Hk, Skv, D] and value [B, Hv, Skv, Dv]: [B, Hq, Sq, Dv].

    scale: 1 / sqrt(D) if not given. enable_gqa: query heads may share heads of key and value. diagonal_alignment: 0 top
    left, 1 bottom right. left_bound, right_bound: of the band of keys that a row sees, -1 for none; is_causal is a
    right_bound of 0. seq_len_q, seq_len_kv: INT32 [B, 1, 1, 1], both. cumulative_seq_len_q, cumulative_seq_len_kv: INT32 or
    INT64 [B+1, 1, 1, 1], the elements of packed query (and of the result), and of packed key and value, at which sequences
    begin and the last ends; they take lengths too.

    Raises NotImplementedError for a mask and for dropout, which graphs have (cudnn.pygraph.sdpa).
    """
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is given, which this operator has not; a graph's sdpa takes it as its bias.")
    if _checks.number("dropout_p", dropout_p) != 0:
        raise NotImplementedError(f"dropout_p is {dropout_p}, expected 0; a graph's sdpa has dropout.")
    for what, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what} is of type {type(tensor).__name__}, expected a torch.Tensor.")
        if tensor.dim() != 4:
            raise ValueError(f"{what} has {tensor.dim()} dims, expected 4: batch, heads, length, head dim.")
    if not enable_gqa and not query.shape[1] == key.shape[1] == value.shape[1]:
        raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[1]} and value {value.shape[1]}, expected as many of "
                         "each, or enable_gqa=True.")
    if diagonal_alignment not in (0, 1):
        raise ValueError(f"diagonal_alignment is {diagonal_alignment!r}, expected 0 (top left) or 1 (bottom right).")
    if (seq_len_q is None) != (seq_len_kv is None):
        raise ValueError("One of seq_len_q and seq_len_kv is given, expected both or neither.")
    packed = cumulative_seq_len_q is not None or cumulative_seq_len_kv is not None
    if packed and seq_len_q is None:
        raise ValueError("Packed sequences are given without seq_len_q and seq_len_kv, expected their lengths.")
    if cumulative_seq_len_q is not None and query.shape[3] != value.shape[3]:
        raise ValueError(f"The packed query has head dim {query.shape[3]} and value {value.shape[3]}, expected the same, as the "
                         "result begins where the query does.")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else _checks.number("scale", scale)
    return _sdpa(query, key, value, scale, bool(is_causal), diagonal_alignment, _checks.whole("left_bound", left_bound),
                 _checks.whole("right_bound", right_bound), seq_len_q, seq_len_kv, cumulative_seq_len_q,
                 cumulative_seq_len_kv)[0]


@custom_op("heddle::sdpa", mutates_args=())
def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, alignment: int, left: int, right: int,
          seq_len_q: torch.Tensor | None, seq_len_kv: torch.Tensor | None, cumulative_seq_len_q: torch.Tensor | None,
          cumulative_seq_len_kv: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """O and Stats."""
    given = dict(zip(_FORWARD, (_read(q), _read(k), _read(v)), strict=True)) | dict(zip(_EXTRAS, (
        seq_len_q, seq_len_kv, cumulative_seq_len_q, cumulative_seq_len_kv), strict=True))
    o, stats = _empty_results(q, v, cumulative_seq_len_q)
    _run(_fprop_cache, "sdpa", given, {"o": o, "stats": stats}, (scale, causal, alignment, left, right, False))
    return o, stats


@_sdpa.register_fake
def _(q, k, v, scale, causal, alignment, left, right, seq_len_q, seq_len_kv, cumulative_seq_len_q, cumulative_seq_len_kv):
    return _empty_results(q, v, cumulative_seq_len_q)


@custom_op("heddle::sdpa_backward", mutates_args=())
def _sdpa_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, d_o: torch.Tensor, stats: torch.Tensor,
                   scale: float, causal: bool, alignment: int, left: int, right: int, seq_len_q: torch.Tensor | None,
                   seq_len_kv: torch.Tensor | None, cumulative_seq_len_q: torch.Tensor | None,
                   cumulative_seq_len_kv: torch.Tensor | None,
                   deterministic: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV."""
    given = dict(zip(_BACKWARD, (_read(q), _read(k), _read(v), o, _read(d_o), stats), strict=True))
    given |= dict(zip(_EXTRAS, (seq_len_q, seq_len_kv, cumulative_seq_len_q, cumulative_seq_len_kv), strict=True))
    gradients = _empty_gradients(q, k, v, cumulative_seq_len_q, cumulative_seq_len_kv)
    _run(_bprop_cache, "sdpa_backward", given, dict(zip(("d_q", "d_k", "d_v"), gradients, strict=True)),
         (scale, causal, alignment, left, right, deterministic))
    return gradients


@_sdpa_backward.register_fake
def _(q, k, v, o, d_o, stats, scale, causal, alignment, left, right, seq_len_q, seq_len_kv, cumulative_seq_len_q,
      cumulative_seq_len_kv, deterministic):
    return _empty_gradients(q, k, v, cumulative_seq_len_q, cumulative_seq_len_kv)


def _keep(ctx, inputs, output):
    q, k, v, *ctx.numbers = inputs[:8]
    ctx.save_for_backward(q, k, v, *output, *(x for x in inputs[8:] if x is not None))
    ctx.present = [x is not None for x in inputs[8:]]


def _gradients(ctx, d_o, _):
    q, k, v, o, stats, *more = ctx.saved_tensors
    extras = [more.pop(0) if present else None for present in ctx.present]
    made = _sdpa_backward(q, k, v, o, d_o, stats, *ctx.numbers, *extras, torch.are_deterministic_algorithms_enabled())
    return *made, *[None] * 9


_sdpa.register_autograd(_gradients, setup_context=_keep)


def _read(x):
    """Operands are read where they lie, but for rows that are not one element beside the next."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _packed(x, dims):
    """Memory of a packed tensor: rows of all heads one after the other, 0 outside the sequences."""
    b, h, s, d = dims
    return x.new_zeros((b, s, h, d)).transpose(1, 2)


def _empty_results(q, v, cumulative):
    dims = (*q.shape[:3], v.shape[3])
    o = q.new_empty(dims) if cumulative is None else _packed(q, dims)
    return o, q.new_empty((*q.shape[:3], 1), dtype=torch.float32)


def _empty_gradients(q, k, v, cumulative_q, cumulative_kv):
    return tuple(x.new_empty(x.shape) if cumulative is None else _packed(x, x.shape)
                 for x, cumulative in ((q, cumulative_q), (k, cumulative_kv), (v, cumulative_kv)))


def _run(cache, op, given, results, numbers):
    """Finds or makes the graph, and runs it on the current stream of the tensors' device."""
    device = given["q"].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _run_here(cache, op, given, results, numbers)


def _run_here(cache, op, given, results, numbers):
    given = {name: x for name, x in given.items() if x is not None}
    key = (op, numbers, given["q"].device, *((name, x.shape, x.stride(), x.dtype) for name, x in (given | results).items()))
    graph = cache.get(key)
    device = given["q"].device
    handle = create_handle(device="cpu" if device.type == "cpu" else "cuda")
    if handle.device == "cuda":
        set_stream(handle, torch.cuda.current_stream(device).cuda_stream)
    if graph is None:
        graph = cache[key] = _build(op, given, results, numbers, handle)
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=device)
    graph.execute(dict(enumerate((given | results).values())), workspace, handle)


def _build(op, given, results, numbers, handle):
    scale, causal, alignment, left, right, deterministic = numbers
    graph = pygraph(io_data_type=given["q"].dtype, intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT,
                    handle=handle)
    tensors = {name: graph.tensor(dim=x.shape, stride=x.stride(), data_type=x.dtype, uid=uid, name=name)
               for uid, (name, x) in enumerate(given.items())}
    offsets = {name: tensors.get("cumulative_seq_len_q") for name in ("q", "o", "d_o", "d_q")}
    offsets |= {name: tensors.get("cumulative_seq_len_kv") for name in ("k", "v", "d_k", "d_v")}
    for name, tensor in tensors.items():
        tensor.set_ragged_offset(offsets.get(name))
    lengths = {name: tensors[name] for name in ("seq_len_q", "seq_len_kv") if name in tensors}
    asked = {"attn_scale": scale, "use_padding_mask": bool(lengths), **lengths,
             "diagonal_alignment": diagonal_alignment(alignment), "diagonal_band_left_bound": left if left >= 0 else None,
             "diagonal_band_right_bound": right if right >= 0 else 0 if causal else None}
    if op == "sdpa":
        made = graph.sdpa(*(tensors[name] for name in _FORWARD), generate_stats=True, **asked)
    else:
        made = graph.sdpa_backward(*(tensors[name] for name in _BACKWARD), use_deterministic_algorithm=deterministic, **asked)
    for uid, (tensor, (name, x)) in enumerate(zip(made, results.items(), strict=True), len(given)):
        tensor.set_output(True).set_uid(uid).set_dim(x.shape).set_stride(x.stride()).set_data_type(x.dtype)
        tensor.set_ragged_offset(offsets.get(name))
    graph.build([heur_mode.A, heur_mode.FALLBACK])
    return graph
