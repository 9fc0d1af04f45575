"""Attention over a sequence that is cut along a mesh axis: keys and values travel round the ring of devices.

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023; balanced for causal
masks as in Brandon et al., "Striped Attention", 2023, with two mirrored chunks a device.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from heddle.arrays import _attention_graph
from heddle.jax import _attention_mesh, _checks, _compat
from heddle.jax._attention import LAYOUTS, _bind, _check_rows, _segments
from heddle.jax._attention_calls import STATISTICS, Config, keeps_apart, log_sum_exp

OP = "ring_attention"
FLOATS = ("float32", "float16", "bfloat16")
ORDERS = ("zigzag", "contiguous")


class Ring(NamedTuple):
    """All of a call that is known when it is traced."""

    attention: Config
    axis: Any
    causal: bool
    zigzag: bool
    with_lse: bool

    @property
    def length(self):
        """Which dim of a row operand is its length."""
        return self.attention.axis("length")


# ---- One device's queries against the keys of one other: which part of both, and how.


def _half(ring, x, which, dim=None):
    """The first or second half of x along its length (or another dim)."""
    dim = ring.length if dim is None else dim
    half = x.shape[dim] // 2
    return lax.slice_in_dim(x, which * half, (which + 1) * half, axis=dim)


def _with_zeros(ring, x, which, dim=None, fill=0):
    """x as one half of a whole whose other half is `fill`."""
    dim = ring.length if dim is None else dim
    rest = jnp.full_like(x, fill)
    return jnp.concatenate([x, rest] if which == 0 else [rest, x], dim)


def _of_rows(ring, rows, which):
    """One half of everything that a query has: q and its kind, row statistics and segment ids."""
    dims = {"q_segments": 2, **dict.fromkeys(STATISTICS, 2)}
    return {name: _half(ring, x, which, dims.get(name)) for name, x in rows.items()}


def _of_keys(ring, keys, which):
    return {name: _half(ring, x, which, {"kv_segments": 3}.get(name)) for name, x in keys.items()}


def _forward_block(ring, rows, keys, causal):
    config = ring.attention._replace(right=0 if causal else None, wide=True, apart=True)
    named = {**rows, **keys}
    return _bind(_attention_mesh.forward, config, [named[name] for name in config.operands])


def _backward_block(ring, rows, keys, causal):
    config = ring.attention._replace(right=0 if causal else None, wide=True, wanted=("q", "k", "v"), apart="max" in rows,
                                     of_lse="d_lse" in rows)
    named = {**rows, **keys}
    return _bind(_attention_mesh.backward, config, [named[name] for name in config.names])


def _later(ring, step, block, whole, first_keys, second_rows, nothing):
    """What `block` gives for the keys of the device `step` places before this one.

    All keys of an earlier device are seen, and none of a later one. In zigzag order device r has the chunks r and
    2 n - 1 - r: of an earlier device all see its first chunk and none the second, of a later one the second chunk here
    sees both, so that every step is half of the work on every device.
    """
    if not ring.causal:
        return whole(block)
    earlier = lax.axis_index(ring.axis) >= step
    if ring.zigzag:
        return lax.cond(earlier, lambda: first_keys(block), lambda: second_rows(block))
    return lax.cond(earlier, lambda: whole(block), nothing)


def _forward_step(ring, rows, keys, step):
    def second_rows(block):
        o, largest, total = block(ring, _of_rows(ring, rows, 1), keys, False)
        return _with_zeros(ring, o, 1), _with_zeros(ring, largest, 1, 2, -jnp.inf), _with_zeros(ring, total, 1, 2)

    def nothing():
        n, t, _ = ring.attention.extents(rows["q"].shape, keys["k"].shape)
        shape = (*rows["q"].shape[:3], keys["v"].shape[-1])
        largest = jnp.full((shape[0], n, t), -jnp.inf, jnp.float32)
        return tuple(_like(rows["q"], x) for x in (jnp.zeros(shape, jnp.float32), largest, jnp.zeros_like(largest)))

    return _later(ring, step, _forward_block, lambda block: block(ring, rows, keys, False),
                  lambda block: block(ring, rows, _of_keys(ring, keys, 0), False), second_rows, nothing)


def _backward_step(ring, rows, keys, step):
    def first_keys(block):
        d_q, d_k, d_v = block(ring, rows, _of_keys(ring, keys, 0), False)
        return d_q, _with_zeros(ring, d_k, 0), _with_zeros(ring, d_v, 0)

    def second_rows(block):
        d_q, d_k, d_v = block(ring, _of_rows(ring, rows, 1), keys, False)
        return _with_zeros(ring, d_q, 1), d_k, d_v

    def nothing():
        return tuple(_like(rows["q"], jnp.zeros(x.shape, jnp.float32)) for x in (rows["q"], keys["k"], keys["v"]))

    return _later(ring, step, _backward_block, lambda block: block(ring, rows, keys, False), first_keys, second_rows,
                  nothing)


def _like(x, y):
    """y, said to differ over the mesh axes that x does."""
    return _compat.as_varying(y, _compat.varying_axes(x))


def _merge(ring, first, second):
    """The attention over the keys of both, from each one's result, maxima and sums of exponentials."""
    (o, largest, total), (more, more_largest, more_total) = first, second
    both_largest = jnp.maximum(largest, more_largest)
    shift = jnp.where(both_largest == -jnp.inf, 0.0, both_largest)
    total, more_total = total * jnp.exp(largest - shift), more_total * jnp.exp(more_largest - shift)
    both_total = total + more_total

    def weight(part):
        share = jnp.where(both_total == 0, 0.0, part / both_total)
        return (jnp.swapaxes(share, 1, 2) if ring.attention.layout == "BTNH" else share)[..., None]

    return o * weight(total) + more * weight(more_total), both_largest, both_total


