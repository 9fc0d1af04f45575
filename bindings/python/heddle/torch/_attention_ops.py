"""Attention as operators of torch, forward and backward, with gradients.

`heddle::attention` and `heddle::attention_backward` are what compiled programs hold. Where nothing traces, the same
functions are called without torch's dispatcher, whose way to a Python operator takes ten times a small call.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.library import custom_op

from heddle.arrays import _attention_graph
from heddle.arrays._attention_graph import DIFFERENTIABLE, LAID, OP, STATISTICS, Call, Config
from heddle.torch import _calls, _internals

OPERANDS = ("q", "k", "v", "bias", "mask", "sink", "q_lengths", "kv_lengths", "q_segments", "kv_segments", "seed", "offset")
_NUMBERS = len(Config._fields) + 3  # of a call, behind its operands
_Optional = torch.Tensor | None
_TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def attend(operands: dict[str, torch.Tensor], config: Config, layout: str, with_lse: bool) -> tuple:
    """O and, with_lse, the log-sum-exp, else what stands in its place. Operands are the caller's tensors."""
    keeps = torch.is_grad_enabled() and any([name in operands and operands[name].requires_grad for name in DIFFERENTIABLE])
    if _internals.is_traced(operands.values()):
        if not torch.compiler.is_compiling():  # inside of vmap a tensor does not say whether it requires a gradient
            keeps = torch.is_grad_enabled()
        return _attention(*map(operands.get, OPERANDS), *config, layout, with_lse, keeps)[:2]
    if keeps:
        return _Attention.apply(config, layout, with_lse, *map(operands.get, OPERANDS))[:2]
    return _forward(operands, config, layout, with_lse, keeps)[:2]


def planned(given: tuple, config: Config, layout: str, wanted: Sequence[str]) -> tuple[Call, dict]:
    """The forward's call, once it is known that the engine also runs the backward for gradients of `wanted`.

    given: operands as `_calls.described` has them, seed and offset left out. Raises heddle.Error where none runs it.
    """
    if config.dropout:
        given += tuple([(name, torch.int64, (), (), given[0][4]) for name in ("seed", "offset")])
    of_bias = any(name == "bias" for name, *_ in given)
    statistics = _attention_graph.statistics(_calls.DTYPES[given[0][1]], of_bias) if wanted else ()
    call, copies = forward_call(given, config, layout, statistics)
    if wanted:
        o, *rows = call.results.values()
        device = given[0][4]
        more = [(name, given[0][1], o.dims, o.strides, device) for name in ("o", "d_o")]
        more += [(name, _TYPES[kind.dtype], kind.dims, kind.strides, device) for name, kind in zip(statistics, rows, strict=True)]
        backward_call((*given, *more), config, layout, tuple(wanted))
    return call, copies


# ---- Forward and backward on memory.


def _forward(operands, config, layout, with_lse, keeps):
    """O, the log-sum-exp, and each row's maximum and sum; None for what is not wanted."""
    apart = keeps and len(_statistics(operands["q"], operands.get("bias"))) == 2
    wanted = ("max", "sum_exp") if apart else ("lse",) if keeps or with_lse else ()
    q = operands["q"]
    with _calls.current(q):
        call, copies = forward_call(_calls.described(operands), config, layout, wanted)
        o, *statistics = run(call, copies, operands)
    if not wanted:
        return o, None, None, None
    if not apart:
        return o, statistics[0], None, None
    largest, total = statistics
    return o, largest + total.log() if with_lse else None, largest, total


def _backward(gradients, saved, operands, config, layout, wanted):
    """The gradients of q, k, v, bias and sink that are wanted, in a list; those of bias and sink are f32, or f64."""
    d_o, d_lse = gradients
    operands = operands | {"o": saved[0], "d_o": d_o}
    operands |= {name: x for name, x in zip(("lse", "max", "sum_exp"), saved[1:], strict=True) if x is not None}
    if "max" in operands:
        operands.pop("lse", None)
    if d_lse is not None:
        operands["d_lse"] = d_lse
    with _calls.current(d_o):
        call, copies = backward_call(_calls.described(operands), config, layout, wanted)
        return run(call, copies, operands)


