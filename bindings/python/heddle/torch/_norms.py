"""RMSNorm and LayerNorm of tensors, forward and backward.

Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019; Ba, Kiros and Hinton, "Layer Normalization", 2016.
"""

import torch
from torch.library import custom_op

from heddle.arrays import _norm_graph
from heddle.arrays._calls import Ready
from heddle.torch import _calls, _internals


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """`heddle.rms_norm` of tensors, differentiable once in x and weight; each gradient has its argument's dtype.

    Raises:
      TypeError: an argument is no tensor or has another dtype.
      ValueError: weight's shape is not that of x's last dims, eps is negative or not finite, or devices differ.
      RuntimeError: a second derivative is taken.
    """
    return _normalised("rms_norm", x, weight, None, eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5) -> torch.Tensor:
    """`heddle.layer_norm` of tensors, differentiable once in x, weight and bias; each gradient has its argument's dtype.

    Raises: as `rms_norm` does.
    """
    return _normalised("layer_norm", x, weight, bias, eps)


def _normalised(op, x, weight, bias, eps):
    _calls.checked(op, {"x": x, "weight": weight, "bias": bias})
    eps = _checked(op, _calls.described(_named(x, weight, bias)), eps)
    if x.numel() == 0 or weight.numel() == 1:  # no rows, or a mean over one element
        return _of_one_column(op, x, weight, bias, eps)
    if _internals.is_traced([x, weight] if bias is None else [x, weight, bias]):
        return _op(x, weight, bias, op, eps)[0]
    if torch.is_grad_enabled() and any([one is not None and one.requires_grad for one in (x, weight, bias)]):
        return _Norm.apply(x, weight, bias, op, eps)
    return _forward(op, x, weight, bias, eps, ())[0]


def _of_one_column(op, x, weight, bias, eps):
    wide = torch.promote_types(torch.float32, torch.promote_types(x.dtype, weight.dtype))
    x, y = x.to(wide), None
    if op == "rms_norm":
        y = x * torch.rsqrt(x * x + eps) * weight
    else:
        y = (x - x) * torch.rsqrt(x - x + eps) * weight + (0 if bias is None else bias.to(wide))
    return y.to(weight.dtype)


@_calls.kept
def _checked(op, given, eps):
    return _norm_graph.check(op, _calls.inputs(op, given, {}, {}).kinds, eps)[1]


def _named(x, weight, bias):
    return {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})


# ---- Forward and backward on memory.


def _forward(op, x, weight, bias, eps, wanted):
    """y and the statistics that are wanted."""
    operands = {name: one.contiguous() for name, one in _named(x, weight, bias).items()}
    rows = x.numel() // weight.numel()
    results = [torch.empty(x.shape, dtype=weight.dtype, device=x.device)]
    results += [torch.empty(rows, dtype=_wide(x), device=x.device) for _ in wanted]
    with _calls.current(x):
        ready = _forward_plan(op, eps, _calls.described(operands), wanted)
        _calls.run(ready, [*operands.values(), *results])
    return results


def _backward(op, d_y, x, weight, of_bias, statistics):
    """The gradients of x, weight and perhaps bias; the latter two in the type of sums."""
    operands = [one.contiguous() for one in (d_y, x, weight, *statistics)]
    results = [torch.empty(x.shape, dtype=x.dtype, device=x.device)]
    results += [torch.empty(weight.shape, dtype=dtype, device=x.device) for dtype in _sums(x, weight, of_bias)]
    names = ("dy", "x", "weight", *_norm_graph.statistics(op), "dx", "d_weight", "d_bias")
    with _calls.current(x):
        ready = _backward_plan(op, _calls.described(dict(zip(names, [*operands, *results], strict=False))))
        _calls.run(ready, [*operands, *results])
    return results


@_calls.kept
def _forward_plan(op, eps, given, wanted):
    inputs = _calls.inputs(op, given, {}, {})
    sizes, eps = _norm_graph.check(op, inputs.kinds, eps)
    dtypes = {name: kind.dtype for name, kind in inputs.kinds.items()}
    return Ready(_norm_graph.forward(op, sizes, eps, dtypes, wanted), inputs.device, len(given) + 1 + len(wanted))


