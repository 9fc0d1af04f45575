"""What differs between the JAX versions that this package works with, under one name each."""

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from heddle.jax import _internals


def typeof(x):
    """The type of an array: shape, dtype and, where JAX has them, mesh axes."""
    return jax.typeof(x) if hasattr(jax, "typeof") else jax.core.get_aval(x)


def varying_axes(x):
    """The manual mesh axes over which an array (or its type) differs."""
    kind = x if isinstance(x, jax.core.ShapedArray) else typeof(x)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(manual, "varying", None) or getattr(kind, "vma", None) or ())


def _variation(axes):
    """The keyword by which an array's type says that it differs over these axes."""
    if not axes:
        return {}
    try:
        from jax.sharding import ManualAxisType
    except ImportError:
        return {"vma": frozenset(axes)}
    return {"manual_axis_type": ManualAxisType(varying=frozenset(axes))}


def shaped(shape, dtype, like=()):
    """The type of an array that differs over every manual axis that one of `like` does."""
    more = _variation(frozenset().union(*(varying_axes(x) for x in like)))
    meshes = [x.sharding.mesh for x in like if getattr(x, "sharding", None) is not None and not x.sharding.mesh.empty]
    if meshes:
        more["sharding"] = NamedSharding(meshes[0], PartitionSpec(*[None] * len(shape)))
    return jax.core.ShapedArray(shape, jax.numpy.dtype(dtype), **more)


def as_varying(x, axes):
    """x, said to differ over these manual axes too; the transpose is a sum over them."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(x)))
    if not missing:
        return x
    return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)


def all_varying(operands):
    """The operands, each said to differ over every manual axis that one of them does."""
    axes = frozenset().union(*(varying_axes(x) for x in operands))
    return [as_varying(x, axes) for x in operands]


def summed_like(gradient, primal):
    """A gradient summed over the manual axes that it differs over and its primal does not."""
    axes = tuple(sorted(varying_axes(gradient) - varying_axes(primal)))
    return lax.psum(gradient, axes) if axes else gradient


def axis_size(name):
    """The number of devices along a mesh axis, inside shard_map."""
    return lax.axis_size(name) if hasattr(lax, "axis_size") else lax.psum(1, name)


if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map


def declare(primitive):
    """Says that a primitive's lowering asks which devices it is for, as custom_partitioning's does, and that inside an
    older shard_map its results differ over the axes that its operands do."""
    _internals.needs_devices(primitive)
    if not hasattr(jax, "shard_map"):
        from jax.experimental import shard_map as rules

        rules.register_standard_check(primitive)
        rules.register_standard_rewrite(primitive)