def run(call: Call, copies: Mapping[str, str], operands: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call that `forward_call` or `backward_call` gave, of these operands, which nothing traces."""
    q = operands["q"]
    results = [q.new_empty(kind.dims, dtype=_TYPES[kind.dtype]) for kind in call.results.values()]
    if call.ready is None:
        for name, x in zip(call.results, results, strict=True):
            x.copy_(_of_nothing(name, x, operands))
        return results
    if copies:
        operands = {name: x.contiguous() if name in copies else x for name, x in operands.items()}
    if not call.full_lengths and "seed" not in operands:
        _calls.run(call.ready, [*operands.values(), *results])
        return results
    words = [operands[name] for name in ("seed", "offset") if name in operands]
    lengths = [torch.full((call.batch,), length, dtype=torch.int32, device=q.device) for length in call.full_lengths]
    of_forward = [x for name, x in operands.items() if name in OPERANDS[:-2]]
    of_backward = [x for name, x in operands.items() if name not in OPERANDS]
    _calls.run(call.ready, [*of_forward, *lengths, *words, *of_backward, *results])
    return results


def _of_nothing(name, result, operands):
    """A result of rows without keys, broadcast: a sink is all that their sums have, of rows that are there."""
    q, sink, d_lse, lengths = (operands.get(name) for name in ("q", "sink", "d_lse", "q_lengths"))
    if name == "d_sink" and d_lse is not None:
        of_rows = d_lse if lengths is None else d_lse.where(_there(lengths, d_lse), 0)
        return of_rows.sum([n for n in range(d_lse.dim()) if n != d_lse.dim() - 2])
    if name not in ("lse", "max", "sum_exp"):
        return q.new_zeros(())
    of_none = result.new_full((), 0 if name == "sum_exp" else -torch.inf)
    if sink is None:
        return of_none
    of_sink = result.new_ones(()) if name == "sum_exp" else sink[:, None].to(result.dtype)
    return of_sink if lengths is None else torch.where(_there(lengths, result), of_sink, of_none)


def _there(lengths, rows):
    """Which rows of [B, N, T], or [N, T], are before their lengths."""
    return torch.arange(rows.shape[-1], device=rows.device) < lengths.reshape(*rows.shape[:-2], 1, 1)


def _at_least_f32(dtype):
    return torch.promote_types(dtype, torch.float32)


def _statistics(q, bias):
    return _attention_graph.statistics(_calls.DTYPES.get(q.dtype), bias is not None)


# ---- Plans, kept by all that they are made of.


@_calls.kept
def forward_call(given: tuple, config: Config, layout: str, wanted: tuple) -> tuple[Call, dict]:
    """The call, and which operands it takes as copies. Raises heddle.Error where no engine of the device runs it."""
    inputs = _calls.inputs(OP, given, LAID, {})
    return _attention_graph.forward_call(inputs.device, inputs.kinds, config, layout, wanted), inputs.copies


@_calls.kept
def backward_call(given: tuple, config: Config, layout: str, wanted: tuple) -> tuple[Call, dict]:
    """As forward_call."""
    inputs = _calls.inputs(OP, given, LAID | dict.fromkeys(STATISTICS, "anyhow"), {})
    return _attention_graph.backward_call(inputs.device, inputs.kinds, config, layout, wanted), inputs.copies


# ---- Gradients, for torch's dispatcher and without it.


def _keep(ctx, operands, config, layout, keeps, output):
    ctx.set_materialize_grads(False)
    ctx.config, ctx.layout, ctx.keeps, ctx.given = config, layout, keeps, [x is not None for x in operands]
    ctx.of_output = [x is not None for x in output]
    ctx.save_for_backward(*[x for x in operands if x is not None], *[x for x in output if x is not None])


def _saved(ctx, first):
    """Operands, of which `first` is the first one's place among the arguments, by name; O and the statistics; what is wanted."""
    if not ctx.keeps:
        raise RuntimeError(f"{OP}: a gradient is wanted of a call whose operands asked for none, expected a tensor with "
                           "requires_grad among q, k, v, bias and sink.")
    tensors = list(ctx.saved_tensors)
    operands = {name: tensors.pop(0) for name, given in zip(OPERANDS, ctx.given, strict=True) if given}
    saved = [tensors.pop(0) if given else None for given in ctx.of_output]
    needed = zip(OPERANDS, ctx.needs_input_grad[first:first + len(OPERANDS)], strict=True)
    return operands, saved, tuple([name for name, one in needed if one and name in DIFFERENTIABLE])


def _placed(operands, wanted, found):
    """The gradients, each in the place of its argument."""
    gradients = dict(zip(wanted, found, strict=True))
    return [gradients[name].to(operands[name].dtype) if name in gradients else None for name in OPERANDS]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, config, layout, with_lse, *given):
        operands = {name: x for name, x in zip(OPERANDS, given, strict=True) if x is not None}
        output = _forward(operands, config, layout, with_lse, True)
        _keep(ctx, given, config, layout, True, output)
        ctx.mark_non_differentiable(*[x for x in output[2:] if x is not None])
        return output

    @staticmethod
    def backward(ctx, d_o, d_lse, *_):
        operands, saved, wanted = _saved(ctx, 3)
        if d_o is None and d_lse is None:
            return (None,) * (3 + len(OPERANDS))
        d_o = torch.zeros_like(saved[0]) if d_o is None else _calls.gradient(OP, d_o)
        d_lse = None if d_lse is None else _calls.gradient(OP, d_lse)
        if _internals.is_traced([d_o] if d_lse is None else [d_o, d_lse]):  # several gradients at once
            found = _by_operator(d_o, d_lse, saved, operands, ctx.config, ctx.layout, wanted)
        elif torch.is_grad_enabled():
            found = _Gradients.apply(saved, operands, ctx.config, ctx.layout, wanted, d_o, d_lse, *operands.values())
        else:
            found = _backward((d_o, d_lse), saved, operands, ctx.config, ctx.layout, wanted)
        return None, None, None, *_placed(operands, wanted, found)


