"""How attention is cut over a mesh: along leading dims, batch and heads; lengths and head dims stay whole.

Keys and values follow their queries' heads where there are enough of them; else they are whole, and each device takes
the heads that its queries use.
"""

from functools import partial
from itertools import combinations
from math import prod

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.sharding import PartitionSpec

from heddle.jax import _compat, _mesh
from heddle.jax._attention_calls import (BATCHED, ROWS, SCALARS, STATISTICS, _backward_results, _forward_results, _run,
                                         gradient_type)
from heddle.jax._primitives import define, divisible, joint, size_of, spec, spec_of


def _dims(config, name, rank):
    """What each dim of an operand is, after the leading ones: b batch, n heads, t rows, s keys, or its own."""
    if name in ROWS:
        length, heads = ("s", "k") if name in ("k", "v") else ("t", "n")
        return ("b", *config.rows(heads, length, "x"))
    if name in BATCHED:
        return ("b",)
    if name in SCALARS:
        return ()
    if name in STATISTICS:
        return ("b", "n", "t")
    return {"streams": ("b", "n"), "sink": ("n",)}.get(name, ("b", "n", "t", "s"))


def _group(config, leading, shapes, mesh):
    """How many of q's heads a head of k serves where both are always cut together; None if the mesh could cut q's heads
    and not k's: XLA would then cut these by a part of a mesh axis."""
    heads = config.axis("heads") + leading
    n, kv_heads = shapes["q"][heads], shapes["k"][heads]
    axes = [size for size in mesh.shape.values() if size > 1]
    parts = {prod(some) for count in range(len(axes) + 1) for some in combinations(axes, count)}
    together = kv_heads > 1 and all(kv_heads % part == 0 for part in parts if n % part == 0)
    return n // kv_heads if together else None


def _mapping(config, leading, name, shape, group, unique):
    """The factors of an array's dims. A dim of size 1 and one that is always whole has a factor of its own."""
    factors = []
    for i, kind in enumerate([f"l{i}" for i in range(leading)] + list(_dims(config, name, len(shape) - leading))):
        if kind in "txs" or shape[i] == 1:
            factors.append(next(unique))
        elif kind == "n" and group == 1:
            factors.append("k")
        elif kind == "n" and group is not None:
            factors.append(CompoundFactor("k", "g"))
        else:
            factors.append(kind)
    return factors


def _rule(config, leading, mesh, operands, results):
    shapes = {name: tuple(x.shape) for name, x in zip(config.names, operands)}
    group = _group(config, leading, shapes, mesh)
    unique = iter(f"u{i}" for i in range(1000))
    ins = [_mapping(config, leading, name, shape, group, unique) for name, shape in shapes.items()]
    outs = [_mapping(config, leading, name, tuple(x.shape), group, unique) for name, x in zip(config.results, results)]
    flat = [f for mapping in ins + outs for dim in mapping for f in (dim if isinstance(dim, CompoundFactor) else [dim])]
    sizes = {"g": group} if "g" in flat else {}
    replicated = tuple(dict.fromkeys(f for f in flat if f.startswith("u")))
    return SdyShardingRule(tuple(ArrayMapping(*m) for m in ins), tuple(ArrayMapping(*m) for m in outs),
                           need_replication_factors=replicated, **sizes)


class _Cut:
    """The mesh axes along each kind of dim, as q has them, and what follows for the other operands."""

    def __init__(self, config, leading, mesh, operands):
        self.config, self.leading, self.mesh = config, leading, mesh
        self.shapes = {name: x.shape for name, x in zip(config.names, operands)}
        q = operands[0]
        axes = spec_of(q)
        heads = config.axis("heads") + leading
        self.lead = [divisible(mesh, axes[i], q.shape[i]) if q.shape[i] > 1 else () for i in range(leading)]
        self.batch = divisible(mesh, axes[leading], q.shape[leading])
        self.heads = divisible(mesh, axes[heads], q.shape[heads])
        self.kv_heads = self.shapes["k"][heads]
        self.follows = self.kv_heads % size_of(mesh, self.heads) == 0

    def axes(self, name, shape):
        along = {"b": self.batch, "n": self.heads, "k": self.heads if self.follows else ()}
        lead = [axes if shape[i] > 1 else () for i, axes in enumerate(self.lead)]
        own = [along.get(kind, ()) if shape[self.leading + i] > 1 or name in ROWS else ()
               for i, kind in enumerate(_dims(self.config, name, len(shape) - self.leading))]
        return tuple(lead + own)

    def spec(self, name, shape):
        return spec(*self.axes(name, shape))

    def summed(self, name, shape):
        """The axes over which a device's gradient is a part: those that cut q and not this operand."""
        own = {axis for axes in self.axes(name, shape) for axis in axes}
        return tuple(axis for axes in (self.batch, self.heads) for axis in axes if axis not in own)


