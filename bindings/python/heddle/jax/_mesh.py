"""Ops under a mesh with explicit axes: each is a shard_map over the shardings that its operands' types declare."""

import jax
from jax.sharding import PartitionSpec

from heddle.jax import _compat


def explicit_mesh(operands):
    """The mesh whose explicit axes shard one of the operands; None if there is none."""
    if not hasattr(jax.sharding, "AxisType"):
        return None
    for x in operands:
        sharding = getattr(_compat.typeof(x), "sharding", None)
        if sharding is None or not any(axes is not None for axes in sharding.spec):
            continue
        mesh = sharding.mesh
        if any(kind == jax.sharding.AxisType.Explicit for kind in mesh.axis_types):
            return mesh
    return None


def declared(x):
    """The spec that an operand's type declares, an entry a dim."""
    spec = _compat.typeof(x).sharding.spec
    return tuple(spec) + (None,) * (x.ndim - len(spec))


def per_device(function, operands, specs, out_specs):
    """function on each device's part of the operands, resharded to `specs` first where they are otherwise.

    specs is an entry a dim for each operand; out_specs is a tree of PartitionSpecs.
    """
    specs = [PartitionSpec(*spec) for spec in specs]
    operands = [x if declared(x) == tuple(spec) else jax.sharding.reshard(x, spec) for x, spec in zip(operands, specs)]
    mesh = explicit_mesh(operands)
    axes = {name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind == jax.sharding.AxisType.Explicit}
    return _compat.shard_map(function, in_specs=tuple(specs), out_specs=out_specs, axis_names=axes)(*operands)