class _Gradients(torch.autograd.Function):
    """The backward where its own derivative may be taken, which is refused then."""

    @staticmethod
    def forward(ctx, saved, operands, config, layout, wanted, d_o, d_lse, *_):
        return tuple(_backward((d_o, d_lse), saved, operands, config, layout, wanted))

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"{OP}: a second derivative is taken, expected the first alone.")


@custom_op("heddle::attention", mutates_args=())
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: _Optional, mask: _Optional, sink: _Optional,
               q_lengths: _Optional, kv_lengths: _Optional, q_segments: _Optional, kv_segments: _Optional, seed: _Optional,
               offset: _Optional, scale: float, soft_cap: float | None, left: int | None, right: int | None,
               bottom_right: bool, dropout: float, deterministic: bool, layout: str, with_lse: bool,
               keeps: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """O, the log-sum-exp, and each row's maximum and sum; what is not wanted is empty."""
    given = (q, k, v, bias, mask, sink, q_lengths, kv_lengths, q_segments, kv_segments, seed, offset)
    config = Config(scale, soft_cap, left, right, bottom_right, dropout, deterministic)
    operands = {name: x for name, x in zip(OPERANDS, given, strict=True) if x is not None}
    found = _forward(operands, config, layout, with_lse, keeps)
    return tuple(torch.empty(0, device=q.device) if x is None else x for x in found)