def _used_heads(cut, n):
    """For the queries' heads on this device, which K/V head each uses: (first, count) if they are neighbours that a
    group of equal size uses each, else None, and the index of every one."""
    group = n // cut.kv_heads
    own = n // size_of(cut.mesh, cut.heads)
    first = jax.lax.axis_index(cut.heads) * own
    return group % own == 0, (first + jnp.arange(own)) // group


def _selected(x, axis, single, index):
    return jax.lax.dynamic_slice_in_dim(x, index[0], 1, axis) if single else jnp.take(x, index, axis)


def _scattered(gradient, axis, single, index, heads):
    """The transpose of _selected, in f32."""
    gradient = jnp.moveaxis(gradient, axis, 0)
    index = index[:1] if single else index
    whole = jnp.zeros((heads, *gradient.shape[1:]), gradient.dtype).at[index].add(gradient)
    return jnp.moveaxis(whole, 0, axis)


def _local(config, cut, platform, *operands):
    leading = cut.leading
    axis = config.axis("heads") + leading
    n = cut.shapes["q"][axis]
    named = dict(zip(config.names, operands))
    if not cut.follows:
        single, index = _used_heads(cut, n)
        named.update({name: _selected(named[name], axis, single, index) for name in ("k", "v")})
    if not config.wanted:
        return tuple(_run(config, leading, platform, *named.values()))
    wide = config.wide or any(cut.summed(name, cut.shapes[name]) for name in ("k", "v"))
    found = _run(config._replace(wide=wide), leading, platform, *named.values())
    gradients = []
    for name, gradient in zip(config.wanted, found):
        if name in ("k", "v") and not cut.follows:
            gradient = _scattered(gradient, axis, single, index, cut.kv_heads)
        axes = cut.summed(name, cut.shapes[name])
        gradient = jax.lax.psum(gradient, axes) if axes else gradient
        gradients.append(gradient.astype(gradient_type(config, name, operands[config.names.index(name)].dtype)))
    return tuple(gradients)


def _partition(config, leading, mesh, operands):
    cut = _Cut(config, leading, mesh, operands)
    lead = joint(leading, operands)
    expected = _backward_results if config.wanted else _forward_results
    types = expected(config, leading, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
    results = tuple(cut.spec(name, x.shape) for name, x in zip(config.results, types))
    return partial(_local, config, cut), results, tuple(cut.spec(n, x.shape) for n, x in zip(config.names, operands))


forward = define("heddle_attention", _forward_results, _run, _rule, _partition)
backward = define("heddle_attention_backward", _backward_results, _run, _rule, _partition)


def per_device(attend, config, operands, batch, heads):
    """attend(config, operands) under a mesh with explicit axes: a shard_map along batch and heads.

    `batch` and `heads` are the mesh axes that q's type declares along those dims.
    """
    mesh = _mesh.explicit_mesh(operands.values())
    axes_of = lambda entry: entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    n, kv_heads = (operands[name].shape[config.axis("heads")] for name in "qk")
    follows = kv_heads % size_of(mesh, axes_of(heads)) == 0
    along = {"b": batch, "n": heads, "k": heads if follows else None}

    def entries(name, shape):
        return tuple(along.get(kind) if shape[i] > 1 or name in ROWS else None
                     for i, kind in enumerate(_dims(config, name, len(shape))))

    def local(*parts):
        named = dict(zip(operands, parts))
        if not follows:
            first = jax.lax.axis_index(axes_of(heads)) * (n // size_of(mesh, axes_of(heads)))
            index = (first + jnp.arange(named["q"].shape[config.axis("heads")])) // (n // kv_heads)
            for name in ("k", "v"):
                part = _compat.as_varying(named[name], axes_of(heads))
                named[name] = jnp.take(part, index, axis=config.axis("heads"))
        return attend(config, named)

    names = list(operands)
    specs = [entries(name, operands[name].shape) for name in names]
    o = entries("q", operands["q"].shape)
    return _mesh.per_device(local, [operands[name] for name in names], specs,
                            (PartitionSpec(*o), PartitionSpec(batch, heads, None)))