@_calls.kept
def _backward_plan(op, given):
    inputs = _calls.inputs(op, given, {}, {})
    sizes, _ = _norm_graph.check(op, {name: inputs.kinds[name] for name in ("x", "weight")}, 0.0)
    return Ready(_norm_graph.backward(op, sizes, {name: kind.dtype for name, kind in inputs.kinds.items()}), inputs.device,
                 len(given))


def _wide(*tensors):
    return torch.float64 if any([x.dtype == torch.float64 for x in tensors]) else torch.float32


def _sums(x, weight, of_bias):
    """The types of the gradients of weight and bias; of_bias: the type of the bias if there is one."""
    wide = [_wide(x, weight)]
    return wide if of_bias is None else [*wide, torch.float64 if torch.float64 in (x.dtype, of_bias) else torch.float32]


# ---- Gradients, without torch's dispatcher and for it.


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, op, eps):
        y, *statistics = _forward(op, x, weight, bias, eps, _norm_graph.statistics(op))
        ctx.save_for_backward(x, weight, *statistics)
        ctx.op, ctx.of_bias = op, None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx, d_y):
        x, weight, *statistics = ctx.saved_tensors
        d_y = _calls.gradient(ctx.op, d_y)
        if _internals.is_traced([d_y]):  # several gradients at once
            bias = None if ctx.of_bias is None else weight.new_empty(weight.shape, dtype=ctx.of_bias)  # of which the type is read
            dx, d_weight, *d_bias = _op_backward(d_y, x, weight, bias, statistics, ctx.op)
        else:
            run = _Gradients.apply if torch.is_grad_enabled() else _backward
            dx, d_weight, *d_bias = run(ctx.op, d_y, x, weight, ctx.of_bias, statistics)
        return dx, d_weight.to(weight.dtype), d_bias[0].to(ctx.of_bias) if d_bias else None, None, None


class _Gradients(torch.autograd.Function):
    """The backward where its own derivative may be taken, which is refused then."""

    @staticmethod
    def forward(ctx, op, d_y, x, weight, of_bias, statistics):
        ctx.op = op
        return tuple(_backward(op, d_y, x, weight, of_bias, statistics))

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"{ctx.op}: a second derivative is taken, expected the first alone.")


@custom_op("heddle::norm", mutates_args=())
def _op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, op: str, eps: float) -> list[torch.Tensor]:
    """y, and the statistics of rows."""
    return _forward(op, x, weight, bias, eps, _norm_graph.statistics(op))


@_op.register_fake
def _(x, weight, bias, op, eps):
    rows = x.numel() // weight.numel()
    return [x.new_empty(x.shape, dtype=weight.dtype), *(x.new_empty(rows, dtype=_wide(x)) for _ in _norm_graph.statistics(op))]


@custom_op("heddle::norm_backward", mutates_args=())
def _op_backward(d_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                 statistics: list[torch.Tensor], op: str) -> list[torch.Tensor]:
    """The gradients of x, weight and perhaps bias."""
    return _backward(op, d_y, x, weight, None if bias is None else bias.dtype, statistics)


@_op_backward.register_fake
def _(d_y, x, weight, bias, statistics, op):
    sums = _sums(x, weight, None if bias is None else bias.dtype)
    return [x.new_empty(x.shape), *(x.new_empty(weight.shape, dtype=dtype) for dtype in sums)]


def _keep(ctx, inputs, output):
    x, weight, bias, ctx.op, _ = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, *([bias] if ctx.has_bias else []), *output[1:])


def _differentiate(ctx, gradients):
    x, weight, *rest = ctx.saved_tensors
    bias = rest.pop(0) if ctx.has_bias else None
    dx, d_weight, *d_bias = _op_backward(gradients[0], x, weight, bias, rest, ctx.op)
    return dx, d_weight.to(weight.dtype), d_bias[0].to(bias.dtype) if d_bias else None, None, None


_op.register_autograd(_differentiate, setup_context=_keep)
_calls.one_by_one(_op)
_calls.one_by_one(_op_backward)
