"""A whole program as one JAX primitive: lowered, it is made an HLO module of its own, rewritten and put back."""

import warnings

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive

from heddle import _library
from heddle._module import fuse_module
from heddle.jax import _internals
from heddle.jax._faults import tell

DEVICES = {"cpu": "cpu", "cuda": "cuda"}  # JAX's names of platforms -> the library's of devices

fused_program = Primitive("heddle_fused_program")
fused_program.multiple_results = True


def bind(flat, values, name):
    """The primitive over a function of a flat list of arrays to one."""
    if any(map(_internals.varies_over_mesh, values)):
        raise NotImplementedError(f"heddle.jax.fuse({name}) does not follow which mesh axes a value varies over: inside "
                                  "of jax.shard_map it needs jax.shard_map(..., check_vma=False).")
    closed = jax.make_jaxpr(flat)(*values)
    if any(_is_cut_over_devices(equation) for equation in _equations(closed.jaxpr)):
        raise NotImplementedError(f"heddle.jax.fuse({name}) works on the program of one device, and this one holds a "
                                  "jax.shard_map: put fuse inside, jax.shard_map(heddle.jax.fuse(f), ..., check_vma=False).")
    if exchange := next(filter(_mesh_axes, _equations(closed.jaxpr, lambda equation: not _binds_axes(equation))), None):
        axes = ", ".join(map(repr, _mesh_axes(exchange)))
        warnings.warn(f"heddle.jax.fuse: {name} works on the program of one device, and this one has a collective, "
                      f"{exchange.primitive.name} over the mesh axis {axes}; it runs as written. Put fuse around the attention "
                      "alone, and the collective outside of it.", stacklevel=4)
        return flat(*values)
    if closed.effects:
        warnings.warn(f"heddle.jax.fuse: {name} has side effects ({', '.join(sorted(map(str, closed.effects)))}), "
                      "which a fused program cannot carry; it runs as written.", stacklevel=4)
        return flat(*values)
    program, constants = parted(closed)
    return fused_program.bind(*constants, *values, program=program, name=name)


def _equations(jaxpr, descends=lambda equation: True):
    """Those of a jaxpr, and of the jaxprs that they hold, where it descends into them."""
    for equation in jaxpr.eqns:
        yield equation
        if not descends(equation):
            continue
        for inner in jax.tree_util.tree_leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, descends)


def _is_cut_over_devices(equation):
    return equation.primitive.name == "shard_map" and equation.params["mesh"].size > 1


def _binds_axes(equation):
    """Whether jaxprs that it holds may name axes of its own, as a shard_map's those of its mesh."""
    return equation.primitive.name in ("shard_map", "xla_pmap")


def _mesh_axes(equation):
    """The axes of a mesh around the program over which an equation is computed: by all devices along these together."""
    if _binds_axes(equation):
        return []
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    axes = axes if isinstance(axes, tuple) else (axes,)
    return [axis for axis in axes if isinstance(axis, str)]


def _is_jaxpr(value):
    return isinstance(value, Jaxpr | ClosedJaxpr)


class Program:
    """A jaxpr with its constants as leading arguments, but for numbers: those stand in the program, where the rewriter
    reads them (a fill of hidden scores, a scale). Equal to itself alone, as a parameter has to be."""

    def __init__(self, jaxpr, numbers):
        self.jaxpr, self._numbers = jaxpr, numbers

    def __call__(self, *values):
        values = iter(values)
        constants = [next(values) if number is None else number for number in self._numbers]
        return jax.core.eval_jaxpr(self.jaxpr, constants, *values)

    def __repr__(self):
        return f"<{len(self.jaxpr.eqns)} equations>"


def parted(closed):
    """(A closed jaxpr as a Program, the constants that it takes as arguments.)"""
    numbers = [_number(x) for x in closed.consts]
    return Program(closed.jaxpr, numbers), [x for x, number in zip(closed.consts, numbers) if number is None]


def _number(constant):
    """What a constant of one element is, if that is known; else None."""
    if isinstance(constant, jax.core.Tracer) or constant.size != 1 or not getattr(constant, "is_fully_addressable", True):
        return None
    if jax.dtypes.issubdtype(constant.dtype, jax.dtypes.extended):
        return None
    return np.asarray(constant)


@fused_program.def_impl
def _run(*values, program, name):
    return program(*values)


@fused_program.def_abstract_eval
def _shapes(*_, program, name):
    return [variable.aval for variable in program.jaxpr.outvars]


def _batch(values, dims, *, program, name):
    batched = jax.vmap(program, in_axes=tuple(dims), out_axes=0)
    results = bind(batched, values, name)
    return results, [0] * len(results)


def lower(context, *operands, program, name):
    platforms = _internals.lowering_platforms(context)
    if len(platforms) != 1 or platforms[0] not in DEVICES:
        raise NotImplementedError(
            f"heddle.jax.fuse({name}) is compiled for one platform, cpu or cuda, and not for {', '.join(platforms)}.")
    devices = _internals.devices_partitioned_over(context)
    if devices > 1:
        raise NotImplementedError(
            f"heddle.jax.fuse({name}) works on the program of one device, and this one is to be partitioned over "
            f"{devices}: use it inside of jax.shard_map, or heddle.jax.attention.")
    symbolic = sorted({str(dim) for aval in context.avals_in for dim in aval.shape if not isinstance(dim, int)})
    if symbolic:
        tell(f"heddle.jax.fuse({name})", f"its arguments have symbolic dims ({', '.join(symbolic)}), where attention is found and "
                                         "planned for sizes that are known: export it for those it is to have")
        return _internals.lowered_as_written(program, context, operands)
    try:
        results = _fused(context, operands, program, name, platforms[0])
    except Exception as error:  # what is wrong with the program itself is raised again below
        tell(f"heddle.jax.fuse({name})", error)
        results = None
    return _internals.lowered_as_written(program, context, operands) if results is None else results


def _fused(context, operands, program, name, platform):
    """The results of the rewritten program; None if nothing of it is fused."""
    serialized = _proto(program, context.avals_in, platform)
    fused, report = fuse_module(serialized, DEVICES[platform])
    if "failure" in report:
        tell(f"heddle.jax.fuse({name})", report["failure"])
    if fused is None:
        return None
    if b"_python_cpu_callback" in serialized or b"_python_gpu_callback" in serialized:
        warnings.warn(f"heddle.jax.fuse: {name} calls back into Python, which a fused program cannot carry; it runs as "
                      "written.", stacklevel=2)
        return None
    # The version is in the name, so that a compilation cache never serves what another one fused.
    symbol = f"heddle_{_library.identity()}_{name}"
    return _internals.inlined(context, _internals.stablehlo_of_proto(fused), symbol, operands)


_internals.define(fused_program, lower=lower, batch=_batch)


def _proto(function, avals, platform):
    """The serialized HLO of a function of flat arrays, as JAX hands it to XLA."""
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
             for aval in avals]
    traced = jax.jit(lambda *values: function(*values), keep_unused=True).trace(*specs)
    computation = traced.lower(lowering_platforms=(platform,)).compiler_ir("hlo")
    return computation.as_serialized_hlo_module_proto()