@_attention.register_fake
def _(q, k, v, bias, mask, sink, q_lengths, kv_lengths, q_segments, kv_segments, seed, offset, scale, soft_cap, left, right,
      bottom_right, dropout, deterministic, layout, with_lse, keeps):
    heads, length = (-2, -3) if layout == "BTNH" else (-3, -2)
    rows = (*q.shape[:-3], q.shape[heads], q.shape[length])
    apart = keeps and len(_statistics(q, bias)) == 2
    wanted = (with_lse or (keeps and not apart), apart, apart)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), *(
        q.new_empty(rows if one else (0,), dtype=_at_least_f32(q.dtype)) for one in wanted)


@custom_op("heddle::attention_backward", mutates_args=())
def _attention_backward(d_o: torch.Tensor, d_lse: _Optional, o: torch.Tensor, lse: torch.Tensor, largest: torch.Tensor,
                        total: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: _Optional,
                        mask: _Optional, sink: _Optional, q_lengths: _Optional, kv_lengths: _Optional,
                        q_segments: _Optional, kv_segments: _Optional, seed: _Optional, offset: _Optional, scale: float,
                        soft_cap: float | None, left: int | None, right: int | None, bottom_right: bool, dropout: float,
                        deterministic: bool, layout: str, wanted: list[bool]) -> list[torch.Tensor]:
    """The gradients of q, k, v, bias and sink that are wanted; those of bias and sink are f32, or f64."""
    given = (q, k, v, bias, mask, sink, q_lengths, kv_lengths, q_segments, kv_segments, seed, offset)
    config = Config(scale, soft_cap, left, right, bottom_right, dropout, deterministic)
    operands = {name: x for name, x in zip(OPERANDS, given, strict=True) if x is not None}
    apart = len(_statistics(q, bias)) == 2
    saved = (o, None, largest, total) if apart else (o, lse, None, None)
    names = tuple(name for name, one in zip(DIFFERENTIABLE, wanted, strict=True) if one)
    return _backward((d_o, d_lse), saved, operands, config, layout, names)


@_attention_backward.register_fake
def _(d_o, d_lse, o, lse, largest, total, q, k, v, bias, mask, sink, q_lengths, kv_lengths, q_segments, kv_segments, seed,
      offset, scale, soft_cap, left, right, bottom_right, dropout, deterministic, layout, wanted):
    given = dict(zip(DIFFERENTIABLE, (q, k, v, bias, sink), strict=True))
    return [x.new_empty(x.shape, dtype=_at_least_f32(x.dtype) if name in ("bias", "sink") else x.dtype)
            for (name, x), one in zip(given.items(), wanted, strict=True) if one]


def _by_operator(d_o, d_lse, saved, operands, config, layout, wanted):
    """`_backward` through torch's dispatcher."""
    rows = [saved[0].new_empty(0) if x is None else x for x in saved[1:]]
    return _attention_backward(d_o, d_lse, saved[0], *rows, *map(operands.get, OPERANDS), *config, layout,
                               [name in wanted for name in DIFFERENTIABLE])


def _keep_inputs(ctx, inputs, output):
    *config, layout, _, keeps = inputs[len(OPERANDS):]
    _keep(ctx, inputs[:len(OPERANDS)], Config(*config), layout, keeps, output)


def _differentiate(ctx, d_o, d_lse, *_):
    operands, saved, wanted = _saved(ctx, 0)
    if d_o is None and d_lse is None:
        return (None,) * (len(OPERANDS) + _NUMBERS)
    d_o = torch.zeros_like(saved[0]) if d_o is None else d_o
    found = _by_operator(d_o, d_lse, saved, operands, ctx.config, ctx.layout, wanted)
    return *_placed(operands, wanted, found), *(None,) * _NUMBERS


_attention.register_autograd(_differentiate, setup_context=_keep_inputs)
_calls.one_by_one(_attention)
_calls.one_by_one(_attention_backward)
