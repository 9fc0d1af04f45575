"""Derivatives of fused programs: a primitive linear in the tangents, whose transpose is a fused program again.

What a program is differentiated by is traced from the function itself, never from what it was rewritten to. The
transpose holds the program's forward as well as its backward, so that both are found and fused together; all it needs
to be kept is the program's arguments.
"""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from heddle.jax import _compat, _internals
from heddle.jax._fused_program import bind, fused_program, lower, parted

# Operands: the program's own, then a tangent for each that `wrt` numbers. Results: the tangents of its inexact results.
fused_tangents = Primitive("heddle_fused_tangents")
fused_tangents.multiple_results = True


def _inexact(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _of_some(program, wrt, values):
    """The program's inexact results as a function of the operands in `wrt`, the others as they are in `values`."""

    def function(*moving):
        filled = list(values)
        for i, x in zip(wrt, moving, strict=True):
            filled[i] = x
        return [x for x in program(*filled) if _inexact(x)]

    return function


def _tangents(program, wrt, *values):
    values, moved = values[:len(values) - len(wrt)], values[len(values) - len(wrt):]
    return jax.jvp(_of_some(program, wrt, values), [values[i] for i in wrt], list(moved))[1]


def _pulled_back(program, wrt, count, *values):
    values, cotangents = values[:count], values[count:]
    return list(jax.vjp(_of_some(program, wrt, values), *(values[i] for i in wrt))[1](list(cotangents)))


def _closed(function, values):
    """(function as a Program, the operands it has before its own)."""
    return parted(jax.make_jaxpr(function)(*values))


def _moving(tangents):
    return tuple(i for i, x in enumerate(tangents) if type(x) is not ad.Zero and x.dtype != jax.dtypes.float0)


def _bind_tangents(program, name, values, tangents):
    """A tangent for every result of the program."""
    wrt = _moving(tangents)
    avals = [variable.aval for variable in program.jaxpr.outvars]
    moved = iter(fused_tangents.bind(*values, *(tangents[i] for i in wrt), program=program, name=name, wrt=wrt))
    return [next(moved) if _inexact(aval) else ad.Zero(aval.to_tangent_aval()) for aval in avals]


def _differentiate(primals, tangents, *, program, name):
    results = fused_program.bind(*primals, program=program, name=name)
    return results, _bind_tangents(program, name, primals, tangents)


def _differentiate_tangents(primals, tangents, *, program, name, wrt):
    results = fused_tangents.bind(*primals, program=program, name=name, wrt=wrt)
    inner, constants = _closed(lambda *values: _tangents(program, wrt, *values), primals)
    still = [ad.Zero(_compat.typeof(x).to_tangent_aval()) for x in constants]
    return results, _bind_tangents(inner, name, [*constants, *primals], [*still, *tangents])


@fused_tangents.def_impl
def _run(*values, program, name, wrt):
    return _tangents(program, wrt, *values)


@fused_tangents.def_abstract_eval
def _shapes(*_, program, name, wrt):
    return [variable.aval for variable in program.jaxpr.outvars if _inexact(variable.aval)]


def _batch(values, dims, *, program, name, wrt):
    count = len(values) - len(wrt)
    size = next(x.shape[dim] for x, dim in zip(values, dims) if dim is not None)
    values, dims = list(values), list(dims)
    for pair in ((i, count + at) for at, i in enumerate(wrt)):  # an operand and its tangent are mapped together
        if any(dims[i] is not None for i in pair):
            for i in pair:
                values[i] = (jnp.broadcast_to(values[i], (size, *values[i].shape)) if dims[i] is None else
                             jnp.moveaxis(values[i], dims[i], 0))
                dims[i] = 0
    batched, constants = _closed(jax.vmap(program, in_axes=tuple(dims[:count]), out_axes=0), values[:count])
    wrt = tuple(i + len(constants) for i in wrt)
    results = fused_tangents.bind(*constants, *values, program=batched, name=name, wrt=wrt)
    return results, [0] * len(results)


def _transpose(cotangents, *operands, program, name, wrt):
    count = len(operands) - len(wrt)
    cotangents = [ad.instantiate_zeros(x) for x in cotangents]
    gradients = bind(lambda *values: _pulled_back(program, wrt, count, *values), [*operands[:count], *cotangents], name)
    return [None] * count + list(gradients)


def _lower(context, *operands, program, name, wrt):
    return lower(context, *operands, program=lambda *values: _tangents(program, wrt, *values), name=name)


_internals.define(fused_tangents, lower=_lower, batch=_batch)
ad.primitive_jvps[fused_program] = _differentiate
ad.primitive_jvps[fused_tangents] = _differentiate_tangents
ad.primitive_transposes[fused_tangents] = _transpose
