"""Meshes of the eight devices, in every JAX that is supported."""

import contextlib

import jax

HAS_EXPLICIT = hasattr(jax, "set_mesh")
MODES = ("auto", "manual", "explicit") if HAS_EXPLICIT else ("auto", "manual")

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from functools import partial

    from jax.experimental.shard_map import shard_map

    # Its check has no rules for checkpoint names and symbolic zeros.
    shard_map = partial(shard_map, check_rep=False)


def make_mesh(shape, names, explicit=False):
    """A mesh whose axes are explicit, or left to XLA."""
    if not hasattr(jax.sharding, "AxisType"):
        return jax.make_mesh(shape, names)
    kinds = jax.sharding.AxisType
    return jax.make_mesh(shape, names, axis_types=(kinds.Explicit if explicit else kinds.Auto,) * len(names))


def inside(mesh, explicit):
    """The context to trace in."""
    return jax.set_mesh(mesh) if explicit else contextlib.nullcontext()
