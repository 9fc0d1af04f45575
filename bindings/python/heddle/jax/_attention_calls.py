"""Attention as primitives, forward and backward: the graph each call runs, vmaps around it, and its cut over a mesh."""

from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from heddle.arrays._attention_graph import STATISTICS, attributes  # [B, N, T] here; d_lse is the log-sum-exp's gradient
from heddle.jax import _compat, _scores
from heddle.jax._graphs import Graph, row_major
from heddle.jax._primitives import joint, one_by_one

ROWS = ("q", "k", "v", "o", "d_o")  # [B, length, heads, dim], or as the layout says
BATCHED = ("q_lengths", "kv_lengths")  # [B]
SCALARS = ("seed", "offset")


class Config(NamedTuple):
    """All of a call that is known when it is traced.

    operands: the names of the forward's operands, in order. Beside those of ROWS, BATCHED, SCALARS and STATISTICS there
    are "sink" [N], "streams" [B, N], and loads of the score: "bias", "mask", "q_segments" and "kv_segments", and
    "load0"... of a user's score, each [B or 1, N or 1, T or 1, S or 1].
    wanted: what the backward is to give, of "q", "k", "v", "bias" and "sink".
    wide: whether O, or dQ, dK and dV, are to be f32, because they will be summed.
    apart: whether the forward gives, and the backward takes, "max" and "sum_exp" in place of "lse".
    of_lse: whether the backward is given "d_lse", the gradient of the log-sum-exp.
    whole: whether the statistics the backward is given are of the call's keys and no others.
    """

    operands: tuple
    layout: str
    scale: float
    soft_cap: float | None = None
    left: int | None = None
    right: int | None = None
    bottom_right: bool = False
    dropout: float = 0.0
    score: _scores.Program | None = None
    deterministic: bool = False
    wanted: tuple = ()
    wide: bool = False
    apart: bool = False
    of_lse: bool = False
    whole: bool = False

    @property
    def statistics(self):
        """What the forward pass leaves of a row beside O."""
        return ("max", "sum_exp") if self.apart else ("lse",)

    @property
    def names(self):
        """The operands of the backward if something is wanted, else of the forward."""
        given = ("o", *self.statistics, "d_o") + (("d_lse",) if self.of_lse else ())
        return self.operands + given if self.wanted else self.operands

    @property
    def results(self):
        """The names of what the call gives."""
        return self.wanted or ("o", *self.statistics)

    def axis(self, what):
        """Which dim of a row operand is its length, or its heads."""
        return {"length": 1, "heads": 2}[what] if self.layout == "BTNH" else {"length": 2, "heads": 1}[what]

    def extents(self, q, k):
        """(N, T, S) of the shapes of q and k, leading dims or none."""
        length, heads = self.axis("length") - 4, self.axis("heads") - 4
        return q[heads], q[length], k[length]

    def rows(self, heads, length, dim):
        """The dims of a row operand after its batch."""
        return (length, heads, dim) if self.layout == "BTNH" else (heads, length, dim)


def keeps_apart(config, dtype):
    """Whether the backward of a call on q of this type is given each row's maximum and sum apart.

    Their log-sum-exp is one f32: beside a maximum of 1e9, as additive masks make it, it holds nothing of the sum, beside
    1e3 four digits. Scores of 16-bit products alone are no more exact than that.
    """
    return dtype in (jnp.float64, jnp.float32) or "bias" in config.operands or config.score is not None


def at_least_f32(dtype):
    """The type of statistics, and of sums of gradients, of a call on q of this type: float64 beside float64."""
    return jnp.promote_types(dtype, jnp.float32)


def log_sum_exp(statistics):
    """The log-sum-exp of what the forward pass leaves of a row."""
    if len(statistics) == 1:
        return statistics[0]
    largest, total = statistics
    return largest + jnp.log(total)


# ---- Types.


def _named(config, arrays):
    return dict(zip(config.names, arrays))


def _forward_results(config, leading, *avals):
    named, lead = _named(config, avals), joint(leading, avals)
    q, v = named["q"].shape, named["v"].shape
    n, t, _ = config.extents(q, named["k"].shape)
    return [_compat.shaped(lead + q[leading:leading + 1] + config.rows(n, t, v[-1]), _o_type(config, named), avals),
            *(_compat.shaped(lead + (q[leading], n, t), at_least_f32(named["q"].dtype), avals) for _ in config.statistics)]


def _o_type(config, named):
    return at_least_f32(named["q"].dtype) if config.wide else named["q"].dtype


def gradient_type(config, name, dtype):
    """The type in which the backward gives the gradient of an operand of this type."""
    return at_least_f32(dtype) if name in ("bias", "sink") or config.wide else dtype


