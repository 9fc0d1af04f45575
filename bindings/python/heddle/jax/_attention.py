"""Scaled dot-product attention as one fused call, forward and backward, linear in memory.

Vaswani et al., "Attention Is All You Need", 2017; Dao, "FlashAttention-2", 2023.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from heddle.arrays import _attention_graph
from heddle.arrays._calls import LEAST_I32, MOST_I32
from heddle.jax import _attention_mesh, _checks, _compat, _mesh, _scores
from heddle.jax._attention_calls import Config, at_least_f32, keeps_apart, log_sum_exp

OP = "attention"
LAYOUTS = ("BTNH", "BNTH")
DIFFERENTIABLE = ("q", "k", "v", "bias", "sink")


# ---- The differentiable call. Operands are a dict, so that an absent one is simply not there.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(config, operands):
    return _bind(_attention_mesh.forward, config, [operands[name] for name in config.operands])


def _bind(primitive, config, operands):
    return tuple(primitive(config, *_compat.all_varying(operands)))


def _save(config, primals):
    operands = {name: x.value for name, x in primals.items()}
    # What is wanted is known when tracing: it travels as the keys of a tree without leaves.
    wanted = {name: () for name in config.operands if name in DIFFERENTIABLE and primals[name].perturbed}
    for name, x in primals.items():
        if x.perturbed and name not in DIFFERENTIABLE:
            raise ValueError(f"{OP}: an array that score uses is differentiated, which is only possible for q, k, v, "
                             "bias and sink; pass it as bias, or through jax.lax.stop_gradient.")
    if config.score and config.score.own_derivative and ("q" in wanted or "k" in wanted):
        raise ValueError(f"{OP}: score uses {config.score.own_derivative} on scores that are differentiated, expected the "
                         "derivatives of what it computes.")
    config = config._replace(apart=keeps_apart(config, operands["q"].dtype))
    o, *statistics = _bind(_attention_mesh.forward, config, [operands[name] for name in config.operands])
    o, statistics = checkpoint_name(o, "heddle_out"), [checkpoint_name(x, "heddle_lse") for x in statistics]
    return (o, log_sum_exp(statistics)), (operands, o, statistics, wanted)


def _differentiate(config, saved, cotangents):
    operands, o, statistics, wanted = saved
    d_o, d_lse = cotangents
    gradients = {name: None for name in operands}
    zero = jax.custom_derivatives.SymbolicZero
    if not wanted or (isinstance(d_o, zero) and isinstance(d_lse, zero)):
        return (gradients,)
    d_o = jnp.zeros(o.shape, o.dtype) if isinstance(d_o, zero) else d_o
    of_lse = not isinstance(d_lse, zero)
    wanted = tuple(name for name in config.operands if name in wanted)
    config = config._replace(wanted=wanted, apart=keeps_apart(config, operands["q"].dtype), of_lse=of_lse,
                             whole=True)
    arrays = [operands[name] for name in config.operands] + [o, *statistics, d_o] + ([d_lse] if of_lse else [])
    for name, gradient in zip(wanted, _bind(_attention_mesh.backward, config, arrays)):
        gradients[name] = _compat.summed_like(gradient, operands[name]).astype(operands[name].dtype)
    return (gradients,)


_attend.defvjp(_save, _differentiate, symbolic_zeros=True)


# ---- Arguments.


def _check_rows(q, k, v, layout, dtypes):
    for name, x in (("q", q), ("k", k), ("v", v)):
        _checks.dtype_among(OP, name, x, dtypes)
        if x.ndim != 4:
            raise ValueError(f"{OP}: {name} has shape {x.shape}, expected {layout} or {layout[1:]}.")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{OP}: {name} has dtype {x.dtype.name}, expected {q.dtype.name} as q has.")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{OP}: {name} has batch {x.shape[0]}, expected {q.shape[0]} as q has.")
    length, heads = (1, 2) if layout == "BTNH" else (2, 1)
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"{OP}: v has shape {v.shape}, expected that of k, {k.shape}, save for the last dim.")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"{OP}: k has head dim {k.shape[3]}, expected {q.shape[3]} as q has.")
    if q.shape[3] == 0 or v.shape[3] == 0:
        raise ValueError(f"{OP}: q has head dim {q.shape[3]} and v {v.shape[3]}, expected at least 1.")
    if k.shape[heads] == 0 or q.shape[heads] % k.shape[heads] != 0:
        raise ValueError(f"{OP}: k has {k.shape[heads]} heads, expected a divisor of q's {q.shape[heads]} heads.")
    return q.shape[0], q.shape[heads], q.shape[length], k.shape[length]


def _cells(name, x, extents):
    """bias or mask as [B or 1, N or 1, T or 1, S or 1]."""
    x = _checks.as_array(OP, name, x)
    shape = (1,) * (4 - x.ndim) + x.shape
    if x.ndim > 4 or any(given not in (1, full) for given, full in zip(shape, extents)):
        raise ValueError(f"{OP}: {name} has shape {x.shape}, expected one that broadcasts to [B, N, T, S], which is "
                         f"{tuple(extents)}.")
    return x.reshape(shape)


def _lengths(name, lengths, batch, ndim):
    lengths = _checks.as_array(OP, name, lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"{OP}: {name} has dtype {lengths.dtype.name}, expected int32.")
    if lengths.shape != (batch,) and not (ndim == 3 and lengths.shape == ()):
        raise ValueError(f"{OP}: {name} has shape {lengths.shape}, expected ({batch},), one length a batch entry.")
    return _as_i32(lengths.reshape(batch))


def _segments(segment_ids, extents, ndim):
    """Segment ids of queries and keys, as loads."""
    b, _, t, s = extents
    found = []
    for ids, length, shape in zip(_attention_graph.split_segments(segment_ids), (t, s), ((b, 1, t, 1), (b, 1, 1, s))):
        ids = _checks.as_array(OP, "segment_ids", ids)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise TypeError(f"{OP}: segment_ids has dtype {ids.dtype.name}, expected an integer one.")
        if ids.shape != (b, length) and not (ndim == 3 and ids.shape == (length,)):
            raise ValueError(f"{OP}: segment_ids has shape {ids.shape}, expected ({b}, {length}), an id for each of the "
                             "positions.")
        found.append(_as_i32(ids.reshape(shape)))
    return found


def _as_i32(x):
    if jnp.iinfo(x.dtype).max > MOST_I32:
        x = jnp.clip(x, max(LEAST_I32, jnp.iinfo(x.dtype).min), MOST_I32)
    return x.astype(jnp.int32)


def _dropout(dropout):
    """(probability, seed, offset) of dropout=(probability, seed) or (probability, seed, offset)."""
    if dropout is None:
        return 0.0, None, None
    probability, *given = _attention_graph.split_dropout(dropout)
    probability = _checks.number(OP, "dropout's probability", probability)
    if not 0 <= probability < 1:
        raise ValueError(f"{OP}: dropout's probability is {probability}, expected at least 0 and less than 1.")
    words = []
    for name, x in zip(("seed", "offset"), given):
        if name == "seed" and hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.bits(x, (), jnp.uint32) if x.shape == () else x
        x = _checks.as_array(OP, f"dropout's {name}", x)
        if x.shape != () or not jnp.issubdtype(x.dtype, jnp.integer):
            raise TypeError(f"{OP}: dropout's {name} is {x.dtype}{list(x.shape)}, expected one integer or a key of "
                            "jax.random.")
        signed = {"uint32": jnp.int32, "uint64": jnp.int64}.get(x.dtype.name)
        words.append(x if x.dtype == jnp.int64 else
                     x.astype(jnp.int32) if signed is None else jax.lax.bitcast_convert_type(x, signed))
    return probability, *words


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    causal: bool | str = False,
    window: int | tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: tuple[float, ArrayLike] | tuple[float, ArrayLike, ArrayLike] | None = None,
    sink: ArrayLike | None = None,
    q_lengths: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    score: Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array] | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    layout: str = "BTNH",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(scale * q k^T + bias, masked) v, without the matrix of scores in memory.

    B batch, T queries, S keys, N heads of q, K heads of k and v (N a multiple of K; query head n uses head n // (N/K)),
    H and D head dims. A score goes through scale, soft_cap, score, bias and then every mask; a query that sees no key
    gives 0.

    Args:
      q: `[B, T, N, H]` or `[T, N, H]`; float64 (on a CPU), float32, float16 or bfloat16. With
        layout "BNTH" heads come before lengths, in q, k, v and the result.
      k: `[B, S, K, H]`, q's dtype.
      v: `[B, S, K, D]`, q's dtype.
      bias: floating, broadcasts to `[B, N, T, S]`; added. Differentiable, its gradient summed over what it broadcasts.
      mask: bool, broadcasts to `[B, N, T, S]`; True keeps. Never repeated in memory.
      causal: True or "top_left": query i sees keys up to i. "bottom_right": up to i + S - T, or with lengths up to
        i + kv_length - q_length.
      window: query i sees keys i - left to i + right (both shifted as causal is); a single int is both, None is no limit.
      scale: a number; default 1/sqrt(H).
      soft_cap: c makes of a score x c * tanh(x / c); from 1e-30 to 1e30.
      dropout: (probability, seed) or (probability, seed, offset): each weight is dropped with that probability, the rest
        scaled by 1/(1 - probability). seed is an integer or a key of jax.random, offset an integer; both may be traced.
      sink: `[N]`, one more logit in each row's denominator, without a value. Differentiable.
      q_lengths, kv_lengths: int32 `[B]`; rows from the length on are absent. What k and v hold there never leaks.
      segment_ids: integers of `[B, T]` (T = S), or a pair of `[B, T]` and `[B, S]`; a query sees the keys of its own id.
        Ids below 2^24.
      score: function(scores, batch, head, row, column) of arrays that broadcast to `[B, N, T, S]`, giving new scores.
        Elementwise on scores, rows and columns; other arrays that it uses are loaded, not differentiated.
      return_lse: also return each row's log-sum-exp of scores, sink included, natural logarithm; differentiable.
      deterministic: equal arguments give equal bits in the gradients too.
      layout: "BTNH" or "BNTH".

    Returns:
      `[B, T, N, D]` in q's dtype (as the layout says; without B if q has none), and with return_lse also
      `[B, N, T]`, float32, or float64 of such a q.

    Differentiable once, in reverse mode. For checkpoint policies the result is named "heddle_out" and its rows'
    statistics "heddle_lse"; a policy that saves both spares a second forward. Sharded operands stay sharded along batch
    and heads.

    Raises:
      TypeError: an argument is no array or has another dtype, or a static one is traced.
      ValueError: shapes do not go together, or a value is outside what is allowed.
    """
    _checks.one_of(OP, "layout", layout, LAYOUTS)
    return_lse = _checks.flag(OP, "return_lse", return_lse)
    deterministic = _checks.flag(OP, "deterministic", deterministic)
    rows = {name: _checks.as_array(OP, name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    ndim = rows["q"].ndim
    if any(x.ndim != ndim for x in rows.values()):
        shapes = ", ".join(f"{name} {x.shape}" for name, x in rows.items())
        raise ValueError(f"{OP}: the shapes are {shapes}, expected all three with a batch or all without.")
    operands = {name: x[None] if ndim == 3 else x for name, x in rows.items()}
    extents = _check_rows(*operands.values(), layout, _checks.FLOATS)
    b, n, t, s = extents
    wide = at_least_f32(operands["q"].dtype)
    if bias is not None:
        operands["bias"] = _cells("bias", bias, extents)
        if operands["bias"].dtype == jnp.bool_:
            raise TypeError(f"{OP}: bias has dtype bool, expected a floating one; pass it as mask.")
        _checks.real(OP, "bias", operands["bias"])
        if operands["bias"].dtype.name not in _checks.FLOATS or operands["bias"].dtype == jnp.float64:
            operands["bias"] = operands["bias"].astype(wide)
    if mask is not None:
        operands["mask"] = _cells("mask", mask, extents)
        _checks.dtype_among(OP, "mask", operands["mask"], ("bool",))
    if sink is not None:
        sink = _checks.as_array(OP, "sink", sink)
        _checks.real(OP, "sink", sink)
        operands["sink"] = sink.astype(wide)
        if operands["sink"].shape != (n,):
            raise ValueError(f"{OP}: sink has shape {operands['sink'].shape}, expected ({n},), one logit a head.")
    left, right, bottom_right = _attention_graph.bounds(
        window, causal if isinstance(causal, str) else _checks.flag(OP, "causal", causal))
    # A graph wants both lengths or none, and lengths where a band leaves out whole rows.
    if q_lengths is not None or kv_lengths is not None or (t > s and (left is not None or bottom_right)):
        for name, given, full in (("q_lengths", q_lengths, t), ("kv_lengths", kv_lengths, s)):
            operands[name] = jnp.full((b,), full, jnp.int32) if given is None else _lengths(name, given, b, ndim)
    if segment_ids is not None:
        operands["q_segments"], operands["kv_segments"] = _segments(segment_ids, extents, ndim)
    probability, seed, offset = _dropout(dropout)
    if probability:
        operands["seed"], operands["offset"] = seed, offset
        # Each head's stream by number, so that a part of the heads draws the bits that it has in the whole.
        operands["streams"] = jnp.arange(b * n, dtype=jnp.int32).reshape(b, n)
    scale = rows["q"].shape[-1] ** -0.5 if scale is None else _checks.number(OP, "scale", scale)
    if soft_cap is not None:
        soft_cap = _checks.number(OP, "soft_cap", soft_cap)
        _attention_graph.check_soft_cap(OP, soft_cap)
    program = None
    if score is not None:
        program, captures = _scores.traced(score, extents, wide)
        operands.update({f"load{i}": x for i, x in enumerate(captures)})

    config = Config(operands=tuple(operands), layout=layout, scale=scale, soft_cap=soft_cap, left=left, right=right,
                    bottom_right=bottom_right, dropout=probability, score=program, deterministic=deterministic)
    o, lse = _shaped(config, operands, extents)
    if ndim == 3:
        o, lse = o[0], lse[0]
    return (o, lse) if return_lse else o


def _shaped(config, operands, extents):
    """The call on empty arrays, which no graph has, and under a mesh with explicit axes."""
    b, n, t, s = extents
    if 0 in (b, n, t, s):
        some = sum(jnp.sum(operands[name][..., :0]) for name in "qkv")  # 0, and depends on all of them
        lse = jnp.full((b, n, t), -jnp.inf, at_least_f32(operands["q"].dtype))
        if s == 0 and "sink" in operands:
            there = jnp.arange(t) < operands["q_lengths"][:, None, None] if "q_lengths" in operands else True
            lse = jnp.where(there, operands["sink"][None, :, None], lse)
        return jnp.zeros((b, *config.rows(n, t, operands["v"].shape[-1])), operands["q"].dtype) * some, lse
    if _mesh.explicit_mesh(operands.values()) is None:
        return _attend(config, operands)
    return _attend_explicitly(config, operands)


def _attend_explicitly(config, operands):
    """Each device attends with its part of batch and heads, as q's type declares them."""
    q = operands["q"]
    declared = _mesh.declared(q)
    batch, heads = declared[0], declared[config.axis("heads")]
    return _attention_mesh.per_device(_attend, config, operands, batch, heads)