# ---- Round the ring.


def _passed_on(ring, tree):
    """To the next device."""
    n = _compat.axis_size(ring.axis)
    return lax.ppermute(tree, ring.axis, [(i, (i + 1) % n) for i in range(n)])


def _split(operands):
    """What stays with a device, and what travels."""
    keys = {name: x for name, x in operands.items() if name in ("k", "v", "kv_segments")}
    return {name: x for name, x in operands.items() if name not in keys}, keys


def _around(ring, operands):
    n = _compat.axis_size(ring.axis)
    rows, keys = _split(operands)
    found = _forward_block(ring, rows, keys, ring.causal)
    if n == 1:
        return found

    def turn(carry, step):
        keys, found = carry
        following = _passed_on(ring, keys)  # on its way while this is computed
        return (following, _merge(ring, found, _forward_step(ring, rows, keys, step))), None

    (keys, found), _ = lax.scan(turn, (_passed_on(ring, keys), found), jnp.arange(1, n - 1))
    return _merge(ring, found, _forward_step(ring, rows, keys, n - 1))


def _around_backward(ring, operands):
    """Gradients of keys and values travel with them, and come home in the last step."""
    n = _compat.axis_size(ring.axis)
    rows, keys = _split(operands)
    d_q, *d_keys = _backward_block(ring, rows, keys, ring.causal)
    if n == 1:
        return d_q, *d_keys
    add = lambda x, y: jax.tree.map(jnp.add, x, y)

    def one(keys, d_q, d_keys, step):
        more, *more_keys = _backward_step(ring, rows, keys, step)
        return d_q + more, _passed_on(ring, add(d_keys, more_keys))

    def turn(carry, step):
        keys, d_q, d_keys = carry
        following = _passed_on(ring, keys)
        return (following, *one(keys, d_q, d_keys, step)), None

    start = _passed_on(ring, keys), d_q, _passed_on(ring, d_keys)
    (keys, d_q, d_keys), _ = lax.scan(turn, start, jnp.arange(1, n - 1))
    d_q, d_keys = one(keys, d_q, d_keys, n - 1)
    return d_q, *d_keys


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring, operands):
    return _save(ring, operands)[0]


def _save(ring, operands):
    names = list(operands)
    together = dict(zip(names, _compat.all_varying(list(operands.values()))))
    o, *statistics = _around(ring, together)
    o, lse = o.astype(operands["q"].dtype), log_sum_exp(statistics)
    if keeps_apart(ring.attention, o.dtype):
        kept = dict(zip(("max", "sum_exp"), statistics))
    else:
        kept = {"lse": lse}
    return (o, lse) if ring.with_lse else o, (operands, o, kept)


def _differentiate(ring, saved, cotangents):
    operands, o, statistics = saved
    given = dict(zip(("d_o", "d_lse"), cotangents)) if ring.with_lse else {"d_o": cotangents}
    inputs = {**operands, "o": o, **statistics, **given}
    inputs = dict(zip(inputs, _compat.all_varying(list(inputs.values()))))
    gradients = {name: None for name in operands}
    for name, gradient in zip("qkv", _around_backward(ring, inputs)):
        gradients[name] = _compat.summed_like(gradient, operands[name]).astype(operands[name].dtype)
    return (gradients,)


_attend.defvjp(_save, _differentiate)