def _backward_results(config, leading, *avals):
    named, lead = _named(config, avals), joint(leading, avals)
    return [_compat.shaped(lead + named[name].shape[leading:], gradient_type(config, name, named[name].dtype), avals)
            for name in config.wanted]


# ---- Leading dims: folded into the batch where a graph can say that, else run one by one.


def _fold(config, leading, lead, named):
    """The operands without leading dims, their batch [prod(lead) * B] or shared; None if one call cannot say that."""
    many = prod(lead)
    batch = named["q"].shape[leading]
    folded = {}
    for name, x in named.items():
        body = x.shape[leading:]
        shared, whole = all(d == 1 for d in x.shape[:leading]), x.shape[:leading] == lead
        if name in BATCHED or name in STATISTICS or name in ("streams", "o", "d_o"):
            x = jnp.broadcast_to(x, lead + body).reshape(many * body[0], *body[1:])
        elif name in SCALARS or name == "sink":
            if not shared or (name in config.wanted and many > 1):
                return None
            x = x.reshape(body)
        elif shared and (many == 1 or body[0] == 1) and not (name == "bias" and "bias" in config.wanted and many > 1):
            x = x.reshape(body)
        elif whole and body[0] == batch:
            x = x.reshape(many * body[0], *body[1:])
        else:
            return None
        folded[name] = x
    return folded, many * batch


def _run(config, leading, platform, *operands):
    lead = joint(leading, operands)
    fold = _fold(config, leading, lead, _named(config, operands))
    if fold is None:
        return one_by_one(partial(_run, config, leading - 1, platform), operands)
    named, batch = fold
    found = _graph_results(config, named, batch, platform)
    expected = _backward_results if config.wanted else _forward_results
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    return [x.reshape(aval.shape) for x, aval in zip(found, expected(config, leading, *avals))]


# ---- The graph.


def _row_tensor(config, batch, shape):
    """Dims [B, heads, length, dim] and strides of a row operand; one that the batch shares has stride 0."""
    strides = row_major(shape)
    order = (0, config.axis("heads"), config.axis("length"), 3)
    dims, strides = [shape[i] for i in order], [strides[i] for i in order]
    if dims[0] != batch:
        dims[0], strides[0] = batch, 0
    return dims, strides


def _operand(config, graph, name, x, batch):
    if name in ROWS:
        return graph.operand(name, x.dtype, *_row_tensor(config, batch, x.shape))
    if name in STATISTICS:
        return graph.operand(name, x.dtype, (*x.shape, 1))
    dims = {"sink": lambda: (1, x.size, 1, 1), "streams": lambda: (*x.shape, 1, 1), "seed": lambda: (1, 1, 1, 1),
            "offset": lambda: (1, 1, 1, 1), "q_lengths": lambda: (batch, 1, 1, 1), "kv_lengths": lambda: (batch, 1, 1, 1)}
    return graph.operand(name, x.dtype, dims.get(name, lambda: x.shape)())


def _attributes(config, graph, uids):
    """The attributes that forward and backward share."""
    captures = [uids[f"load{i}"] for i in range(config.score.captures)] if config.score else ()
    change = partial(_scores.apply, config.score, captures) if config.score else None
    return attributes(config, graph, uids, change)


def _graph_results(config, named, batch, platform):
    """What the graph gives, each of the dims it has in memory."""
    graph = Graph("attention backward" if config.wanted else "attention")
    uids = {name: _operand(config, graph, name, x, batch) for name, x in named.items()}
    q, k, v = (named[name].shape for name in "qkv")
    n, t, _ = config.extents(q, k)
    if config.wanted:
        ports = {}
        for name in config.wanted:
            shape = named[name].shape
            if name in ROWS:
                tensor = _row_tensor(config, batch, (batch, *shape[1:]))
            else:
                tensor = ((1, n, 1, 1) if name == "sink" else shape,)
            ports[f"d_{name}"] = graph.result(f"d_{name}", gradient_type(config, name, named[name].dtype), *tensor)
        statistics = {STATISTICS[name]: uids[name] for name in config.names if name in STATISTICS}
        graph.node("sdpa_backward", q=uids["q"], k=uids["k"], v=uids["v"], o=uids["o"], d_o=uids["d_o"],
                   **statistics, **ports, deterministic=config.deterministic or None, whole_rows=config.whole or None,
                   **_attributes(config, graph, uids))
    else:
        o = graph.result("o", _o_type(config, named), *_row_tensor(config, batch, (batch, *config.rows(n, t, v[-1]))))
        statistics = {STATISTICS[name]: graph.result(STATISTICS[name], at_least_f32(named["q"].dtype), (batch, n, t, 1))
                      for name in config.statistics}
        graph.node("sdpa", q=uids["q"], k=uids["k"], v=uids["v"], o=o, **statistics, **_attributes(config, graph, uids))
    return graph.run(tuple(named.values()), platform)
