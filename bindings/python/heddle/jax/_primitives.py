"""Primitives with leading dims: how Heddle's ops are batched and partitioned.

The operands of such a primitive carry `leading` dims before the op's own, one for every vmap around it. Each of these
is the vmap's size, or 1 where the operand is shared, so that a shared operand is never repeated.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from heddle.jax import _compat, _internals

PLATFORMS = ("cpu", "cuda")


def define(name, results, run, rule, partition):
    """A primitive of Heddle.

    results(config, leading, *avals): the types of its results.
    run(config, leading, platform, *operands): computes them, on one device.
    rule(config, leading, mesh, operand_types, result_types): its SdyShardingRule.
    partition(config, leading, mesh, operands): (per-device function of (platform, *operands), result specs, operand
    specs); operands are shapes with shardings.

    Returns bind(config, *operands): the results, as a list.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def abstract(*avals, config, leading):
        return results(config, leading, *avals)

    @partial(custom_partitioning, static_argnums=(0,))
    def partitioned(key, *operands):
        config, leading, platform = key
        return tuple(run(config, leading, platform, *operands))

    def split(key, mesh, operands, _):
        config, leading, platform = key
        local, result_specs, operand_specs = partition(config, leading, mesh, [_by_axes(mesh, x) for x in operands])
        named = lambda specs: tuple(NamedSharding(mesh, spec) for spec in specs)
        return mesh, partial(local, platform), named(result_specs), named(operand_specs)

    # Older JAX propagates shardings by the first of the two, newer by the second. JAX itself decodes none that cuts a dim
    # by a part of a mesh axis.
    partitioned.def_partition(
        partition=split, decode_shardings=False, infer_sharding_from_operands=lambda key, mesh, operands, found: split(key, mesh, operands, found)[2],
        sharding_rule=lambda key, mesh, ins, outs: rule(key[0], key[1], mesh, ins, outs))

    @lru_cache(maxsize=1024)
    def compiled(config, leading):
        return jax.jit(partial(primitive.bind, config=config, leading=leading))

    @primitive.def_impl
    def apply(*operands, config, leading):
        with jax.disable_jit(False):  # else what is compiled would be this again
            return compiled(config, leading)(*operands)

    def batch(operands, dims, *, config, leading):
        operands = [jnp.expand_dims(x, 0) if dim is None else jnp.moveaxis(x, dim, 0)
                    for x, dim in zip(operands, dims)]
        found = primitive.bind(*operands, config=config, leading=leading + 1)
        return found, [0] * len(found)

    batching.primitive_batchers[primitive] = batch
    _compat.declare(primitive)

    def refuse(*_, **__):
        raise NotImplementedError(f"{name} is not differentiable: Heddle's ops are so once, in reverse mode.")

    ad.primitive_jvps[primitive] = refuse
    for platform in PLATFORMS:
        def lower(context, *operands, config, leading, platform=platform):
            if 0 in joint(leading, context.avals_in):  # no graph has an empty batch
                empty = lambda *_: [jnp.zeros(aval.shape, aval.dtype) for aval in context.avals_out]
                return mlir.lower_fun(empty, multiple_results=True)(context, *operands)
            key = config, leading, platform
            # Where some axes are manual, JAX's custom partitioning cannot read the other axes' shardings.
            manual = getattr(context.module_context.axis_context, "manual_axes", ())
            function = partial(run, *key) if manual else partial(partitioned, key)
            return mlir.lower_fun(function, multiple_results=True)(context, *operands)

        mlir.register_lowering(primitive, lower, platform=platform)

    return lambda config, *operands: primitive.bind(*operands, config=config, leading=0)


def joint(leading, arrays):
    """The leading dims of the results: of each dim the vmap's size, which may be 0."""
    return tuple(next((x.shape[i] for x in arrays if x.shape[i] != 1), 1) for i in range(leading))


def one_by_one(function, operands):
    """function of the operands without their first dim, for one entry of it after the other.

    Operands of size 1 there are shared, not repeated.
    """
    size = max(x.shape[0] for x in operands)
    shared = [x.shape[0] == 1 for x in operands]
    if size == 1:
        return [jnp.expand_dims(x, 0) for x in function(*(jnp.squeeze(x, 0) for x in operands))]

    def entry(mapped):
        mapped = iter(mapped)
        return function(*(jnp.squeeze(x, 0) if one else next(mapped) for x, one in zip(operands, shared)))

    return lax.map(entry, [x for x, one in zip(operands, shared) if not one])


def _by_axes(mesh, operand):
    """A type whose sharding is XLA's as one whose sharding is of whole mesh axes. A dim that is cut otherwise, as XLA cuts
    6 heads on 4 devices in 2 where it has a projection's columns in 4, is taken for one that is not cut."""
    if mesh.empty or operand.sharding is None:
        return operand
    tiles = _internals.tiles(operand.sharding, len(operand.shape))
    entries = [()] * len(operand.shape) if tiles is None else _axes_along(mesh, *tiles)[:len(operand.shape)]
    return jax.ShapeDtypeStruct(operand.shape, operand.dtype, sharding=NamedSharding(mesh, spec(*entries)))


def _axes_along(mesh, dims, devices):
    """The mesh axes that cut each of the dims; none where it is not whole axes that do."""
    sizes = tuple(mesh.shape.values())
    place = np.empty((len(dims), mesh.size), np.int64)  # of each device along each dim
    place[:, devices] = np.indices(dims).reshape(len(dims), -1)
    coordinates, found = np.indices(sizes), []
    for tiles, along in zip(dims, place.reshape(len(dims), *sizes)):
        step = {name: along[tuple(int(other == name) for other in mesh.axis_names)] for name, size in mesh.shape.items()
                if size > 1}
        axes = tuple(sorted((name for name, by in step.items() if by > 0), key=lambda name: -step[name]))
        whole = sum((step[name] * coordinates[mesh.axis_names.index(name)] for name in axes), np.zeros(sizes, np.int64))
        found.append(axes if size_of(mesh, axes) == tiles and np.array_equal(whole, along) else ())
    return found


def spec_of(operand):
    """The mesh axes of an operand's dims, a tuple of names each."""
    spec = getattr(operand.sharding, "spec", None) or ()
    entries = [() if axes is None else axes if isinstance(axes, tuple) else (axes,) for axes in spec]
    return tuple(entries) + ((),) * (len(operand.shape) - len(entries))


def size_of(mesh, axes):
    """The number of devices along mesh axes."""
    size = 1
    for name in axes:
        size *= mesh.shape[name]
    return size


def divisible(mesh, axes, dim):
    """The axes if they cut a dim into equal parts, else none."""
    return axes if dim % size_of(mesh, axes) == 0 else ()


def spec(*entries):
    """A PartitionSpec of one tuple of axis names a dim."""
    return PartitionSpec(*((axes if len(axes) > 1 else axes[0]) if axes else None for axes in entries))
