"""Rotary position embedding of tensors.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

import torch
from torch.library import custom_op

from heddle.arrays import _rope_graph
from heddle.arrays._calls import Ready
from heddle.arrays._rope_graph import OP, Config
from heddle.torch import _calls, _internals


def rope(x: torch.Tensor, angles: torch.Tensor | None = None, *, positions: torch.Tensor | None = None, base: float = 10000.0,
         rope_dim: int | None = None, leading: bool = False, output_scale: float = 1.0, pairing: str = "halves",
         layout: str = "BTNH") -> torch.Tensor:
    """`heddle.rope` of tensors, differentiable in x to any order.

    Args, returns: those of `heddle.rope`. On a GPU, where positions are not looked at, those without a row of angles have the
    nearest one.

    Raises:
      TypeError: an argument is no tensor or has another dtype, or angles require a gradient.
      ValueError: shapes or devices do not go together, or a value is outside what is allowed.
    """
    given = {"x": x, "angles": angles, "positions": positions}
    _calls.checked(OP, given)
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    config, base = _checked(_calls.described(tensors), base=base, rope_dim=rope_dim, leading=leading, output_scale=output_scale,
                            pairing=pairing, layout=layout)
    if angles is not None and angles.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{OP}: angles requires a gradient, which is only possible for x; pass angles.detach().")
    if x.numel() == 0:
        return x.clone()
    if angles is None:
        where = torch.arange(config.length, device=x.device) if positions is None else positions.reshape(-1)
        rates = base**(-2 * torch.arange(config.rope_dim // 2, device=x.device, dtype=torch.float64) / config.rope_dim)
        angles = where[:, None].to(torch.float32) * rates.to(torch.float32)
        if positions is not None:
            positions = torch.arange(positions.numel(), device=x.device).reshape(positions.shape)
    elif positions is not None and not positions.is_cuda and not torch.compiler.is_compiling():
        if not 0 <= int(positions.min()) <= int(positions.max()) < angles.shape[0]:
            raise ValueError(f"{OP}: positions are from {positions.min()} to {positions.max()}, expected each to have one of the "
                             f"{angles.shape[0]} rows of angles.")
    return _rotate(x, torch.cat([angles, angles], -1), positions, config, False)


@_calls.kept
def _checked(given, **options):
    return _rope_graph.check(_calls.inputs(OP, given, {"angles": "anyhow", "positions": "anyhow"}, {}).kinds, **options)


def _rotate(x, freqs, positions, config, backward):
    if _internals.is_traced((x, freqs)):
        return _op(x, freqs, positions, *config, backward)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotation.apply(x, freqs, positions, config, backward)
    return _run(x, freqs, positions, config, backward)


def _run(x, freqs, positions, config, backward):
    x, freqs = x.contiguous(), freqs.contiguous()
    y = torch.empty_like(x)
    operands = [x, freqs] if positions is None else [x, freqs, positions.contiguous()]
    with _calls.current(x):
        ready = _plan(config, backward, _calls.described(dict(zip(("x", "freqs", "positions"), operands, strict=False))))
        _calls.run(ready, [*operands, y])
    return y


@_calls.kept
def _plan(config, backward, given):
    inputs = _calls.inputs(OP, given, {}, {})
    x, freqs, positions = (inputs.kinds.get(name) for name in ("x", "freqs", "positions"))
    graph = _rope_graph.graph(config, backward, x, freqs, positions)
    return Ready(graph, inputs.device, len(given) + 1)


class _Rotation(torch.autograd.Function):
    """Its derivative turns the other way."""

    @staticmethod
    def forward(ctx, x, freqs, positions, config, backward):
        ctx.save_for_backward(freqs, positions)
        ctx.config, ctx.is_backward = config, backward
        return _run(x, freqs, positions, config, backward)

    @staticmethod
    def backward(ctx, d_y):
        return _rotate(_calls.gradient(OP, d_y), *ctx.saved_tensors, ctx.config, not ctx.is_backward), None, None, None, None


@custom_op("heddle::rope", mutates_args=())
def _op(x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor | None, rope_dim: int, leading: bool, output_scale: float,
        pairing: str, layout: str, length: int, batch: int, backward: bool) -> torch.Tensor:
    """x with its pairs rotated by freqs [P, rope_dim], or back."""
    return _run(x, freqs, positions, Config(rope_dim, leading, output_scale, pairing, layout, length, batch), backward)


@_op.register_fake
def _(x, freqs, positions, rope_dim, leading, output_scale, pairing, layout, length, batch, backward):
    return x.new_empty(x.shape)


def _keep(ctx, inputs, output):
    _, freqs, positions, *ctx.numbers, ctx.is_backward = inputs
    ctx.save_for_backward(freqs, positions)


def _differentiate(ctx, d_y):
    return _op(d_y, *ctx.saved_tensors, *ctx.numbers, not ctx.is_backward), *(None,) * 10


_op.register_autograd(_differentiate, setup_context=_keep)
_calls.one_by_one(_op)
