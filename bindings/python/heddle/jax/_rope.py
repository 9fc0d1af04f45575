"""Rotary position embedding.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from heddle.arrays import _rope_graph
from heddle.jax import _checks, _compat, _mesh, _primitives
from heddle.jax._graphs import Graph, row_major
from heddle.jax._primitives import divisible, joint, one_by_one, spec, spec_of

OP = "rope"
LAYOUTS = ("BTNH", "BNTH")
PAIRINGS = ("halves", "interleaved")


class Config(NamedTuple):
    """All of a call that is known when it is traced."""

    backward: bool
    rope_dim: int
    leading: bool  # the first rope_dim columns, else the last
    output_scale: float
    pairing: str
    layout: str

    @property
    def length(self):
        """Which dim of x is its length."""
        return 1 if self.layout == "BTNH" else 2


# ---- The primitive: (x [*leading, B, T, N, H] as the layout says, angles [*leading, B or 1, T, rope_dim / 2]) -> y.


def _results(config, leading, x, angles):
    return [_compat.shaped(joint(leading, (x, angles)) + x.shape[leading:], x.dtype, (x, angles))]


def _run(config, leading, platform, x, angles):
    if any(size > 1 for size in angles.shape[:leading]):
        return one_by_one(partial(_run, config, leading - 1, platform), (x, angles))
    shape = x.shape
    x, angles = x.reshape(-1, *shape[-3:]), angles.reshape(angles.shape[leading:])
    own = angles.shape[0] > 1  # each batch entry has its angles: the batch becomes part of the length
    if own and leading:
        return one_by_one(partial(_run, config, leading - 1, platform), (x.reshape(shape), angles[(None,) * leading]))
    if own and config.layout == "BNTH":
        y, = _run(config._replace(layout="BTNH"), 0, platform, jnp.swapaxes(x, 1, 2), angles)
        return [jnp.swapaxes(y, 1, 2)]
    if own:
        x, angles = x.reshape(1, -1, *shape[-2:]), angles.reshape(1, -1, angles.shape[-1])
    table = jnp.concatenate([angles[0], angles[0]], -1)
    order = (0, 2, 1, 3) if config.layout == "BTNH" else (0, 1, 2, 3)
    dims, strides = ([values[i] for i in order] for values in (x.shape, row_major(x.shape)))
    graph = Graph("rope backward" if config.backward else "rope")
    fields = {"x": graph.operand("x", x.dtype, dims, strides),
              "freqs": graph.operand("angles", jnp.float32, (table.shape[0], 1, 1, table.shape[1])),
              "y": graph.result("y", x.dtype, dims, strides)}
    graph.node("rope_backward" if config.backward else "rope", **fields, rope_dim=config.rope_dim,
               leading=config.leading, output_scale=config.output_scale, pairing=config.pairing)
    return [graph.run((x, table), platform)[0].reshape(shape)]


def _rule(config, leading, mesh, operands, results):
    x, angles = (tuple(t.shape) for t in operands)
    lead = [f"l{i}" for i in range(leading)]
    rows = lead + (["b", "t", "n", "h"] if config.layout == "BTNH" else ["b", "n", "t", "h"])
    of_x = [f if i >= leading or x[i] > 1 else f"x{i}" for i, f in enumerate(rows)]
    of_angles = [f if angles[i] > 1 else f"a{i}" for i, f in enumerate([*lead, "b"])]
    return SdyShardingRule((ArrayMapping(*of_x), ArrayMapping(*of_angles, "t", "c")), (ArrayMapping(*rows),),
                           need_replication_factors=("h", "c"))


def _partition(config, leading, mesh, operands):
    x, angles = operands
    axes = [divisible(mesh, a, size) if size > 1 else () for a, size in zip(spec_of(x), x.shape)]
    axes[-1] = ()
    shared = [a if angles.shape[i] > 1 else () for i, a in enumerate(axes[:leading + 1])]
    of_x = spec(*axes)
    return partial(_run, config, leading), (of_x,), (of_x, spec(*shared, axes[leading + config.length], ()))


_bind = _primitives.define("heddle_rope", _results, _run, _rule, _partition)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotated(config, x, angles):
    return _bind(config, x, angles)[0]


def _save(config, x, angles):
    if angles.perturbed:
        raise ValueError(f"{OP}: angles is differentiated, which is only possible for x; pass it through "
                         "jax.lax.stop_gradient.")
    return _rotated(config, x.value, angles.value), angles.value


def _differentiate(config, angles, dy):
    if isinstance(dy, jax.custom_derivatives.SymbolicZero):
        return None, None
    return _rotated(config._replace(backward=not config.backward), dy, angles), None


_rotated.defvjp(_save, _differentiate, symbolic_zeros=True)


# ---- Arguments.


def _angles(angles, positions, base, rope_dim, length):
    """[B or 1, T, rope_dim / 2] in f32."""
    if angles is None:
        rates = jnp.asarray(base ** (-2 * np.arange(rope_dim // 2) / rope_dim), jnp.float32)
        positions = jnp.arange(length)[None] if positions is None else positions
        return positions[..., None].astype(jnp.float32) * rates
    if positions is None:
        return angles[None, :length]
    return jnp.take(angles, positions, axis=0)


def rope(x: ArrayLike, angles: ArrayLike | None = None, *, positions: ArrayLike | None = None, base: float = 10000.0,
         rope_dim: int | None = None, leading: bool = False, output_scale: float = 1.0, pairing: str = "halves",
         layout: str = "BTNH") -> jax.Array:
    """x with pairs of its last (or first) rope_dim columns rotated by angles that grow with the position.

    Args:
      x: `[B, T, N, H]` or `[T, N, H]` (layout "BNTH": heads before length); float64, float32, float16 or bfloat16, H
        even.
      angles: float32 `[P, rope_dim / 2]`, in radians: row p is for position p, P at least T (or above every position).
        Default: position * base^(-2 j / rope_dim). Not differentiated.
      positions: integers of `[T]` or `[B, T]`, the position of each row; default 0, 1, 2, ...
      base: of the default angles; at least 1e-18.
      rope_dim: even, at most H; default H. The other columns are only scaled.
      leading: the first rope_dim columns are rotated, as GPT-NeoX, GPT-J and Phi do, in place of the last.
      output_scale: multiplies the result.
      pairing: of the columns rotated, "halves" pairs column j with j + rope_dim / 2, "interleaved" 2 j with 2 j + 1.
      layout: "BTNH" or "BNTH".

    Returns:
      An array of x's shape and dtype. Differentiable in x in reverse mode, to any order. Sharded x stays sharded along
      all dims but the last.

    Raises:
      TypeError: an argument is no array or has another dtype, or a static one is traced.
      ValueError: shapes do not go together, or a value is outside what is allowed.
    """
    _checks.one_of(OP, "layout", layout, LAYOUTS)
    _checks.one_of(OP, "pairing", pairing, PAIRINGS)
    x = _checks.as_array(OP, "x", x)
    _checks.dtype_among(OP, "x", x, _checks.FLOATS)
    if x.ndim not in (3, 4):
        raise ValueError(f"{OP}: x has shape {x.shape}, expected {layout} or {layout[1:]}.")
    ndim, x = x.ndim, x if x.ndim == 4 else x[None]
    h = x.shape[-1]
    rope_dim = h if rope_dim is None else rope_dim
    if h % 2 != 0 or h == 0:
        raise ValueError(f"{OP}: x has head dim {h}, expected an even one.")
    if not isinstance(rope_dim, (int, np.integer)) or rope_dim % 2 != 0 or not 0 < rope_dim <= h:
        raise ValueError(f"{OP}: rope_dim is {rope_dim}, expected an even number from 2 to the head dim {h}.")
    base, output_scale = _checks.number(OP, "base", base), _checks.number(OP, "output_scale", output_scale)
    _rope_graph.check_base(base)
    config = Config(False, int(rope_dim), _checks.flag(OP, "leading", leading), output_scale, pairing, layout)
    b, length = x.shape[0], x.shape[config.length]
    if positions is not None:
        positions = _checks.as_array(OP, "positions", positions)
        if not jnp.issubdtype(positions.dtype, jnp.integer):
            raise TypeError(f"{OP}: positions has dtype {positions.dtype.name}, expected an integer one.")
        if positions.shape not in ((length,), (b, length)):
            raise ValueError(f"{OP}: positions has shape {positions.shape}, expected ({length},) or ({b}, {length}).")
        positions = positions.reshape(-1, length)
    if angles is not None:
        angles = _checks.as_array(OP, "angles", angles)
        _checks.dtype_among(OP, "angles", angles, ("float32",))
        if angles.ndim != 2 or angles.shape[1] != rope_dim // 2:
            raise ValueError(f"{OP}: angles has shape {angles.shape}, expected [P, {rope_dim // 2}], half of rope_dim.")
        if angles.shape[0] == 0 and x.size > 0:
            raise ValueError(f"{OP}: angles has no rows, expected one for every position.")
        if positions is None and angles.shape[0] < length:
            raise ValueError(f"{OP}: angles has {angles.shape[0]} rows, expected at least {length}, the length of x.")
    if x.size == 0:
        return x[0] if ndim == 3 else x
    angles = _angles(angles, positions, base, rope_dim, length)
    x, angles = _compat.all_varying((x, angles))
    if _mesh.explicit_mesh((x,)) is None:
        y = _rotated(config, x, angles)
    else:
        of_x = _mesh.declared(x)[:3] + (None,)
        of_angles = (of_x[0] if angles.shape[0] > 1 else None, of_x[config.length], None)
        y = _mesh.per_device(partial(_rotated, config), (x, angles), (of_x, of_angles), PartitionSpec(*of_x))
    return y[0] if ndim == 3 else y