def ring_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    axis_name: Hashable | Sequence[Hashable],
    causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    return_lse: bool = False,
    order: str = "zigzag",
    layout: str = "BTNH",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """attention over a sequence cut along a mesh axis; called inside shard_map with each device's part.

    Keys and values (and, in the gradient, their gradients) travel from device to device with ppermute; nothing is
    gathered, and each device keeps one part of the sequence. Partial results are merged in float32 by the maximum and the
    sum of their rows.

    Args:
      q: `[B, T, N, H]`, this device's queries; float32, float16 or bfloat16. Layout "BNTH": heads before lengths.
      k: `[B, S, K, H]`, this device's keys.
      v: `[B, S, K, D]`, this device's values.
      axis_name: the mesh axis (or axes) along which the sequence is cut.
      causal: query i sees keys up to i, counted over the whole sequence; T = S.
      scale, soft_cap: as in `attention`.
      segment_ids: integers of `[B, T]`, or a pair of `[B, T]` and `[B, S]`, this device's part.
      return_lse: also return the log-sum-exp of each row, float32 `[B, N, T]`; differentiable.
      order: how a causal sequence lies on the devices. "zigzag": as `ring_order` arranges it, so that all devices have
        the same work; T is then even. "contiguous": the first device has the first part, and so on.
      layout: "BTNH" or "BNTH".

    Returns:
      `[B, T, N, D]` in q's dtype, and with return_lse also the log-sum-exp. Differentiable once, in reverse mode.

    Raises:
      TypeError, ValueError: as `attention` does.
      NameError: axis_name is no axis of the mesh that is being mapped over.
    """
    _checks.one_of(OP, "layout", layout, LAYOUTS)
    _checks.one_of(OP, "order", order, ORDERS)
    causal, return_lse = _checks.flag(OP, "causal", causal), _checks.flag(OP, "return_lse", return_lse)
    axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
    try:
        _compat.axis_size(axis_name)
    except (NameError, TypeError, ValueError) as error:
        raise NameError(f"{OP}: axis_name is {axis_name!r}, expected an axis of the mesh that is mapped over here.") from error
    operands = {name: _checks.as_array(OP, name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    extents = _check_rows(*operands.values(), layout, FLOATS)
    b, _, t, s = extents
    if causal and t != s:
        raise ValueError(f"{OP}: k has length {s}, expected {t} as q has where causal is set.")
    if causal and order == "zigzag" and t % 2 != 0:
        raise ValueError(f"{OP}: q has length {t}, expected an even one for order 'zigzag'.")
    if 0 in extents:
        raise ValueError(f"{OP}: q has shape {q.shape} and k {k.shape}, expected no dim to be 0.")
    if segment_ids is not None:
        operands["q_segments"], operands["kv_segments"] = _segments(segment_ids, extents, 4)
    scale = operands["q"].shape[-1] ** -0.5 if scale is None else _checks.number(OP, "scale", scale)
    if soft_cap is not None:
        soft_cap = _checks.number(OP, "soft_cap", soft_cap)
        _attention_graph.check_soft_cap(OP, soft_cap)
    config = Config(operands=tuple(operands), layout=layout, scale=scale, soft_cap=soft_cap)
    ring = Ring(config, axis_name, causal, causal and order == "zigzag", return_lse)
    return _attend(ring, operands)


def _zigzag(devices):
    return [chunk for device in range(devices) for chunk in (device, 2 * devices - 1 - device)]


def _back(devices):
    chunks = _zigzag(devices)
    return [chunks.index(i) for i in range(len(chunks))]


def _arranged(op, x, devices, axis, order):
    x = _checks.as_array(op, "x", x)
    for name, number in (("devices", devices), ("axis", axis)):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise TypeError(f"{op}: {name} is {number!r}, expected an int.")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{op}: axis is {axis}, expected one of the {x.ndim} axes of x, whose shape is {x.shape}.")
    if devices < 1 or x.shape[axis] % (2 * devices) != 0:
        raise ValueError(f"{op}: x has {x.shape[axis]} rows along axis {axis}, expected a multiple of twice the {devices} "
                         "devices.")
    parts = jnp.split(x, 2 * devices, axis)
    return jnp.concatenate([parts[chunk] for chunk in order(devices)], axis)


def ring_order(x: ArrayLike, devices: int, axis: int = 1) -> jax.Array:
    """A sequence arranged for ring_attention's "zigzag": device r is to have the chunks r and 2 * devices - 1 - r.

    Positions, labels and segment ids need the same; `axis` is the sequence's. Raises ValueError unless its length is a
    multiple of 2 * devices.
    """
    return _arranged("ring_order", x, devices, axis, _zigzag)


def ring_restore(x: ArrayLike, devices: int, axis: int = 1) -> jax.Array:
    """The inverse of ring_order."""
    return _arranged("ring_restore", x, devices, axis, _back)
